"""y = round(y + s · B A x) for rows that have an adapter, each its own (Hu et al. 2021); other rows are not touched.

Two kernels around the base model's product. `shrink` multiplies the rows by A: the inputs are cut at fixed places, and
each cut's sums are kept apart, so that one row fills more than one multiprocessor. `expand` adds the cuts up in order,
multiplies them by B, and rounds once what y and the product are together. Both compute tiles of `TILE_ROWS` rows of one
adapter, at every count of rows by the same instructions: a row has the same bits in any company. A row without an
adapter is in no tile: to add 0 to it would make +0 of −0.

Ranks come in planes of 16, padded with zeros; a plane has the A and the B of all layers for its ranks.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
import triton
import triton.language as tl

from engine.kernels.dependent_launch import LAUNCH, let_next_begin, wait_for_inputs
from engine.kernels.uploads import Ints

PLANE_RANKS = 16
TILE_ROWS = 16
TILE_WORDS = 2 * TILE_ROWS
"""Of a tile: the slot of its adapter, −1 for none; after `TILE_ROWS` words its rows, −1 for none."""
_CUT_INPUTS = 512
_OUTPUTS = 128
"""Outputs of a program."""


@dataclass(frozen=True)
class Place:
    """A linear layer's matrices in a plane: A [parts, 16, inputs] from element `a` on, B [outputs, 16] from `b` on.

    `bounds`: where its parts' outputs begin, and where the last ones end. `part`: the number of its first part.
    """

    inputs: int
    bounds: tuple[int, ...]
    part: int
    a: int
    b: int

    @property
    def parts(self) -> int:
        """How many of its outputs' parts have matrices of their own."""
        return len(self.bounds) - 1

    @property
    def cut(self) -> int:
        """Inputs of a cut."""
        return min(_CUT_INPUTS, triton.next_power_of_2(self.inputs))

    @property
    def cuts(self) -> int:
        """How many cuts its inputs have."""
        return triton.cdiv(self.inputs, self.cut)

    @property
    def sums(self) -> int:
        """Elements of fp32 that a tile's sums take for each plane."""
        return self.parts * self.cuts * TILE_ROWS * PLANE_RANKS


@dataclass(frozen=True)
class Slots:
    """Adapters on the device. `planes` [slots, planes, elements]; by slot and part `counts` int32, how many planes the
    part has, 0 if the adapter leaves it alone, and `scales` fp32, the factor s."""

    planes: torch.Tensor
    counts: torch.Tensor
    scales: torch.Tensor


