"""Measures at start how many threads serve a small step and a large one best: what steps begin with (`threads`)."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence

import structlog

from engine.rehearsal import Part, Rehearsal
from engine.runner import Runner
from engine.threads import FEW_ROWS, Threads, all_threads

logger = structlog.get_logger("engine.threads")

_ROUNDS = 5
_LIMIT_S = 1.0
"""No further round once all have taken so long: a large model's would hold up the start."""
_TALKED = 256
"""Tokens that a conversation has had before."""
_WORTH_IT_FEW = 0.8
"""What a small step may take at most of what it takes with fewer threads. Threads meet at the end of each operation:
let one be held up by anything else on the machine, and all are, so a gain of a few percent now is a loss of half some
day."""
_WORTH_IT_MANY = 0.95
"""And a large one, whose operations are long beside what holds a thread up."""


def choose_threads(runner: Runner, budget: int, context: int) -> None:
    """Set the runner's threads to the faster of one and all, for a decode step and for a chunk; both will be compared
    again. `budget` and `context`: tokens of the largest chunk and of the longest sequence. CPU only."""
    if runner.device.type != "cpu":
        return
    rehearsal = Rehearsal(runner)
    candidates = sorted({1, all_threads()})
    if len(candidates) > 1:
        few = _fastest(rehearsal, rehearsal.decodes(FEW_ROWS // 8), candidates, _WORTH_IT_FEW)
        chunks = rehearsal.chunks(min(budget, 4 * FEW_ROWS))
        many = _fastest(rehearsal, chunks, candidates, _WORTH_IT_MANY)
        few_rows = FEW_ROWS
        if few < many:
            # Decodes of a dozen conversations read much more than weights: that may be worth it before.
            talking = rehearsal.decodes(FEW_ROWS // 2, min(_TALKED, context - 1))
            few_rows = FEW_ROWS if _fastest(rehearsal, talking, candidates, _WORTH_IT_FEW) == few else FEW_ROWS // 4
        runner.threads = Threads(few, many, candidates, few_rows)
    threads = runner.threads
    logger.info("threads chosen", small_steps=threads.few, up_to_rows=threads.few_rows, large_steps=threads.many)


def _fastest(rehearsal: Rehearsal, parts: Sequence[Part], candidates: Sequence[int], worth_it: float) -> int:
    took: dict[int, list[float]] = {count: [] for count in candidates}
    began = time.perf_counter()
    for _ in range(_ROUNDS):
        # In turn, so that a busy moment of the machine does not fall on one of them alone.
        for count in candidates:
            rehearsal.runner.threads = Threads(count, count)
            rehearsal.time_step(parts)
            took[count].append(rehearsal.time_step(parts))
        if time.perf_counter() - began > _LIMIT_S:
            break
    best = candidates[0]
    for count in candidates[1:]:
        if statistics.median(took[count]) < worth_it * statistics.median(took[best]):
            best = count
    return best
