"""The self-test at start: does a row keep its bits in any batch on this machine, at this model's shapes? (E1, C2)

It is made of the very operations that requests run through: a probe is computed alone and in company, in one chunk and
in several, with few threads and with many, and what comes out of the first layer is compared bitwise; so are the head's
logits, of few rows and of many. On a GPU nothing is promised yet, so nothing is tested.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import structlog
import torch

from engine.execution.model_runner import ModelRunner
from engine.layers.attention_plan import CUTS
from engine.layers.matmul_kernels import ROW_MULTIPLE
from engine.startup.dummy_batch import DummyBatch, DummyChunk

logger = structlog.get_logger("engine.startup.self_test")

_HEAD, _TAIL = 19, 2
"""Tokens of the probe that come in a chunk, and one by one."""
_STEP, _SPLIT = CUTS["cpu"].step, CUTS["cpu"].split
_STARTS = (_SPLIT + _STEP, *range(0, _SPLIT, _STEP))
"""Where the probe begins: with keys of two splits that are joined, and of one of every length."""
_MOST_BESIDE = 0, _SPLIT + _STEP
"""Where it is computed beside the largest batches, too: elsewhere only how long its keys are is new."""
_HEAD_ROWS = 64
"""Of so many rows logits are computed at once, in a large decode batch and for a prompt's log probabilities."""


@dataclass(frozen=True)
class Fallback:
    """What may be done so that rows keep their bits, beside what each product does by itself."""

    least_rows: int = 1
    fused_attention: bool = True
    fixed_threads: bool = False
    tiles: bool = False

    def apply(self, runner: ModelRunner) -> None:
        """Have the runner compute like that; what it does already is kept."""
        runner.tiling.row_multiple = max(runner.tiling.row_multiple, self.least_rows)
        runner.fused_attention = runner.fused_attention and self.fused_attention
        if self.fixed_threads:
            runner.threads.fix(runner.threads.many)
        if self.tiles:
            runner.tiling.row_tile = ROW_MULTIPLE
            runner.prefill_tile = 1


FALLBACKS = (
    Fallback(),
    Fallback(least_rows=2),
    Fallback(least_rows=ROW_MULTIPLE),
    Fallback(fused_attention=False),
    Fallback(ROW_MULTIPLE, fused_attention=False),
    Fallback(ROW_MULTIPLE, fixed_threads=True),
    Fallback(ROW_MULTIPLE, fused_attention=False, fixed_threads=True),
    Fallback(ROW_MULTIPLE, fused_attention=False, fixed_threads=True, tiles=True),
)
"""In the order in which they are tried: the cheaper first, and one thing at a time."""


def ensure_batch_invariance(runner: ModelRunner, budget: int, max_running: int, context: int) -> bool:
    """Test; where it fails, fall back step by step to slower ways. Logs which it is, and returns whether it holds.

    `budget` and `max_running` say how large chunks and decode batches get, `context` how long sequences do, in tokens.
    """
    if runner.device.type != "cpu":
        logger.info("invariance not tested", device=runner.device.type)
        return False
    began = time.perf_counter()
    tiling, threads = runner.tiling, runner.threads
    # What comes before the probe needs a block of its own.
    longest = context if min(memory.data.shape[0] for memory in runner.memories) >= DummyBatch.BLOCKS else _STEP
    starts = [start for start in _STARTS if start + _HEAD + _TAIL <= longest]

    def holds() -> bool:
        return _head_holds(runner, max_running) and all(_holds(runner, budget, max_running, start) for start in starts)

    fallback, held = _first_that(holds, runner)
    told = {
        "least_rows": tiling.padding(1) + 1,
        "fused_attention": runner.fused_attention,
        "threads": threads.counts,
        "s": round(time.perf_counter() - began, 2),
    }
    if not held:
        logger.error("kernels depend on the batch even with fixed row tiles: outputs may differ in low bits", **told)
    elif fallback.tiles:
        logger.warning("kernels depend on the number of rows: fixed row tiles are used, which is slower", **told)
    else:
        logger.info("output is independent of the batch", **told)
    return held


