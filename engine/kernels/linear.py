"""y = x Wᵀ for few rows, where a row has the same bits at every count of rows.

The inputs are added up in one order, by one accumulator. cuBLAS does the same for many rows, where it does not split
the inputs. So few rows are multiplied here, at the speed of reading the weight, and many by the library. Whether both
agree on the machine at hand is for the caller to test.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

import torch
import triton
import triton.language as tl

from engine.kernels.dependent_launch import LAUNCH, let_next_begin, prefetch, wait_for_inputs


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

    def within(self, shared: int, itemsize: int) -> LinearTile:
        """The same tile with as many stages as `shared` bytes of memory hold: they are fetched ahead, and change no
        bits."""
        stage = (self.outputs + self.rows) * self.inputs * itemsize
        return replace(self, stages=max(1, min(self.stages, shared // stage)))


@cache
def shared_memory(device: torch.device) -> int:
    """Bytes of shared memory that a program may have."""
    if device.type != "cuda":
        return 1 << 30  # the interpreter takes any
    found: int = torch.cuda.get_device_properties(device).shared_memory_per_block_optin  # type: ignore[attr-defined]
    return found


def tile_for(rows: int, outputs: int, inputs: int, itemsize: int = 2) -> LinearTile:
    """The quickest tile known on an H200 in bf16 for a weight [outputs, inputs] (`benchmarks/gpu/NOTES.md`).

    Its inputs divide the weight's, as far as these are a multiple of 16; elements of more bytes come fewer at a time.
    """
    tile = _quickest_tile(rows, outputs)
    step = tile.inputs * 2 // itemsize
    while inputs % step and step > 16:
        step //= 2
    return replace(tile, inputs=step)


def _quickest_tile(rows: int, outputs: int) -> LinearTile:
    many = outputs > 16_384
    if rows > 384:
        return LinearTile(128, 128, 64, 8, 4)
    if rows > 64:
        if many:
            return LinearTile(128, 128, 64, 8, 4, swapped=False)
        return LinearTile(64, 64, 128, 4, 4) if outputs <= 4_096 else LinearTile(128, 64, 128, 8, 3)
    if rows > 32:
        if many:
            return LinearTile(128, 64, 128, 8, 4)
        return LinearTile(32, 64, 256, 4, 4, swapped=False) if outputs <= 4_096 else LinearTile(64, 64, 128, 4, 5)
    if rows > 16:
        return LinearTile(128, 32, 128, 4, 4) if many else LinearTile(64, 32, 128, 4, 5)
    return LinearTile(128, 16, 128, 8, 4) if outputs > 65_536 else LinearTile(64, 16, 128, 4, 5)


def fp8_tile_for(rows: int) -> LinearTile:
    """A tile for weights in e4m3. Others have other bits: fewer than 64 outputs, or steps of other than 128 inputs."""
    tall = 16 if rows <= 16 else 32 if rows <= 32 else 64
    return LinearTile(64, tall, 128, 4, 6 if tall == 64 else 8)


def linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    out: torch.Tensor | None = None,
    *,
    plus: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    tile: LinearTile | None = None,
    scales: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> torch.Tensor:
    """[rows, inputs] · [outputs, inputs]ᵀ → [rows, outputs], to which `bias` and `plus` [rows, outputs] are added.

    In e4m3 `scales`, fp32, are those of the rows [rows] and of the outputs [outputs], and `out` must be given; sums
    are promoted to fp32 every 128 inputs, as the library does without its fast accumulation (`fp8_tile_for`).
    `out` may be `plus`. Sums are fp32 and rounded once, after `plus`. The inputs must be a multiple of the tile's.
    """
    rows, inputs = x.shape
    outputs = weight.shape[0]
    tile = tile or tile_for(rows, outputs, inputs, x.itemsize).within(shared_memory(x.device), x.itemsize)
    if inputs % tile.inputs:
        raise ValueError(f"{inputs} inputs are no multiple of {tile.inputs}")
    y = x.new_empty(rows, outputs) if out is None else out
    _linear[(triton.cdiv(outputs, tile.outputs), triton.cdiv(rows, tile.rows))](
        x,
        weight,
        y,
        y if plus is None else plus,
        y if bias is None else bias,
        y if scales is None else scales[0],
        y if scales is None else scales[1],
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
        SCALED=scales is not None,
        num_warps=tile.warps,
        num_stages=tile.stages,
        **LAUNCH,
    )
    return y


@triton.jit(do_not_specialize=["rows"])
def _linear(
    x,
    weight,
    y,
    plus,
    bias,
    row_scales,
    output_scales,
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
    SCALED: tl.constexpr,
):
    n = tl.program_id(0) * TILE_OUTPUTS + tl.arange(0, TILE_OUTPUTS)
    m = tl.program_id(1) * TILE_ROWS + tl.arange(0, TILE_ROWS)
    k = tl.arange(0, TILE_INPUTS)
    weight_rows = weight + n.to(tl.int64)[:, None] * INPUTS
    x_rows = x + m.to(tl.int64)[:, None] * x_row
    # The begin of each of the weight's rows comes while the kernel before this one still writes the inputs.
    prefetch(weight + tl.minimum(n, outputs - 1).to(tl.int64) * INPUTS)
    wait_for_inputs()
    let_next_begin()
    outputs_left = (n < outputs)[:, None]
    rows_left = (m < rows)[:, None]
    if SWAPPED:
        total = tl.zeros((TILE_OUTPUTS, TILE_ROWS), tl.float32)
        for start in range(0, INPUTS, TILE_INPUTS):
            w = tl.load(weight_rows + (start + k)[None, :], mask=outputs_left, other=0.0)
            v = tl.load(x_rows + (start + k)[None, :], mask=rows_left, other=0.0)
            if SCALED:
                total = tl.dot(w, tl.trans(v), total, max_num_imprecise_acc=TILE_INPUTS)
            else:
                total = tl.dot(w, tl.trans(v), total, input_precision="ieee")
        total = tl.trans(total)
    else:
        total = tl.zeros((TILE_ROWS, TILE_OUTPUTS), tl.float32)
        for start in range(0, INPUTS, TILE_INPUTS):
            w = tl.load(weight_rows + (start + k)[None, :], mask=outputs_left, other=0.0)
            v = tl.load(x_rows + (start + k)[None, :], mask=rows_left, other=0.0)
            total = tl.dot(v, tl.trans(w), total, input_precision="ieee")
    inside = (m < rows)[:, None] & (n < outputs)[None, :]
    if SCALED:
        # In this order: products of the two scales are rounded otherwise.
        total = total * tl.load(output_scales + n, mask=n < outputs, other=0.0)[None, :]
        total = total * tl.load(row_scales + m, mask=m < rows, other=0.0)[:, None]
    if BIAS:
        total += tl.load(bias + n, mask=n < outputs, other=0.0).to(tl.float32)[None, :]
    if PLUS:
        total += tl.load(plus + m[:, None] * plus_row + n[None, :], mask=inside, other=0.0).to(tl.float32)
    place = y + m.to(tl.int64)[:, None] * y_row + n[None, :]
    tl.store(place, total.to(y.dtype.element_ty), mask=inside)
