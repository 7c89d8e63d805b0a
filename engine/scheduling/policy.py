"""In which order waiting requests are admitted, and who gives way when memory runs out."""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from typing import Protocol

from engine.scheduling.request import Request


class Policy(Protocol):
    """The order of the queue. A preempted request is pushed again and keeps its place by its arrival."""

    def push(self, request: Request) -> None:
        """Put a request into the queue."""

    def peek(self) -> Request | None:
        """The request to admit next; None when nobody waits."""

    def pop(self) -> Request:
        """Take out the request that `peek` shows."""

    def remove(self, request: Request) -> None:
        """Take a waiting request out."""

    def __len__(self) -> int:
        """How many wait."""

    def waiting(self) -> Iterable[Request]:
        """All waiting requests, in no particular order."""

    def victim(self, candidates: Iterable[Request]) -> Request | None:
        """Who of these gives its memory back first; None if there are none."""


class FirstComeFirstServed:
    """By arrival; the youngest gives way first, and before all others one that is out of credit anyway."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, Request]] = []
        self._waiting: dict[int, Request] = {}

    def push(self, request: Request) -> None:
        self._waiting[request.arrival] = request
        heapq.heappush(self._heap, (request.arrival, request))

    def peek(self) -> Request | None:
        while self._heap and self._waiting.get(self._heap[0][0]) is not self._heap[0][1]:
            heapq.heappop(self._heap)
        return self._heap[0][1] if self._heap else None

    def pop(self) -> Request:
        request = self.peek()
        if request is None:
            raise IndexError("nobody waits")
        heapq.heappop(self._heap)
        del self._waiting[request.arrival]
        return request

    def remove(self, request: Request) -> None:
        # Its entry in the heap goes when it comes to the top.
        del self._waiting[request.arrival]

    def __len__(self) -> int:
        return len(self._waiting)

    def waiting(self) -> Iterable[Request]:
        return self._waiting.values()

    def victim(self, candidates: Iterable[Request]) -> Request | None:
        return max(candidates, key=lambda request: (request.paused, request.arrival), default=None)
