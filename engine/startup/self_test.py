"""The self-test at start: is a row bitwise the same in any batch, on this machine and at this model's shapes? (E1, C2)

It uses the operations that requests run through. A probe is computed alone and among neighbours, in one chunk and in
several, with few threads and with many; the hidden states after a layer of each kind are compared bitwise. So are
logits of the head, of few rows and of many.

On a GPU it tests the stock operations, beside more numbers of rows: the library has a kernel for each range of them.
There is nothing to fall back to. Where nothing holds, blocks are not published: a cached prefix would make other bits
than its computation (C2).

What held at an earlier start on the same machine, with the same model and sizes, is not tested again (`kept_trials`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import structlog
import torch

from engine.execution.model_runner import ModelRunner
from engine.layers.attention_plan import CUTS
from engine.layers.matmul_kernels import ROW_MULTIPLE
from engine.startup.dummy_batch import DummyBatch, DummyChunk
from engine.startup.kept_trials import KeptTrials
from prompt_cache.kv.block_keys import BLOCK_TOKENS

logger = structlog.get_logger("engine.startup.self_test")

_HEAD, _TAIL = 19, 2
"""Tokens of the probe that are computed as a chunk, and one by one."""
_HEAD_ROWS = 64
"""Rows of logits that are computed at once, for a large decode batch or a prompt's log probabilities."""


@dataclass(frozen=True)
class Fallback:
    """Slower ways to compute that may keep rows the same, beside what each matrix product chooses by itself."""

    least_rows: int = 1
    fused_attention: bool = True
    fixed_threads: bool = False
    tiles: bool = False

    def apply(self, runner: ModelRunner) -> None:
        """Have the runner compute like this, in addition to what it does already."""
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
"""In the order in which they are tried: the cheaper first, one change at a time."""


def ensure_batch_invariance(
    runner: ModelRunner,
    budget: int,
    max_running: int,
    context: int,
    *,
    digest: str = "",
    kept: KeptTrials | None = None,
) -> bool:
    """Run the self-test, and fall back step by step to slower ways until it holds. Logs and returns whether it holds.

    `budget` and `max_running` bound the tokens and requests of a step, `context` the tokens of a sequence. `kept`: what
    earlier starts of the model with this digest found on this machine's processor.
    """
    began = time.perf_counter()
    on_cpu = runner.device.type == "cpu"
    tiling, kept = runner.tiling, kept if kept is not None and on_cpu else KeptTrials()
    starts = _probe_starts(runner, context)

    def holds() -> bool:
        return _head_is_invariant(runner, max_running) and all(
            _layers_are_invariant(runner, budget, max_running, start, large) for start, large in starts.items()
        )

    tested = f"{digest} {budget} {max_running} {list(starts)} {_setup(runner)}"
    found = kept.fallback(tested)
    if found is not None and found < len(FALLBACKS):
        fallback, held = FALLBACKS[found], True
        fallback.apply(runner)
    else:
        fallback, held = _first_fallback(holds, runner, FALLBACKS if on_cpu else FALLBACKS[:1])
    if held:
        kept.keep(tested, FALLBACKS.index(fallback))
    details = {
        "least_rows": tiling.padding(1) + 1,
        "fused_attention": runner.fused_attention,
        "threads": runner.threads.counts,
        "known": found is not None,
        "device": runner.device.type,
        "s": round(time.perf_counter() - began, 2),
    }
    if not held:
        logger.warning(
            "kernels depend on the batch: outputs may differ in low bits, and no prefix is shared between requests",
            **details,
        )
    elif fallback.tiles:
        logger.warning("kernels depend on the number of rows: fixed row tiles are used, which is slower", **details)
    else:
        logger.info("output is independent of the batch", **details)
    return held


def _setup(runner: ModelRunner) -> tuple[object, ...]:
    """How the runner computes before any fallback: what each weight's trial has chosen, the attention, threads."""
    tiling = runner.tiling
    products = sorted(f"{type(product).__name__} {product.elements}" for product in tiling.products.values())
    return (
        *(tiling.row_multiple, tiling.row_tile, tiling.least, tiling.elements, *products),
        *(runner.fused_attention, runner.prefill_tile, runner.threads.counts),
    )


def _probe_starts(runner: ModelRunner, context: int) -> dict[int, bool]:
    """Positions at which the probe begins, and whether it is computed in the largest batches there: keys in two splits
    that are joined, and keys in one split, of each length. At most of them only the length of the keys is new."""
    cut = CUTS[runner.device.type]
    # The positions before the probe need a block of their own.
    longest = context if min(memory.data.shape[0] for memory in runner.memories) >= DummyBatch.BLOCKS else cut.step
    joined = cut.split + cut.step
    starts = (joined, *range(0, cut.split, cut.step))
    return {start: start in (0, joined) for start in starts if start + _HEAD + _TAIL <= longest}


