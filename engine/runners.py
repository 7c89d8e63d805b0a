"""Chooses what computes the steps: the fused kernels on a GPU for models that they fit, stock operations otherwise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from engine.calibration import calibrate
from engine.invariance import ensure_invariance
from engine.kv_memory import KvMemory
from engine.layers.linear import Tiling
from engine.models.decoder import Decoder
from engine.runner import Runner
from engine.scheduling.costs import MeasuredCosts
from engine.threads import Threads


@dataclass(frozen=True)
class Sizes:
    """`running` requests at most, `budget` tokens a step, `context` tokens; `blocks` of each layer group."""

    running: int
    budget: int
    context: int
    blocks: Sequence[int]


def make_runner(
    model: Decoder, swap: Sequence[KvMemory], like: torch.Tensor, tiling: Tiling, sizes: Sizes
) -> Runner:
    """The runner for `like`'s device, with memory for KV."""
    if like.device.type == "cuda":
        from engine.cuda.start import cuda_runner  # Triton, which a CPU does without

        fused = cuda_runner(model, swap, like, tiling, sizes)
        if fused is not None:
            return fused
    memories = [KvMemory(group, count, like) for group, count in zip(model.groups, sizes.blocks, strict=True)]
    runner = Runner(model, memories, like.device, tiling, swap)
    if like.device.type == "cpu":
        runner.threads = Threads.guessed(tiling.elements)
    return runner


def make_ready(runner: Runner, costs: MeasuredCosts, sizes: Sizes) -> None:
    """Test that a row's bits do not depend on its batch, and measure steps: before there are requests."""
    if runner.device.type == "cuda":
        from engine.cuda.runner import CudaRunner
        from engine.cuda.start import make_ready as make_cuda_ready

        if isinstance(runner, CudaRunner):
            make_cuda_ready(runner, costs)
            return
    ensure_invariance(runner, sizes.budget, sizes.running, sizes.context)
    calibrate(costs, runner, sizes.budget, sizes.running)
