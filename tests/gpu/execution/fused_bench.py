"""Engines whose steps the fused kernels compute: on a GPU, or in Triton's interpreter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from engine.adapters.adapted_linear import targets_of
from engine.adapters.adapter_store import adapters_of
from engine.core.engine import Engine, EngineLimits
from engine.execution.cuda.adapters import AdapterMemory
from engine.execution.cuda.model import unsupported
from engine.execution.cuda.runner import CudaRunner
from engine.execution.disk_tier import DiskTier
from engine.execution.executor import StepExecutor
from engine.execution.model_runner import Sizes
from engine.kernels.attention_splits import split_bounds
from engine.kv_cache.memory import KvMemory, host_memories
from engine.layers import matmul_kernels
from engine.layers.linear import Tiling
from engine.models.registry import load_model, read_config
from engine.scheduling.step_costs import FixedCosts, Rates
from engine.speculation.drafter import Drafter
from engine.speculation.speculator import MOST_DRAFTS, Speculation
from prompt_cache.kv.grouped_pool import GroupedPool
from prompt_cache.tiers.record_store import RecordStore
from tests.engine.conftest import Bench, poisoning, write_model
from tests.engine.memory_store import MemoryStore
from tests.gpu.kernels.interpreter import DEVICE, INTERPRETED

SPARE = 2
STEPS = ((256, 64), (1 << 30, 128))
"""Short splits, so that short sequences have several."""


def small_model(folder: Path, layers: int = 1 if INTERPRETED else 2) -> Path:
    """A random Llama whose sizes the matrix instructions take. Each layer costs the interpreter as much again."""
    return write_model(
        folder,
        num_hidden_layers=layers,
        hidden_size=32,
        intermediate_size=48,
        head_dim=16,
        num_attention_heads=2,
        num_key_value_heads=1,
    )


def plain_tiling() -> Tiling:
    """A tiling that leaves weights as the fused kernels read them, on a CPU as well."""
    plain = matmul_kernels.NATIVE.plain
    return Tiling(1, kernels=replace(matmul_kernels.NATIVE, onednn=plain, transposed=plain))


def fused_bench(
    folder: Path,
    blocks: int = 24,
    budget: int = 256,
    running: int = 4,
    context: int = 256,
    swap: int = 0,
    store: RecordStore | MemoryStore | None = None,
    drafters: Sequence[Drafter] = (),
    adapters: int = 0,
) -> Bench:
    """A bench in fp32 whose memory is NaN at first, and where blocks are poisoned when they are free.

    `swap`: blocks of host memory; `store`: the disk tier's, which needs them. `adapters`: slots for adapters.
    """
    like = torch.zeros((), device=DEVICE)
    tiling = plain_tiling()
    model = load_model(folder, read_config(folder), like, tiling, context)
    assert unsupported(model, like.device) is None
    memories = [KvMemory(group, blocks + SPARE, like) for group in model.groups]
    for memory in memories:
        memory.data.fill_(torch.nan)
    sizes = Sizes(running, budget, context, [blocks] * len(memories), MOST_DRAFTS if drafters else 0)
    kept = host_memories(model.groups, [swap] * len(model.groups), like) if swap else []
    runner = CudaRunner(model, memories, like.device, tiling, kept, sizes=sizes, bounds=split_bounds(context, STEPS))
    adapted = None
    if adapters:
        runner.compute_adapters(AdapterMemory(targets_of(model), like, adapters, 64))
        assert runner.prepare_adapter is not None
        adapted = adapters_of(
            runner.prepare_adapter, "base", slots=adapters, most_bytes=1 << 30, run_beside=lambda load: load()
        )
    pool = GroupedPool([(blocks, group.window) for group in model.groups], on_free=poisoning(runner))
    limits = EngineLimits(context, max_running=running, budget=budget)
    dram = None
    if swap:
        dram = GroupedPool(
            [(swap, group.window) for group in model.groups], on_free=lambda group, block: kept[group].poison(block)
        )
    disk = None if store is None else DiskTier(store, kept, runner.checksums)
    executor = StepExecutor(runner, FixedCosts(Rates(batch=running)))
    tiers = () if disk is None else (disk,)
    bench = Bench(
        Engine(
            executor, pool, limits, "digest",
            clock=lambda: bench.now, dram=dram, tiers=tiers, speculation=Speculation(drafters), adapters=adapted,
        )
    )  # fmt: skip
    return bench
