"""Keys and values that are stored in 8 bits, and computed with in bf16.

A head's 64 vectors of a block are their e4m3 values, then one fp32 scale for each. A scale is a power of two, so that
value · scale is exact in bf16: all kernels compute with the same numbers, wherever they widen them, and none
accumulates in 8 bits. A vector that is not finite has the scale NaN.

Values i and i + half of a vector are neighbours, and are read together as 16 bits: of a type of 8 bits Triton takes the
inputs of a matrix instruction in another order, which gives a product other bits.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from engine.kernels.dependent_launch import LAUNCH, let_next_begin, wait_for_inputs
from engine.kernels.paged_kv import PagedKv
from prompt_cache.kv.block_keys import BLOCK_TOKENS

BLOCK: tl.constexpr = tl.constexpr(BLOCK_TOKENS)
_PAIRS_TO_HALVES = """{
.reg .b32 a, b, c, d, minus_zero;
mov.b32 minus_zero, 0x80008000;
shl.b32 a, $2, 4;
shl.b32 b, $2, 8;
shr.b32 c, $2, 4;
and.b32 a, a, 0x07f007f0;
and.b32 b, b, 0x80008000;
and.b32 c, c, 0x07f007f0;
and.b32 d, $2, 0x80008000;
or.b32 a, a, b;
or.b32 c, c, d;
fma.rn.bf16x2 $0, a, $3, minus_zero;
fma.rn.bf16x2 $1, c, $3, minus_zero;
}"""
"""Exponents and mantissas of two pairs to where bf16 has them; what the biases differ by is in the factor."""
WIDEN: tl.constexpr = tl.constexpr(_PAIRS_TO_HALVES)


@triton.jit
def widen(vectors, offsets, mask, key, present, DIM: tl.constexpr):
    """Both halves, bf16 [keys, dim / 2], of the vectors `key` of the 64 that begin at `vectors`.

    `offsets` [keys, dim / 2] are those of the pairs. What is not in `mask`, and `present` [keys], is 0.
    """
    pairs = tl.load(vectors.to(tl.pointer_type(tl.uint16), bitcast=True) + offsets, mask=mask, other=0)
    scales = tl.load(
        (vectors + BLOCK * DIM).to(tl.pointer_type(tl.float32), bitcast=True) + key, mask=present, other=0.0
    )
    factor = (scales * 1.329227995784916e36).to(tl.bfloat16)  # 2^120
    factors = tl.broadcast_to(factor[:, None], pairs.shape)
    return tl.inline_asm_elementwise(
        WIDEN, "=r,=r,r,r", [pairs, factors], dtype=(tl.bfloat16, tl.bfloat16), is_pure=True, pack=2
    )  # fmt: skip


@triton.jit
def halves(x, ROWS: tl.constexpr, DIM: tl.constexpr):
    """[rows, dim] → its first and its second half."""
    return tl.split(tl.permute(tl.reshape(x, (ROWS, 2, DIM // 2)), (0, 2, 1)))


@triton.jit
def whole(first, second, ROWS: tl.constexpr, DIM: tl.constexpr):
    """The reverse of `halves`."""
    return tl.reshape(tl.permute(tl.join(first, second), (0, 2, 1)), (ROWS, DIM))


@triton.jit
def narrow(x, inside):
    """fp32 [vectors, dim] → (e4m3 values as bytes, scales [vectors]). What is not `inside` does not count."""
    size = tl.where(inside, tl.abs(x), 0.0)
    largest = tl.minimum(tl.maximum(tl.max(size, 1), 1e-30), 57344.0)
    # The power of two at or above largest / 448, by its bits.
    bits = (largest * (1.0 / 448.0)).to(tl.int32, bitcast=True)
    scale = ((bits + 0x7FFFFF) & 0x7F800000).to(tl.float32, bitcast=True)
    values = (x / scale[:, None]).to(tl.float8e4nv).to(tl.uint8, bitcast=True)
    broken = tl.sum((inside & (x * 0.0 != 0.0)).to(tl.int32), 1)
    return values, tl.where(broken > 0, float("nan"), scale)


def widen_blocks(kv: PagedKv, blocks: torch.Tensor, out: torch.Tensor) -> None:
    """One layer of these blocks, int32 on the device, → `out` bf16 [blocks, 1, 2, KV heads, 64, head dim]."""
    head = BLOCK_TOKENS * kv.head_dim
    widen_into(kv, blocks, out, (2 * kv.kv_heads * head, kv.kv_heads * head, head, kv.head_dim))


def widen_into(kv: PagedKv, blocks: torch.Tensor, out: torch.Tensor, strides: tuple[int, int, int, int]) -> None:
    """The same, with these strides in `out`: from block to block, from keys to values, from KV head to KV head, from
    token to token."""
    _widen_blocks[(len(blocks), 2 * kv.kv_heads)](
        kv.data,
        blocks,
        out,
        kv.layer_offset,
        *strides,
        KV_HEADS=kv.kv_heads,
        BLOCK_STRIDE=kv.block_stride,
        PART_STRIDE=kv.part_stride,
        HEAD_STRIDE=kv.head_stride,
        DIM=kv.head_dim,
        num_warps=4,
        **LAUNCH,
    )


@triton.jit
def _widen_blocks(
    kv, blocks, out, layer_offset, out_block, out_part, out_head, out_token, KV_HEADS: tl.constexpr,
    BLOCK_STRIDE: tl.constexpr, PART_STRIDE: tl.constexpr, HEAD_STRIDE: tl.constexpr, DIM: tl.constexpr,
):  # fmt: skip
    wait_for_inputs()
    let_next_begin()
    index = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    block = tl.load(blocks + index).to(tl.int64)
    vectors = kv + block * BLOCK_STRIDE + layer_offset + part // KV_HEADS * PART_STRIDE + part % KV_HEADS * HEAD_STRIDE
    key = tl.arange(0, BLOCK)
    i = tl.arange(0, DIM // 2)[None, :]
    present = key < BLOCK
    first, second = widen(vectors, key[:, None] * (DIM // 2) + i, present[:, None], key, present, DIM)
    place = out + index * out_block + part // KV_HEADS * out_part.to(tl.int64) + part % KV_HEADS * out_head
    place += key[:, None] * out_token + i
    tl.store(place, first)
    tl.store(place + DIM // 2, second)
