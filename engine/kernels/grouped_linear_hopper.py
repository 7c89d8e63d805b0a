"""`grouped_linear` for few rows of each expert on Hopper, at the speed of memory, with the same bits.

As in `linear_hopper` one warp fetches weights by the tensor memory accelerator, and four multiply. Tiles are worked off
in turns, so that the next one's weights are fetched while this one is multiplied. Where the tiles are known before the
inputs (`early`), weights do not wait for these either. A box of rows may reach behind its expert's: what is computed
with its neighbour's rows is not stored. With `gated`, a program has both the gate and what it gates, and stores the
activation: the bits of the product followed by `rows.silu_mul`.
"""

from __future__ import annotations

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

from engine.kernels.dependent_launch import LAUNCH, let_next_begin, wait_for_inputs
from engine.kernels.expert_routing import Tiles
from engine.kernels.linear_hopper import PART_BYTES, _processors, _tiles

LEAST_HIGH, MOST_HIGH = 8, 64
"""Rows of a tile."""
_TALL, _HELD, _PROGRAMS = 64, 110 << 10, 2
"""Outputs of a tile; bytes in flight of a program; programs of a multiprocessor."""
_LEAST_STAGES = 3
_REGISTERS, _MORE_REGISTERS, _FETCHING_REGISTERS = 96, 128, 40
_FEW = 32
"""With more rows, two sums of a tile take more registers."""


def fits(weight: torch.Tensor) -> bool:
    """Whether the kernel multiplies by this weight [experts, outputs, inputs]."""
    return (
        weight.dtype in (torch.bfloat16, torch.float16, torch.float8_e4m3fn)
        and weight.shape[2] * weight.itemsize % ((2 if weight.itemsize == 1 else 1) * PART_BYTES) == 0
        and weight.is_contiguous()
        and weight.data_ptr() % 16 == 0
    )


def fits_gated(weight: torch.Tensor) -> bool:
    """Whether it also computes the activation: a tile is all of the gate's or all of what it gates."""
    return weight.itemsize == 2 and weight.shape[1] % (2 * _TALL) == 0


def _cut(inputs: int, itemsize: int, boxes: int) -> tuple[int, int]:
    """Parts of `PART_BYTES` of a row that are fetched together, and for how many of these there is memory.

    `boxes`: rows of weights and inputs.
    """
    parts = inputs * itemsize // PART_BYTES
    for together in (4, 6, 5, 3, 2, 1):
        stages = _HELD // (boxes * PART_BYTES * together)
        if parts % together == 0 and stages >= _LEAST_STAGES and not (itemsize == 1 and together % 2):
            return together, stages
    together = 2 if itemsize == 1 else 1
    return together, _HELD // (boxes * PART_BYTES * together)


