"""Decode attention of items of many requests on Hopper: as `decode_attention`, with the same bits, in CUDA C++.

`cuda/grouped_decode.cu` says how it works. `tests/gpu/kernels` compares both kernels bit by bit.
"""

from __future__ import annotations

from functools import cache

import structlog
import torch

from engine.kernels.attention_splits import LOG2_E
from engine.kernels.cuda_source import CudaKernel, KernelError, TensorMap, available
from engine.kernels.decode_plan import DecodeBatch, SplitResults, WorkList
from engine.kernels.paged_kv import PagedKv, Scores
from prompt_cache.kv.block_keys import BLOCK_TOKENS

logger = structlog.get_logger("engine.cuda")

_THREADS = 384
_GROUPS = 2
"""Groups of warps of a program, each of which computes items of its own."""
_STAGES = 3
"""Blocks of keys, and as many of values, that a group has in shared memory at a time."""
_MOST_HEADS = 64


def fits(kv: PagedKv, heads: int, dtype: torch.dtype, scores: Scores) -> bool:
    """Whether the kernel computes attention of this kind, on this device."""
    suits = (
        (dtype == torch.bfloat16 or (dtype == torch.float16 and not kv.in_fp8))
        and (kv.data.dtype == dtype or kv.in_fp8)
        and kv.head_dim in (64, 128)
        and heads // kv.kv_heads <= _MOST_HEADS
        and not scores.window
        and scores.soft_cap is None
        and kv.data.is_contiguous()
    )
    return suits and available(kv.data.device) and _compiles(heads, kv.kv_heads, kv.head_dim, dtype, kv.in_fp8)


@cache
def _compiles(heads: int, kv_heads: int, dim: int, dtype: torch.dtype, in_fp8: bool) -> bool:
    try:
        _kernel(heads, kv_heads, dim, dtype, in_fp8)
    except KernelError as error:
        logger.warning("the decode kernel for Hopper is left out, which is slower", reason=str(error))
        return False
    return True


@cache
def _kernel(heads: int, kv_heads: int, dim: int, dtype: torch.dtype, in_fp8: bool) -> CudaKernel:
    block = BLOCK_TOKENS * dim * 2
    fetched = BLOCK_TOKENS * (dim + 4) if in_fp8 else block
    # In 8 bits, keys and twice values are widened to other memory.
    shared = _GROUPS * (2 * _STAGES * fetched + 3 * block * in_fp8 + 4 * _STAGES * 8)
    defines = {
        "GROUP": heads // kv_heads,
        "KV_HEADS": kv_heads,
        "DIM": dim,
        "STAGES": _STAGES,
        "IS_BF16": int(dtype == torch.bfloat16),
        "IN_FP8": int(in_fp8),
    }
    # Matrices begin at a multiple of 1,024 bytes.
    return CudaKernel("grouped_decode.cu", "grouped_decode", defines, 1_024 + shared)


@cache
def _processors(index: int) -> int:
    return torch.cuda.get_device_properties(index).multi_processor_count


def attend_items(
    query: torch.Tensor,
    kv: PagedKv,
    batch: DecodeBatch,
    work: WorkList,
    results: SplitResults,
    scores: Scores,
) -> None:
    """Compute the items of many requests of the list."""
    dim = kv.head_dim
    unit = 1 if kv.in_fp8 else dim
    _kernel(query.shape[1], kv.kv_heads, dim, query.dtype, kv.in_fp8)(
        (_processors(query.device.index), 1),
        _THREADS,
        query,
        kv.data if kv.in_fp8 else TensorMap(kv.data.view(-1, dim), BLOCK_TOKENS),
        batch.table_rows,
        batch.order,
        batch.block_tables,
        work.bounds,
        work.items[1],
        work.counts[1:],
        results.tops,
        results.totals,
        results.outs,
        scores.scale * LOG2_E,
        kv.block_stride // unit,
        kv.layer_offset // unit,
        kv.part_stride // unit,
        kv.head_stride // unit,
        query.stride(0),
        query.stride(1),
        batch.block_tables.stride(0),
        results.tops.shape[1],
        dependent=True,
    )