def _first_that(holds: Callable[[], bool], runner: ModelRunner) -> tuple[Fallback, bool]:
    """The first fallback with which it holds, and whether it does."""
    before = runner.tiling.row_multiple, runner.fused_attention, runner.threads
    tried = set()
    for fallback in FALLBACKS:
        runner.tiling.row_multiple, runner.fused_attention, runner.threads = before
        runner.threads = runner.threads.copy()
        fallback.apply(runner)
        # Where the type or the device has the runner compute like that anyway, it was tried before.
        now = runner.tiling.row_multiple, runner.fused_attention, runner.threads.counts, runner.tiling.row_tile
        if now in tried:
            continue
        tried.add(now)
        if holds():
            return fallback, True
    return fallback, False


def _head_holds(runner: ModelRunner, max_running: int) -> bool:
    """Whether a row's logits are the same whatever rows are beside it."""
    threads, weight = runner.threads, runner.model.embedding.weight
    most = max(max_running, _HEAD_ROWS)
    chance = torch.Generator().manual_seed(most)
    x = torch.randn(most, weight.shape[1], generator=chance).to(weight)
    threads.set(threads.counts[0])
    with torch.inference_mode():
        whole = _logits(runner, x)
        for count in threads.counts:
            threads.set(count)
            for rows in (1, 2, 3, ROW_MULTIPLE, _HEAD_ROWS):
                if not torch.equal(_logits(runner, x[-rows:]), whole[-rows:]):
                    return False
    return True


def _logits(runner: ModelRunner, x: torch.Tensor) -> torch.Tensor:
    rows = x.shape[0]
    return runner.model.head(x[[*range(rows), *[0] * runner.tiling.padding(rows)]])[:rows]


def _holds(runner: ModelRunner, budget: int, max_running: int, start: int) -> bool:
    """Whether a probe that begins at `start` is the same alone and in company."""
    dummy_batch, threads = DummyBatch(runner), runner.threads
    probe = dummy_batch.tokens(_HEAD + _TAIL)
    whole = DummyChunk(probe, start, DummyBatch.BLOCK)
    threads.set(threads.counts[0])
    rows = [dummy_batch.compute([DummyChunk(probe[:_HEAD], start, DummyBatch.BLOCK)])[-1:]]
    rows += [
        dummy_batch.compute([DummyChunk(probe[at : at + 1], start + at, DummyBatch.BLOCK)])
        for at in range(_HEAD, len(probe))
    ]
    reference = torch.cat(rows)
    # Beside decoding neighbours and chunks of a neighbour, from none up to the largest batches that will come.
    sizes = [(0, 0), (3, 40)]
    if start in _MOST_BESIDE:
        sizes += [(0, 2), (1, 0), (min(7, max_running - 1), budget), (max_running - 1, budget)]
    # The probe's last token once more, in the same step: decoded beside the others.
    last = DummyChunk(probe[-1:], start + len(probe) - 1, DummyBatch.BLOCK)
    for count in threads.counts:
        threads.set(count)
        for decodes, chunk in sizes:
            steps = dummy_batch.decodes(decodes)
            chunks = dummy_batch.chunks(min(chunk, budget - decodes - len(probe)))
            found = dummy_batch.compute([last, *steps, *chunks, whole])
            if not torch.equal(found[-_TAIL - 1 :], reference) or not torch.equal(found[:1], reference[-1:]):
                return False
        # And decoded without any chunk, alone and beside as many as there may be.
        for decodes in {0, max_running - 1} if start in _MOST_BESIDE else ():
            if not torch.equal(dummy_batch.compute([last, *dummy_batch.decodes(decodes)])[:1], reference[-1:]):
                return False
    return True
