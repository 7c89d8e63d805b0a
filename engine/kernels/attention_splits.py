"""What prefill and decode attention share: one split of a sequence's keys, and how splits are folded.

Keys are cut into *splits* at fixed absolute positions (`split_bounds`). A split is computed by itself with online
softmax (Milakov and Gimelshein 2018; Dao et al. 2022) over blocks of `BLOCK_TOKENS` keys. Splits are folded from left
to right in fp32. Prefill, decode and grouped decode call the functions of this module on tiles of different heights.
A row has the same bits in all of them, for these reasons:

- `tl.dot` gives a row the same bits in tiles of 16 to 128 rows.
- The maximum of a row does not depend on the order.
- The sum of a row's weights would depend on the register layout. It is therefore kept as one partial sum for each key
  column, and added up once a split by a fixed tree (`sum_columns`).
- A fully masked block adds exactly zero.
- Products that are added are fused explicitly (`tl.fma`), never as the compiler sees fit.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl

from engine.kernels.stored_in_fp8 import halves, whole, widen
from prompt_cache.kv.block_keys import BLOCK_TOKENS

BLOCK: tl.constexpr = tl.constexpr(BLOCK_TOKENS)
HIDDEN: tl.constexpr = tl.constexpr(-1e30)
"""The score of a key that a row does not see."""
LOG2_E = 1.4426950408889634

_STEPS = ((2_048, 256), (32_768, 512), (1 << 30, 1_024))
"""Splits are so long, in tokens, up to this position: short ones give one long request enough parallel work, long ones
cost a merge less."""


def split_bounds(context: int, steps: Sequence[tuple[int, int]] = _STEPS) -> list[int]:
    """The positions at which keys are cut, from 0 to the first one at or beyond `context` tokens.

    Raises ValueError where a step is no multiple of the block.
    """
    bounds = [0]
    for until, length in steps:
        if length % BLOCK_TOKENS:
            raise ValueError(f"splits of {length} tokens are no multiple of a block of {BLOCK_TOKENS}")
        while bounds[-1] < min(until, context):
            bounds.append(bounds[-1] + length)
    return bounds


def split_bounds_on(device: torch.device, context: int) -> torch.Tensor:
    """`split_bounds` as int32 [splits + 1] on a device."""
    return torch.tensor(split_bounds(context), dtype=torch.int32, device=device)


def pipeline_stages(dim_padded: int, dtype: torch.dtype) -> int:
    """How many blocks of keys and values are in shared memory at a time."""
    return max(1, 3 - (dim_padded * dtype.itemsize - 1) // 256)


@triton.jit
def sum_columns(x, ROWS: tl.constexpr):
    """[ROWS, 64] → [ROWS], by a fixed tree of neighbours, whatever the layout."""
    a, b = tl.split(tl.reshape(x, (ROWS, 32, 2)))
    x32 = a + b
    a, b = tl.split(tl.reshape(x32, (ROWS, 16, 2)))
    x16 = a + b
    a, b = tl.split(tl.reshape(x16, (ROWS, 8, 2)))
    x8 = a + b
    a, b = tl.split(tl.reshape(x8, (ROWS, 4, 2)))
    x4 = a + b
    a, b = tl.split(tl.reshape(x4, (ROWS, 2, 2)))
    x2 = a + b
    a, b = tl.split(x2)
    return a + b


@triton.jit
def _attend_blocks(
    q,
    q_second,
    keys,
    values,
    table,
    begin,
    end,
    last_key,
    positions,
    scale,
    top,
    weights,
    out,
    out_second,
    BLOCK_STRIDE: tl.constexpr,
    DIM: tl.constexpr,
    DIM_PADDED: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFT_CAP: tl.constexpr,
    MASKED: tl.constexpr,
):
    """Online softmax over the blocks that hold the keys `begin`..`end` (multiples of a block, but `end`).

    Where KV is stored in 8 bits, `q` and `out` are the first halves of heads, and the others the second ones. A score
    is added up in the same order: the first half, then the second.
    """
    column = tl.arange(0, BLOCK)
    IN_FP8: tl.constexpr = keys.dtype.element_ty == tl.uint8
    d = tl.arange(0, DIM_PADDED // 2 if IN_FP8 else DIM_PADDED)
    inside = (d < DIM)[None, :]
    offsets = column[:, None] * (DIM // 2 if IN_FP8 else DIM) + d[None, :]
    for start in range(begin, end, BLOCK):
        key = start + column
        at = tl.load(table + start // BLOCK).to(tl.int64) * BLOCK_STRIDE
        # What lies behind the last key was never written: 0 · NaN would be NaN.
        if IN_FP8:
            present = (key <= last_key) if MASKED else (column < BLOCK)
            k, k_second = widen(keys + at, offsets, present[:, None], column, present, DIM)
            v, v_second = widen(values + at, offsets, present[:, None], column, present, DIM)
        elif MASKED:
            present = (key <= last_key)[:, None]
            k = tl.load(keys + at + offsets, mask=present & inside, other=0.0)
            v = tl.load(values + at + offsets, mask=present & inside, other=0.0)
        elif DIM != DIM_PADDED:
            k = tl.load(keys + at + offsets, mask=inside, other=0.0)
            v = tl.load(values + at + offsets, mask=inside, other=0.0)
        else:
            k = tl.load(keys + at + offsets)
            v = tl.load(values + at + offsets)
        score = tl.dot(q, tl.trans(k), input_precision="ieee")
        if IN_FP8:
            score = tl.dot(q_second, tl.trans(k_second), score, input_precision="ieee")
        factor = scale
        if SOFT_CAP != 0.0:
            # cap · tanh(s / cap) by tanh(x) = 1 − 2 / (e^2x + 1)
            score = 1.0 - 2.0 / (tl.math.exp2(score * scale * (2.0 / SOFT_CAP)) + 1.0)
            factor = SOFT_CAP * 1.4426950408889634
        if MASKED:
            seen = key[None, :] <= positions[:, None]
            if WINDOW:
                seen = seen & (key[None, :] > positions[:, None] - WINDOW)
            score = tl.where(seen, score, HIDDEN)
        # Explicit: the compiler contracts a product and a sum only where no mask comes between them.
        new_top = tl.maximum(top, tl.max(score, 1) * factor)
        weight = tl.math.exp2(tl.fma(score, tl.zeros_like(score) + factor, tl.zeros_like(score) - new_top[:, None]))
        if MASKED:
            # Where nothing was seen yet, the top is itself a hidden score.
            weight = tl.where(seen, weight, 0.0)
        shrink = tl.math.exp2(top - new_top)
        weights = tl.fma(weights, tl.zeros_like(weights) + shrink[:, None], weight)
        out = tl.dot(weight.to(v.dtype), v, out * shrink[:, None], input_precision="ieee")
        if IN_FP8:
            out_second = tl.dot(weight.to(v.dtype), v_second, out_second * shrink[:, None], input_precision="ieee")
        top = new_top
    return top, weights, out, out_second


@triton.jit
def attend_split(
    q,
    keys,
    values,
    table,
    begin,
    end,
    positions,
    first_position,
    last_position,
    scale,
    ROWS: tl.constexpr,
    BLOCK_STRIDE: tl.constexpr,
    DIM: tl.constexpr,
    DIM_PADDED: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFT_CAP: tl.constexpr,
    WHOLE: tl.constexpr,
):
    """One split of some rows' keys: (top [ROWS], sum of weights [ROWS], weighted values [ROWS, DIM_PADDED]), fp32.

    `q` [ROWS, DIM_PADDED] are the rows' queries, at `positions` [ROWS] between `first_position` and `last_position`.
    `keys` and `values` point to the first block's vectors of the KV head; `table` to the sequence's block numbers.
    The split has the keys `begin`..`end`; `WHOLE`: all rows see all of it. `scale` multiplies q·k and includes log2 e:
    scores are exponents of 2. Rows that see no key of the split come out as (HIDDEN, 0, 0), which folding leaves out.
    """
    IN_FP8: tl.constexpr = keys.dtype.element_ty == tl.uint8
    top = tl.full((ROWS,), HIDDEN, tl.float32)
    weights = tl.zeros((ROWS, BLOCK), tl.float32)
    if IN_FP8:
        first, second = halves(q, ROWS, DIM)
        out = tl.zeros((ROWS, DIM // 2), tl.float32)
        out_second = out
    else:
        first, second = q, q
        out = tl.zeros((ROWS, DIM_PADDED), tl.float32)
        # Carried along, and nothing else.
        out_second = top
    stop = tl.minimum(end, last_position + 1)
    # Before here no row sees anything, and up to `all_see` all rows see everything.
    start = begin
    all_see = tl.maximum(begin, tl.minimum(stop, (first_position + 1) // BLOCK * BLOCK))
    if WHOLE:
        all_see = end
    elif WINDOW:
        start = tl.maximum(begin, tl.maximum(first_position - WINDOW + 1, 0) // BLOCK * BLOCK)
        all_see = start
    if WHOLE or not WINDOW:
        top, weights, out, out_second = _attend_blocks(
            first, second, keys, values, table, start, all_see, last_position, positions, scale, top, weights, out,
            out_second, BLOCK_STRIDE, DIM, DIM_PADDED, WINDOW, SOFT_CAP, False,
        )  # fmt: skip
    if not WHOLE:
        top, weights, out, out_second = _attend_blocks(
            first, second, keys, values, table, all_see, stop, last_position, positions, scale, top, weights, out,
            out_second, BLOCK_STRIDE, DIM, DIM_PADDED, WINDOW, SOFT_CAP, True,
        )  # fmt: skip
    if IN_FP8:
        out = whole(out, out_second, ROWS, DIM)
    total = sum_columns(weights, ROWS)
    if not WHOLE:
        seen = positions >= begin
        if WINDOW:
            seen = seen & (positions - WINDOW + 1 < end)
        top, total, out = tl.where(seen, top, HIDDEN), tl.where(seen, total, 0.0), tl.where(seen[:, None], out, 0.0)
    return top, total, out


@triton.jit
def fold(top, total, out, split_top, split_total, split_out):
    """Take one more split into (top, total, out): the sum of both, relative to the larger of their maxima."""
    new_top = tl.maximum(top, split_top)
    shrink = tl.math.exp2(top - new_top)
    split_shrink = tl.math.exp2(split_top - new_top)
    total = tl.fma(total, shrink, split_total * split_shrink)
    out = tl.fma(out, tl.zeros_like(out) + shrink[:, None], split_out * split_shrink[:, None])
    return new_top, total, out


@triton.jit
def normalize(top, total, out, sink):
    """Weighted values → their mean. `sink` [rows]: one more score (base 2) without a value, HIDDEN for none."""
    new_top = tl.maximum(top, sink)
    shrink = tl.math.exp2(top - new_top)
    return out * (shrink / tl.fma(total, shrink, tl.math.exp2(sink - new_top)))[:, None]
