"""Chooses what computes the steps: the fused kernels on a GPU for models that they fit, stock operations otherwise."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from engine.execution.cpu_threads import Threads
from engine.execution.model_runner import ModelRunner
from engine.execution.sizes import Sizes
from engine.kv_cache.memory import KvMemory
from engine.layers.linear import Tiling
from engine.models.decoder import Decoder
from engine.scheduling.step_costs import MeasuredCosts
from engine.startup.calibration import calibrate
from engine.startup.self_test import ensure_batch_invariance


def make_runner(
    model: Decoder, swap: Sequence[KvMemory], like: torch.Tensor, tiling: Tiling, sizes: Sizes
) -> ModelRunner:
    """The runner for `like`'s device, with memory for KV."""
    if like.device.type == "cuda":
        from engine.execution.cuda.start import cuda_runner  # noqa: PLC0415  # Triton, which a CPU does without

        fused = cuda_runner(model, swap, like, tiling, sizes)
        if fused is not None:
            return fused
    memories = [KvMemory(group, count, like) for group, count in zip(model.groups, sizes.blocks, strict=True)]
    runner = ModelRunner(model, memories, like.device, tiling, swap)
    if like.device.type == "cpu":
        runner.threads = Threads.guessed(tiling.elements)
    return runner


def make_ready(runner: ModelRunner, costs: MeasuredCosts, sizes: Sizes) -> None:
    """Test that a row's bits do not depend on its batch, and measure steps: before there are requests."""
    if runner.device.type == "cuda":
        from engine.execution.cuda.runner import CudaRunner  # noqa: PLC0415
        from engine.execution.cuda.start import make_ready as make_cuda_ready  # noqa: PLC0415

        if isinstance(runner, CudaRunner):
            make_cuda_ready(runner, costs)
            return
    ensure_batch_invariance(runner, sizes.budget, sizes.running, sizes.context)
    calibrate(costs, runner, sizes.budget, sizes.running)
