"""What a step takes by its rows and by the KV that they read: measured at start, and followed while steps run.

The table says which rows ride free. Where padding, weights or launches decide what a step takes, it is flat for some
rows; where the arithmetic does, each row costs. It is monotone: more rows or more KV never take less.

Where plain steps are queued ahead (GPUs), the device goes on while the host hands out tokens. A step with drafts begins
when the host has done that: it takes so much more (`unqueued_us`), which is followed for itself.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from itertools import accumulate

_STEPS = 16
"""Steps over which a figure is followed: the first that run count for more, since a start may have been disturbed."""
_FIRST_UNQUEUED_US = 700.0
"""What a step takes that was not queued ahead beside one that was, until some have been seen."""
_LEAST_SEEN, _MOST_SEEN = 0.05, 2.0
"""A step that took more than MOST_SEEN times its figure was held up by something else; none is too fast by chance."""


class VerifyCosts:
    """µs of steps by tokens of KV that a row reads, and by rows."""

    def __init__(self, measured: Mapping[int, Mapping[int, float]], *, in_graphs: bool = False) -> None:
        """`measured`: KV of a row -> rows -> µs; the same rows for each KV. Made monotone from the largest down, as
        what holds a measurement up only ever adds to it. `in_graphs`: steps are padded to one of these rows each, and
        queued ahead where they have no drafts."""
        self._in_graphs = in_graphs
        self.kv = sorted(measured)
        self.rows = sorted(measured[self.kv[0]])
        self._table = [[measured[kv][rows] for rows in self.rows] for kv in self.kv]
        for times in self._table:
            times[:] = list(accumulate(reversed(times), min))[::-1]
        for less, more in reversed(list(zip(self._table, self._table[1:], strict=False))):
            less[:] = list(map(min, less, more))
        self._scale = 1.0
        """How many times as long as measured all steps take now: what else the machine does."""
        self._off = [1.0] * len(self.rows)
        """By rows, how many times as long as that these take."""
        self._seen = [0] * len(self.rows)
        self._unqueued_seen = [0] * len(self.rows)
        self._unqueued = [_FIRST_UNQUEUED_US if in_graphs else 0.0] * len(self.rows)
        """By rows, how many steps with drafts were seen, and µs that such steps take beside the table's; where none was
        seen, those of the next rows that were."""

    def step_us(self, rows: int, kv: float) -> float:
        """µs of a step of so many rows, whose requests have so many tokens of KV on average."""
        if len(self.kv) == 1:
            return self._at(0, rows)
        upper = min(max(1, bisect_left(self.kv, kv)), len(self.kv) - 1)
        low, high = self.kv[upper - 1], self.kv[upper]
        share = max(0.0, (kv - low) / (high - low))
        below, above = self._at(upper - 1, rows), self._at(upper, rows)
        return below + (above - below) * share

    def _at(self, index: int, rows: int) -> float:
        times, upper = self._table[index], bisect_left(self.rows, rows)
        if upper == len(self.rows):  # beyond what was measured each row costs as the last ones did
            return self._entry(times, -1) * rows / self.rows[-1]
        above = self._entry(times, upper)
        if self.rows[upper] == rows or not upper or self._in_graphs:
            return above
        low = self.rows[upper - 1]
        below = self._entry(times, upper - 1)
        return below + (above - below) * (rows - low) / (self.rows[upper] - low)

    def _entry(self, times: Sequence[float], at: int) -> float:
        return times[at] * self._off[at] * self._scale

    def verify_us(self, rows: int, kv: float) -> float:
        """µs of a step of so many rows some of which are drafts."""
        return self.step_us(rows, kv) + self.unqueued_us(rows)

    def unqueued_us(self, rows: int) -> float:
        """µs that a step of so many rows takes longer than the table says since it verifies drafts."""
        return self._unqueued[self._index(rows)]

    def sizes(self, rows: int, most: int) -> Sequence[int]:
        """How many drafts beside so many rows, up to `most`, are worth comparing: one more never costs anything
        between these."""
        if not self._in_graphs:
            return range(1, most + 1)
        return [size - rows for size in self.rows if rows < size < rows + most] + ([most] if most else [])

    def _index(self, rows: int) -> int:
        return min(bisect_left(self.rows, rows), len(self.rows) - 1)

    def observe_verified(self, rows: int, kv: float, took: float) -> None:
        """A step of decodes alone, some of them with drafts, took so many µs."""
        if not self._in_graphs:
            self.observe(rows, kv, took)
            return
        at, figure = self._index(rows), self.step_us(rows, kv)
        seen = self._unqueued_seen[at] = min(_STEPS, self._unqueued_seen[at] + 1)
        before = self._unqueued[at]
        beside = min(took, _MOST_SEEN * (figure + before)) - figure
        self._unqueued[at] = max(0.0, before + (beside - before) / seen)
        known = [other for other, times in enumerate(self._unqueued_seen) if times]
        for other, times in enumerate(self._unqueued_seen):
            if not times:
                self._unqueued[other] = self._unqueued[min(known, key=lambda near: (abs(near - other), near))]

    def observe(self, rows: int, kv: float, took: float) -> None:
        """A step of decodes alone, none of them with drafts, took so many µs."""
        seen = min(_MOST_SEEN, max(_LEAST_SEEN, took / self.step_us(rows, kv)))
        # Between two that were measured it is the larger: fewer rows are seen in plain steps.
        at = self._index(rows)
        self._seen[at] = min(_STEPS, self._seen[at] + 1)
        if self._seen[at] < _STEPS:  # what was measured at start is replaced by what is seen
            self._off[at] *= seen ** (1 / self._seen[at])
            return
        # Half of it is the machine's, half of it is these rows': where both go wrong alike, steps of other rows say so.
        share = seen ** (0.5 / _STEPS)
        self._off[at] *= share
        self._scale *= share

    def shown_unqueued(self) -> Mapping[int, float]:
        """Rows as padded -> µs that steps with drafts were seen to take beside the table's."""
        return {self.rows[at]: beside for at, beside in enumerate(self._unqueued) if self._unqueued_seen[at]}

    def shown(self) -> Mapping[int, Sequence[tuple[int, float]]]:
        """KV -> (rows, µs), as they are now."""
        return {kv: [(rows, self._at(at, rows)) for rows in self.rows] for at, kv in enumerate(self.kv)}


def expected_tokens(chance: float, drafts: int) -> float:
    """Tokens that a request gets by a step that verifies so many drafts, each right with this chance."""
    return float(drafts + 1) if chance >= 1 else (1 - chance ** (drafts + 1)) / (1 - chance)


def break_even(costs: VerifyCosts, requests: int, drafts: int, kv: int) -> float | None:
    """The least chance of a draft to be right with which so many drafts for each of so many requests pay; None if even
    certain ones do not."""
    dearer = costs.verify_us(requests * (1 + drafts), kv) / costs.step_us(requests, kv)
    percent = next((at for at in range(101) if expected_tokens(at / 100, drafts) >= dearer), None)
    return None if percent is None else percent / 100
