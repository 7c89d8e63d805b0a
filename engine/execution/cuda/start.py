"""Makes a runner by the fused kernels, and makes it ready: tests it, captures its graphs, measures its steps."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence

import numpy as np
import structlog
import torch

from engine.execution.cuda.adapters import NO_SLOT, AdapterMemory
from engine.execution.cuda.draws import RowMasks, StepRows, compose, drawing_of
from engine.execution.cuda.experts import Ways, use_ways
from engine.execution.cuda.linears import use_library, use_stream
from engine.execution.cuda.model import unsupported
from engine.execution.cuda.probe import Probe
from engine.execution.cuda.runner import CudaRunner
from engine.execution.cuda.seen_tokens import SeenTokens
from engine.execution.cuda.slots import spare_blocks
from engine.execution.model_runner import Sizes
from engine.kernels.grammar_masks import words_of
from engine.kernels.host_words import to_host
from engine.kernels.uploads import Ints
from engine.kv_cache.memory import KvMemory
from engine.layers.linear import Tiling
from engine.models.decoder import Decoder
from engine.sampling.request_state import SamplingState
from engine.scheduling.step_costs import MeasuredCosts
from protocol.requests import Sampling

logger = structlog.get_logger("engine.cuda")

_PROBE_TOKENS = 700
"""A probe has keys of several splits, the last of which is not whole; behind a window, as far as a step reaches."""
_APART = 5
"""Rows of a decode step stand at so many positions."""
_ADAPTER_DEVIATION = 0.02


def cuda_runner(
    model: Decoder,
    swap: Sequence[KvMemory],
    like: torch.Tensor,
    tiling: Tiling,
    *,
    sizes: Sizes,
    adapters: AdapterMemory | None = None,
) -> CudaRunner | None:
    """A runner by the fused kernels, tested, with memory for KV, and for `adapters` if it is to compute any.

    None, with a word in the log, where they do not fit the model, cannot be run on the device, or give a row other bits
    in another batch. Raises DeviceFailed.
    """
    reason = unsupported(model, like.device)
    if reason is None:
        runner, reason = _tested_runner(model, swap, like, tiling, sizes=sizes, adapters=adapters)
        if runner is not None:
            return runner
        # Its memory is needed for what takes its place.
        gc.collect()
        if like.device.type == "cuda":
            torch.cuda.empty_cache()
    logger.warning("stock operations compute the steps, which is slower", reason=reason)
    return None


def _tested_runner(
    model: Decoder,
    swap: Sequence[KvMemory],
    like: torch.Tensor,
    tiling: Tiling,
    *,
    sizes: Sizes,
    adapters: AdapterMemory | None,
) -> tuple[CudaRunner | None, str]:
    """A runner, or why there is none."""
    more = spare_blocks(sizes.running)
    memories = [KvMemory(group, count + more, like) for group, count in zip(model.groups, sizes.blocks, strict=True)]
    runner = CudaRunner(model, memories, like.device, tiling, swap, sizes=sizes)
    runner.compute_adapters(adapters)
    try:
        with torch.inference_mode():
            to_host(runner.steps.tokens[:1])  # compiles it
            held = ensure_exact(runner)
            compile_draws(runner)
    except torch.OutOfMemoryError:
        raise  # others would take as much
    except Exception as error:
        logger.exception("the fused kernels cannot be run")
        runner.check_device()
        return None, f"{type(error).__name__}: {error}".partition("\n")[0]
    return (runner, "") if held else (None, "rows have other bits in other batches")


def ensure_exact(runner: CudaRunner) -> bool:
    """Use the library where it keeps a row's bits, capture the graphs, and test; without the library if it fails."""
    began = time.perf_counter()
    fused, sizes = runner.fused, runner.sizes
    counts: dict[str, int] = {}
    ways: dict[str, str] = {}
    streamed = False
    if runner.device.type == "cuda":
        found = use_library(fused.linears(), max(sizes.budget, sizes.running))
        found |= use_library([fused.head], sizes.running)
        streamed = use_stream([*fused.linears(), fused.head])
        ways = use_ways(fused.mixtures())
        counts = {f"{outputs}x{inputs}": len(at) for (outputs, inputs, *_), at in found.items()}
    tried_s = time.perf_counter() - began
    runner.steps.capture()
    captured_s = time.perf_counter() - began - tried_s
    held = rows_keep_their_bits(runner)
    if not held and counts:
        logger.error("products depend on the batch in the model: all are computed by one kernel")
        for product in (*fused.linears(), fused.head):
            product.library, product.streamed_rows = frozenset(), 0
        for mixture in fused.mixtures():
            for grouped in mixture.products():
                grouped.ways = Ways()
        runner.steps.forget()
        runner.steps.capture()
        held = rows_keep_their_bits(runner)
    told = {
        "library_counts": counts,
        "streamed": streamed,
        **({"experts": ways} if ways else {}),
        "tried_s": round(tried_s, 2),
        "captured_s": round(captured_s, 2),
        "s": round(time.perf_counter() - began, 2),
    }
    if held:
        logger.info("output is independent of the batch", **told)
    else:
        logger.error("the fused kernels depend on the batch", **told)
    if held and runner.adapter_memory is not None:
        _test_adapters(runner, runner.adapter_memory)
    return held


