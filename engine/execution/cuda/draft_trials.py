"""Tests and measures steps that verify drafts, at start, by the graphs that will compute them."""

from __future__ import annotations

import time
from collections.abc import Mapping

import structlog
import torch

from engine.execution.cuda.probe import Probe
from engine.execution.cuda.runner import CudaRunner
from prompt_cache.kv.block_keys import BLOCK_TOKENS

logger = structlog.get_logger("engine.cuda")

_PROBE_TOKENS, _TIMED_TOKENS = 700, 1_100
"""A probe that is tested has keys of several splits, the last of which is not whole."""
_MOST_TIMED_ROWS = 512
_ROUNDS = 3


def drafts_keep_their_bits(runner: CudaRunner) -> bool:
    """Whether rows of one request have the logits that its tokens have in a prompt: at the ends of blocks and of splits
    of keys, alone and beside others, in steps of one request and of as many as there may be."""
    probe, rows = Probe(runner, _PROBE_TOKENS), 1 + runner.most_drafts
    with torch.inference_mode():
        whole = probe.prefill([0])
        edges = [BLOCK_TOKENS, *(bound for bound in runner.bounds if bound), probe.length]
        near = {edge + behind for edge in edges for behind in (0, 1, rows // 2, rows - 1)}
        ends = sorted(end for end in near if rows <= end <= probe.length)
        most = min(runner.pipeline.most_rows // rows, runner.sizes.running)
        # Every end alone, and all of them together, over and over.
        for group in [*([end] for end in ends), [ends[at % len(ends)] for at in range(most)]] if ends else []:
            logits = probe.verify(group, rows)
            for at, end in enumerate(group):
                expected = runner.fused.head(whole[end - rows : end])
                if not torch.equal(logits[at * rows : (at + 1) * rows], expected):
                    logger.warning(
                        "rows of one request depend on each other: nothing is drafted",
                        before=end, rows=rows, requests=len(group),
                    )  # fmt: skip
                    return False
    return True


def time_verification(runner: CudaRunner) -> Mapping[int, Mapping[int, float]]:
    """µs of steps with drafts, by KV of a row and by rows: as many as a graph computes, of requests with
    as many drafts as may be."""
    began = time.perf_counter()
    probe, most = Probe(runner, _TIMED_TOKENS), 1 + runner.most_drafts
    shortest = min(BLOCK_TOKENS, probe.length)
    lengths = sorted({shortest, probe.length // BLOCK_TOKENS * BLOCK_TOKENS or shortest})
    measured: dict[int, dict[int, float]] = {kv: {} for kv in lengths}
    with torch.inference_mode():
        for rows in (count for count in runner.steps.counts if count <= _MOST_TIMED_ROWS):
            each = next(each for each in range(min(rows, most), 0, -1) if rows % each == 0)
            for kv in lengths:
                measured[kv][rows] = max(1.0, probe.time_verify(rows // each, min(each, kv), kv, _ROUNDS))
    logger.info(
        "steps with drafts are measured",
        us={kv: {rows: round(took) for rows, took in times.items()} for kv, times in measured.items()},
        s=round(time.perf_counter() - began, 2),
    )
    return measured
