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

MOST_ROWS = 64
STEP = 128
"""Inputs of a step."""
_SHARED = 222 << 10
"""Bytes of shared memory that steps may fill."""
_REGISTERS, _FETCHING_REGISTERS = 96, 40
"""Of each thread, and of one that fetches: few, since the small kernels between products run on the same
multiprocessors."""


@dataclass(frozen=True)
class Stream:
    """How a product is cut: outputs of a tile, a multiple of 64, and steps in shared memory; all that fit if 0."""

    outputs: int = 64
    stages: int = 0


def fits(weight: torch.Tensor, bias: torch.Tensor | None) -> bool:
    """Whether the kernel multiplies by this weight [outputs, inputs]."""
    return (
        weight.dtype in (torch.bfloat16, torch.float16, torch.float8_e4m3fn)
        and weight.shape[1] % (2 * STEP) == 0
        and weight.is_contiguous()
        and weight.data_ptr() % 16 == 0
        and bias is None
    )


@cache
def _processors(index: int) -> int:
    return torch.cuda.get_device_properties(index).multi_processor_count


def _element(dtype: torch.dtype) -> gl.dtype:
    if dtype == torch.float8_e4m3fn:
        return gl.float8e4nv
    return gl.bfloat16 if dtype == torch.bfloat16 else gl.float16


def _tiles(x: torch.Tensor, high: int) -> TensorDescriptor:
    layout = gl.NVMMASharedLayout.get_default_for([high, STEP], _element(x.dtype))
    return TensorDescriptor(x, list(x.shape), [x.stride(0), 1], [high, STEP], layout)