def most_tiles(rows: int, slots: int) -> int:
    """How many tiles so many rows may need."""
    return min(rows, slots + rows // TILE_ROWS)


def plan_tiles(slots: Ints, most: int | None = None) -> Ints:
    """Tiles int32 [`most`, TILE_WORDS] of rows whose adapters are in these slots, −1 for none; just enough if None."""
    rows = np.nonzero(slots >= 0)[0]
    rows = rows[np.argsort(slots[rows], kind="stable")]
    own = slots[rows]
    begins = np.concatenate([np.ones(min(1, len(own)), np.bool_), own[1:] != own[:-1]])
    at = np.arange(len(own))
    within = at - np.maximum.accumulate(np.where(begins, at, 0))
    tile = np.cumsum(within % TILE_ROWS == 0) - 1
    needed = int(tile[-1]) + 1 if len(tile) else 0
    tiles = np.full((needed if most is None else most, TILE_WORDS), -1, np.int32)
    tiles[tile, 0] = own
    tiles[tile, TILE_ROWS + within % TILE_ROWS] = rows
    return tiles


def shrink(
    x: torch.Tensor, slots: Slots, place: Place, tiles: torch.Tensor, sums: torch.Tensor, *, ahead: bool = False
) -> None:
    """A x of the tiles' rows of x [rows, inputs] → fp32 `sums`, of at least tiles · planes · `place.sums` elements.

    `ahead`: as of `rows.rms_norm`.
    """
    if not len(tiles):
        return
    _, planes, size = slots.planes.shape
    _shrink[(place.parts * place.cuts, len(tiles))](
        x, slots.planes, slots.counts, tiles, sums,
        x.stride(0), size, planes, slots.counts.shape[1], place.part, place.a,
        INPUTS=place.inputs, CUT=place.cut, CUTS=place.cuts, PARTS=place.parts, AHEAD=ahead, num_warps=4, num_stages=1,
        **LAUNCH,
    )  # fmt: skip


@triton.jit(do_not_specialize=["planes", "parts", "part_at"])
def _shrink(
    x, memory, counts, tiles, sums, x_row, size, planes, parts, part_at, a_at,
    INPUTS: tl.constexpr, CUT: tl.constexpr, CUTS: tl.constexpr, PARTS: tl.constexpr, AHEAD: tl.constexpr,
):  # fmt: skip
    if AHEAD:
        let_next_begin()
    cut = tl.program_id(0) % CUTS
    part = tl.program_id(0) // CUTS
    tile = tiles + tl.program_id(1) * 32
    slot = tl.load(tile)
    count = tl.load(counts + slot * parts + part_at + part, mask=slot >= 0, other=0)
    m, r = tl.arange(0, 16), tl.arange(0, 16)
    k = cut * CUT + tl.arange(0, CUT)
    plane = memory + slot.to(tl.int64) * planes * size + a_at
    place = (part * 16 + r)[:, None] * INPUTS + k[None, :]
    inside = (k < INPUTS)[None, :]
    # The first plane comes while the kernel before this one still writes the rows.
    a = tl.load(plane + place, mask=inside & (count > 0), other=0.0)
    row = tl.load(tile + 16 + m)
    wait_for_inputs()
    if not AHEAD:
        let_next_begin()
    if count > 0:
        there = (row >= 0)[:, None]
        v = tl.load(x + row.to(tl.int64)[:, None] * x_row + k[None, :], mask=there & inside, other=0.0)
        out = sums + ((tl.program_id(1) * PARTS + part).to(tl.int64) * planes * CUTS + cut) * 256
        out += m[:, None] * 16 + r[None, :]
        for at in range(0, count):
            total = tl.dot(v, tl.trans(a), input_precision="ieee")
            plane += size
            a = tl.load(plane + place, mask=inside & (at + 1 < count), other=0.0)
            tl.store(out + at * (CUTS * 256), total, mask=there)


def expand(
    y: torch.Tensor, slots: Slots, place: Place, tiles: torch.Tensor, sums: torch.Tensor, *, ahead: bool = False
) -> None:
    """Add s · B h to the tiles' rows of y [rows, outputs], where h are the `sums` that `shrink` wrote.

    `ahead`: as of `rows.rms_norm`.
    """
    if not len(tiles):
        return
    _, planes, size = slots.planes.shape
    programs = [triton.cdiv(stop - start, _OUTPUTS) for start, stop in pairwise(place.bounds)]
    second, third = place.bounds[1], place.bounds[min(2, place.parts)]
    _expand[(sum(programs), len(tiles))](
        y, slots.planes, slots.counts, slots.scales, tiles, sums,
        y.stride(0), size, planes, slots.counts.shape[1], place.part, place.b,
        SECOND=second, THIRD=third, END=place.bounds[-1], FIRST_PROGRAMS=programs[0], TWO_PROGRAMS=sum(programs[:2]),
        CUTS=place.cuts, PARTS=place.parts, OUTPUTS=_OUTPUTS,
        PRECISION="ieee" if y.dtype == torch.float32 else "tf32x3", AHEAD=ahead, num_warps=4, num_stages=1, **LAUNCH,
    )  # fmt: skip


@triton.jit(do_not_specialize=["planes", "parts", "part_at"])
def _expand(
    y, memory, counts, scales, tiles, sums, y_row, size, planes, parts, part_at, b_at,
    SECOND: tl.constexpr, THIRD: tl.constexpr, END: tl.constexpr, FIRST_PROGRAMS: tl.constexpr,
    TWO_PROGRAMS: tl.constexpr, CUTS: tl.constexpr, PARTS: tl.constexpr, OUTPUTS: tl.constexpr,
    PRECISION: tl.constexpr, AHEAD: tl.constexpr,
):  # fmt: skip
    if AHEAD:
        let_next_begin()
    program = tl.program_id(0)
    part = (program >= FIRST_PROGRAMS).to(tl.int32) + (program >= TWO_PROGRAMS).to(tl.int32)
    first = tl.where(part == 0, 0, tl.where(part == 1, FIRST_PROGRAMS, TWO_PROGRAMS))
    start = tl.where(part == 0, 0, tl.where(part == 1, SECOND, THIRD))
    stop = tl.where(part == 0, SECOND, tl.where(part == 1, THIRD, END))
    n = start + (program - first) * OUTPUTS + tl.arange(0, OUTPUTS)
    tile = tiles + tl.program_id(1) * 32
    slot = tl.load(tile)
    entry = slot * parts + part_at + part
    count = tl.load(counts + entry, mask=slot >= 0, other=0)
    scale = tl.load(scales + entry, mask=slot >= 0, other=0.0)
    m, r = tl.arange(0, 16), tl.arange(0, 16)
    plane = memory + slot.to(tl.int64) * planes * size + b_at
    place = n[:, None] * 16 + r[None, :]
    inside = (n < stop)[:, None]
    b = tl.load(plane + place, mask=inside & (count > 0), other=0.0)
    row = tl.load(tile + 16 + m)
    wait_for_inputs()
    if not AHEAD:
        let_next_begin()
    if count > 0:
        there = (row >= 0)[:, None]
        at_y = y + row.to(tl.int64)[:, None] * y_row + n[None, :]
        mine = there & (n < stop)[None, :]
        base = tl.load(at_y, mask=mine, other=0.0)
        part_sums = sums + (tl.program_id(1) * PARTS + part).to(tl.int64) * planes * (CUTS * 256)
        part_sums += m[:, None] * 16 + r[None, :]
        total = tl.zeros((16, OUTPUTS), tl.float32)
        for at in range(0, count):
            h = tl.load(part_sums, mask=there, other=0.0)
            for cut in tl.static_range(1, CUTS):
                h += tl.load(part_sums + cut * 256, mask=there, other=0.0)
            total = tl.dot(h, tl.trans(b.to(tl.float32)), total, input_precision=PRECISION)
            part_sums += CUTS * 256
            plane += size
            b = tl.load(plane + place, mask=inside & (at + 1 < count), other=0.0)
        tl.store(at_y, (base.to(tl.float32) + total * scale).to(y.dtype.element_ty), mask=mine)
