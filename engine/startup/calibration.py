"""Measures at start what steps cost, so that the first requests are budgeted and charged as later ones are.

What a decoded token costs depends on how many decode together. A table that only fills while requests come knows one
size when the first crowd arrives: what it then charges would be several times too much, on this replica and not on
another, where a crowd was seen before.
"""

from __future__ import annotations

import time

import structlog

from engine.execution.model_runner import ModelRunner
from engine.scheduling.step_costs import MeasuredCosts
from engine.startup.dummy_batch import DummyBatch, DummyChunk

logger = structlog.get_logger("engine.startup.calibration")

_ROUNDS = 2
_LIMIT_S = 0.5
"""Once all have taken so long, only the ends of the table are measured, and once: a large model's steps would hold up
the start. What lies between is told from them, and learnt when it comes."""


def calibrate(costs: MeasuredCosts, runner: ModelRunner, budget: int, max_running: int) -> None:
    """Fill the table with decode steps of 1 up to `max_running` requests, and a chunk of at most `budget` tokens.

    Before there are requests: it writes to their memory.
    """
    began = time.perf_counter()
    dummy_batch = DummyBatch(runner)
    # The largest first: what a decoded token costs is what it costs when the replica is full.
    between = [1 << row for row in range(1, (max_running - 1).bit_length())]
    decodes: dict[int, float] = {}
    chunk = dummy_batch.chunks(min(budget, 256))
    until = began + _LIMIT_S
    each = _least(dummy_batch, chunk, until) / sum(len(part.tokens) for part in chunk)
    for size in dict.fromkeys([max_running, 1, *between]):
        if size in between and time.perf_counter() > until:
            break
        decodes[size] = _least(dummy_batch, dummy_batch.decodes(size), until)
    # A step is no dearer than a larger one: where it was, something else held it up.
    decodes = {size: min(took for other, took in decodes.items() if other >= size) for size in sorted(decodes)}
    costs.calibrate(decodes, each)
    logger.info(
        "steps are measured",
        decode_us={size: round(took) for size, took in decodes.items()},
        prefill_token_us=round(each, 1),
        s=round(time.perf_counter() - began, 2),
    )


def _least(dummy_batch: DummyBatch, parts: list[DummyChunk], until: float) -> float:
    """µs of a step, when nothing else on the machine held it up."""
    took = dummy_batch.time_step(parts)
    for _ in range(_ROUNDS - 1):
        if time.perf_counter() < until:
            took = min(took, dummy_batch.time_step(parts))
    return took
