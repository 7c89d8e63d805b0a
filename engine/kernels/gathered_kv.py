"""A sequence's keys and values, copied from their blocks to one place, for attention that reads no blocks; and the
attention of two parts of its keys joined.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from engine.kernels.paged_kv import PagedKv
from engine.kernels.stored_in_fp8 import widen_into
from prompt_cache.kv.block_keys import BLOCK_TOKENS

BLOCK: tl.constexpr = tl.constexpr(BLOCK_TOKENS)


def gather_kv(kv: PagedKv, blocks: torch.Tensor, like: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """One layer's keys and values of these blocks, int32 on the device, in their order: [tokens, KV heads, head dim]
    each, of the type and device of `like`."""
    count, heads, dim = len(blocks), kv.kv_heads, kv.head_dim
    out = like.new_empty(2, count * BLOCK_TOKENS, heads, dim)
    strides = BLOCK_TOKENS * heads * dim, out.stride(0), dim, heads * dim
    if kv.in_fp8:
        widen_into(kv, blocks, out, strides)
    else:
        _gather[(count, 2 * heads)](
            kv.data,
            blocks,
            out,
            kv.layer_offset,
            *strides,
            KV_HEADS=heads,
            BLOCK_STRIDE=kv.block_stride,
            PART_STRIDE=kv.part_stride,
            HEAD_STRIDE=kv.head_stride,
            DIM=dim,
            DIM_PADDED=triton.next_power_of_2(dim),
            num_warps=4,
        )
    return out[0], out[1]


@triton.jit
def _gather(
    kv, blocks, out, layer_offset, out_block, out_part, out_head, out_token, KV_HEADS: tl.constexpr,
    BLOCK_STRIDE: tl.constexpr, PART_STRIDE: tl.constexpr, HEAD_STRIDE: tl.constexpr, DIM: tl.constexpr,
    DIM_PADDED: tl.constexpr,
):  # fmt: skip
    index = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    block = tl.load(blocks + index).to(tl.int64)
    vectors = kv + block * BLOCK_STRIDE + layer_offset + part // KV_HEADS * PART_STRIDE + part % KV_HEADS * HEAD_STRIDE
    key = tl.arange(0, BLOCK)[:, None]
    i = tl.arange(0, DIM_PADDED)[None, :]
    held = (key >= 0) & (i < DIM)
    place = out + index * out_block + part // KV_HEADS * out_part.to(tl.int64) + part % KV_HEADS * out_head
    tl.store(place + key * out_token + i, tl.load(vectors + key * DIM + i, mask=held), mask=held)


def join_attention(
    first: torch.Tensor,
    first_lse: torch.Tensor,
    second: torch.Tensor,
    second_lse: torch.Tensor,
    output: torch.Tensor,
    lse: torch.Tensor,
) -> None:
    """Write to `output` the attention [rows, heads, head dim] over all keys, of that over two parts of them.

    `lse` fp32 [heads, rows]: the logarithms of the sums of the exponentials of scores, which are written for both parts
    together. Outputs may be of any types, and be one of the inputs.
    """
    rows, heads, dim = output.shape
    _join[(rows,)](
        first, first_lse, second, second_lse, output, lse,
        first.stride(0), first.stride(1), second.stride(0), second.stride(1), output.stride(0), output.stride(1),
        first_lse.stride(0), second_lse.stride(0), lse.stride(0),
        HEADS=heads, HEADS_PADDED=triton.next_power_of_2(heads), DIM=dim, DIM_PADDED=triton.next_power_of_2(dim),
        num_warps=8,
    )  # fmt: skip


@triton.jit
def _join(
    first, first_lse, second, second_lse, output, lse, first_row, first_head, second_row, second_head, output_row,
    output_head, first_lse_head, second_lse_head, lse_head, HEADS: tl.constexpr, HEADS_PADDED: tl.constexpr,
    DIM: tl.constexpr, DIM_PADDED: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    head = tl.arange(0, HEADS_PADDED)
    i = tl.arange(0, DIM_PADDED)[None, :]
    real = head < HEADS
    a = tl.load(first_lse + head.to(tl.int64) * first_lse_head + row, mask=real, other=0.0)
    b = tl.load(second_lse + head.to(tl.int64) * second_lse_head + row, mask=real, other=0.0)
    top = tl.maximum(a, b)
    weight_a = tl.exp(a - top)
    weight_b = tl.exp(b - top)
    total = weight_a + weight_b
    held = real[:, None] & (i < DIM)
    x = tl.load(first + row * first_row + head[:, None] * first_head + i, mask=held, other=0.0).to(tl.float32)
    y = tl.load(second + row * second_row + head[:, None] * second_head + i, mask=held, other=0.0).to(tl.float32)
    mean = (x * weight_a[:, None] + y * weight_b[:, None]) / total[:, None]
    place = output + row * output_row + head[:, None] * output_head + i
    tl.store(place, mean.to(output.dtype.element_ty), mask=held)
    tl.store(lse + head.to(tl.int64) * lse_head + row, top + tl.log(total), mask=real)
