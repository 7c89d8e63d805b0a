"""y = x Wᵀ by groups of rows, each with the weight of its expert; a row has the bits of `linear.linear` with that one.

What there is to compute is a list of tiles on the device (`expert_routing.Tiles`), so that the host knows none of it.
The arithmetic is that of `linear`: the inputs are added up in one order by one accumulator, and never split.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from engine.kernels.dependent_launch import LAUNCH, let_next_begin, wait_for_inputs
from engine.kernels.expert_routing import Tiles
from engine.kernels.linear import shared_memory

LEAST_HIGH, MOST_HIGH = 16, 128
"""Rows of a tile."""
_TALL, _STAGES = 64, 4
"""Outputs of a tile; with more rows, twice as many."""


def grouped_linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    out: torch.Tensor,
    tiles: Tiles,
    *,
    placed: bool = False,
    bias: torch.Tensor | None = None,
    scales: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> None:
    """Rows of x [rows, inputs] · their expert of [experts, outputs, inputs]ᵀ → their places in `out` [pairs, outputs].

    `placed`: the inputs lie at their places as well. `bias` [experts, outputs]. In e4m3 `scales`, fp32, are those of
    the rows [rows] and of the outputs [experts, outputs]. The inputs must be a multiple of 16, in e4m3 of 128.
    """
    _, outputs, inputs = weight.shape
    step = 128 if scales is not None else 256 // x.itemsize
    while inputs % step:
        step //= 2
    if step < (128 if scales is not None else 16):
        raise ValueError(f"{inputs} inputs are no multiple of {128 if scales is not None else 16}")
    tall = 2 * _TALL if tiles.high > 64 and scales is None else _TALL
    held = (tall + tiles.high) * step * x.itemsize
    _grouped_linear[(triton.cdiv(outputs, tall), tiles.most)](
        x, weight, out, tiles.words,
        out if bias is None else bias,
        out if scales is None else scales[0],
        out if scales is None else scales[1],
        x.stride(0), out.stride(0),
        OUTPUTS=outputs, INPUTS=inputs, TILE_OUTPUTS=tall, HIGH=tiles.high, TILE_INPUTS=step,
        PLACED=placed, BIAS=bias is not None, SCALED=scales is not None,
        num_warps=8 if tiles.high > 64 else 4,
        num_stages=max(1, min(_STAGES, shared_memory(x.device) // held)), **LAUNCH,
    )  # fmt: skip


@triton.jit
def _grouped_linear(
    x, weight, y, words, bias, row_scales, output_scales, x_row, y_row,
    OUTPUTS: tl.constexpr, INPUTS: tl.constexpr, TILE_OUTPUTS: tl.constexpr, HIGH: tl.constexpr,
    TILE_INPUTS: tl.constexpr, PLACED: tl.constexpr, BIAS: tl.constexpr, SCALED: tl.constexpr,
):  # fmt: skip
    wait_for_inputs()
    let_next_begin()
    if tl.program_id(1) < tl.load(words):
        entry = words + 4 + 4 * tl.program_id(1)
        expert = tl.load(entry).to(tl.int64)
        count, target = tl.load(entry + 2), tl.load(entry + 3)
        first = target if PLACED else tl.load(entry + 1)
        n = tl.program_id(0) * TILE_OUTPUTS + tl.arange(0, TILE_OUTPUTS)
        m = tl.arange(0, HIGH)
        k = tl.arange(0, TILE_INPUTS)
        weight_rows = weight + (expert * OUTPUTS + n)[:, None] * INPUTS
        x_rows = x + (first + m).to(tl.int64)[:, None] * x_row
        outputs_left = (n < OUTPUTS)[:, None]
        rows_left = (m < count)[:, None]
        total = tl.zeros((TILE_OUTPUTS, HIGH), tl.float32)
        for start in range(0, INPUTS, TILE_INPUTS):
            w = tl.load(weight_rows + (start + k)[None, :], mask=outputs_left, other=0.0)
            v = tl.load(x_rows + (start + k)[None, :], mask=rows_left, other=0.0)
            if SCALED:
                total = tl.dot(w, tl.trans(v), total, max_num_imprecise_acc=TILE_INPUTS)
            else:
                total = tl.dot(w, tl.trans(v), total, input_precision="ieee")
        total = tl.trans(total)
        if SCALED:
            # In this order: products of the two scales are rounded otherwise.
            total = total * tl.load(output_scales + expert * OUTPUTS + n, mask=n < OUTPUTS, other=0.0)[None, :]
            total = total * tl.load(row_scales + first + m, mask=m < count, other=0.0)[:, None]
        if BIAS:
            total += tl.load(bias + expert * OUTPUTS + n, mask=n < OUTPUTS, other=0.0).to(tl.float32)[None, :]
        place = y + (target + m).to(tl.int64)[:, None] * y_row + n[None, :]
        tl.store(place, total.to(y.dtype.element_ty), mask=(m < count)[:, None] & (n < OUTPUTS)[None, :])
