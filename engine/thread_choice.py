"""Measures at start how many threads serve a small step and a large one best."""

from __future__ import annotations

import time
from collections.abc import Sequence

import structlog

from engine.rehearsal import Part, Rehearsal
from engine.runner import Runner
from engine.threads import FEW_ROWS, all_threads

logger = structlog.get_logger("engine.threads")

_ROUNDS = 5


def choose_threads(runner: Runner, budget: int) -> None:
    """Set the runner's threads to the faster of one and all, for a decode step and for a chunk. CPU only."""
    if runner.device.type != "cpu":
        return
    rehearsal = Rehearsal(runner)
    candidates = sorted({1, all_threads()})
    if len(candidates) > 1:
        runner.threads.few = _fastest(rehearsal, rehearsal.decodes(FEW_ROWS // 8), candidates, _ROUNDS)
        runner.threads.many = _fastest(rehearsal, rehearsal.chunks(min(budget, 4 * FEW_ROWS)), candidates, _ROUNDS)
    logger.info("threads chosen", small_steps=runner.threads.few, large_steps=runner.threads.many)


def _fastest(rehearsal: Rehearsal, parts: Sequence[Part], candidates: Sequence[int], rounds: int) -> int:
    best: dict[int, float] = {}
    for _ in range(rounds):
        # In turn, so that a busy moment of the machine does not fall on one of them alone.
        for count in candidates:
            rehearsal.runner.threads.set(count)
            rehearsal.compute(parts)
            start = time.perf_counter()
            rehearsal.compute(parts)
            best[count] = min(best.get(count, float("inf")), time.perf_counter() - start)
    return min(candidates, key=lambda count: best[count])
