"""Attention of decoding requests over paged KV: keys that several requests share are read once for all of them.

Three kernels:

1. *plan*, once a step and layer group (`decode_plan`): which requests read which split together.
2. *partial*, once a layer: each (item, KV head) reads the split's keys once for the queries of all its requests, and
   writes (top, total, weighted values) for each request, query head and split. Items of few requests are one list, the
   others a second one, which `grouped_decode_hopper` computes where it fits.
3. *merge*, once a layer: folds the splits of each request from left to right.

*Partial* is a Triton kernel. On a Hopper items of few rows are left to a kernel in CUDA C++ with the same bits where it
`fits` (`decode_hopper`). That one also folds the first splits of requests that share nothing with others, where there
are enough requests to keep all multiprocessors busy without splits.

Splits lie at fixed absolute positions, so grouping only shortens the list of items; the arithmetic of a request stays
the same whatever company it has, and is that of `prefill_attention`. Related: Hydragen (Juravsky et al. 2024),
ChunkAttention (Ye et al. 2024), FastTree (Pan et al. 2025).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import triton
import triton.language as tl

from engine.kernels import grouped_decode_hopper
from engine.kernels.attention_splits import HIDDEN, LOG2_E, attend_split, fold, normalize, pipeline_stages
from engine.kernels.decode_hopper import SMALL_ROWS, SmallItems, fits
from engine.kernels.decode_plan import DecodeBatch, SplitResults, WorkList
from engine.kernels.dependent_launch import LAUNCH, let_next_begin, wait_and_let_next_begin, wait_for_inputs
from engine.kernels.paged_kv import PagedKv, Scores

_SMALL_ROWS, _LARGE_ROWS = 16, 64
"""Rows of a tile: for items of few requests, and for the others."""
_SHAPES = (8, 2, 2), (2, 4, 3)
_SHAPES_FP8 = (4, 2, 3), (2, 4, 2)
_SHAPE_FOR_FEW, _FEW_ROWS = (4, 4, 3), 8
"""Of both kinds of tiles: programs for each multiprocessor, warps of a program, blocks in shared memory at most; the
quickest on an H200 (`benchmarks/gpu/NOTES.md`). Of small tiles in steps of few rows: more warps for each program."""

_HEADS_TOGETHER = 8
"""Query heads that a program merges, but in steps of few rows."""


class DecodeAttention:
    """The work list and the partial results of decode steps, for at most `rows` requests of one layer group.

    `bounds` int32 [splits + 1] on the device, as `split_bounds` gives them for the longest context. All layers of the
    group and all steps use the same memory: rows · splits · heads · (head dim + 2) · 4 bytes. `shapes`: see
    `_SHAPES`.
    """

    def __init__(
        self,
        rows: int,
        heads: int,
        kv: PagedKv,
        bounds: torch.Tensor,
        *,
        scores: Scores | None = None,
        shapes: Sequence[tuple[int, int, int]] | None = None,
    ) -> None:
        device = bounds.device
        self.on_hopper = True
        """Whether the kernel for Hopper computes large items where it fits; if not, the plain one, of the same bits."""
        self.heads, self.splits, self.bounds = heads, len(bounds) - 1, bounds
        self.heads_per_kv_head = heads // kv.kv_heads
        self.limit = _LARGE_ROWS // triton.next_power_of_2(self.heads_per_kv_head)
        processors = torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 2
        given, shapes = shapes, shapes or (_SHAPES_FP8 if kv.in_fp8 else _SHAPES)
        stages = 3 if kv.in_fp8 else pipeline_stages(triton.next_power_of_2(kv.head_dim), kv.data.dtype)
        self._shapes = [(count * processors, warps, min(most, stages)) for count, warps, most in shapes]
        count, warps, most = _SHAPE_FOR_FEW if given is None else shapes[0]
        self._shape_for_few = count * processors, warps, min(most, stages)
        self.work = WorkList(rows, bounds)
        self._tops = torch.empty(rows, self.splits, heads, dtype=torch.float32, device=device)
        self._totals = torch.empty_like(self._tops)
        self._outs = torch.empty(rows, self.splits, heads, kv.head_dim, dtype=torch.float32, device=device)
        fit = scores is not None and fits(heads, kv, scores)
        self.small_items = SmallItems(heads, kv, scores.window) if fit and scores is not None else None

    def plan(self, batch: DecodeBatch, *, window: int = 0, limit: int | None = None, folded: int | None = None) -> None:
        """Make the list of items for a step. For tests, `limit`: most requests of an item; `folded`: see `WorkList`."""
        rows = len(batch.positions)
        limit = min(self.limit, limit or self.limit)
        hopper = self._hopper(rows)
        small = min(limit, max(1, (SMALL_ROWS if hopper else _SMALL_ROWS) // self.heads_per_kv_head))
        if folded is None:
            folded = hopper.folds(rows) if hopper else 0
        # One more reading of the keys is quicker than a tile that is mostly empty.
        cut = 2 * small if hopper else 0
        self.work.make(batch, limit=limit, small=small, window=window, folded=folded, cut=cut)

    def _hopper(self, rows: int) -> SmallItems | None:
        """What computes small items in steps of so many rows, if the Triton kernel does not."""
        return self.small_items if self.small_items and self.small_items.takes(rows) else None

    def __call__(
        self,
        query: torch.Tensor,
        kv: PagedKv,
        batch: DecodeBatch,
        scores: Scores,
        output: torch.Tensor,
        *,
        ahead: bool = False,
    ) -> None:
        """Write the attention of [rows, heads, head dim] queries to `output`, by the last plan.

        `ahead`, as in `rms_norm`, also says that another kernel ran since the plan was made.
        """
        dim = triton.next_power_of_2(kv.head_dim)
        hopper = self._hopper(len(query))
        small = SMALL_ROWS if hopper else _SMALL_ROWS
        results = SplitResults(self._tops, self._totals, self._outs)
        for size, rows in enumerate((_SMALL_ROWS, _LARGE_ROWS)):
            if size and min(self.limit, len(query)) * self.heads_per_kv_head <= small:
                break
            if size and self.on_hopper and grouped_decode_hopper.fits(kv, self.heads, query.dtype, scores):
                grouped_decode_hopper.attend_items(query, kv, batch, self.work, results, scores)
                continue
            tile = max(rows, triton.next_power_of_2(self.heads_per_kv_head))
            if not size and hopper:
                hopper(query, kv, batch, self.work, results, scores, planned=ahead)
                continue
            few = not size and len(query) <= _FEW_ROWS
            programs, warps, stages = self._shape_for_few if few else self._shapes[size]
            _partial[(programs,)](
                query,
                kv.data,
                batch.positions,
                batch.table_rows,
                batch.order,
                batch.block_tables,
                self.bounds,
                self.work.items[size],
                self.work.counts[size:],
                self._tops,
                self._totals,
                self._outs,
                scores.scale * LOG2_E,
                kv.layer_offset,
                query.stride(0),
                query.stride(1),
                batch.block_tables.stride(0),
                self.splits,
                HEADS=self.heads,
                KV_HEADS=kv.kv_heads,
                ROWS=tile,
                BLOCK_STRIDE=kv.block_stride,
                PART_STRIDE=kv.part_stride,
                HEAD_STRIDE=kv.head_stride,
                DIM=kv.head_dim,
                DIM_PADDED=dim,
                WINDOW=scores.window,
                SOFT_CAP=scores.soft_cap or 0.0,
                PLANNED=ahead,
                num_warps=warps,
                num_stages=stages,
                **LAUNCH,
            )
        self.merge(query, batch, scores, output, ahead=ahead)

    def merge(
        self, query: torch.Tensor, batch: DecodeBatch, scores: Scores, output: torch.Tensor, *, ahead: bool = False
    ) -> None:
        """Fold the splits of each row into `output`: what a call ends with."""
        rows = len(batch.positions)
        together = math.gcd(self.heads, _HEADS_TOGETHER) if rows > _FEW_ROWS else 1
        _merge[(rows, self.heads // together)](
            self._tops,
            self._totals,
            self._outs,
            batch.positions,
            self.bounds,
            self.work.folded_rows,
            query if scores.sinks is None else scores.sinks,
            output,
            output.stride(0),
            output.stride(1),
            self.splits,
            HEADS=self.heads,
            TOGETHER=together,
            DIM=output.shape[2],
            DIM_PADDED=triton.next_power_of_2(output.shape[2]),
            SPLITS_PADDED=triton.next_power_of_2(self.splits),
            FOLDED=self.work.folded,
            WINDOW=scores.window,
            SINKS=scores.sinks is not None,
            AHEAD=ahead,
            num_warps=max(1, together // 2),
            **LAUNCH,
        )


@triton.jit
def _partial(
    query,
    kv,
    positions,
    table_rows,
    order,
    block_tables,
    bounds,
    items,
    count,
    tops,
    totals,
    outs,
    scale,
    layer_offset,
    query_row,
    query_head,
    table_row,
    splits,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_STRIDE: tl.constexpr,
    PART_STRIDE: tl.constexpr,
    HEAD_STRIDE: tl.constexpr,
    DIM: tl.constexpr,
    DIM_PADDED: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFT_CAP: tl.constexpr,
    PLANNED: tl.constexpr,
):
    """Program p computes the pairs (item, KV head) p, p + programs, …; heads of one item are neighbours.

    `PLANNED`: the plan is there when the kernel begins, since the one before it waited before it let this one begin.
    """
    if not PLANNED:
        wait_for_inputs()
    GROUP: tl.constexpr = HEADS // KV_HEADS
    lane = tl.arange(0, ROWS)
    d = tl.arange(0, DIM_PADDED)
    pairs = tl.load(count) * KV_HEADS
    for pair in range(tl.program_id(0), pairs, tl.num_programs(0)):
        item = items + (pair // KV_HEADS) * 4
        kv_head = pair % KV_HEADS
        place = tl.load(item)
        requests = tl.load(item + 1)
        split = tl.load(item + 2)
        request = tl.minimum(lane // GROUP, requests - 1)
        real = lane < requests * GROUP
        head = kv_head * GROUP + lane % GROUP
        row = tl.load(order + place + request)
        position = tl.load(positions + row)
        held = real[:, None] & (d < DIM)[None, :]
        at = row.to(tl.int64)
        leader = tl.load(order + place)
        table = block_tables + tl.load(table_rows + leader).to(tl.int64) * table_row
        begin = tl.load(bounds + split)
        end = tl.load(bounds + split + 1)
        wait_for_inputs()
        let_next_begin()
        q = tl.load(query + at[:, None] * query_row + head[:, None] * query_head + d[None, :], mask=held, other=0.0)
        keys = kv + layer_offset + kv_head * HEAD_STRIDE
        first_position = tl.min(position, 0)
        last_position = tl.max(position, 0)
        whole = end <= first_position + 1
        if WINDOW:
            whole = whole & (begin > last_position - WINDOW)
        if whole:
            top, total, out = attend_split(
                q, keys, keys + PART_STRIDE, table, begin, end, position, first_position, last_position, scale,
                ROWS, BLOCK_STRIDE, DIM, DIM_PADDED, WINDOW, SOFT_CAP, True,
            )  # fmt: skip
        else:
            top, total, out = attend_split(
                q, keys, keys + PART_STRIDE, table, begin, end, position, first_position, last_position, scale,
                ROWS, BLOCK_STRIDE, DIM, DIM_PADDED, WINDOW, SOFT_CAP, False,
            )  # fmt: skip
        partial = (at * splits + split) * HEADS + head
        tl.store(tops + partial, top, mask=real)
        tl.store(totals + partial, total, mask=real)
        tl.store(outs + partial[:, None] * DIM + d[None, :], out, mask=held)
    # A program without work must not end before what it would have waited for.
    wait_for_inputs()
    let_next_begin()


@triton.jit
def _merge(
    tops,
    totals,
    outs,
    positions,
    bounds,
    folded,
    sinks,
    output,
    output_row,
    output_head,
    splits,
    HEADS: tl.constexpr,
    TOGETHER: tl.constexpr,
    DIM: tl.constexpr,
    DIM_PADDED: tl.constexpr,
    SPLITS_PADDED: tl.constexpr,
    FOLDED: tl.constexpr,
    WINDOW: tl.constexpr,
    SINKS: tl.constexpr,
    AHEAD: tl.constexpr,
):
    wait_and_let_next_begin(AHEAD)
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * TOGETHER + tl.arange(0, TOGETHER)
    position = tl.load(positions + row)
    j = tl.arange(0, SPLITS_PADDED)
    begins = tl.load(bounds + j, mask=j < splits, other=2147483647)
    last = tl.sum((begins <= position).to(tl.int32), 0)
    first = 0
    if WINDOW:
        first = tl.maximum(tl.sum((begins <= position - WINDOW + 1).to(tl.int32), 0) - 1, 0)
    if FOLDED:
        # Those that were folded already lie where those of the first split would.
        first = tl.where(tl.load(folded + row) != 0, tl.maximum(tl.minimum(last, FOLDED) - 1, 0), 0)
    d = tl.arange(0, DIM_PADDED)
    held = (d < DIM)[None, :]
    top = tl.full((TOGETHER,), HIDDEN, tl.float32)
    total = tl.zeros((TOGETHER,), tl.float32)
    out = tl.zeros((TOGETHER, DIM_PADDED), tl.float32)
    for split in tl.range(first, last, num_stages=4):
        place = split
        if FOLDED:
            place = tl.where(split == first, 0, split)
        at = (row * splits + place) * HEADS + head
        split_out = tl.load(outs + at[:, None] * DIM + d[None, :], mask=held, other=0.0)
        top, total, out = fold(top, total, out, tl.load(tops + at), tl.load(totals + at), split_out)
    if SINKS:
        sink = tl.load(sinks + head) * 1.4426950408889634
    else:
        sink = tl.full((TOGETHER,), HIDDEN, tl.float32)
    mean = normalize(top, total, out, sink)
    # A padding row has nothing to merge; its output is zero, never NaN.
    mean = tl.where(last > 0, mean, 0.0)
    place = output + row * output_row + head[:, None] * output_head + d[None, :]
    tl.store(place, mean.to(output.dtype.element_ty), mask=held)
