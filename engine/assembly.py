"""Puts an engine together from a model folder: device, type, weights, memory, self-test."""

from __future__ import annotations

import os
import tomllib
from dataclasses import dataclass
from pathlib import Path

import structlog
import torch

from engine.engine import Engine, EngineLimits
from engine.errors import ModelError, StartError
from engine.invariance import ensure_invariance
from engine.kv_memory import KvMemory, layer_group
from engine.layers.linear import Tiling
from engine.models.config import read_config
from engine.models.registry import load_model
from engine.options import ReplicaOptions
from engine.protocol import Capacity, LayerGroup, Layout, ServedModel
from engine.runner import Runner
from prompt_cache.blocks import BlockPool
from prompt_cache.keys import BLOCK_TOKENS
from prompt_cache.model_digest import model_digest, text_digest

logger = structlog.get_logger("engine.assembly")

_CPU_MEMORY = 1 << 30
_SHARE_OF_RAM = 4
_SHARE_OF_GPU = 0.85


@dataclass(frozen=True)
class Assembled:
    """An engine and what it says of itself in `Hello`."""

    engine: Engine
    model: ServedModel
    layout: Layout
    capacity: Capacity


def served_name(folder: Path) -> str:
    """The name in the folder's `turnpike.toml`, else the folder's own. Raises ModelError."""
    path = folder / "turnpike.toml"
    try:
        name = tomllib.loads(path.read_text()).get("name") if path.is_file() else None
    except (OSError, ValueError) as error:
        raise ModelError(f"{path}: cannot be read: {error}") from error
    return name if isinstance(name, str) and name else folder.resolve().name


def assemble(options: ReplicaOptions) -> Assembled:
    """Load the model and test the machine's kernels. Raises ModelError or StartError."""
    device = _device(options)
    dtype = _dtype(options, device)
    if device.type == "cpu":
        torch.set_num_threads(_threads())
    like = torch.zeros((), device=device, dtype=dtype)
    config = read_config(options.model)
    context = options.context or config.context_tokens
    if context > config.context_tokens:
        raise StartError(f"context: {context} tokens are more than the model's {config.context_tokens}")
    if options.token_budget < options.max_running + BLOCK_TOKENS:
        raise StartError(
            f"token_budget: {options.token_budget} is too small for max_running {options.max_running}:"
            f" at least {options.max_running + BLOCK_TOKENS}"
        )
    tiling = Tiling()
    model = load_model(options.model, config, like, tiling, context)
    group = layer_group(config.layers, config.kv_heads, config.head_dim, dtype)
    blocks = _blocks(options, group, device, context)
    memory = KvMemory(group, blocks, like)
    runner = Runner(model, memory, device)
    ensure_invariance(runner, tiling, options.token_budget)
    name = str(dtype).removeprefix("torch.")
    digest = model_digest(options.model, name)
    limits = EngineLimits(context, options.max_running, options.max_waiting, options.token_budget)
    return Assembled(
        Engine(runner, BlockPool(blocks), limits, digest),
        ServedModel(
            options.served or served_name(options.model), digest, text_digest(options.model), name, config.vocabulary
        ),
        Layout(BLOCK_TOKENS, (group,)),
        Capacity((blocks,), context, options.max_running),
    )


def _device(options: ReplicaOptions) -> torch.device:
    if options.device == "cpu":
        return torch.device("cpu")
    if torch.cuda.is_available():
        return torch.device("cuda")
    if options.device == "cuda":
        raise StartError("device: cuda was asked for, and no GPU is available")
    return torch.device("cpu")


def _dtype(options: ReplicaOptions, device: torch.device) -> torch.dtype:
    if options.dtype == "auto":
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    return torch.bfloat16 if options.dtype == "bfloat16" else torch.float32


def _threads() -> int:
    """The largest power of two of the cores that this process may use: work is then divided evenly."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return 1 << (cores.bit_length() - 1)


def _blocks(options: ReplicaOptions, group: LayerGroup, device: torch.device, context: int) -> int:
    """How many blocks there are: what the option says, else a share of what is free, at most what can be used."""
    if options.kv_memory:
        memory = options.kv_memory
    elif device.type == "cuda":
        memory = int(torch.cuda.mem_get_info(device)[0] * _SHARE_OF_GPU)
    else:
        memory = min(_CPU_MEMORY, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // _SHARE_OF_RAM)
    blocks = memory // group.block_bytes
    least = -(-context // BLOCK_TOKENS) if not options.kv_memory else 1
    if blocks < least:
        raise StartError(
            f"kv_memory: {memory} bytes hold {blocks} blocks of {group.block_bytes} bytes, at least {least} are needed"
        )
    logger.info("memory for KV", blocks=blocks, tokens=blocks * BLOCK_TOKENS, bytes=blocks * group.block_bytes)
    return blocks
