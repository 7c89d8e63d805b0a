"""Computes a step on the device: copies and clears blocks, then runs its work. A request that fails, fails alone."""

from __future__ import annotations

import time
from collections.abc import Sequence

import structlog

from engine.execution.model_runner import ModelRunner, WorkOutcome
from engine.execution.stopwatch import Stopwatch
from engine.scheduling.step_costs import StepCosts
from engine.scheduling.step_work import Step, Work

logger = structlog.get_logger("engine.execution.executor")


class StepExecutor:
    """Runs steps on a runner, and tells `costs` what they took."""

    def __init__(self, runner: ModelRunner, costs: StepCosts) -> None:
        self.runner = runner
        self.costs = costs
        self.working: Sequence[Work] = ()
        """The work that is computed now; another thread may read it."""
        self._copying_out: tuple[int, Stopwatch] | None = None
        """Blocks that the step copies out, and what times it."""

    def prepare(self, step: Step) -> list[int]:
        """Copy blocks out, clear fresh blocks, copy blocks back: in this order, since they may be the same blocks.

        Returns which blocks of `step.back` came back damaged, by index.
        """
        if step.out:
            with Stopwatch(self.runner.device) as watch:
                self.runner.copy_out(step.out)
            self._copying_out = len(step.out), watch
        self.runner.clear(step.fresh)
        if not step.back:
            return []
        with Stopwatch(self.runner.device) as watch:
            bad = self.runner.copy_back(step.back)
        self.costs.observe_copies(len(step.back), watch.microseconds())
        return bad

    def finish_copies(self) -> None:
        """Wait until what `prepare` copied out is in host memory. A GPU may be behind: the step's tokens may be older.

        From then on others may read those blocks, fill them or clear them.
        """
        if self._copying_out is not None:
            blocks, watch = self._copying_out
            self._copying_out = None
            self.costs.observe_copies(blocks, watch.microseconds())

    def run(self, works: Sequence[Work]) -> list[WorkOutcome]:
        """The outcomes of these works. The outcome of a work that fails has its error; the others are computed all the
        same."""
        self.working = works
        try:
            outcomes = self._together(works)
            # Outside the handler of the error, which keeps alive what the failed step had in memory.
            return self._each_alone(works) if outcomes is None else outcomes
        finally:
            self.working = ()

    def _together(self, works: Sequence[Work]) -> list[WorkOutcome] | None:
        """None if the step failed."""
        began = time.perf_counter()
        try:
            outcomes = self.runner.run(works)
        except Exception:
            logger.exception("a step failed; each of its requests runs alone", requests=len(works))
            return None
        decodes = sum(work.count == 1 for work in works)
        prefill = sum(work.count for work in works) - decodes
        # The time of grammars is charged to their own requests, not to the cost of a step.
        took = time.perf_counter() - began - sum(outcome.grammar_s for outcome in outcomes)
        self.costs.observe(prefill, decodes, took * 1e6)
        return outcomes

    def _each_alone(self, works: Sequence[Work]) -> list[WorkOutcome]:
        # What fails again, alone, is what made the step fail.
        outcomes = []
        for work in works:
            self.working = (work,)
            try:
                outcomes += self.runner.run([work])
            except Exception as error:
                outcomes.append(WorkOutcome(error=error))
        return outcomes
