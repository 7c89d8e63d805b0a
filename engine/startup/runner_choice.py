"""Chooses what computes the steps: the fused kernels on a GPU for models that they fit, stock operations otherwise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from engine.adapters.adapted_linear import targets_of
from engine.attention_backends.backend import AttentionBackend
from engine.errors import StartError
from engine.execution.cpu_threads import Threads
from engine.execution.model_runner import ModelRunner, Sizes
from engine.kv_cache.memory import KvMemory
from engine.layers.linear import Tiling
from engine.models.decoder import Decoder
from engine.scheduling.step_costs import MeasuredCosts
from engine.startup.calibration import calibrate
from engine.startup.kept_trials import KeptTrials
from engine.startup.options import ReplicaOptions
from engine.startup.self_test import ensure_batch_invariance
from prompt_cache.kv.block_keys import BLOCK_TOKENS

if TYPE_CHECKING:
    from engine.execution.cuda.adapters import AdapterMemory

_LARGE_GPU = 60 << 30
_RUNNING, _CHUNK = 64, 512
"""Requests in a step, and tokens of which the decodes are a part."""
_GPU_RUNNING, _GPU_CHUNK = {True: 512, False: 128}, {True: 8_192, False: 2_048}
"""The same on a large GPU and on others, by the fused kernels; tokens beside the decodes."""


def with_step_sizes(options: ReplicaOptions, model: Decoder, like: torch.Tensor) -> ReplicaOptions:
    """The options with as many requests and tokens in a step as suit the device, where they leave that open.

    Raises StartError where the tokens are too few for the requests.
    """
    running, budget = options.max_running, options.token_budget
    if _is_fused(model, like):
        large = torch.cuda.get_device_properties(like.device).total_memory >= _LARGE_GPU
        running = running or _within(_GPU_RUNNING[large], budget)
        budget = budget or _GPU_CHUNK[large] + running
    else:
        running = running or _within(_RUNNING, budget)
        budget = budget or max(_CHUNK, running + BLOCK_TOKENS)
    if budget < running + BLOCK_TOKENS:
        raise StartError(
            f"token_budget: {budget} is too small for max_running {running}: at least {running + BLOCK_TOKENS}"
        )
    return replace(options, max_running=running, token_budget=budget)


def _within(running: int, budget: int) -> int:
    """At most so many requests: those for which so many tokens in a step are enough, if they are given."""
    return max(1, min(running, budget - BLOCK_TOKENS)) if budget else running


def _is_fused(model: Decoder, like: torch.Tensor) -> bool:
    if like.device.type != "cuda":
        return False
    from engine.execution.cuda.model import unsupported  # noqa: PLC0415  # Triton, which a CPU does without

    return unsupported(model, like.device) is None


def adapter_memory(model: Decoder, like: torch.Tensor, slots: int, rank: int) -> AdapterMemory | None:
    """Memory of a GPU for adapters of up to `rank`; None where the fused kernels compute none."""
    if not _is_fused(model, like):
        return None
    from engine.execution.cuda.adapters import AdapterMemory  # noqa: PLC0415

    return AdapterMemory.fitting(targets_of(model), like, slots, rank)


def make_runner(
    model: Decoder,
    swap: Sequence[KvMemory],
    like: torch.Tensor,
    tiling: Tiling,
    *,
    sizes: Sizes,
    adapters: AdapterMemory | None = None,
) -> ModelRunner:
    """The runner for `like`'s device, with memory for KV. Fused kernels that do not stand their test are not taken.

    `adapters`: memory for those that the fused kernels compute.
    """
    if like.device.type == "cuda":
        from engine.execution.cuda.start import cuda_runner  # noqa: PLC0415  # Triton, which a CPU does without

        fused = cuda_runner(model, swap, like, tiling, sizes=sizes, adapters=adapters)
        if fused is not None:
            return fused
    memories = [KvMemory(group, count, like) for group, count in zip(model.groups, sizes.blocks, strict=True)]
    runner = ModelRunner(model, memories, like.device, tiling, swap)
    if like.device.type == "cpu":
        runner.threads = Threads.guessed(tiling.elements)
    return runner


def make_ready(
    runner: ModelRunner,
    costs: MeasuredCosts,
    sizes: Sizes,
    digest: str,
    kept: KeptTrials,
    *,
    fast: Sequence[AttentionBackend | None] = (),
) -> bool:
    """Test that a row's bits do not depend on its batch, and measure steps: before there are requests.

    Returns whether the test holds. `kept`: what earlier starts of the model with this digest have found. `fast`: the
    libraries that compute attention from then on, which the test is not of.
    """
    if runner.device.type == "cuda":
        from engine.execution.cuda.runner import CudaRunner  # noqa: PLC0415
        from engine.execution.cuda.start import measure  # noqa: PLC0415

        if isinstance(runner, CudaRunner):  # it was tested when it was made
            if fast:
                runner.prefill.attend_by(fast)
            measure(costs, runner)
            return True
    is_invariant = ensure_batch_invariance(runner, sizes.budget, sizes.running, sizes.context, digest=digest, kept=kept)
    if fast:
        runner.attend_by(fast)
    calibrate(costs, runner, sizes.budget, sizes.running)
    return is_invariant
