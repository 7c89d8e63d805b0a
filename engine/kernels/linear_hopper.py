"""y = x Wᵀ for few rows on Hopper: `linear.linear`, with the same bits, which begins before its inputs are there.

A program has a multiprocessor to itself. One warp fetches steps of the weight into all shared memory there is, by the
tensor memory accelerator, and does not wait for the kernels before this one: only the rows come after them. So memory
is read while the end of one product, the small kernels after it and attention leave it idle. Four warps multiply.

The arithmetic is that of `linear`: the inputs are added up in one order by one accumulator; in e4m3 each 128 of them
are a sum of their own, which is added in fp32. `tests/gpu/kernels` compares both kernels bit by bit.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from engine.kernels.dependent_launch import LAUNCH, let_next_begin, wait_for_inputs

MOST_ROWS, MOST_ROWS_IN_FP8 = 32, 64
"""With more rows the other kernel is as quick."""
PART_BYTES = 128
"""Of a row: what is multiplied at a time."""
_REGISTERS, _FETCHING_REGISTERS = 96, 40
"""Of each thread, and of one that fetches: few, since the small kernels between products run on the same
multiprocessors."""


@dataclass(frozen=True)
class Stream:
    """How a product is cut: outputs of a tile, a multiple of 64; parts of `PART_BYTES` that are fetched together, and
    how many bytes of them are in shared memory; programs for each multiprocessor at most."""

    outputs: int = 64
    parts: int = 4
    held: int = 220 << 10
    programs: int = 2


def most_rows(weight: torch.Tensor) -> int:
    """Up to how many rows the kernel is the quicker one."""
    return MOST_ROWS_IN_FP8 if weight.itemsize == 1 else MOST_ROWS


def fits(weight: torch.Tensor) -> bool:
    """Whether the kernel multiplies by this weight [outputs, inputs]."""
    return (
        weight.dtype in (torch.bfloat16, torch.float16, torch.float8_e4m3fn)
        and weight.shape[1] * weight.itemsize % PART_BYTES == 0
        and _parts(weight) > 0
        and weight.is_contiguous()
        and weight.data_ptr() % 16 == 0
    )


def _parts(weight: torch.Tensor) -> int:
    """How many parts of a row are fetched together: as many as divide it, in e4m3 an even number; 0 for none."""
    parts = weight.shape[1] * weight.itemsize // PART_BYTES
    return next((some for some in (4, 5, 6, 3) if parts % some == 0 and (weight.itemsize > 1 or some % 2 == 0)), 0)


@cache
def _processors(index: int) -> int:
    return torch.cuda.get_device_properties(index).multi_processor_count


def _element(dtype: torch.dtype) -> gl.dtype:
    if dtype == torch.float8_e4m3fn:
        return gl.float8e4nv
    return gl.bfloat16 if dtype == torch.bfloat16 else gl.float16


def _tiles(x: torch.Tensor, high: int) -> TensorDescriptor:
    block = [high, PART_BYTES // x.itemsize]
    layout = gl.NVMMASharedLayout.get_default_for(block, _element(x.dtype))
    return TensorDescriptor(x, list(x.shape), [x.stride(0), 1], block, layout)


def linear_streamed(
    x: torch.Tensor,
    weight: torch.Tensor,
    out: torch.Tensor,
    *,
    bias: torch.Tensor | None = None,
    scales: tuple[torch.Tensor, torch.Tensor] | None = None,
    how: Stream | None = None,
) -> torch.Tensor:
    """[rows, inputs] · [outputs, inputs]ᵀ + bias → `out` [rows, outputs], for few rows; see `linear.linear`.

    In e4m3 `scales`, fp32, are those of the rows [rows] and of the outputs [outputs].
    """
    how = how or Stream(parts=_parts(weight))
    rows, inputs = x.shape
    outputs = weight.shape[0]
    high = max(8, 1 << (rows - 1).bit_length())
    tiles = -(-outputs // how.outputs)
    stages = how.held // ((how.outputs + high) * PART_BYTES * how.parts)
    programs = min(tiles, how.programs * _processors(x.device.index or 0))
    _linear[(programs,)](
        _tiles(weight, how.outputs),
        _tiles(x, high),
        out,
        out if scales is None else scales[0],
        out if scales is None else scales[1],
        out if bias is None else bias,
        rows,
        outputs,
        tiles,
        out.stride(0),
        INPUTS=inputs,
        STAGES=stages,
        PARTS=how.parts,
        SCALED=scales is not None,
        BIAS=bias is not None,
        FETCHING_REGISTERS=_FETCHING_REGISTERS,
        num_warps=4,
        maxnreg=_REGISTERS,
        **LAUNCH,
    )
    return out


@gluon.jit
def _fetch(
    weight, x, tiles, w_smem, x_smem, full, empty, STEPS: gl.constexpr, STAGES: gl.constexpr, PARTS: gl.constexpr
):  # fmt: skip
    """Stage i has step i of this program's tiles, one tile after another."""
    TALL: gl.constexpr = weight.block_type.shape[0]
    SIZE: gl.constexpr = (weight.block_type.nbytes + x.block_type.nbytes) * PARTS
    WIDE: gl.constexpr = weight.block_type.shape[1]
    first = gl.program_id(0)
    programs = gl.num_programs(0)
    count = (tiles - first + programs - 1) // programs * STEPS
    early = gl.minimum(count, STAGES)
    for i in range(0, early):
        ready = full.index(i)
        mbarrier.expect(ready, SIZE)
        row, begin = (first + i // STEPS * programs) * TALL, i % STEPS * (PARTS * WIDE)
        for part in gl.static_range(PARTS):
            tma.async_copy_global_to_shared(
                weight, [row, begin + part * WIDE], ready, w_smem.index(i * PARTS + part)
            )  # fmt: skip
    wait_for_inputs()
    for i in range(0, early):
        begin = i % STEPS * (PARTS * WIDE)
        for part in gl.static_range(PARTS):
            tma.async_copy_global_to_shared(
                x, [0, begin + part * WIDE], full.index(i), x_smem.index(i * PARTS + part)
            )  # fmt: skip
    for i in range(early, count):
        stage = i % STAGES
        ready = full.index(stage)
        mbarrier.wait(empty.index(stage), ((i // STAGES) & 1) ^ 1)
        mbarrier.expect(ready, SIZE)
        row, begin = (first + i // STEPS * programs) * TALL, i % STEPS * (PARTS * WIDE)
        for part in gl.static_range(PARTS):
            place = begin + part * WIDE
            tma.async_copy_global_to_shared(weight, [row, place], ready, w_smem.index(stage * PARTS + part))
        for part in gl.static_range(PARTS):
            place = begin + part * WIDE
            tma.async_copy_global_to_shared(x, [0, place], ready, x_smem.index(stage * PARTS + part))


@gluon.jit
def _multiply(
    y, row_scales, output_scales, bias, rows, outputs, tiles, y_row, w_smem, x_smem, full, empty,
    STEPS: gl.constexpr, STAGES: gl.constexpr, PARTS: gl.constexpr, TALL: gl.constexpr, HIGH: gl.constexpr,
    SCALED: gl.constexpr, BIAS: gl.constexpr,
):  # fmt: skip
    S: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, HIGH, 32 if SCALED else 16])
    m = gl.arange(0, HIGH, gl.SliceLayout(0, S))
    nothing = gl.zeros((TALL, HIGH), gl.float32, S)
    wait_for_inputs()
    i = 0
    for tile in range(gl.program_id(0), tiles, gl.num_programs(0)):
        total = nothing
        for _ in range(0, STEPS):
            stage = i % STAGES
            mbarrier.wait(full.index(stage), (i // STAGES) & 1)
            at = stage * PARTS
            if SCALED:
                for part in gl.static_range(0, PARTS, 2):
                    first = warpgroup_mma(
                        w_smem.index(at + part), x_smem.index(at + part).permute((1, 0)), nothing, use_acc=False,
                        is_async=True,
                    )  # fmt: skip
                    second = warpgroup_mma(
                        w_smem.index(at + part + 1), x_smem.index(at + part + 1).permute((1, 0)), nothing,
                        use_acc=False, is_async=True,
                    )  # fmt: skip
                    first, second = warpgroup_mma_wait(0, deps=(first, second))
                    total = total + first
                    total = total + second
            else:
                following = warpgroup_mma(w_smem.index(at), x_smem.index(at).permute((1, 0)), total, is_async=True)
                for part in gl.static_range(1, PARTS):
                    following = warpgroup_mma(
                        w_smem.index(at + part), x_smem.index(at + part).permute((1, 0)), following, is_async=True
                    )
                total = warpgroup_mma_wait(0, deps=(following,))
            mbarrier.arrive(empty.index(stage), count=1)
            i += 1
        n = tile * TALL + gl.arange(0, TALL, gl.SliceLayout(1, S))
        if SCALED:
            # In this order: products of the two scales are rounded otherwise.
            total = total * gl.load(output_scales + n, mask=n < outputs, other=0.0)[:, None]
            total = total * gl.load(row_scales + m, mask=m < rows, other=0.0)[None, :]
        if BIAS:
            total = total + gl.load(bias + n, mask=n < outputs, other=0.0).to(gl.float32)[:, None]
        place = y + m.to(gl.int64)[None, :] * y_row + n[:, None]
        gl.store(place, total.to(y.dtype.element_ty), mask=(n < outputs)[:, None] & (m < rows)[None, :])


@gluon.jit(do_not_specialize=["rows"])
def _linear(
    weight, x, y, row_scales, output_scales, bias, rows, outputs, tiles, y_row,
    INPUTS: gl.constexpr, STAGES: gl.constexpr, PARTS: gl.constexpr, SCALED: gl.constexpr, BIAS: gl.constexpr,
    FETCHING_REGISTERS: gl.constexpr,
):  # fmt: skip
    TALL: gl.constexpr = weight.block_type.shape[0]
    HIGH: gl.constexpr = x.block_type.shape[0]
    WIDE: gl.constexpr = x.block_type.shape[1]
    STEPS: gl.constexpr = INPUTS // (WIDE * PARTS)
    let_next_begin()
    w_smem = gl.allocate_shared_memory(weight.dtype, [STAGES * PARTS, TALL, WIDE], weight.layout)
    x_smem = gl.allocate_shared_memory(x.dtype, [STAGES * PARTS, HIGH, WIDE], x.layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for stage in gl.static_range(STAGES):
        mbarrier.init(full.index(stage), count=1)
        mbarrier.init(empty.index(stage), count=1)
    fence_async_shared()
    count = gl.to_tensor(tiles)
    gl.warp_specialize(
        [
            (
                _multiply,
                (y, row_scales, output_scales, bias, rows, gl.to_tensor(outputs), count, gl.to_tensor(y_row),
                 w_smem, x_smem, full, empty, STEPS, STAGES, PARTS, TALL, HIGH, SCALED, BIAS),
            ),
            (_fetch, (weight, x, count, w_smem, x_smem, full, empty, STEPS, STAGES, PARTS)),
        ],
        [1],
        [FETCHING_REGISTERS],
    )  # fmt: skip
