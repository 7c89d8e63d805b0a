"""The served model's hidden states that a head has not used yet, by request.

A step hands back the states of all its rows. The head's entry of the token at a position is made from that token and
the state of the one before, so a state waits until the next token is known. Where a step computes positions again, the
latest states count: those of drafts that were refused lie behind the request's tokens, and are overwritten.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import torch

from engine.scheduling.step_work import Work


class HiddenRows:
    """At most `most` rows of all requests together: whoever was computed longest ago loses its own first."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._held = 0
        self._rows: OrderedDict[int, tuple[int, torch.Tensor]] = OrderedDict()
        """arrival -> position of the first row, and the rows [positions, state size]"""

    def __len__(self) -> int:
        return self._held

    def enter(self, works: Sequence[Work], states: torch.Tensor) -> None:
        """The states of a step's rows, those of one work after those of another."""
        first = 0
        for work in works:
            self._append(work.request.arrival, work.start, states[first : first + work.count])
            first += work.count
        while self._held > self._most and len(self._rows) > 1:
            self._forget(next(iter(self._rows)))

    def _append(self, arrival: int, start: int, rows: torch.Tensor) -> None:
        begin, before = self._rows.pop(arrival, (start, rows[:0]))
        self._held -= len(before)
        if not begin <= start <= begin + len(before):
            begin, before = start, rows[:0]
        joined = torch.cat([before[: start - begin], rows]) if start > begin else rows.clone()
        unkept = max(0, len(joined) - self._most)
        self._rows[arrival] = begin + unkept, joined[unkept:]
        self._held += len(joined) - unkept

    def take(self, arrival: int, end: int) -> tuple[int, torch.Tensor]:
        """Take the request's states of positions before `end`: that of the first, and the rows. Those behind are of
        drafts that were refused, and are dropped."""
        begin, rows = self._rows.pop(arrival, (end, None))
        if rows is None:
            return end, torch.empty(0)
        self._held -= len(rows)
        return begin, rows[: max(0, end - begin)]

    def span(self, arrival: int) -> tuple[int, int]:
        """The first position with a state, and the one behind the last."""
        begin, rows = self._rows.get(arrival, (0, None))
        return begin, begin + (0 if rows is None else len(rows))

    def arrivals(self) -> list[int]:
        """Which requests have states here."""
        return list(self._rows)

    def _forget(self, arrival: int) -> None:
        self._held -= len(self._rows.pop(arrival)[1])

    def drop(self, arrival: int) -> None:
        """The request needs no drafts any more."""
        if arrival in self._rows:
            self._forget(arrival)
