"""The served model's hidden states that a head has not used yet, by request.

A step hands back the states of all its rows. The head's entry of the token at a position is made from that token and
the state of the one before, so a state waits until the next token is known. Where a step computes positions again, the
latest states count: those of drafts that were refused lie behind the request's tokens, and are overwritten.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import torch

from engine.scheduling.request import Request
from engine.scheduling.step_work import Work


class HiddenRows:
    """At most `most` rows of all requests together: whoever was computed longest ago loses its own first."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._held = 0
        self._rows: OrderedDict[int, tuple[Request, int, torch.Tensor]] = OrderedDict()
        """arrival -> the request, the position of its first row, and the rows [positions, state size]"""

    def __len__(self) -> int:
        return self._held

    def enter(self, works: Sequence[Work], states: torch.Tensor) -> None:
        """The states of a step's rows, those of one work after those of another."""
        first = 0
        for work in works:
            if work.request.speculates:
                self._append(work.request, work.start, states[first : first + work.count])
            first += work.count
        while self._held > self._most and len(self._rows) > 1:
            self.drop(next(iter(self._rows.values()))[0])

    def _append(self, request: Request, start: int, rows: torch.Tensor) -> None:
        _, begin, before = self._rows.pop(request.arrival, (request, start, rows[:0]))
        self._held -= len(before)
        if begin <= start <= begin + len(before):
            rows = torch.cat([before[: start - begin], rows])
        else:
            begin = start
        unkept = max(0, len(rows) - self._most)
        self._rows[request.arrival] = request, begin + unkept, rows[unkept:]
        self._held += len(rows) - unkept

    def take(self, request: Request, end: int) -> tuple[int, torch.Tensor]:
        """Take the request's states of positions before `end`: where they begin, and the rows. Those behind are of
        drafts that were refused."""
        taken = self._rows.pop(request.arrival, None)
        if taken is None:
            return end, torch.empty(0)
        _, begin, rows = taken
        self._held -= len(rows)
        return begin, rows[: max(0, end - begin)]

    def waiting(self) -> list[tuple[Request, int]]:
        """The requests that have states here, and how many."""
        return [(request, len(rows)) for request, _, rows in self._rows.values()]

    def clear(self) -> None:
        """Drop all rows."""
        self._rows.clear()
        self._held = 0

    def drop(self, request: Request) -> None:
        """The request needs no drafts any more."""
        self.take(request, 0)