def _test_adapters(runner: CudaRunner, memory: AdapterMemory) -> None:
    """Compute no adapters if that does not keep the bits."""
    began = time.perf_counter()
    if adapters_keep_bits(runner, memory):
        took = round(time.perf_counter() - began, 2)
        logger.info("adapters are computed", slots=memory.count, rank=memory.rank, s=took)
        return
    logger.error("products with adapters depend on the batch: no adapters are computed")
    runner.compute_adapters(None)
    runner.steps.forget()
    runner.steps.capture()


def compile_draws(runner: CudaRunner) -> None:
    """Draw tokens in every way, so that no request finds a kernel that is still to be compiled."""
    began = time.perf_counter()
    limits = Sampling(1, top_k=2, top_p=0.5)
    changes = Sampling(1, top_k=2, top_p=0.5, frequency_penalty=1.0, logit_bias={0: 1.0})
    words = words_of(runner.fused.vocabulary)
    states = [SamplingState(sampling, [0], [0]) for sampling in (limits, changes)]
    drawings = [drawing_of(state.sampling, state) for state in states]
    place = np.zeros(1, np.int32)
    draws = compose(np.stack([one.parameters for one in drawings]), [1], drawings[1:], place, runner.upload)
    assert draws is not None
    seen = SeenTokens(1, runner.fused.vocabulary, runner.upload)
    seen.follow(place, np.ones(1, np.int64), states[1:])
    ones, numbers, zero, mask = runner.upload(
        [np.ones(2, np.int32), np.arange(2, dtype=np.int32), place, np.full((1, words), -1, np.int32)]
    )
    tokens, logits = torch.zeros_like(ones), torch.zeros_like(runner.steps.logits[:1]).repeat(2, 1)
    there = StepRows(ones, ones, ones, numbers, tokens, torch.zeros_like(ones))
    runner.steps.drawer(logits, draws, seen.counts, there, RowMasks(mask, zero, zero))
    tokens.tolist()
    logger.info("tokens can be drawn", s=round(time.perf_counter() - began, 2))


def adapters_keep_bits(runner: CudaRunner, memory: AdapterMemory) -> bool:
    """As `rows_keep_their_bits`, where some tokens are the base model's and others two made-up adapters'."""
    some, slots = min(2, memory.count), memory.slots
    slots.planes[:some].normal_(0.0, _ADAPTER_DEVIATION)
    slots.scales[:some] = 1.0
    slots.counts[0], slots.counts[1:some] = memory.planes, 1
    try:
        return rows_keep_their_bits(runner, lambda at: at // _APART % (some + 1) + NO_SLOT)
    finally:
        slots.counts.zero_()
        slots.planes[:some].zero_()


def rows_keep_their_bits(runner: CudaRunner, adapted: Callable[[Ints], Ints] | None = None) -> bool:
    """Whether tokens of a sequence have the same logits in one pass, in several, and decoded in every size of step.

    `adapted`: the slots of their adapters, by positions.
    """
    beyond = max(runner.steps.windows) + _PROBE_TOKENS
    length = max(_PROBE_TOKENS, min(beyond, runner.sizes.budget))
    probe = Probe(runner, length)
    probe.adapted = None if adapted is None else adapted(np.arange(length, dtype=np.int32))
    whole = probe.prefill([0])
    last = probe.length
    for cuts in ([0, last // 3], [0, last - 1], [0, 64, last // 2 + 1, last - 2]):
        if not torch.equal(probe.prefill([cut for cut in cuts if cut < last]), whole):
            return False
    for count in {1, min(last, runner.short) // 2 + 1, min(last, runner.short)}:
        if not torch.equal(probe.in_graph(count), runner.fused.head(whole[-count:])):
            return False
    apart = min(_APART, last)
    expected = runner.fused.head(whole[-apart:]).flip(0)
    for count in runner.steps.counts:
        behind = np.arange(count) % apart
        logits = probe.decode((last - 1 - behind).astype(np.int32))
        if not torch.equal(logits, expected[torch.from_numpy(behind).to(runner.device)]):
            return False
    return True


def measure(costs: MeasuredCosts, runner: CudaRunner) -> None:
    """Tell `costs` what decode steps of each size and prompt tokens take."""
    with torch.inference_mode():
        _measure(costs, runner)


def _measure(costs: MeasuredCosts, runner: CudaRunner) -> None:
    began = time.perf_counter()
    probe, sizes = Probe(runner, _PROBE_TOKENS), runner.sizes
    between = [1 << row for row in range((sizes.running - 1).bit_length())]
    decodes = {rows: probe.time_decode(rows, 2) for rows in (*between, sizes.running)}
    tokens = max(1, sizes.budget - sizes.running)
    each = probe.time_prefill(tokens, 2) / tokens
    costs.calibrate(decodes, each)
    logger.info(
        "steps are measured",
        decode_us={rows: round(took) for rows, took in decodes.items()},
        prefill_token_us=round(each, 1),
        s=round(time.perf_counter() - began, 2),
    )
