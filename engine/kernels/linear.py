"""y = x Wᵀ for few rows, where a row has the same bits at every count of rows.

The inputs are added up in one order, by one accumulator. cuBLAS does the same for many rows, where it does not split
the inputs. So few rows are multiplied here, at the speed of reading the weight, and many by the library. Whether both
agree on the machine at hand is for the caller to test.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import triton
import triton.language as tl


@dataclass(frozen=True)
class LinearTile:
    """How a product is cut: `outputs` × `rows` of the result, `inputs` at a time.

    `swapped`: outputs, and not rows, are the first operand of the matrix instruction, which wants at least 64 there.
    """

    outputs: int
    rows: int
    inputs: int
    warps: int
    stages: int
    swapped: bool = True


def tile_for(rows: int, outputs: int, inputs: int) -> LinearTile:
    """The quickest tile known on an H200 in bf16 for a weight [outputs, inputs] (`benchmarks/gpu/NOTES.md`).

    Its inputs divide the weight's, as far as these are a multiple of 16.
    """
    tile = _quickest_tile(rows, outputs)
    step = tile.inputs
    while inputs % step and step > 16:
        step //= 2
    return replace(tile, inputs=step)


def _quickest_tile(rows: int, outputs: int) -> LinearTile:
    tall = 16 if rows <= 16 else 32 if rows <= 32 else 64
    if rows > 64:
        return LinearTile(128, 128, 64, 8, 4)
    if outputs <= 4_096 and rows <= 16:
        return LinearTile(32, 16, 256, 4, 4, swapped=False)
    if outputs <= 8_192:
        return LinearTile(64, tall, 256 if tall == 16 else 128, 4, 3)
    if outputs <= 32_768:
        return LinearTile(128, tall, 128 if tall == 16 else 64, 8 if tall == 16 else 4, 4)
    return LinearTile(64, tall, 128, 4, 4)


def linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    out: torch.Tensor | None = None,
    *,
    plus: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    tile: LinearTile | None = None,
) -> torch.Tensor:
    """[rows, inputs] · [outputs, inputs]ᵀ → [rows, outputs], to which `bias` and `plus` [rows, outputs] are added.

    `out` may be `plus`. Sums are fp32 and rounded once, after `plus`. The inputs must be a multiple of the tile's.
    """
    rows, inputs = x.shape
    outputs = weight.shape[0]
    tile = tile or tile_for(rows, outputs, inputs)
    if inputs % tile.inputs:
        raise ValueError(f"{inputs} inputs are no multiple of {tile.inputs}")
    y = x.new_empty(rows, outputs) if out is None else out
    _linear[(triton.cdiv(outputs, tile.outputs), triton.cdiv(rows, tile.rows))](
        x,
        weight,
        y,
        y if plus is None else plus,
        y if bias is None else bias,
        rows,
        outputs,
        x.stride(0),
        y.stride(0),
        0 if plus is None else plus.stride(0),
        INPUTS=inputs,
        TILE_OUTPUTS=tile.outputs,
        TILE_ROWS=tile.rows,
        TILE_INPUTS=tile.inputs,
        SWAPPED=tile.swapped,
        PLUS=plus is not None,
        BIAS=bias is not None,
        num_warps=tile.warps,
        num_stages=tile.stages,
    )
    return y


@triton.jit(do_not_specialize=["rows"])
def _linear(
    x,
    weight,
    y,
    plus,
    bias,
    rows,
    outputs,
    x_row,
    y_row,
    plus_row,
    INPUTS: tl.constexpr,
    TILE_OUTPUTS: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    TILE_INPUTS: tl.constexpr,
    SWAPPED: tl.constexpr,
    PLUS: tl.constexpr,
    BIAS: tl.constexpr,
):
    n = tl.program_id(0) * TILE_OUTPUTS + tl.arange(0, TILE_OUTPUTS)
    m = tl.program_id(1) * TILE_ROWS + tl.arange(0, TILE_ROWS)
    k = tl.arange(0, TILE_INPUTS)
    weight_rows = weight + n.to(tl.int64)[:, None] * INPUTS
    x_rows = x + m.to(tl.int64)[:, None] * x_row
    outputs_left = (n < outputs)[:, None]
    rows_left = (m < rows)[:, None]
    if SWAPPED:
        total = tl.zeros((TILE_OUTPUTS, TILE_ROWS), tl.float32)
        for start in range(0, INPUTS, TILE_INPUTS):
            w = tl.load(weight_rows + (start + k)[None, :], mask=outputs_left, other=0.0)
            v = tl.load(x_rows + (start + k)[None, :], mask=rows_left, other=0.0)
            total = tl.dot(w, tl.trans(v), total, input_precision="ieee")
        total = tl.trans(total)
    else:
        total = tl.zeros((TILE_ROWS, TILE_OUTPUTS), tl.float32)
        for start in range(0, INPUTS, TILE_INPUTS):
            w = tl.load(weight_rows + (start + k)[None, :], mask=outputs_left, other=0.0)
            v = tl.load(x_rows + (start + k)[None, :], mask=rows_left, other=0.0)
            total = tl.dot(v, tl.trans(w), total, input_precision="ieee")
    inside = (m < rows)[:, None] & (n < outputs)[None, :]
    if BIAS:
        total += tl.load(bias + n, mask=n < outputs, other=0.0).to(tl.float32)[None, :]
    if PLUS:
        total += tl.load(plus + m[:, None] * plus_row + n[None, :], mask=inside, other=0.0).to(tl.float32)
    place = y + m.to(tl.int64)[:, None] * y_row + n[None, :]
    tl.store(place, total.to(y.dtype.element_ty), mask=inside)
