"""A digest of KV blocks, computed where they lie: does a block that came back have the bits that were sent out?

64 bits: two sums, modulo 2³², of every 32-bit word mixed with its place. The mix is the finalizer of MurmurHash3
(Appleby 2011), with other constants in each sum. Sums do not depend on order, so programs add theirs up as they come.
It finds faults, and is no protection against somebody who looks for two blocks with the same digest.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

_WORDS = 16_384
"""Words that a program adds up."""


def block_digests(data: torch.Tensor, blocks: torch.Tensor) -> torch.Tensor:
    """uint32 sums [blocks, 2], as int32, of these blocks of `data` [all blocks, …], whose blocks are contiguous.

    `blocks`: int32 on the device. A block has a multiple of 4 bytes.
    """
    words = data.view(data.shape[0], -1).view(torch.int32)
    digests = torch.zeros(len(blocks), 2, dtype=torch.int32, device=data.device)
    _digest[(len(blocks), triton.cdiv(words.shape[1], _WORDS))](
        words, blocks, digests, words.shape[1], words.stride(0), PROGRAM_WORDS=_WORDS, TILE=2_048, num_warps=8
    )
    return digests


@triton.jit
def _mixed(x, FIRST: tl.constexpr, SECOND: tl.constexpr):
    x = (x ^ (x >> 16)) * FIRST
    x = (x ^ (x >> 13)) * SECOND
    return x ^ (x >> 16)


@triton.jit
def _digest(words, blocks, digests, count, block_words, PROGRAM_WORDS: tl.constexpr, TILE: tl.constexpr):
    block = tl.load(blocks + tl.program_id(0)).to(tl.int64)
    begin = tl.program_id(1) * PROGRAM_WORDS
    first = tl.zeros((TILE,), tl.uint32)
    second = tl.zeros((TILE,), tl.uint32)
    for start in range(begin, begin + PROGRAM_WORDS, TILE):
        place = start + tl.arange(0, TILE)
        inside = place < count
        word = tl.load(words + block * block_words + place, mask=inside, other=0).to(tl.uint32, bitcast=True)
        placed = word + place.to(tl.uint32) * 0x9E3779B1
        first += tl.where(inside, _mixed(placed, 0x85EBCA6B, 0xC2B2AE35), 0)
        second += tl.where(inside, _mixed(placed ^ 0x5BD1E995, 0x7FEB352D, 0x846CA68B), 0)
    out = digests + tl.program_id(0) * 2
    tl.atomic_add(out, tl.sum(first.to(tl.int32, bitcast=True), 0), sem="relaxed")
    tl.atomic_add(out + 1, tl.sum(second.to(tl.int32, bitcast=True), 0), sem="relaxed")
