"""Computes a step on the device: copies and clears blocks, then runs its work. A request that fails, fails alone."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TypeVar

import structlog

from engine.execution.model_runner import ModelRunner, WorkOutcome
from engine.scheduling.step_costs import StepCosts
from engine.scheduling.step_work import Step, Work
from prompt_cache.kv.grouped_pool import Block

T = TypeVar("T")
logger = structlog.get_logger("engine.execution.executor")


class StepExecutor:
    """Runs steps on a runner, and tells `costs` what they took."""

    def __init__(self, runner: ModelRunner, costs: StepCosts) -> None:
        self.runner = runner
        self.costs = costs
        self.working: Sequence[Work] = ()
        """The work that is computed now; another thread may read it."""

    def prepare(self, step: Step) -> list[int]:
        """Copy blocks out, clear fresh blocks, copy blocks back: in this order, since they may be the same blocks.

        Returns which blocks of `step.back` came back damaged, by index.
        """
        if step.out:
            self._timed(self.runner.copy_out, step.out)
        self.runner.clear(step.fresh)
        return self._timed(self.runner.copy_back, step.back) if step.back else []

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

    def _timed(self, copy: Callable[[Sequence[tuple[Block, Block]]], T], pairs: Sequence[tuple[Block, Block]]) -> T:
        began = time.perf_counter()
        copied = copy(pairs)
        self.costs.observe_copies(len(pairs), (time.perf_counter() - began) * 1e6)
        return copied