def _first_fallback(
    holds: Callable[[], bool], runner: ModelRunner, fallbacks: Sequence[Fallback]
) -> tuple[Fallback, bool]:
    """The first of the fallbacks with which the test holds, and whether there is one."""
    initial = runner.tiling.row_multiple, runner.fused_attention, runner.threads
    tried = set()
    for fallback in fallbacks:
        runner.tiling.row_multiple, runner.fused_attention, runner.threads = initial
        runner.threads = runner.threads.copy()
        fallback.apply(runner)
        # Where the runner computes like this anyway, it was tried before.
        setup = runner.tiling.row_multiple, runner.fused_attention, runner.threads.counts, runner.tiling.row_tile
        if setup in tried:
            continue
        tried.add(setup)
        if holds():
            return fallback, True
    return fallback, False


def _head_is_invariant(runner: ModelRunner, max_running: int) -> bool:
    """Whether a row's logits are the same whatever rows are beside it."""
    threads, weight = runner.threads, runner.model.embedding.weight
    largest = max(max_running, _HEAD_ROWS)
    generator = torch.Generator().manual_seed(largest)
    x = torch.randn(largest, weight.shape[1], generator=generator).to(weight)
    threads.set(threads.counts[0])
    with torch.inference_mode():
        reference = _logits(runner, x)
        for count in threads.counts:
            threads.set(count)
            for rows in (1, 2, 3, ROW_MULTIPLE, _HEAD_ROWS):
                if not torch.equal(_logits(runner, x[-rows:]), reference[-rows:]):
                    return False
    return True


def _logits(runner: ModelRunner, x: torch.Tensor) -> torch.Tensor:
    rows = x.shape[0]
    return runner.model.head(x[[*range(rows), *[0] * runner.tiling.padding(rows)]])[:rows]


def _layers_are_invariant(runner: ModelRunner, budget: int, max_running: int, start: int, large: bool) -> bool:
    """Whether a probe that begins at `start` is the same alone and among neighbours, `large`: in large batches too."""
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
    # Neighbours that decode, and tokens of neighbours in chunks: from none up to the largest batches that will come.
    sizes = [(0, 0), (3, 40)]
    if large:
        sizes += [(0, 2), (1, 0), (min(7, max_running - 1), budget), (max_running - 1, budget)]
        if runner.device.type != "cpu":
            sizes += [(0, 1 << exponent) for exponent in range(3, budget.bit_length())]
    # The probe's last token once more, in the same step: decoded beside the others.
    last = DummyChunk(probe[-1:], start + len(probe) - 1, DummyBatch.BLOCK)
    for count in threads.counts:
        threads.set(count)
        for decodes, chunk in sizes:
            steps = dummy_batch.decodes(decodes)
            chunks = dummy_batch.chunks(min(chunk, budget - decodes - len(probe)))
            hidden = dummy_batch.compute([last, *steps, *chunks, whole])
            if not torch.equal(hidden[-_TAIL - 1 :], reference) or not torch.equal(hidden[:1], reference[-1:]):
                return False
        # Decoded without any chunk: alone, and beside as many as there may be.
        for decodes in {0, max_running - 1} if large else ():
            if not torch.equal(dummy_batch.compute([last, *dummy_batch.decodes(decodes)])[:1], reference[-1:]):
                return False
    return True


def verifies_exactly(runner: ModelRunner, context: int, rows: int) -> bool:
    """Whether so many rows of one request have the bits that each has alone: at the end of a block, and of a split of
    keys, where the rows of a step that verifies drafts lie beside those of plain decoding. Logs where they have not."""
    dummy_batch, threads = DummyBatch(runner), runner.threads
    ends = {end for end in (BLOCK_TOKENS, CUTS[runner.device.type].split) if rows <= end <= context}
    for end in sorted(ends):
        start, tokens = end - rows, dummy_batch.tokens(rows)
        threads.set(threads.counts[0])
        alone = [
            dummy_batch.compute([DummyChunk([token], start + at, DummyBatch.BLOCK)]) for at, token in enumerate(tokens)
        ]
        reference = torch.cat(alone)
        for count in threads.counts:
            threads.set(count)
            for neighbours in (0, 3):
                hidden = dummy_batch.compute(
                    [*dummy_batch.decodes(neighbours), DummyChunk(tokens, start, DummyBatch.BLOCK)]
                )
                if not torch.equal(hidden[-rows:], reference):
                    logger.warning(
                        "rows of one request depend on each other: nothing is drafted", before=end, rows=rows
                    )
                    return False
    return True
