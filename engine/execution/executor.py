"""The only way from the core to the devices: a step goes in, what became of it comes out.

A step's copies begin first, and what is to be cleared is; then its work runs. A request that fails, fails alone. If the
device fails, no request did: then `DeviceFailed` ends the engine, and a new process serves them. Here the step is
computed in this process, by one runner. Several workers would each get the same steps, and answer with their part: the
core would not notice.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import structlog

from engine.execution.model_runner import BlockCopies, ModelRunner
from engine.scheduling.step_costs import StepCosts
from engine.scheduling.step_work import Work, WorkOutcome

logger = structlog.get_logger("engine.execution.executor")


class StepExecutor:
    """Runs steps on a runner, and tells `costs` what they took. `most_drafts`: how many a decode may have. `attention`:
    the libraries that compute it in place of our kernels."""

    def __init__(self, runner: ModelRunner, costs: StepCosts, attention: Sequence[str] = ()) -> None:
        self.runner = runner
        self.attention = tuple(attention)
        self.costs = costs
        self.working: Sequence[Work] = ()
        """The work that is computed now; another thread may read it."""
        self.vocabulary = runner.model.config.vocabulary
        self.block_bytes = sum(memory.group.block_bytes for memory in runner.memories)
        self.most_drafts = runner.most_drafts
        self.pipeline = runner.pipeline
        self.copies = self._make_copies()
        """The copies of steps, which may go on beside later steps; and the clearing of fresh blocks."""

    def call_while_computing(self, meanwhile: Callable[[Callable[[], bool]], None]) -> None:
        """`meanwhile` is called while a device computes a step, with what says whether that is done."""
        self.runner.meanwhile = meanwhile

    def idles_between_steps(self) -> bool:
        """Whether a device waits for the next step now."""
        return self.runner.idles_between_steps()

    def _make_copies(self) -> BlockCopies:
        if self.runner.device.type != "cuda" or not self.runner.dram:
            return BlockCopies(self.runner, self._observe_copies)
        from engine.execution.cuda.streamed_copies import StreamedCopies  # noqa: PLC0415  # Triton

        return StreamedCopies(self.runner, self._observe_copies)

    def _observe_copies(self, blocks: int, took: float) -> None:
        self.costs.observe_copies(blocks, took)

    def run(self, works: Sequence[Work]) -> list[WorkOutcome]:
        """The outcomes of these works. The outcome of a work that fails has its error; the others are computed all the
        same. Raises DeviceFailed."""
        self.working = works
        self.copies.before(works)
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
            self.runner.check_device()
            return None
        decodes = sum(work.count for work in works if work.count == 1 or work.drafts)
        prefill = sum(work.count for work in works) - decodes
        # The time of grammars is charged to their own requests, not to the cost of a step.
        took = time.perf_counter() - began - self.runner.grammar_wait_s(outcomes)
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
                self.runner.check_device()
                outcomes.append(WorkOutcome(error=error))
        return outcomes
