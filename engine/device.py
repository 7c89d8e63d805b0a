"""Where the model runs, in which type, with how many threads and how much memory for KV."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Sequence

# Threads that wait for each other in a matrix product spin by default. On a machine whose cores are shared (with the
# gateway, say) they then spin while the one they wait for is not running: twenty times slower. Read when torch loads.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import structlog
import torch

from engine.errors import StartError
from engine.options import ReplicaOptions, Weights
from prompt_cache.kv.block_keys import BLOCK_TOKENS
from protocol.replicas import LayerGroup

logger = structlog.get_logger("engine.device")

_CPU_MEMORY = 1 << 30
_SHARE_OF_RAM = 4
_SHARE_OF_GPU = 0.85
_SHARE_FOR_WEIGHTS = 0.5
"""Weights are decoded on loading if they take no more of the memory than this."""
_CACHED_BLOCKS = 32
"""Cached sequences are taken to be so long on average (2,048 tokens): a group keeps what its window reaches."""


def all_threads() -> int:
    """The largest power of two of the cores that this process may use: work is then divided evenly."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return 1 << (cores.bit_length() - 1)


def empty_like_model(options: ReplicaOptions) -> torch.Tensor:
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


def should_keep_packed(weights: Weights, decoded_bytes: Callable[[], int], device: torch.device) -> bool:
    """Whether weights in few bits are kept like that; `decoded_bytes`: what they would take otherwise."""
    if weights != "auto":
        return weights == "packed"
    if device.type == "cuda":
        room = torch.cuda.mem_get_info(device)[0]
    else:
        room = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    packed = decoded_bytes() > room * _SHARE_FOR_WEIGHTS
    if packed:
        logger.info("weights in few bits are kept so", decoded_bytes=decoded_bytes(), room=room)
    return packed


def return_freed_memory() -> None:
    """Give what was freed back to the system. glibc keeps it, up to a tenth of what was loaded, for what comes next."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def block_counts(
    options: ReplicaOptions, groups: Sequence[LayerGroup], device: torch.device, context: int
) -> tuple[int, ...]:
    """How many blocks of each layer group fit into what the option says, else into a share of what is free.

    A group with a window has fewer: what running requests need at once, and of cached sequences what their windows
    reach. Raises StartError.
    """
    memory, least = options.kv_memory, 1
    if not memory:
        least = -(-context // BLOCK_TOKENS)
        if device.type == "cuda":
            memory = int(torch.cuda.mem_get_info(device)[0] * _SHARE_OF_GPU)
        else:
            memory = min(_CPU_MEMORY, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // _SHARE_OF_RAM)

    def counts(blocks: int) -> tuple[int, ...]:
        return tuple(_of_group(group, blocks, options) for group in groups)

    def size(blocks: int) -> int:
        return sum(count * group.block_bytes for count, group in zip(counts(blocks), groups, strict=True))

    # The largest number that fits; no group takes less for more.
    low, high = 0, 1
    while size(high) <= memory:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if size(middle) <= memory else (low, middle)
    if low < least:
        raise StartError(f"kv_memory: {memory} bytes hold {low} blocks of {size(1)} bytes, at least {least} are needed")
    found = counts(low)
    logger.info("memory for KV", blocks=found, tokens=low * BLOCK_TOKENS, bytes=size(low))
    return found


def _of_group(group: LayerGroup, blocks: int, options: ReplicaOptions) -> int:
    """How many blocks the group has where those without a window have `blocks`."""
    if not group.window:
        return blocks
    reach = -(-group.window // BLOCK_TOKENS) + 1
    running = options.max_running * (reach + 1) + -(-options.token_budget // BLOCK_TOKENS)
    return min(blocks, max(running, blocks * reach // _CACHED_BLOCKS))
