"""Decode attention of items of few rows on Hopper: what `decode_attention._partial` computes, with the same bits.

The kernel is `cuda/decode_attention.cu`. Each warp computes pairs (item, KV head) by itself, and has a ring in shared
memory that the tensor memory accelerator fills ahead of it. So all of a multiprocessor's shared memory is on its way
from memory all the time, whatever a warp waits for; a Triton kernel has a few blocks under way, and waits at the begin
of each pair.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch

from engine.kernels.attention_splits import LOG2_E
from engine.kernels.cuda_source import CudaKernel, TensorMap, available
from engine.kernels.decode_plan import DecodeBatch, SplitResults, WorkList
from engine.kernels.paged_kv import PagedKv, Scores
from prompt_cache.kv.block_keys import BLOCK_TOKENS

SMALL_ROWS = 8
"""Most rows of an item."""
_DIMS = 128, 256
_LINE_BYTES = 128
"""How wide boxes are that are copied: as the swizzle."""
_FEW_ROWS = 8
"""In steps of so few rows a multiprocessor has one pair at a time, which the warps of a Triton program share."""
_FOLDED_SPLITS, _FOLD_FROM, _FOLD_FROM_FP8 = 8, 384, 128
"""So many splits of a row are one item from so many rows on."""


@dataclass(frozen=True)
class RingShape:
    """Warps of a multiprocessor, and units in a warp's ring: the keys or the values of a block each."""

    warps: int
    units: int


_SHAPES, _SHAPES_FP8 = (RingShape(7, 2), RingShape(7, 2)), (RingShape(12, 2), RingShape(8, 3))
_SHAPES_256, _SHAPES_256_FP8 = (RingShape(3, 2),) * 2, (RingShape(6, 2),) * 2
"""The quickest on an H200 (`benchmarks/gpu/NOTES.md`), for steps whose splits are not folded and for those that are."""


def fits(heads: int, kv: PagedKv, scores: Scores) -> bool:
    """Whether the kernel computes attention of this kind, and the device is a Hopper for which it can be compiled."""
    return (
        kv.data.dtype in (torch.bfloat16, torch.uint8)
        and kv.head_dim in _DIMS
        and heads // kv.kv_heads <= SMALL_ROWS
        and kv.data.is_contiguous()
        and scores.soft_cap is None
        and available(kv.data.device)
    )


@cache
def _kernel(
    device: torch.device, heads: int, kv_heads: int, dim: int, in_fp8: bool, window: int, shape: RingShape
) -> CudaKernel:
    defines = {
        "HEADS": heads,
        "KV_HEADS": kv_heads,
        "DIM": dim,
        "IN_FP8": int(in_fp8),
        "WINDOW": window,
        "WARPS": shape.warps,
        "UNITS": shape.units,
    }
    unit = _unit_lines(dim, in_fp8) * _LINE_BYTES
    # Places of units begin at multiples of 1,024 bytes, where the swizzle begins anew.
    ring = 1024 + shape.warps * shape.units * (unit + -unit % 1024)
    with torch.cuda.device(device):
        return CudaKernel("decode_attention.cu", "decode_partial", defines, ring)


def _unit_lines(dim: int, in_fp8: bool) -> int:
    """Lines of 64 vectors, with their scales in 8 bits."""
    return BLOCK_TOKENS * (dim + 4 if in_fp8 else 2 * dim) // _LINE_BYTES


class SmallItems:
    """The kernel for `heads` query heads on KV like `kv`, of which a token sees `window`, 0 for all."""

    def __init__(self, heads: int, kv: PagedKv, window: int = 0, shape: RingShape | None = None) -> None:
        device, dim = kv.data.device, kv.head_dim
        known = (_SHAPES_FP8 if kv.in_fp8 else _SHAPES) if dim == 128 else _SHAPES_256_FP8 if kv.in_fp8 else _SHAPES_256
        shapes = (shape, shape) if shape else known
        self._kernels = [(each, _kernel(device, heads, kv.kv_heads, dim, kv.in_fp8, window, each)) for each in shapes]
        self._fold_from = _FOLD_FROM_FP8 if kv.in_fp8 else _FOLD_FROM
        self._window, self._unit_lines = window, _unit_lines(dim, kv.in_fp8)
        self._processors = torch.cuda.get_device_properties(device).multi_processor_count
        self._map: tuple[int, TensorMap] | None = None

    @staticmethod
    def takes(rows: int) -> bool:
        """Whether it is the quicker kernel in steps of so many rows."""
        return rows > _FEW_ROWS

    def folds(self, rows: int) -> int:
        """How many splits of a row that shares nothing are one item, in a step of so many rows."""
        return _FOLDED_SPLITS if rows >= self._fold_from and not self._window else 0

    def __call__(
        self,
        query: torch.Tensor,
        kv: PagedKv,
        batch: DecodeBatch,
        work: WorkList,
        results: SplitResults,
        scores: Scores,
        *,
        planned: bool,
    ) -> None:
        """Compute the small items of the list. `planned`: see `decode_attention._partial`."""
        line = _LINE_BYTES // kv.data.itemsize
        strides = (kv.layer_offset, kv.block_stride, kv.part_stride, kv.head_stride)
        shape, kernel = self._kernels[work.folded > 0]
        kernel(
            (self._processors, 1),
            32 * shape.warps,
            self._boxes(kv.data),
            query,
            batch.positions,
            batch.table_rows,
            batch.order,
            batch.block_tables,
            work.bounds,
            work.items,
            work.counts,
            results.tops,
            results.totals,
            results.outs,
            scores.scale * LOG2_E,
            *(stride // line for stride in strides),
            query.stride(0),
            query.stride(1),
            batch.block_tables.stride(0),
            results.tops.shape[1],
            int(planned),
            dependent=True,
        )

    def _boxes(self, data: torch.Tensor) -> TensorMap:
        """What copies units: all of KV as lines."""
        if self._map is None or self._map[0] != data.data_ptr():
            lines = data.view(-1, _LINE_BYTES // data.itemsize)
            self._map = data.data_ptr(), TensorMap(lines, self._unit_lines)
        return self._map[1]
