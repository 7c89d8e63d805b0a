"""Which experts compute which rows, decided on the device, so that a captured graph holds it and nobody waits.

A row chooses its experts from its logits alone. Pairs of a row and one of its experts are sorted by expert, then by
row; where one stands is its *place*. What an expert has to compute is cut into tiles of at most `high` places
(`Tiles`), which grouped products work off. At last a row adds its experts' results in the order of their ranks, by one
accumulator in fp32. No sum and no order depends on the other rows (E1). Rows with position −1 are padding, and choose
none.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from engine.kernels.dependent_launch import (
    LAUNCH,
    let_next_begin,
    prefetch,
    wait_and_let_next_begin,
    wait_for_inputs,
)
from engine.kernels.rows import _scaled

_COUNTED = (256, 1_024, 4_096)
"""So many pairs are counted at a time: as few of these as have all of them, else the most."""
_PARTS = 4
"""Sums of a router's inputs beside each other."""
HEADER = 4
"""Words in front of the tiles."""


@dataclass(frozen=True)
class Tiles:
    """What a grouped product has to compute, on the device.

    `words` int32: the number of tiles and three that are not used, then for each tile its expert, its first row of the
    first product's inputs, how many rows it has, and its first place. A tile has at most `high` rows, and there are at
    most `most` tiles. `ends` int32 [experts]: the place behind the last one of each expert, None where that is not
    needed.
    """

    words: torch.Tensor
    high: int
    most: int
    ends: torch.Tensor | None = None


@dataclass(frozen=True)
class Routes:
    """The experts of rows: `places` int32 [rows, ranks], −1 for padding, and `weights` fp32 [rows, ranks]."""

    places: torch.Tensor
    weights: torch.Tensor
    tiles: Tiles


