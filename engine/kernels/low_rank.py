"""y = round(y + s · B A x) for rows that have an adapter, each its own (Hu et al. 2021); other rows are not touched.

Two kernels around the base model's product. `shrink` multiplies the rows by A: the inputs are cut at fixed places, and
each cut's sums are kept apart, so that one row fills more than one multiprocessor. `expand` adds the cuts up in order,
multiplies them by B, and rounds once what y and the product are together. Both compute one row after the other, and no
row in another way than the others: it has the same bits in any company. What they compute with comes before the rows do
(`dependent_launch`). A row without an adapter is not computed: to add 0 to it would make +0 of −0.

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
"""Rows of a tile in passes of many rows, whose programs each read a part of the matrices."""
_CUT_INPUTS = 512
_OUTPUTS = 256
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
        """Elements of fp32 that a row's sums take for each plane."""
        return self.parts * self.cuts * PLANE_RANKS


@dataclass(frozen=True)
class Slots:
    """Adapters on the device. `planes` [slots, planes, elements]; by slot and part `counts` int32, how many planes the
    part has, 0 if the adapter leaves it alone, and `scales` fp32, the factor s."""

    planes: torch.Tensor
    counts: torch.Tensor
    scales: torch.Tensor


def row_tiles(slots: Ints, most: int) -> Ints:
    """Tiles int32 [`most`, 2] of one row each, in their order: the slot of its adapter, −1 for none, and the row."""
    tiles = np.full((most, 2), -1, np.int32)
    tiles[: len(slots), 0] = slots
    tiles[:, 1] = np.arange(most)
    return tiles


def plan_tiles(slots: Ints) -> Ints:
    """Tiles int32 [tiles, 1 + TILE_ROWS] of the rows with adapters in these slots, −1 for none: slot, and rows, −1 for
    none."""
    rows = np.nonzero(slots >= 0)[0]
    rows = rows[np.argsort(slots[rows], kind="stable")]
    own = slots[rows]
    begins = np.concatenate([np.ones(min(1, len(own)), np.bool_), own[1:] != own[:-1]])
    at = np.arange(len(own))
    within = at - np.maximum.accumulate(np.where(begins, at, 0))
    tile = np.cumsum(within % TILE_ROWS == 0) - 1
    tiles = np.full((int(tile[-1]) + 1 if len(tile) else 0, 1 + TILE_ROWS), -1, np.int32)
    tiles[tile, 0] = own
    tiles[tile, 1 + within % TILE_ROWS] = rows
    return tiles


def shrink(
    x: torch.Tensor, slots: Slots, place: Place, tiles: torch.Tensor, sums: torch.Tensor, *, ahead: bool = False
) -> None:
    """A x of the tiles' rows of x [rows, inputs] → fp32 `sums`, of at least rows · planes · `place.sums` elements.

    `ahead`: as of `rows.rms_norm`.
    """
    if not len(tiles):
        return
    _, planes, size = slots.planes.shape
    _shrink[(place.parts * place.cuts, len(tiles))](
        x, slots.planes, slots.counts, tiles, sums,
        x.stride(0), size, planes, slots.counts.shape[1], place.part, place.a, tiles.shape[1],
        INPUTS=place.inputs, CUT=place.cut, CUTS=place.cuts, PARTS=place.parts, AHEAD=ahead, num_warps=4, num_stages=1,
        **LAUNCH,
    )  # fmt: skip


