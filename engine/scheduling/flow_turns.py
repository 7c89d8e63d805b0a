"""Turns of requests at what comes a block at a time: each lane before the next, and within a lane flows in turn.

A flow has one turn, however many requests it has; they take it one after the other. Turns go on where they ended: where
there is room for one block at a time, it is not always the same flow's.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from itertools import count
from typing import TypeAlias

from engine.scheduling.request import Request
from protocol.requests import LANES

_Flow: TypeAlias = tuple[int, str]
"""A lane and a flow in it."""


class FlowTurns:
    """The turns at one thing that is shared."""

    def __init__(self) -> None:
        self._served: dict[_Flow, int] = {}
        """The flows that were there at the last call, and when each had its last turn."""
        self._turn = count(1)

    def take(self, requests: Iterable[Request], has_room: Callable[[], bool], one: Callable[[Request], bool]) -> None:
        """Call `one` with requests in turn while there is room. It returns whether the request used its turn; one that
        did not has no other in this call."""
        flows: dict[_Flow, deque[Request]] = {}
        for request in requests:
            flows.setdefault((LANES.index(request.lane), request.flow), deque()).append(request)
        self._served = {flow: self._served.get(flow, 0) for flow in flows}
        for lane in sorted({lane for lane, _ in flows}):
            order = deque(sorted((flow for flow in flows if flow[0] == lane), key=self._served.__getitem__))
            while order and has_room():
                flow = order.popleft()
                if self._take_one(flows[flow], one):
                    self._served[flow] = next(self._turn)
                    order.append(flow)

    @staticmethod
    def _take_one(requests: deque[Request], one: Callable[[Request], bool]) -> bool:
        while requests:
            request = requests.popleft()
            if one(request):
                requests.append(request)
                return True
        return False
