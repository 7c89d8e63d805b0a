"""How many blocks of KV fit into the memory that a replica has for them."""

from __future__ import annotations

from collections.abc import Sequence

import structlog
import torch

from engine.device import host_memory
from engine.errors import StartError
from engine.startup.options import ReplicaOptions
from prompt_cache.kv.block_keys import BLOCK_TOKENS
from protocol.replicas import LayerGroup

logger = structlog.get_logger("engine.startup.kv_size")

_CPU_BYTES = 1 << 30
_CPU_SHARE = 4
"""By default KV takes at most one part in so many of the host's memory."""
_GPU_SHARE = 0.85
_CACHED_SEQUENCE_BLOCKS = 32
"""Cached sequences are taken to be so long on average (2,048 tokens): a window group keeps what its window reaches."""


def block_counts(
    options: ReplicaOptions, groups: Sequence[LayerGroup], device: torch.device, context: int
) -> tuple[int, ...]:
    """How many blocks each layer group gets: of `options.kv_memory` bytes, or else of a share of the free memory.

    A group with a sliding window gets fewer than the others: what the windows of running requests need at once, and for
    cached sequences what their windows reach. Raises StartError if the memory does not hold one sequence of `context`
    tokens.
    """
    memory, least = options.kv_memory, 1
    if not memory:
        least = -(-context // BLOCK_TOKENS)
        if device.type == "cuda":
            memory = int(torch.cuda.mem_get_info(device)[0] * _GPU_SHARE)
        else:
            memory = min(_CPU_BYTES, host_memory() // _CPU_SHARE)

    def counts(blocks: int) -> tuple[int, ...]:
        return tuple(_group_blocks(group, blocks, options) for group in groups)

    def size(blocks: int) -> int:
        return sum(count * group.block_bytes for count, group in zip(counts(blocks), groups, strict=True))

    # The largest number that fits, by bisection: `size` never falls.
    low, high = 0, 1
    while size(high) <= memory:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if size(middle) <= memory else (low, middle)
    if low < least:
        raise StartError(f"kv_memory: {memory} bytes hold {low} blocks of {size(1)} bytes, at least {least} are needed")
    fitting = counts(low)
    logger.info("memory for KV", blocks=fitting, tokens=low * BLOCK_TOKENS, bytes=size(low))
    return fitting


def _group_blocks(group: LayerGroup, blocks: int, options: ReplicaOptions) -> int:
    """How many blocks this group gets where groups without a window get `blocks`."""
    if not group.window:
        return blocks
    reach = -(-group.window // BLOCK_TOKENS) + 1
    running = options.max_running * (reach + 1) + -(-options.token_budget // BLOCK_TOKENS)
    return min(blocks, max(running, blocks * reach // _CACHED_SEQUENCE_BLOCKS))


def host_block_counts(options: ReplicaOptions, groups: Sequence[LayerGroup], blocks: Sequence[int]) -> list[int]:
    """How many blocks of host memory each layer group gets, where the device has `blocks`; all 0 for none."""
    share = options.swap_share
    if options.dram_memory:
        share = options.dram_memory / sum(n * group.block_bytes for n, group in zip(blocks, groups, strict=True))
    return [int(count * share) for count in blocks]
