"""How many threads a step uses, learnt from the steps themselves: they change no bits (`invariance` looks).

A step of few rows is over before a second thread is awake, on some machines; on others a second thread reads the
weights in half the time. And it is not always the same on one machine: threads meet at the end of each operation, so
where anything else holds one of them up, all are. So each size of step (by powers of two) has its own number, which is
compared with the others now and then. What a size begins with is guessed from how much it multiplies: nothing is
measured at start, when a machine is often busier than later.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Sequence

import torch

from engine.device import all_threads

FEW_ROWS = 32
"""Up to so many rows a step counts as small, unless it is told otherwise."""
_SMALL_WORK = 1 << 26
"""Rows times elements of all weights: what one thread multiplies in one or two milliseconds. Below that, a second
thread gains little even on an idle machine, and loses much on a busy one."""
_FIRST, _LAST = 4, 512
"""How many steps of a size pass before a trial: twice as many each time, while what they say stays the same."""
_HOPELESS = 1.25
"""A trial ends at its first step that takes so many times as long."""
_STEPS = 3
"""How many steps of a size are compared with as many; the first of a trial wakes threads up and is left out."""
_TRIALS = 5
_GAIN = 0.95
"""What steps may take at most of what they took, in the median trial, for their number of threads to be taken."""


class Choice:
    """Which of two numbers of threads serves steps of one size: `best` so far, and the `other`."""

    def __init__(self, best: int, other: int) -> None:
        self.best = best
        self.other = other
        self._rows = 0
        self._took: deque[float] = deque(maxlen=_STEPS)
        """Of the last steps with the best number and so many rows."""
        self._trial: list[float] | None = None
        self._ratios: deque[float] = deque(maxlen=_TRIALS)
        self._interval = _FIRST
        self._left = _FIRST

    def next(self, rows: int) -> int:
        """How many threads a step of so many rows is to use."""
        if rows != self._rows:  # steps of other rows are not compared
            self._rows = rows
            self._took.clear()
            self._trial = None
        self._left -= 1
        if self._trial is None and self._left <= 0 and len(self._took) == _STEPS:
            self._trial = []
        return self.best if self._trial is None else self.other

    def took(self, seconds: float) -> None:
        """The step that `next` was asked about took so long."""
        if self._trial is None:
            self._took.append(seconds)
            return
        self._trial.append(seconds)
        woken = self._trial[1:]
        if len(woken) == _STEPS or (woken and woken[-1] > _HOPELESS * statistics.median(self._took)):
            self._ratios.append(statistics.median(woken) / statistics.median(self._took))
            self._decide()

    def _decide(self) -> None:
        self._trial = None
        self._took.clear()
        enough = len(self._ratios) > _TRIALS // 2
        if enough and statistics.median(self._ratios) < _GAIN:
            self.best, self.other = self.other, self.best
            self._ratios.clear()
            self._interval = _FIRST
        elif self._ratios[-1] >= _GAIN:
            self._interval = min(2 * self._interval, _LAST)
        self._left = self._interval


class Threads:
    """Threads of steps with `few` rows, up to `few_rows`, and of those with `many`, to begin with. `counts` are those
    that may be used: with more than one of them, steps are compared."""

    def __init__(self, few: int, many: int, counts: Sequence[int] = (), few_rows: int = FEW_ROWS) -> None:
        self.few = few
        self.many = many
        self.few_rows = few_rows
        self.counts = tuple(sorted({few, many, *counts}))
        self._choices: dict[int, Choice] = {}
        self._running: Choice | None = None

    @classmethod
    def guessed(cls, elements: int) -> Threads:
        """For a model whose weights have so many elements, to begin with: one thread for steps that multiply little,
        all for others."""
        every = all_threads()
        return cls(1, every, few_rows=_SMALL_WORK // max(1, elements))

    def copy(self) -> Threads:
        """The same, with nothing learnt."""
        return Threads(self.few, self.many, self.counts, self.few_rows)

    def fix(self, count: int) -> None:
        """From now on all steps use so many."""
        self.few = self.many = count
        self.counts = (count,)
        self._choices.clear()

    def use(self, rows: int) -> None:
        """Set the calling thread up for a step of so many rows, as things are known."""
        choice = self._choices.get(_size(rows))
        self.set(choice.best if choice is not None else self._first(rows))

    def begin(self, rows: int) -> None:
        """The same for a step of which `ended` will be told how long it took."""
        if len(self.counts) != 2:  # there is one number and nothing to compare it with
            self.use(rows)
            return
        size = _size(rows)
        choice = self._choices.get(size)
        if choice is None:
            best = self._first(rows)
            choice = self._choices[size] = Choice(best, sum(self.counts) - best)
        self._running = choice
        self.set(choice.next(rows))

    def ended(self, seconds: float) -> None:
        """The step that was begun took so long."""
        if self._running is not None:
            self._running.took(seconds)
            self._running = None

    def _first(self, rows: int) -> int:
        return self.few if rows <= self.few_rows else self.many

    def set(self, count: int) -> None:
        """Set the calling thread up for so many threads."""
        # The setting belongs to the thread that calls, so what was set last is asked of torch and not remembered.
        if torch.get_num_threads() != count:
            torch.set_num_threads(count)


def _size(rows: int) -> int:
    return max(0, rows - 1).bit_length()
