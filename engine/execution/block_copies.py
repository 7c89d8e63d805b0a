"""The copies of steps between the device and host memory: begun with a step, taken note of when they are done."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import ClassVar

from engine.execution.model_runner import ModelRunner
from engine.execution.stopwatch import Stopwatch
from engine.scheduling.step_work import Step, Work


class BlockCopies:
    """Copies that are done when `begin` returns.

    `observe`: called with a number of copied blocks and the µs that they took.
    """

    beside: ClassVar[bool] = False
    """Whether copies go on beside the steps, so that they cost them little."""

    def __init__(self, runner: ModelRunner, observe: Callable[[int, float], None]) -> None:
        self.runner = runner
        self.observe = observe
        self._done: deque[tuple[Step, list[int]]] = deque()

    @property
    def pending(self) -> bool:
        """Whether there are steps that `finished` has not returned."""
        return bool(self._done)

    def begin(self, step: Step) -> None:
        """Copy blocks out, clear fresh blocks, copy blocks back: in this order, since they may be the same blocks."""
        bad: list[int] = []
        if step.out:
            with Stopwatch(self.runner.device) as watch:
                self.runner.copy_out(step.out)
            self.observe(len(step.out), watch.microseconds())
        self.runner.clear(step.fresh)
        if step.back:
            with Stopwatch(self.runner.device) as watch:
                bad = self.runner.copy_back(step.back)
            self.observe(len(step.back), watch.microseconds())
        if step.copies:
            self._done.append((step, bad))

    def finished(self, *, wait: bool = False) -> list[tuple[Step, list[int]]]:
        """The steps whose copies are done, in order, each once; with those of `step.back` that came back damaged.

        `wait`: wait for the first that is not done, if there is any.
        """
        done = list(self._done)
        self._done.clear()
        return done

    def before(self, works: Sequence[Work]) -> None:
        """These works are about to be computed: what they write to must not be copied any more when they do."""