def grouped_linear_streamed(
    x: torch.Tensor,
    weight: torch.Tensor,
    out: torch.Tensor,
    tiles: Tiles,
    *,
    placed: bool = False,
    bias: torch.Tensor | None = None,
    scales: tuple[torch.Tensor, torch.Tensor] | None = None,
    early: bool = False,
    gated: bool = False,
) -> None:
    """See `grouped_linear`. `early`: the tiles were written before the kernel in front of this one began.

    `gated`, without a bias: `out` [pairs, outputs / 2] becomes silu(gate) · up of the product.
    """
    experts, outputs, inputs = weight.shape
    sides = 2 if gated else 1
    parts, stages = _cut(inputs, x.itemsize, sides * _TALL + tiles.high)
    many = tiles.most * -(-outputs // (sides * _TALL))
    _grouped[(min(many, _PROGRAMS * _processors(x.device.index or 0)),)](
        _tiles(weight.view(experts * outputs, inputs), _TALL), _tiles(x, tiles.high), out, tiles.words,
        out if scales is None else scales[0], out if scales is None else scales[1], out if bias is None else bias,
        out.stride(0),
        OUTPUTS=outputs, INPUTS=inputs, STAGES=stages, PARTS=parts, SCALED=scales is not None, BIAS=bias is not None,
        EARLY=early, PLACED=placed, GATED=gated, FETCHING_REGISTERS=_FETCHING_REGISTERS, num_warps=4,
        maxnreg=_MORE_REGISTERS if gated and tiles.high > _FEW else _REGISTERS, **LAUNCH,
    )  # fmt: skip


@gluon.jit
def _fetch(
    weight, x, words, w_smem, x_smem, full, empty,
    TILES: gl.constexpr, OUTPUTS: gl.constexpr, STEPS: gl.constexpr, STAGES: gl.constexpr, PARTS: gl.constexpr,
    EARLY: gl.constexpr, PLACED: gl.constexpr, SIDES: gl.constexpr,
):  # fmt: skip
    TALL: gl.constexpr = weight.block_type.shape[0]
    WIDE: gl.constexpr = weight.block_type.shape[1]
    SIZE: gl.constexpr = (SIDES * weight.block_type.nbytes + x.block_type.nbytes) * PARTS
    HALF: gl.constexpr = OUTPUTS // SIDES
    if not EARLY:
        wait_for_inputs()
    first = gl.program_id(0)
    programs = gl.num_programs(0)
    # Not by the multiprocessor's own cache, which may have the tiles of another layer.
    # The first expert beside the number of tiles, since each takes as long as memory is far.
    total = gl.load(words, cache_modifier=".cg") * TILES
    expert = gl.load(words + 4 + first // TILES * 4, cache_modifier=".cg")
    count = gl.maximum(total - first + programs - 1, 0) // programs * STEPS
    early = gl.minimum(count, STAGES)
    for i in range(0, early):
        tile = first + i // STEPS * programs
        ready = full.index(i)
        mbarrier.expect(ready, SIZE)
        if i >= STEPS:
            expert = gl.load(words + 4 + tile // TILES * 4, cache_modifier=".cg")
        output, begin = expert * OUTPUTS + tile % TILES * TALL, i % STEPS * (PARTS * WIDE)
        for part in gl.static_range(PARTS):
            for side in gl.static_range(SIDES):
                at = (i * PARTS + part) * SIDES + side
                tma.async_copy_global_to_shared(
                    weight, [output + side * HALF, begin + part * WIDE], ready, w_smem.index(at)
                )  # fmt: skip
    if EARLY:
        wait_for_inputs()
    for i in range(0, early):
        tile = first + i // STEPS * programs
        row = gl.load(words + (7 if PLACED else 5) + tile // TILES * 4, cache_modifier=".cg")
        begin = i % STEPS * (PARTS * WIDE)
        for part in gl.static_range(PARTS):
            tma.async_copy_global_to_shared(
                x, [row, begin + part * WIDE], full.index(i), x_smem.index(i * PARTS + part)
            )  # fmt: skip
    i = 0
    for tile in range(first, total, programs):
        entry = words + 4 + tile // TILES * 4
        output = gl.load(entry, cache_modifier=".cg") * OUTPUTS + tile % TILES * TALL
        row = gl.load(entry + (3 if PLACED else 1), cache_modifier=".cg")
        for step in range(0, STEPS):
            if i >= early:
                stage = i % STAGES
                ready = full.index(stage)
                mbarrier.wait(empty.index(stage), ((i // STAGES) & 1) ^ 1)
                mbarrier.expect(ready, SIZE)
                for part in gl.static_range(PARTS):
                    place = (step * PARTS + part) * WIDE
                    for side in gl.static_range(SIDES):
                        at = (stage * PARTS + part) * SIDES + side
                        tma.async_copy_global_to_shared(
                            weight, [output + side * HALF, place], ready, w_smem.index(at)
                        )  # fmt: skip
                    tma.async_copy_global_to_shared(x, [row, place], ready, x_smem.index(stage * PARTS + part))
            i += 1


@gluon.jit
def _multiply(
    y, words, row_scales, output_scales, bias, y_row, w_smem, x_smem, full, empty,
    TILES: gl.constexpr, OUTPUTS: gl.constexpr, STEPS: gl.constexpr, STAGES: gl.constexpr, PARTS: gl.constexpr,
    TALL: gl.constexpr, HIGH: gl.constexpr, SCALED: gl.constexpr, BIAS: gl.constexpr, PLACED: gl.constexpr,
    GATED: gl.constexpr,
):  # fmt: skip
    S: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, HIGH, 32 if SCALED else 16])
    m = gl.arange(0, HIGH, gl.SliceLayout(0, S))
    nothing = gl.zeros((TALL, HIGH), gl.float32, S)
    wait_for_inputs()
    # Only now: who comes behind may then read the tiles without waiting.
    let_next_begin()
    i = 0
    for tile in range(gl.program_id(0), gl.load(words, cache_modifier=".cg") * TILES, gl.num_programs(0)):
        entry = words + 4 + tile // TILES * 4
        expert, row = gl.load(entry, cache_modifier=".cg"), gl.load(entry + 1, cache_modifier=".cg")
        count, target = gl.load(entry + 2, cache_modifier=".cg"), gl.load(entry + 3, cache_modifier=".cg")
        if PLACED:
            row = target
        total, gate = nothing, nothing
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
            elif GATED:
                # The first side is the gate, the other one what it gates.
                for part in gl.static_range(PARTS):
                    rows = x_smem.index(at + part).permute((1, 0))
                    gate = warpgroup_mma(w_smem.index((at + part) * 2), rows, gate, is_async=True)
                    total = warpgroup_mma(w_smem.index((at + part) * 2 + 1), rows, total, is_async=True)
                gate, total = warpgroup_mma_wait(0, deps=(gate, total))
            else:
                following = warpgroup_mma(w_smem.index(at), x_smem.index(at).permute((1, 0)), total, is_async=True)
                for part in gl.static_range(1, PARTS):
                    following = warpgroup_mma(
                        w_smem.index(at + part), x_smem.index(at + part).permute((1, 0)), following, is_async=True
                    )
                total = warpgroup_mma_wait(0, deps=(following,))
            mbarrier.arrive(empty.index(stage), count=1)
            i += 1
        n = tile % TILES * TALL + gl.arange(0, TALL, gl.SliceLayout(1, S))
        if SCALED:
            # In this order: products of the two scales are rounded otherwise.
            total = total * gl.load(output_scales + expert * OUTPUTS + n, mask=n < OUTPUTS, other=0.0)[:, None]
            total = total * gl.load(row_scales + row + m, mask=m < count, other=0.0)[None, :]
        if BIAS:
            total = total + gl.load(bias + expert * OUTPUTS + n, mask=n < OUTPUTS, other=0.0).to(gl.float32)[:, None]
        if GATED:
            # Rounded first, as where the product is stored.
            up = total.to(y.dtype.element_ty).to(gl.float32)
            gate = gate.to(y.dtype.element_ty).to(gl.float32)
            total = gate / (1.0 + gl.exp2(gate * -1.4426950408889634)) * up
        place = y + (target + m).to(gl.int64)[None, :] * y_row + n[:, None]
        gl.store(place, total.to(y.dtype.element_ty), mask=(n < OUTPUTS)[:, None] & (m < count)[None, :])


@gluon.jit
def _grouped(
    weight, x, y, words, row_scales, output_scales, bias, y_row,
    OUTPUTS: gl.constexpr, INPUTS: gl.constexpr, STAGES: gl.constexpr, PARTS: gl.constexpr, SCALED: gl.constexpr,
    BIAS: gl.constexpr, EARLY: gl.constexpr, PLACED: gl.constexpr, GATED: gl.constexpr,
    FETCHING_REGISTERS: gl.constexpr,
):  # fmt: skip
    TALL: gl.constexpr = weight.block_type.shape[0]
    HIGH: gl.constexpr = x.block_type.shape[0]
    WIDE: gl.constexpr = x.block_type.shape[1]
    STEPS: gl.constexpr = INPUTS // (WIDE * PARTS)
    SIDES: gl.constexpr = 2 if GATED else 1
    TILES: gl.constexpr = (OUTPUTS + SIDES * TALL - 1) // (SIDES * TALL)
    w_smem = gl.allocate_shared_memory(weight.dtype, [STAGES * PARTS * SIDES, TALL, WIDE], weight.layout)
    x_smem = gl.allocate_shared_memory(x.dtype, [STAGES * PARTS, HIGH, WIDE], x.layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for stage in gl.static_range(STAGES):
        mbarrier.init(full.index(stage), count=1)
        mbarrier.init(empty.index(stage), count=1)
    fence_async_shared()
    gl.warp_specialize(
        [
            (
                _multiply,
                (y, words, row_scales, output_scales, bias, gl.to_tensor(y_row), w_smem, x_smem, full, empty,
                 TILES, OUTPUTS, STEPS, STAGES, PARTS, TALL, HIGH, SCALED, BIAS, PLACED, GATED),
            ),
            (
                _fetch,
                (weight, x, words, w_smem, x_smem, full, empty, TILES, OUTPUTS, STEPS, STAGES, PARTS, EARLY,
                 PLACED, SIDES),
            ),
        ],
        [1],
        [FETCHING_REGISTERS],
    )  # fmt: skip
