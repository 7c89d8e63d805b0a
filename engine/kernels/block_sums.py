"""Sums of KV blocks, computed where they lie: their 64-bit words, each times a weight of its own, modulo 2⁶⁴.

The arithmetic is that of `engine.kv_cache.checksums`, many blocks in one launch: integers wrap, and their sums do not
depend on an order.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

_WORDS = 8_192
"""Words that a program adds up."""


def block_sums(data: torch.Tensor, blocks: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """int64 [blocks]: the sums of these blocks of `data` [all blocks, …], whose blocks are contiguous.

    `blocks` and `weights`: int64 on the device; one weight for each word of a block.
    """
    words = data.view(data.shape[0], -1).view(torch.int64)
    parts = triton.cdiv(words.shape[1], _WORDS)
    sums = torch.empty(len(blocks), parts, dtype=torch.int64, device=data.device)
    _sum[(len(blocks), parts)](
        words, blocks, weights, sums, words.shape[1], words.stride(0), PROGRAM_WORDS=_WORDS, TILE=1_024, num_warps=8
    )
    return sums.sum(1)


@triton.jit(do_not_specialize_on_alignment=["blocks"])
def _sum(words, blocks, weights, sums, count, block_words, PROGRAM_WORDS: tl.constexpr, TILE: tl.constexpr):
    block = tl.load(blocks + tl.program_id(0)).to(tl.int64)
    begin = tl.program_id(1) * PROGRAM_WORDS
    total = tl.zeros((TILE,), tl.int64)
    for start in range(begin, begin + PROGRAM_WORDS, TILE):
        place = start + tl.arange(0, TILE)
        inside = place < count
        word = tl.load(words + block * block_words + place, mask=inside, other=0)
        total += word * tl.load(weights + place, mask=inside, other=0)
    tl.store(sums + tl.program_id(0) * tl.num_programs(1) + tl.program_id(1), tl.sum(total, 0))
