"""How many threads a step uses on a CPU, learnt from the steps themselves. It changes no bits (the self-test checks
that).

On some machines a step of few rows is over before a second thread is awake; on others a second thread reads the
weights in half the time. It changes on one machine, too: threads meet at the end of each operation, so that whatever
holds up one of them holds up all. So each size of step (by powers of two of its rows) has its own number of threads,
which is compared with the other number now and then. The first guess is by how much a step multiplies: nothing is
measured at start, when a machine is often busier than later.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Sequence

import torch

from engine.device import all_threads

FEW_ROWS = 32
"""A step of up to so many rows counts as small by default."""
_SMALL_WORK = 1 << 26
"""Rows times elements of all weights: what one thread multiplies in one or two milliseconds. Below that, a second
thread gains little on an idle machine and loses much on a busy one."""
_FIRST, _LAST = 4, 512
"""Steps of a size before a trial, at first and at most. They double as long as trials confirm the choice."""
_HOPELESS = 1.25
"""A trial ends at the first step that takes this many times as long."""
_STEPS = 3
"""How many steps of a trial are compared with as many others. The first step of a trial wakes threads and is left
out."""
_TRIALS = 5
_GAIN = 0.95
"""A number of threads is taken if the median trial's steps take at most this share of the time of the others."""


class Choice:
    """Which of two numbers of threads is better for steps of one size: `best` so far, and the `other`."""

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
        """How many threads the next step, of so many rows, is to use."""
        if rows != self._rows:  # steps of other rows are not compared
            self._rows = rows
            self._took.clear()
            self._trial = None
        self._left -= 1
        if self._trial is None and self._left <= 0 and len(self._took) == _STEPS:
            self._trial = []
        return self.best if self._trial is None else self.other

    def took(self, seconds: float) -> None:
        """Note how long the step took that `next` was called for."""
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
    """How many threads steps use.

    At first `few` for steps of up to `few_rows` rows and `many` for others. `counts` are the numbers that may be used;
    steps are compared if there are two.
    """

    def __init__(self, few: int, many: int, counts: Sequence[int] = (), few_rows: int = FEW_ROWS) -> None:
        self.few = few
        self.many = many
        self.few_rows = few_rows
        self.counts = tuple(sorted({few, many, *counts}))
        self._choices: dict[int, Choice] = {}
        self._running: Choice | None = None

    @classmethod
    def guessed(cls, elements: int) -> Threads:
        """A first guess for a model whose weights have so many elements: one thread for steps that multiply little,
        all threads for others."""
        return cls(1, all_threads(), few_rows=_SMALL_WORK // max(1, elements))

    def copy(self) -> Threads:
        """The same, with nothing learnt."""
        return Threads(self.few, self.many, self.counts, self.few_rows)

    def fix(self, count: int) -> None:
        """Use so many threads for all steps from now on."""
        self.few = self.many = count
        self.counts = (count,)
        self._choices.clear()

    def use(self, rows: int) -> None:
        """Set the calling thread up for a step of so many rows, by what is known."""
        choice = self._choices.get(_size(rows))
        self.set(choice.best if choice is not None else self._first(rows))

    def begin(self, rows: int) -> None:
        """As `use`, for a step after which `ended` is called."""
        if len(self.counts) != 2:  # there is nothing to compare
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
        """Note how long the step took that `begin` was called for."""
        if self._running is not None:
            self._running.took(seconds)
            self._running = None

    def _first(self, rows: int) -> int:
        return self.few if rows <= self.few_rows else self.many

    def set(self, count: int) -> None:
        """Set the calling thread up for so many threads."""
        # The setting belongs to the calling thread, so torch is asked for it; nothing is remembered here.
        if torch.get_num_threads() != count:
            torch.set_num_threads(count)


def _size(rows: int) -> int:
    return max(0, rows - 1).bit_length()
