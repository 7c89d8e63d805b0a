"""Decode attention over latents of items of one request on Hopper: as `latent_attention`, with the same bits.

`cuda/latent_decode.cu` says how it works. `tests/gpu/kernels` compares both kernels bit by bit.
"""

from __future__ import annotations

from functools import cache

import structlog
import torch

from engine.kernels.attention_splits import LOG2_E
from engine.kernels.cuda_source import CudaKernel, KernelError, TensorMap, available
from engine.kernels.decode_plan import DecodeBatch, SplitResults, WorkList
from engine.kernels.paged_kv import LatentKv, Scores
from prompt_cache.kv.block_keys import BLOCK_TOKENS

logger = structlog.get_logger("engine.cuda")

_RANK, _ENTRY, _MOST_HEADS = 512, 576, 16
_UNITS = 5
"""Halves of blocks of entries in shared memory at a time, beside two requests' queries."""
_THREADS = 288
_FOLDED_SPLITS, _FOLD_FROM = 8, 384
"""So many splits of a row are one item from so many rows on: all multiprocessors have work without splits then."""


def fits(kv: LatentKv, heads: int) -> bool:
    """Whether the kernel computes attention of this kind, and the device is a Hopper for which it can be compiled."""
    suits = (
        kv.data.dtype == torch.bfloat16
        and (kv.rank, kv.head_dim) == (_RANK, _ENTRY)
        and heads <= _MOST_HEADS
        and kv.data.is_contiguous()
    )
    return suits and available(kv.data.device) and _compiles(heads)


@cache
def _compiles(heads: int) -> bool:
    try:
        _kernel(heads)
    except KernelError as error:
        logger.warning("the decode kernel for Hopper is left out, which is slower", reason=str(error))
        return False
    return True


@cache
def _kernel(heads: int) -> CudaKernel:
    # The ring begins at a multiple of 1,024 bytes.
    ring = (_UNITS * BLOCK_TOKENS // 2 + 2 * _MOST_HEADS) * _ENTRY * 2
    return CudaKernel("latent_decode.cu", "latent_decode", {"HEADS": heads, "UNITS": _UNITS}, 1_024 + ring)


def folds(rows: int) -> int:
    """How many splits of a row that shares nothing are one item, in a step of so many rows."""
    return _FOLDED_SPLITS if rows >= _FOLD_FROM else 0


class OneRequestItems:
    """The kernel for `heads` query heads, on a device with so many `processors`."""

    def __init__(self, heads: int, processors: int) -> None:
        self._kernel, self._processors = _kernel(heads), processors
        self._map: tuple[int, TensorMap] | None = None

    def __call__(
        self,
        query: torch.Tensor,
        kv: LatentKv,
        batch: DecodeBatch,
        work: WorkList,
        results: SplitResults,
        scores: Scores,
        *,
        planned: bool,
    ) -> None:
        """Compute the items of one request of the list. `planned`: see `decode_attention._partial`."""
        self._kernel(
            (self._processors, 1),
            _THREADS,
            TensorMap(query.view(-1, _ENTRY), _MOST_HEADS),
            self._boxes(kv.data),
            batch.positions,
            batch.table_rows,
            batch.order,
            batch.block_tables,
            work.bounds,
            work.items[0],
            work.counts,
            results.tops,
            results.totals,
            results.outs,
            scores.scale * LOG2_E,
            kv.block_stride // _ENTRY,
            kv.layer_offset // _ENTRY,
            batch.block_tables.stride(0),
            results.tops.shape[1],
            int(planned),
            dependent=True,
        )

    def _boxes(self, data: torch.Tensor) -> TensorMap:
        """What copies blocks: all entries as rows."""
        if self._map is None or self._map[0] != data.data_ptr():
            self._map = data.data_ptr(), TensorMap(data.view(-1, _ENTRY), BLOCK_TOKENS // 2)
        return self._map[1]
