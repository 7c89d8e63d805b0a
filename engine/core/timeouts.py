"""When something is due for a request that nobody does anything for: its deadline, the end of its lane's patience."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TypeAlias

from engine.core.parent_request import ParentRequest
from engine.scheduling.lazy_heap import LazyHeap
from engine.scheduling.request import Request
from protocol.requests import Lane

Instant: TypeAlias = tuple[float, int, str]
"""(seconds since the Unix epoch, arrival, id) of a request that something is due for then."""


class RequestTimeouts:
    """Of `requests`, by id, as they come and go: who is not among them is forgotten.

    `patience`: how many seconds a request may wait in its lane; 0 or none for ever.
    """

    def __init__(self, requests: Mapping[str, ParentRequest], patience: Mapping[Lane, float]) -> None:
        self._requests = requests
        self._patience = patience
        self._deadlines: LazyHeap[Instant] = LazyHeap(self._is_current_deadline)
        self._queue_timeouts: LazyHeap[Instant] = LazyHeap(self._still_queued)
        """When a request may have waited too long."""

    def watch_deadline(self, request: Request) -> None:
        """It has come, or has another deadline now."""
        if request.deadline is not None:
            self._deadlines.push((request.deadline, request.arrival, request.id))

    def watch_queue_timeout(self, request: Request) -> None:
        """It has come, or into another lane."""
        until = self._queue_timeout_at(request)
        if until < math.inf:
            self._queue_timeouts.push((until, request.arrival, request.id))

    @property
    def next(self) -> float | None:
        """When something is due first."""
        firsts = self._deadlines.first(), self._queue_timeouts.first()
        return min((first[0] for first in firsts if first is not None), default=None)

    def __bool__(self) -> bool:
        return bool(self._deadlines or self._queue_timeouts)

    def over(self, now: float) -> Iterator[ParentRequest]:
        """Those whose deadline has come, each once; they are to be ended."""
        while (due := self._deadlines.first()) is not None and due[0] <= now:
            self._deadlines.pop()
            yield self._requests[due[2]]

    def queue_timeouts(self, now: float) -> Iterator[ParentRequest]:
        """Those that have waited for as long as their lane lets them, and got nothing; they are to be ended."""
        while (due := self._queue_timeouts.first()) is not None and due[0] <= now:
            self._queue_timeouts.pop()
            family = self._requests[due[2]]
            if now < self._queue_timeout_at(family.first):
                self.watch_queue_timeout(family.first)  # it came into another lane meanwhile
            else:
                yield family

    def _queue_timeout_at(self, request: Request) -> float:
        return request.arrived_at + (self._patience.get(request.lane, 0.0) or math.inf)

    def _is_current_deadline(self, instant: Instant) -> bool:
        """Whether it is still the deadline of a request."""
        deadline, arrival, id = instant
        family = self._requests.get(id)
        return family is not None and family.first.arrival == arrival and family.first.deadline == deadline

    def _still_queued(self, instant: Instant) -> bool:
        """Whether it is when a request that has not begun may have waited too long."""
        _, arrival, id = instant
        family = self._requests.get(id)
        return family is not None and family.first.arrival == arrival and not family.first.began
