"""The self-test at start: does a row keep its bits in any batch on this machine, at this model's shapes? (E1, C2)

It is made of the very operations that requests run through: a probe is computed alone and in company, in one chunk and
in several, with few threads and with many, and its logits are compared bitwise. On a GPU nothing is promised yet, so
nothing is tested.
"""

from __future__ import annotations

import structlog
import torch

from engine.layers.attention_plan import CUTS
from engine.layers.linear import ROW_MULTIPLE
from engine.rehearsal import Part, Rehearsal
from engine.runner import Runner

logger = structlog.get_logger("engine.invariance")

_HEAD, _TAIL = 19, 4
"""Tokens of the probe that come in a chunk, and one by one."""
_STEP, _SPLIT = CUTS["cpu"].step, CUTS["cpu"].split
_STARTS = (*range(0, _SPLIT, _STEP), _SPLIT + _STEP)
"""Where the probe begins: with keys of one split of every length, and of two that are joined."""
_MOST_BESIDE = 0, _SPLIT + _STEP
"""Where it is computed beside the largest batches, too: elsewhere only how long its keys are is new."""


def ensure_invariance(runner: Runner, budget: int, max_running: int, context: int) -> bool:
    """Test; where it fails, fall back step by step to slower ways. Logs which it is, and returns whether it holds.

    `budget` and `max_running` say how large chunks and decode batches get, `context` how long sequences do, in tokens.
    """
    if runner.device.type != "cpu":
        logger.info("invariance not tested", device=runner.device.type)
        return False
    tiling, threads = runner.tiling, runner.threads
    # What comes before the probe needs a block of its own.
    longest = context if min(memory.data.shape[0] for memory in runner.memories) >= Rehearsal.BLOCKS else _STEP
    starts = [start for start in _STARTS if start + _HEAD + _TAIL <= longest]

    def holds() -> bool:
        return all(_holds(runner, budget, max_running, start) for start in starts)

    if holds():
        logger.info("output is independent of the batch", row_multiple=tiling.row_multiple)
        return True
    threads.fix(threads.many)
    tiling.row_multiple = ROW_MULTIPLE
    runner.fused_attention = False
    if holds():
        logger.info("output is independent of the batch", row_multiple=tiling.row_multiple, threads=threads.many)
        return True
    tiling.row_tile = ROW_MULTIPLE
    runner.prefill_tile = 1
    held = holds()
    if held:
        logger.warning("kernels depend on the number of rows: fixed row tiles are used, which is slower")
    else:
        logger.error("kernels depend on the batch even with fixed row tiles: outputs may differ in low bits")
    return held


def _holds(runner: Runner, budget: int, max_running: int, start: int) -> bool:
    rehearsal, threads = Rehearsal(runner), runner.threads
    probe = rehearsal.tokens(_HEAD + _TAIL)
    whole = Part(probe, start, Rehearsal.BLOCK)
    threads.set(threads.few)
    rows = [rehearsal.compute([Part(probe[:_HEAD], start, Rehearsal.BLOCK)])[-1:]]
    rows += [
        rehearsal.compute([Part(probe[at : at + 1], start + at, Rehearsal.BLOCK)]) for at in range(_HEAD, len(probe))
    ]
    reference = torch.cat(rows)
    # Beside decoding neighbours and chunks of a neighbour, from none up to the largest batches that will come.
    sizes = [(0, 0), (0, 2), (1, 0), (3, 40)]
    if start in _MOST_BESIDE:
        sizes += [(min(7, max_running - 1), budget), (max_running - 1, budget)]
    for count in threads.counts:
        threads.set(count)
        for decodes, chunk in sizes:
            steps = rehearsal.decodes(decodes)
            chunks = rehearsal.chunks(min(chunk, budget - decodes - len(probe)))
            if not torch.equal(rehearsal.compute([*steps, *chunks, whole])[-_TAIL - 1 :], reference):
                return False
            last = Part(probe[-1:], start + len(probe) - 1, Rehearsal.BLOCK)
            if not torch.equal(rehearsal.compute([last, *steps, *chunks])[:1], reference[-1:]):
                return False
    return True