def linear_streamed(
    x: torch.Tensor,
    weight: torch.Tensor,
    out: torch.Tensor,
    *,
    scales: tuple[torch.Tensor, torch.Tensor] | None = None,
    how: Stream = Stream(),
) -> torch.Tensor:
    """[rows, inputs] · [outputs, inputs]ᵀ → `out` [rows, outputs], for at most `MOST_ROWS` rows; see `linear.linear`.

    In e4m3 `scales`, fp32, are those of the rows [rows] and of the outputs [outputs].
    """
    rows, inputs = x.shape
    outputs = weight.shape[0]
    high = 16 if rows <= 16 else 32 if rows <= 32 else 64
    tiles = -(-outputs // how.outputs)
    stages = how.stages or _SHARED // ((how.outputs + high) * STEP * x.itemsize)
    # Two steps are multiplied at a time.
    stages -= stages % 2
    _linear[(min(tiles, _processors(x.device.index or 0)),)](
        _tiles(weight, how.outputs),
        _tiles(x, high),
        out,
        out if scales is None else scales[0],
        out if scales is None else scales[1],
        rows,
        outputs,
        tiles,
        out.stride(0),
        INPUTS=inputs,
        STAGES=stages,
        SCALED=scales is not None,
        FETCHING_REGISTERS=_FETCHING_REGISTERS,
        num_warps=4,
        maxnreg=_REGISTERS,
        **LAUNCH,
    )
    return out


@gluon.jit
def _fetch(weight, x, tiles, w_smem, x_smem, full, empty, STEPS: gl.constexpr, STAGES: gl.constexpr):
    """Stage i has step i of this program's tiles, one tile after another."""
    TALL: gl.constexpr = weight.block_type.shape[0]
    SIZE: gl.constexpr = weight.block_type.nbytes + x.block_type.nbytes
    INPUTS: gl.constexpr = weight.block_type.shape[1]
    first = gl.program_id(0)
    programs = gl.num_programs(0)
    count = (tiles - first + programs - 1) // programs * STEPS
    early = gl.minimum(count, STAGES)
    for i in range(0, early):
        ready = full.index(i)
        mbarrier.expect(ready, SIZE)
        place = [(first + i // STEPS * programs) * TALL, i % STEPS * INPUTS]
        tma.async_copy_global_to_shared(weight, place, ready, w_smem.index(i))
    wait_for_inputs()
    for i in range(0, early):
        tma.async_copy_global_to_shared(x, [0, i % STEPS * INPUTS], full.index(i), x_smem.index(i))
    for i in range(early, count):
        stage = i % STAGES
        ready = full.index(stage)
        mbarrier.wait(empty.index(stage // 2), ((i // STAGES) & 1) ^ 1)
        mbarrier.expect(ready, SIZE)
        place = [(first + i // STEPS * programs) * TALL, i % STEPS * INPUTS]
        tma.async_copy_global_to_shared(weight, place, ready, w_smem.index(stage))
        tma.async_copy_global_to_shared(x, [0, i % STEPS * INPUTS], ready, x_smem.index(stage))


@gluon.jit
def _multiply(
    y, row_scales, output_scales, rows, outputs, tiles, y_row, w_smem, x_smem, full, empty,
    STEPS: gl.constexpr, STAGES: gl.constexpr, TALL: gl.constexpr, HIGH: gl.constexpr, SCALED: gl.constexpr,
):  # fmt: skip
    S: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, HIGH, 32 if SCALED else 16])
    m = gl.arange(0, HIGH, gl.SliceLayout(0, S))
    nothing = gl.zeros((TALL, HIGH), gl.float32, S)
    wait_for_inputs()
    i = 0
    for tile in range(gl.program_id(0), tiles, gl.num_programs(0)):
        total = nothing
        for _ in range(0, STEPS // 2):
            stage = i % STAGES
            phase = (i // STAGES) & 1
            mbarrier.wait(full.index(stage), phase)
            if SCALED:
                first = warpgroup_mma(
                    w_smem.index(stage), x_smem.index(stage).permute((1, 0)), nothing, use_acc=False, is_async=True
                )
                mbarrier.wait(full.index(stage + 1), phase)
                second = warpgroup_mma(
                    w_smem.index(stage + 1), x_smem.index(stage + 1).permute((1, 0)), nothing, use_acc=False,
                    is_async=True,
                )  # fmt: skip
                first, second = warpgroup_mma_wait(0, deps=(first, second))
                mbarrier.arrive(empty.index(stage // 2), count=1)
                total = total + first
                total = total + second
            else:
                following = warpgroup_mma(
                    w_smem.index(stage), x_smem.index(stage).permute((1, 0)), total, is_async=True
                )
                mbarrier.wait(full.index(stage + 1), phase)
                following = warpgroup_mma(
                    w_smem.index(stage + 1), x_smem.index(stage + 1).permute((1, 0)), following, is_async=True
                )
                total = warpgroup_mma_wait(0, deps=(following,))
                mbarrier.arrive(empty.index(stage // 2), count=1)
            i += 2
        n = tile * TALL + gl.arange(0, TALL, gl.SliceLayout(1, S))
        if SCALED:
            # In this order: products of the two scales are rounded otherwise.
            total = total * gl.load(output_scales + n, mask=n < outputs, other=0.0)[:, None]
            total = total * gl.load(row_scales + m, mask=m < rows, other=0.0)[None, :]
        place = y + m.to(gl.int64)[None, :] * y_row + n[:, None]
        gl.store(place, total.to(y.dtype.element_ty), mask=(n < outputs)[:, None] & (m < rows)[None, :])


@gluon.jit(do_not_specialize=["rows"])
def _linear(
    weight, x, y, row_scales, output_scales, rows, outputs, tiles, y_row,
    INPUTS: gl.constexpr, STAGES: gl.constexpr, SCALED: gl.constexpr, FETCHING_REGISTERS: gl.constexpr,
):  # fmt: skip
    TALL: gl.constexpr = weight.block_type.shape[0]
    HIGH: gl.constexpr = x.block_type.shape[0]
    WIDE: gl.constexpr = x.block_type.shape[1]
    STEPS: gl.constexpr = INPUTS // WIDE
    let_next_begin()
    w_smem = gl.allocate_shared_memory(weight.dtype, [STAGES, TALL, WIDE], weight.layout)
    x_smem = gl.allocate_shared_memory(x.dtype, [STAGES, HIGH, WIDE], x.layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES // 2, 1], mbarrier.MBarrierLayout())
    for stage in gl.static_range(STAGES):
        mbarrier.init(full.index(stage), count=1)
        if stage % 2 == 0:
            mbarrier.init(empty.index(stage // 2), count=1)
    fence_async_shared()
    count = gl.to_tensor(tiles)
    gl.warp_specialize(
        [
            (
                _multiply,
                (y, row_scales, output_scales, rows, gl.to_tensor(outputs), count, gl.to_tensor(y_row),
                 w_smem, x_smem, full, empty, STEPS, STAGES, TALL, HIGH, SCALED),
            ),
            (_fetch, (weight, x, count, w_smem, x_smem, full, empty, STEPS, STAGES)),
        ],
        [1],
        [FETCHING_REGISTERS],
    )  # fmt: skip
