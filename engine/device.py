"""Where the model runs, in which type, with how many threads and how much memory for KV."""

from __future__ import annotations

import os
from collections.abc import Sequence

# Threads that wait for each other in a matrix product spin by default. On a machine whose cores are shared (with the
# gateway, say) they then spin while the one they wait for is not running: twenty times slower. Read when torch loads.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import structlog
import torch

from engine.errors import StartError
from engine.options import ReplicaOptions
from engine.protocol import LayerGroup
from engine.threads import all_threads
from prompt_cache.keys import BLOCK_TOKENS

logger = structlog.get_logger("engine.device")

_CPU_MEMORY = 1 << 30
_SHARE_OF_RAM = 4
_SHARE_OF_GPU = 0.85


def prototype(options: ReplicaOptions) -> torch.Tensor:
    """An empty tensor on the device and of the type that everything is to be made like. Raises StartError."""
    device = _device(options)
    if device.type == "cpu":
        torch.set_num_threads(all_threads())
    dtype = {"float32": torch.float32, "bfloat16": torch.bfloat16}.get(options.dtype)
    if dtype is None:
        dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    return torch.empty(0, device=device, dtype=dtype)


def _device(options: ReplicaOptions) -> torch.device:
    if options.device == "cpu":
        return torch.device("cpu")
    if torch.cuda.is_available():
        return torch.device("cuda")
    if options.device == "cuda":
        raise StartError("device: cuda was asked for, and no GPU is available")
    return torch.device("cpu")


def block_count(options: ReplicaOptions, groups: Sequence[LayerGroup], device: torch.device, context: int) -> int:
    """How many blocks of every layer group fit into what the option says, else into a share of what is free.

    Raises StartError.
    """
    block_bytes = sum(group.block_bytes for group in groups)
    memory, least = options.kv_memory, 1
    if not memory:
        least = -(-context // BLOCK_TOKENS)
        if device.type == "cuda":
            memory = int(torch.cuda.mem_get_info(device)[0] * _SHARE_OF_GPU)
        else:
            memory = min(_CPU_MEMORY, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // _SHARE_OF_RAM)
    blocks = memory // block_bytes
    if blocks < least:
        raise StartError(
            f"kv_memory: {memory} bytes hold {blocks} blocks of {block_bytes} bytes, at least {least} are needed"
        )
    logger.info("memory for KV", blocks=blocks, tokens=blocks * BLOCK_TOKENS, bytes=blocks * block_bytes)
    return blocks
