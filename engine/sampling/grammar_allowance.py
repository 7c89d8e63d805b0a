"""Bounds the grammar work of one step over all its rows: a row for which there is no time left gets its token later.

So a grammar that is slow slows the outputs under it, and nobody else. A row that was put off draws the same token again
in the next step, so that what comes out does not depend on who else is in a step. Who used least goes first.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from engine.sampling.request_state import SamplingState

MASKS_S, SEARCHES_S = 0.02, 0.01
"""CPU time of a step for masks and for searches for ends. Masks of 64 ordinary rows take 6 ms."""


class StepAllowance:
    """CPU time for grammars, step by step, of the thread that calls."""

    def __init__(self) -> None:
        self._used: dict[str, float] = {}
        """Seconds that each flow of the last step used."""
        self._until = 0.0
        self._first = False

    def begin(self, rows: Sequence[SamplingState]) -> list[int]:
        """Begin a step with these rows; returns the places of those with a grammar, whose flow used least first."""
        places = [place for place, row in enumerate(rows) if row.guide is not None]
        flows = {rows[place].flow for place in places}
        # Who comes begins where the others are, and behind them, or it would go before them for long.
        least = min((self._used[flow] for flow in flows if flow in self._used), default=0.0)
        known = self._used.keys() & flows
        self._used = {flow: self._used.get(flow, least) for flow in flows}

        def rank(place: int) -> tuple[float, bool]:
            flow = rows[place].flow
            return self._used[flow], flow not in known

        return sorted(places, key=rank)

    def allow(self, seconds: float) -> None:
        """From now on there is so much time; for the first that asks there always is."""
        self._until = time.thread_time() + seconds
        self._first = True

    def has_time(self) -> bool:
        """Whether there is time left."""
        first, self._first = self._first, False
        return first or time.thread_time() < self._until

    def count(self, row: SamplingState) -> float:
        """Count for its flow what the row's grammar took since this was last asked; returns it, in seconds."""
        if row.guide is None:
            return 0.0
        took, row.grammar_s = row.guide.cpu_s - row.grammar_s, row.guide.cpu_s
        self._used[row.flow] = self._used.get(row.flow, 0.0) + took
        return took
