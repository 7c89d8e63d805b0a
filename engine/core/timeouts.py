"""The times at which requests are to be ended though nothing else happens: deadlines, and waits that were too long."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TypeAlias

from engine.core.parent_request import ParentRequest
from engine.scheduling.lazy_heap import LazyHeap
from engine.scheduling.request import Request
from protocol.requests import Lane

Instant: TypeAlias = tuple[float, int, str]
"""(seconds since the Unix epoch, arrival, id): what a request has to be looked at for, and when."""


class TimeoutWatch:
    """Watches `requests`, by id, which the engine adds to and removes from: what is removed is watched no longer.

    `queue_timeouts`: how many seconds a request may wait in its lane; 0 or none for no limit.
    """

    def __init__(self, requests: Mapping[str, ParentRequest], queue_timeouts: Mapping[Lane, float]) -> None:
        self._requests = requests
        self._timeout_by_lane = queue_timeouts
        self._deadlines: LazyHeap[Instant] = LazyHeap(self._still_running)
        self._queue_timeouts: LazyHeap[Instant] = LazyHeap(self._still_queued)

    def watch(self, request: Request) -> None:
        """Watch a request that has just arrived."""
        if request.deadline is not None:
            self._deadlines.push((request.deadline, request.arrival, request.id))
        if timeout := self._timeout_by_lane.get(request.lane):
            self._queue_timeouts.push((request.arrived_at + timeout, request.arrival, request.id))

    @property
    def next(self) -> float | None:
        """The earliest of these times, in seconds since the Unix epoch."""
        firsts = self._deadlines.first(), self._queue_timeouts.first()
        return min((first[0] for first in firsts if first is not None), default=None)

    def __bool__(self) -> bool:
        return bool(self._deadlines or self._queue_timeouts)

    def expired_deadlines(self, now: float) -> Iterator[ParentRequest]:
        """The requests whose deadline has passed, each once; the caller ends them."""
        return self._due(self._deadlines, now)

    def queue_timeouts(self, now: float) -> Iterator[ParentRequest]:
        """The requests that waited as long as their lane allows and never began, each once; the caller ends them."""
        return self._due(self._queue_timeouts, now)

    def _due(self, instants: LazyHeap[Instant], now: float) -> Iterator[ParentRequest]:
        while (first := instants.first()) is not None and first[0] <= now:
            instants.pop()
            yield self._requests[first[2]]

    def _still_running(self, instant: Instant) -> bool:
        _, arrival, id = instant
        parent = self._requests.get(id)
        # An id may be used again: the arrival says whether this is the same request.
        return parent is not None and parent.first.arrival == arrival

    def _still_queued(self, instant: Instant) -> bool:
        return self._still_running(instant) and not self._requests[instant[2]].first.began