@triton.jit(do_not_specialize=["planes", "parts", "part_at", "words"])
def _shrink(
    x, memory, counts, tiles, sums, x_row, size, planes, parts, part_at, a_at, words,
    INPUTS: tl.constexpr, CUT: tl.constexpr, CUTS: tl.constexpr, PARTS: tl.constexpr, AHEAD: tl.constexpr,
):  # fmt: skip
    if AHEAD:
        let_next_begin()
    cut = tl.program_id(0) % CUTS
    part = tl.program_id(0) // CUTS
    tile = tiles + tl.program_id(1) * words
    slot = tl.load(tile)
    count = tl.load(counts + slot * parts + part_at + part, mask=slot >= 0, other=0)
    r = tl.arange(0, 16)
    k = cut * CUT + tl.arange(0, CUT)
    first = memory + slot.to(tl.int64) * planes * size + a_at
    place = (part * 16 + r)[:, None] * INPUTS + k[None, :]
    inside = k < INPUTS
    # The first plane comes while the kernel before this one still writes the rows.
    a = tl.load(first + place, mask=inside[None, :] & (count > 0), other=0.0)
    wait_for_inputs()
    if not AHEAD:
        let_next_begin()
    if count > 0:
        for at in range(1, words):
            row = tl.load(tile + at).to(tl.int64)
            if row >= 0:
                v = tl.load(x + row * x_row + k, mask=inside, other=0.0).to(tl.float32)
                out = sums + ((row * PARTS + part) * planes * CUTS + cut) * 16 + r
                tl.store(out, tl.sum(a.to(tl.float32) * v[None, :], 1))
                following = first
                for plane in range(1, count):
                    following += size
                    more = tl.load(following + place, mask=inside[None, :], other=0.0)
                    tl.store(out + plane * (CUTS * 16), tl.sum(more.to(tl.float32) * v[None, :], 1))


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
        y.stride(0), size, planes, slots.counts.shape[1], place.part, place.b, tiles.shape[1],
        SECOND=second, THIRD=third, END=place.bounds[-1], FIRST_PROGRAMS=programs[0], TWO_PROGRAMS=sum(programs[:2]),
        CUTS=place.cuts, PARTS=place.parts, OUTPUTS=_OUTPUTS, AHEAD=ahead, num_warps=4, num_stages=1, **LAUNCH,
    )  # fmt: skip


@triton.jit(do_not_specialize=["planes", "parts", "part_at", "words"])
def _expand(
    y, memory, counts, scales, tiles, sums, y_row, size, planes, parts, part_at, b_at, words,
    SECOND: tl.constexpr, THIRD: tl.constexpr, END: tl.constexpr, FIRST_PROGRAMS: tl.constexpr,
    TWO_PROGRAMS: tl.constexpr, CUTS: tl.constexpr, PARTS: tl.constexpr, OUTPUTS: tl.constexpr, AHEAD: tl.constexpr,
):  # fmt: skip
    if AHEAD:
        let_next_begin()
    program = tl.program_id(0)
    part = (program >= FIRST_PROGRAMS).to(tl.int32) + (program >= TWO_PROGRAMS).to(tl.int32)
    before = tl.where(part == 0, 0, tl.where(part == 1, FIRST_PROGRAMS, TWO_PROGRAMS))
    start = tl.where(part == 0, 0, tl.where(part == 1, SECOND, THIRD))
    stop = tl.where(part == 0, SECOND, tl.where(part == 1, THIRD, END))
    n = start + (program - before) * OUTPUTS + tl.arange(0, OUTPUTS)
    tile = tiles + tl.program_id(1) * words
    slot = tl.load(tile)
    entry = slot * parts + part_at + part
    count = tl.load(counts + entry, mask=slot >= 0, other=0)
    scale = tl.load(scales + entry, mask=slot >= 0, other=0.0)
    r = tl.arange(0, 16)
    first = memory + slot.to(tl.int64) * planes * size + b_at
    place = n[:, None] * 16 + r[None, :]
    inside = n < stop
    b = tl.load(first + place, mask=inside[:, None] & (count > 0), other=0.0)
    wait_for_inputs()
    if not AHEAD:
        let_next_begin()
    if count > 0:
        for at in range(1, words):
            row = tl.load(tile + at).to(tl.int64)
            if row >= 0:
                at_y = y + row * y_row + n
                base = tl.load(at_y, mask=inside, other=0.0).to(tl.float32)
                row_sums = sums + (row * PARTS + part) * planes * (CUTS * 16) + r
                total = tl.sum(b.to(tl.float32) * _added_up(row_sums, CUTS)[None, :], 1)
                following = first
                for plane in range(1, count):
                    following += size
                    more = tl.load(following + place, mask=inside[:, None], other=0.0)
                    h = _added_up(row_sums + plane * (CUTS * 16), CUTS)
                    total += tl.sum(more.to(tl.float32) * h[None, :], 1)
                tl.store(at_y, (base + total * scale).to(y.dtype.element_ty), mask=inside)


@triton.jit
def _added_up(sums, CUTS: tl.constexpr):
    h = tl.load(sums)
    for cut in tl.static_range(1, CUTS):
        h += tl.load(sums + cut * 16)
    return h