def router_logits(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """[rows, hidden] · [experts, hidden]ᵀ + bias → fp32 [rows, experts], of a multiple of 16 experts.

    The inputs are added up in four parts beside each other, since one chain of sums takes long. All counts of rows
    have the same tile, and so the same bits.
    """
    rows, inputs = x.shape
    experts = weight.shape[0]
    step = 256 // max(x.itemsize, weight.itemsize)
    while inputs % (_PARTS * step) and step > 16:
        step //= 2
    parts = 1 if inputs % (_PARTS * step) else _PARTS
    logits = torch.empty(rows, experts, dtype=torch.float32, device=x.device)
    _router_logits[(experts // 16, triton.cdiv(rows, 16))](
        x, weight, logits if bias is None else bias, logits, rows, x.stride(0), logits.stride(0),
        INPUTS=inputs, PARTS=parts, STEP=step, LINE=128 // weight.itemsize,
        LINES=triton.next_power_of_2(-(-inputs * weight.itemsize // 128)), BIAS=bias is not None,
        num_warps=4, num_stages=4, **LAUNCH,
    )  # fmt: skip
    return logits


@triton.jit(do_not_specialize=["rows"])
def _router_logits(
    x, weight, bias, logits, rows, x_row, logits_row,
    INPUTS: tl.constexpr, PARTS: tl.constexpr, STEP: tl.constexpr, LINE: tl.constexpr, LINES: tl.constexpr,
    BIAS: tl.constexpr,
):  # fmt: skip
    n = tl.program_id(0) * 16 + tl.arange(0, 16)
    m = tl.program_id(1) * 16 + tl.arange(0, 16)
    # The weight comes while the kernel before this one still writes the inputs.
    line = tl.minimum(tl.arange(0, LINES) * LINE, INPUTS - 1)
    prefetch(weight + n[:, None] * INPUTS + line[None, :])
    wait_for_inputs()
    let_next_begin()
    part = tl.arange(0, PARTS)[:, None, None] * (INPUTS // PARTS)
    k = tl.arange(0, STEP)[None, None, :]
    weight_at = weight + n[None, :, None] * INPUTS + part + k
    x_at = x + m[None, :, None].to(tl.int64) * x_row + part + k
    inside = (m < rows)[None, :, None] & (k >= 0) & (part >= 0)
    total = tl.zeros((PARTS, 16, 16), tl.float32)
    for start in range(0, INPUTS // PARTS, STEP):
        w = tl.load(weight_at + start)
        v = tl.load(x_at + start, mask=inside, other=0.0)
        total = tl.dot(v.to(w.dtype), tl.permute(w, (0, 2, 1)), total, input_precision="ieee")
    result = tl.sum(total, 0)
    if BIAS:
        result += tl.load(bias + n).to(tl.float32)[None, :]
    tl.store(logits + m[:, None].to(tl.int64) * logits_row + n[None, :], result, mask=(m < rows)[:, None])


def route_rows(
    logits: torch.Tensor,
    positions: torch.Tensor,
    *,
    experts: int,
    ranks: int,
    normalize: bool,
    high: int,
    ends: torch.Tensor,
    scores: torch.Tensor | None = None,
    scale: float = 1.0,
    shared: int = 0,
) -> Routes:
    """The `ranks` experts of highest logits fp32 [rows, at least `experts`] for each row; among equals the first ones.

    Their weights are the softmax over all experts, or with `normalize` over the chosen ones; with `scores`, fp32 as the
    logits, those, divided by their sum if `normalize`; times `scale`. NaN counts as the lowest logit. Behind these
    experts there are `shared` ones, which each row has behind its ranks, with a weight of 1. `ends` int32 [experts +
    shared] is written, unless there is one row only.
    """
    rows, each, every = len(logits), ranks + shared, experts + shared
    alone = rows == 1
    most = each if alone else min(every, rows * each) + rows * each // high
    words = torch.empty(HEADER + 4 * most, dtype=torch.int32, device=logits.device)
    places = torch.empty(rows, each, dtype=torch.int32, device=logits.device)
    chosen = torch.empty_like(places)
    weights = torch.empty(rows, each, dtype=torch.float32, device=logits.device)
    _choose[(rows,)](
        logits, logits if scores is None else scores, positions, chosen, weights, places, words, scale,
        logits.stride(0),
        EXPERTS=experts, PADDED=max(32, triton.next_power_of_2(experts)), RANKS=ranks, NORMALIZE=normalize,
        SCORED=scores is not None, SHARED=shared, ALONE=alone, num_warps=4, **LAUNCH,
    )  # fmt: skip
    if not alone:
        pairs = rows * each
        _plan[(every,)](
            chosen, places, words, ends, pairs, high,
            EXPERTS=every, BINS=max(32, triton.next_power_of_2(every + 1)),
            BLOCK=next((count for count in _COUNTED if pairs <= count), _COUNTED[-1]),
            num_warps=8 if pairs > _COUNTED[0] else 4, **LAUNCH,
        )  # fmt: skip
    return Routes(places, weights, Tiles(words, high, most, None if alone else ends))


@triton.jit
def _choose(
    logits, scores, positions, chosen, weights, places, words, scale, logits_row,
    EXPERTS: tl.constexpr, PADDED: tl.constexpr, RANKS: tl.constexpr, NORMALIZE: tl.constexpr, SCORED: tl.constexpr,
    SHARED: tl.constexpr, ALONE: tl.constexpr,
):  # fmt: skip
    """An expert's rank is the number of those in front of it. `ALONE`: this is the only row, so that the tiles are its
    experts in the order of their ranks."""
    wait_and_let_next_begin(False)
    row = tl.program_id(0).to(tl.int64)
    real = tl.load(positions + row) >= 0
    e = tl.arange(0, PADDED)
    x = tl.load(logits + row * logits_row + e, mask=e < EXPERTS, other=float("-inf"))
    own = _in_order(x, e < EXPERTS)
    rank = tl.zeros((PADDED,), tl.int32)
    for start in range(0, PADDED, 32):
        other = start + tl.arange(0, 32)
        theirs = tl.load(logits + row * logits_row + other, mask=other < EXPERTS, other=float("-inf"))
        theirs = _in_order(theirs, other < EXPERTS)[None, :]
        before = (theirs > own[:, None]) | ((theirs == own[:, None]) & (other[None, :] < e[:, None]))
        rank += tl.sum(before.to(tl.int32), 1)
    taken = (rank < RANKS) & (e < EXPERTS)
    EACH: tl.constexpr = RANKS + SHARED
    at = row * EACH + rank
    if SCORED:
        weight = tl.load(scores + row * logits_row + e, mask=e < EXPERTS, other=0.0)
        if NORMALIZE:
            weight = weight / tl.sum(tl.where(taken, weight, 0.0), 0)
    else:
        value = tl.exp(x - tl.max(x, 0))
        weight = value / tl.sum(tl.where(taken if NORMALIZE else e < EXPERTS, value, 0.0), 0)
    tl.store(chosen + at, tl.where(real, e, EXPERTS + SHARED), mask=taken)
    tl.store(weights + at, tl.where(real, weight * scale, 0.0), mask=taken)
    if SHARED:
        # What behind the experts is no expert stands for the shared ones.
        further = tl.arange(0, PADDED)
        behind = further < SHARED
        tl.store(
            chosen + row * EACH + RANKS + further, tl.where(real, EXPERTS + further, EXPERTS + SHARED), mask=behind
        )  # fmt: skip
        tl.store(
            weights + row * EACH + RANKS + further, tl.where(real, 1.0, 0.0) + tl.zeros_like(further), mask=behind
        )  # fmt: skip
        if ALONE:
            last = RANKS + further
            tl.store(places + last, tl.where(real, last, -1), mask=behind)
            entry = words + 4 + 4 * last
            tl.store(entry, EXPERTS + further, mask=behind)
            tl.store(entry + 1, tl.zeros_like(last), mask=behind)
            tl.store(entry + 2, tl.zeros_like(last) + 1, mask=behind)
            tl.store(entry + 3, last, mask=behind)
    if ALONE:
        tl.store(places + rank, tl.where(real, rank, -1), mask=taken)
        tl.store(words, tl.where(real, EACH, 0))
        entry = words + 4 + 4 * rank
        tl.store(entry, e, mask=taken)
        tl.store(entry + 1, tl.zeros_like(rank), mask=taken)
        tl.store(entry + 2, tl.zeros_like(rank) + 1, mask=taken)
        tl.store(entry + 3, rank, mask=taken)


@triton.jit
def _in_order(x, inside):
    """Numbers as integers in the same order: 0 and −0 are one, behind all of them comes NaN, and last what is not
    inside."""
    bits = tl.where(x == 0.0, 0.0, x).to(tl.int32, bitcast=True)
    ordered = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    return tl.where(inside, tl.where(x == x, ordered, -0x7FFFFFFF), -0x7FFFFFFF - 1)


@triton.jit(do_not_specialize=["pairs", "high"])
def _plan(
    chosen, places, words, ends, pairs, high,
    EXPERTS: tl.constexpr, BINS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Each program places the pairs of one expert. It counts all of them: so none waits for another."""
    wait_and_let_next_begin(False)
    expert = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    bins = tl.arange(0, BINS)
    counts = tl.zeros((BINS,), tl.int32)
    for start in range(0, pairs, BLOCK):
        counts += tl.histogram(tl.load(chosen + start + i, mask=start + i < pairs, other=EXPERTS), BINS)
    tiles = (counts + high - 1) // high
    begin = tl.sum(tl.where(bins < expert, counts, 0), 0)
    tile = tl.sum(tl.where(bins < expert, tiles, 0), 0)
    count = tl.sum(tl.where(bins == expert, counts, 0), 0)
    tl.store(ends + expert, begin + count)
    if expert == EXPERTS - 1:
        tl.store(words, tile + (count + high - 1) // high)
    t = tl.arange(0, 32)
    for done in range(0, count, 32 * high):
        at = done + t * high
        held = at < count
        entry = words + 4 + 4 * (tile + done // high + t)
        tl.store(entry, tl.zeros_like(t) + expert, mask=held)
        tl.store(entry + 1, begin + at, mask=held)
        tl.store(entry + 2, tl.minimum(count - at, high), mask=held)
        tl.store(entry + 3, begin + at, mask=held)
    place = begin
    for start in range(0, pairs, BLOCK):
        own = tl.load(chosen + start + i, mask=start + i < pairs, other=-1)
        mine = (own == expert).to(tl.int32)
        tl.store(places + start + i, place + tl.cumsum(mine, 0) - 1, mask=mine > 0)
        tl.store(places + start + i, tl.zeros_like(i) - 1, mask=(own == EXPERTS) & (expert == 0))
        place += tl.sum(mine, 0)


def place_rows(x: torch.Tensor, places: torch.Tensor, out: torch.Tensor, scales: torch.Tensor | None = None) -> None:
    """Rows of x [rows, size] → all places of theirs in `out` [pairs, size]; other rows of it are left alone.

    With `scales` fp32 [pairs] `out` is e4m3, and each row is divided by its scale, which is written there.
    """
    rows, size = x.shape
    _place_rows[(rows,)](
        x, places, out, out if scales is None else scales, x.stride(0), out.stride(0),
        SIZE=size, PADDED=triton.next_power_of_2(size), RANKS=places.shape[1], SCALED=scales is not None,
        num_warps=8 if size > 2_048 else 4, **LAUNCH,
    )  # fmt: skip


@triton.jit
def _place_rows(
    x, places, out, scales, x_row, out_row,
    SIZE: tl.constexpr, PADDED: tl.constexpr, RANKS: tl.constexpr, SCALED: tl.constexpr,
):  # fmt: skip
    # The next one begins when this one's inputs are there: it may read the tiles without waiting.
    wait_and_let_next_begin(False)
    row = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, PADDED)
    inside = i < SIZE
    value = tl.load(x + row * x_row + i, mask=inside, other=0.0)
    for rank in tl.static_range(RANKS):
        place = tl.load(places + row * RANKS + rank).to(tl.int64)
        if place >= 0:
            if SCALED:
                narrow = _scaled(value.to(tl.float32), scales + place)
                tl.store(out + place * out_row + i, narrow.to(out.dtype.element_ty), mask=inside)
            else:
                tl.store(out + place * out_row + i, value, mask=inside)


def combine_and_norm(
    h: torch.Tensor,
    results: torch.Tensor,
    routes: Routes,
    weight: torch.Tensor,
    eps: float,
    out: torch.Tensor,
    *,
    scales: torch.Tensor | None = None,
    ahead: bool = False,
) -> None:
    """h + Σ weight · result, by rank in fp32 and rounded once, replaces h [rows, size]; its norm goes to `out`.

    `results` [pairs, size] lie at their places. `scales` and `ahead`: as `engine.kernels.rows.rms_norm` has them.
    """
    rows, size = h.shape
    _combine_and_norm[(rows,)](
        h, results, routes.places, routes.weights, weight, out, h if scales is None else scales, eps,
        h.stride(0), results.stride(0), out.stride(0),
        SIZE=size, PADDED=triton.next_power_of_2(size), RANKS=routes.places.shape[1], SCALED=scales is not None,
        AHEAD=ahead, num_warps=8 if size > 2_048 else 4, **LAUNCH,
    )  # fmt: skip


@triton.jit
def _combine_and_norm(
    h, results, places, weights, norm, out, scales, eps, h_row, result_row, out_row,
    SIZE: tl.constexpr, PADDED: tl.constexpr, RANKS: tl.constexpr, SCALED: tl.constexpr, AHEAD: tl.constexpr,
):  # fmt: skip
    wait_and_let_next_begin(AHEAD)
    row = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, PADDED)
    inside = i < SIZE
    total = tl.zeros((PADDED,), tl.float32)
    for rank in tl.static_range(RANKS):
        place = tl.load(places + row * RANKS + rank).to(tl.int64)
        share = tl.load(weights + row * RANKS + rank)
        result = tl.load(results + place * result_row + i, mask=inside & (place >= 0), other=0.0)
        total = tl.fma(result.to(tl.float32), share, total)
    value = (tl.load(h + row * h_row + i, mask=inside, other=0.0).to(tl.float32) + total).to(h.dtype.element_ty)
    tl.store(h + row * h_row + i, value, mask=inside)
    wide = value.to(tl.float32)
    scale = tl.rsqrt(tl.sum(wide * wide, 0) / SIZE + eps)
    normal = wide * scale * tl.load(norm + i, mask=inside, other=0.0).to(tl.float32)
    if SCALED:
        normal = _scaled(normal, scales + row)
    tl.store(out + row * out_row + i, normal.to(out.dtype.element_ty), mask=inside)
