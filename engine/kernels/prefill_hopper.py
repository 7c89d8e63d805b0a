"""Causal attention of prompt chunks on Hopper: `prefill_attention`, with the same bits, in CUDA C++.

`cuda/prefill_attention.cu` says how it works. `tests/gpu/kernels` compares both kernels bit by bit.
"""

from __future__ import annotations

from functools import cache

import structlog
import torch

from engine.kernels.attention_splits import LOG2_E
from engine.kernels.cuda_source import CudaKernel, KernelError, TensorMap, available
from engine.kernels.paged_kv import PagedKv, Scores
from engine.kernels.prefill_attention import PrefillTiles
from prompt_cache.kv.block_keys import BLOCK_TOKENS

logger = structlog.get_logger("engine.cuda")

TILE_ROWS = 128
_STAGES = 4
"""Blocks of keys, and as many of values, that are in shared memory at a time."""
_COMPUTING_THREADS, _FETCHING_THREADS = 256, 128


def fits(kv: PagedKv, heads: int, dtype: torch.dtype, scores: Scores) -> bool:
    """Whether the kernel computes attention of this kind, on this device; KV in 8 bits is to be widened first."""
    each = heads // kv.kv_heads
    suits = (
        dtype in (torch.bfloat16, torch.float16)
        and (kv.data.dtype == dtype or kv.in_fp8)
        and kv.head_dim in (64, 128)
        # A tile lies within one block of keys, so that only its last one is masked.
        and each in (2, 4, 8, 16, 32, 64)
        and not scores.window
        and scores.soft_cap is None
        and scores.sinks is None
        and kv.data.is_contiguous()
    )
    if not suits or not available(kv.data.device):
        return False
    try:
        _kernel(each, kv.head_dim, dtype)
    except KernelError as error:
        logger.warning("the prefill kernel for Hopper is left out, which is slower", reason=str(error))
        return False
    return True


@cache
def _kernel(each: int, dim: int, dtype: torch.dtype) -> CudaKernel:
    rings = 2 * _STAGES * BLOCK_TOKENS * dim * 2
    # What a thread keeps there: its weighted values, and 8 numbers more.
    kept = _COMPUTING_THREADS * (dim // 2 + 8) * 4
    barriers = 4 * _STAGES * 8
    defines = {"EACH": each, "DIM": dim, "STAGES": _STAGES, "IS_BF16": int(dtype == torch.bfloat16)}
    # The rings begin at a multiple of 1,024 bytes.
    return CudaKernel("prefill_attention.cu", "prefill_attention", defines, 1_024 + rings + kept + barriers)


def prefill_attention_hopper(
    query: torch.Tensor,
    kv: PagedKv,
    block_tables: torch.Tensor,
    bounds: torch.Tensor,
    tiles: PrefillTiles,
    scores: Scores,
    output: torch.Tensor,
) -> None:
    """As `prefill_attention.prefill_attention`; tiles have 128 rows, `output` is of the queries' type or fp32."""
    dim = kv.head_dim
    _kernel(query.shape[1] // kv.kv_heads, dim, query.dtype)(
        (len(tiles.table), kv.kv_heads),
        _COMPUTING_THREADS + _FETCHING_THREADS,
        query,
        TensorMap(kv.data.view(-1, dim), BLOCK_TOKENS),
        output,
        block_tables,
        bounds,
        tiles.table,
        scores.scale * LOG2_E,
        kv.block_stride // dim,
        kv.layer_offset // dim,
        kv.part_stride // dim,
        query.stride(0),
        query.stride(1),
        output.stride(0),
        output.stride(1),
        block_tables.stride(0),
        int(output.dtype == torch.float32),
    )
