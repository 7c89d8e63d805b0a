"""Prompts' attention over latents on Hopper: as `latent_attention`, with the same bits, in CUDA C++.

`cuda/latent_prefill.cu` says how it works. `tests/gpu/kernels` compares both kernels bit by bit.
"""

from __future__ import annotations

from functools import cache

import structlog
import torch

from engine.kernels.attention_splits import LOG2_E
from engine.kernels.cuda_source import CudaKernel, KernelError, TensorMap, available
from engine.kernels.paged_kv import LatentKv, Scores
from engine.kernels.prefill_attention import PrefillTiles
from prompt_cache.kv.block_keys import BLOCK_TOKENS

logger = structlog.get_logger("engine.cuda")

_RANK, _ENTRY = 512, 576
_COMPUTING_THREADS, _FETCHING_THREADS = 256, 128
_SHARED_BYTES = 3 * BLOCK_TOKENS * _ENTRY * 2 + BLOCK_TOKENS * BLOCK_TOKENS * 2 + 1_024 + 6 * 8
"""Of two blocks of entries, a tile of queries, weights of a block, what groups of warps tell each other, barriers."""


def fits(kv: LatentKv, heads: int, together: int) -> bool:
    """Whether the kernel computes attention of this kind, on this device. `together`: heads of a tile."""
    suits = kv.data.dtype == torch.bfloat16 and (kv.rank, kv.head_dim) == (_RANK, _ENTRY) and kv.data.is_contiguous()
    return suits and available(kv.data.device) and _compiles(heads, together)


@cache
def _compiles(heads: int, together: int) -> bool:
    try:
        _kernel(heads, together)
    except KernelError as error:
        logger.warning("the prefill kernel for Hopper is left out, which is slower", reason=str(error))
        return False
    return True


@cache
def _kernel(heads: int, together: int) -> CudaKernel:
    defines = {"TOGETHER": together, "GROUPS": heads // together}
    return CudaKernel("latent_prefill.cu", "latent_prefill", defines, _SHARED_BYTES)


def prefill(
    query: torch.Tensor,
    kv: LatentKv,
    block_tables: torch.Tensor,
    bounds: torch.Tensor,
    tiles: PrefillTiles,
    scores: Scores,
    mean: torch.Tensor,
    *,
    together: int,
    programs: int,
) -> None:
    """Write the mean latents that queries [rows, heads, entry] see to `mean` [rows, heads, rank], both contiguous."""
    heads = query.shape[1]
    # What each program has folded.
    kept = torch.empty(programs, BLOCK_TOKENS, _RANK, dtype=torch.float32, device=query.device)
    _kernel(heads, together)(
        (programs, 1),
        _COMPUTING_THREADS + _FETCHING_THREADS,
        TensorMap(query.view(-1, _ENTRY), BLOCK_TOKENS),
        TensorMap(kv.data.view(-1, _ENTRY), BLOCK_TOKENS),
        mean,
        block_tables,
        bounds,
        tiles.table,
        kept,
        len(tiles.table) * (heads // together),
        scores.scale * LOG2_E,
        kv.block_stride // _ENTRY,
        kv.layer_offset // _ENTRY,
        block_tables.stride(0),
    )
