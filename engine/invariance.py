"""The self-test at start: does a row keep its bits in any batch on this machine, at this model's shapes? (E1, C2)

It is made of the very operations that requests run through: a probe is computed alone and in company, in one chunk and
in several, with few threads and with many, and its logits are compared bitwise. On a GPU nothing is promised yet, so
nothing is tested.
"""

from __future__ import annotations

import structlog
import torch

from engine.layers.linear import ROW_MULTIPLE
from engine.rehearsal import Part, Rehearsal
from engine.runner import Runner

logger = structlog.get_logger("engine.invariance")

_HEAD, _TAIL = 19, 4
"""Tokens of the probe that come in a chunk, and one by one."""


def ensure_invariance(runner: Runner, budget: int, max_running: int) -> bool:
    """Test; where it fails, fall back step by step to slower ways. Logs which it is, and returns whether it holds.

    `budget` and `max_running` say how large chunks and decode batches get.
    """
    if runner.device.type != "cpu":
        logger.info("invariance not tested", device=runner.device.type)
        return False
    tiling, threads = runner.tiling, runner.threads
    if _holds(runner, budget, max_running):
        logger.info("output is independent of the batch", row_multiple=tiling.row_multiple)
        return True
    threads.fix(threads.many)
    tiling.row_multiple = ROW_MULTIPLE
    if _holds(runner, budget, max_running):
        logger.info("output is independent of the batch", row_multiple=tiling.row_multiple, threads=threads.many)
        return True
    tiling.row_tile = ROW_MULTIPLE
    runner.prefill_tile = 1
    held = _holds(runner, budget, max_running)
    if held:
        logger.warning("kernels depend on the number of rows: fixed row tiles are used, which is slower")
    else:
        logger.error("kernels depend on the batch even with fixed row tiles: outputs may differ in low bits")
    return held


def _holds(runner: Runner, budget: int, max_running: int) -> bool:
    rehearsal, threads = Rehearsal(runner), runner.threads
    probe = rehearsal.tokens(_HEAD + _TAIL)
    whole = Part(probe, 0, Rehearsal.BLOCK)
    threads.set(threads.few)
    rows = [rehearsal.compute([Part(probe[:_HEAD], 0, Rehearsal.BLOCK)])[-1:]]
    rows += [rehearsal.compute([Part(probe[at : at + 1], at, Rehearsal.BLOCK)]) for at in range(_HEAD, len(probe))]
    reference = torch.cat(rows)
    # Beside decoding neighbours and chunks of a neighbour, from none up to the largest batches that will come.
    sizes = ((0, 0), (0, 2), (1, 0), (3, 40), (min(7, max_running - 1), budget), (max_running - 1, budget))
    for count in threads.counts:
        threads.set(count)
        for decodes, chunk in sizes:
            steps = rehearsal.decodes(decodes)
            chunks = rehearsal.chunks(min(chunk, budget - decodes - len(probe)))
            if not torch.equal(rehearsal.compute([*steps, *chunks, whole])[-_TAIL - 1 :], reference):
                return False
            last = Part(probe[-1:], len(probe) - 1, Rehearsal.BLOCK)
            if not torch.equal(rehearsal.compute([last, *steps, *chunks])[:1], reference[-1:]):
                return False
    return True
