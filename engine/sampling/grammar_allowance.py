"""Bounds the CPU time that grammars take in one step. A row for which no time is left gets its token in a later step.

So a slow grammar slows its own outputs alone (E6). A row that was put off samples the same token in the next step, so
the output does not depend on its batch (E1). The flow that used least time goes first.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from engine.grammar.guide import Guide
from engine.sampling.request_state import SamplingState

MASKS_S, SEARCHES_S = 0.02, 0.01
"""Seconds of CPU time in a step for masks, and for closing searches. The masks of 64 ordinary rows take 6 ms."""


class StepAllowance:
    """The grammar time of the current step, measured by the CPU clock of the calling thread."""

    def __init__(self) -> None:
        self._used: dict[str, float] = {}
        """flow of the last step -> seconds that it used"""
        self._until = 0.0
        self._first = False

    def begin(self, rows: Sequence[SamplingState]) -> list[int]:
        """Begin a step; returns the indices of the rows with a grammar, in the order in which they get time."""
        guided = [index for index, row in enumerate(rows) if row.guide is not None]
        flows = {rows[index].flow for index in guided}
        # A new flow starts at the least of the others and behind it: from 0 it would go first for long.
        least = min((self._used[flow] for flow in flows if flow in self._used), default=0.0)
        known = self._used.keys() & flows
        self._used = {flow: self._used.get(flow, least) for flow in flows}
        return sorted(guided, key=lambda index: (self._used[rows[index].flow], rows[index].flow not in known))

    def grant(self, seconds: float) -> None:
        """Allow so many seconds from now on. The first row that asks always has time."""
        self._until = time.thread_time() + seconds
        self._first = True

    def has_time(self) -> bool:
        """Whether there is time left."""
        first, self._first = self._first, False
        return first or time.thread_time() < self._until

    def count(self, row: SamplingState, guide: Guide) -> float:
        """Count the seconds that the row's grammar took since the last call for its flow, and return them. `guide`: the
        row's, or the copy of it that went on."""
        took, row.grammar_s = guide.cpu_s - row.grammar_s, guide.cpu_s
        self._used[row.flow] = self._used.get(row.flow, 0.0) + took
        return took


class DraftAllowance(StepAllowance):
    """What the rows of drafts may take in the current step, in whatever order they come. A row for which there is no
    time ends its request's run."""

    def __init__(self) -> None:
        super().__init__()
        self._until = time.thread_time() + MASKS_S

    def begin(self, rows: Sequence[SamplingState]) -> list[int]:
        """The indices of the rows with a grammar."""
        return [index for index, row in enumerate(rows) if row.guide is not None]

    def grant(self, seconds: float) -> None:
        """All were granted their time at once."""
