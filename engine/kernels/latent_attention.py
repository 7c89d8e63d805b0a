"""Attention over latents (MLA, DeepSeek-AI 2024) in the absorbed form, over paged entries.

An entry is a token's latent [rank] and its turned key [rope], one after the other: the only KV head of a layer. Scores
are q · entry, and what is added up are the latents alone. A tile's rows are the query heads of one or several tokens:
each entry is read once for all heads, as key and as value.

The arithmetic is that of `attention_splits` with two differences: a score is added up over the latent first, then over
the turned key; and values are the latents. Decode and prefill call `_attend_split` with tiles of the same kind, and
splits are folded from left to right: so a row has the same bits in both, alone or beside others.

For decode, `decode_plan` says which requests read which split together, and the results of splits are merged by
`latent_rows`. For prefill a program has several tiles, and keeps what it has folded in memory of its own, since the
sums of a tile take most registers.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from engine.kernels import latent_decode_hopper, latent_prefill_hopper
from engine.kernels.attention_splits import BLOCK, HIDDEN, LOG2_E, fold, normalize, sum_columns
from engine.kernels.decode_plan import DecodeBatch, SplitResults, WorkList
from engine.kernels.dependent_launch import LAUNCH, let_next_begin, wait_for_inputs
from engine.kernels.latent_rows import head_values, merge_latents, merge_values
from engine.kernels.paged_kv import LatentKv, PagedKv, Scores
from engine.kernels.prefill_attention import PrefillTiles

STEPS = ((8_192, 256), (65_536, 512), (1 << 30, 1_024))
"""How long splits are (`attention_splits.split_bounds`): short ones, so that items are many and equal."""
TILE_ROWS = 64
"""Rows of a tile: fewer would be multiplied by other, slower instructions."""
_WARPS, _STAGES = 8, 2
_MERGED_WITH_VALUES = 8
"""Up to so many rows one kernel merges splits and multiplies by what makes values of latents."""


def heads_together(heads: int) -> int:
    """How many query heads of a token one tile has: all, or the most that divide them."""
    return next(count for count in range(min(heads, TILE_ROWS), 0, -1) if heads % count == 0)


def _programs(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 2


def _padded(size: int) -> int:
    return max(16, triton.next_power_of_2(size))


class LatentDecode:
    """The work list and the partial results of decode steps, for at most `rows` requests of one layer group.

    `bounds` int32 [splits + 1] on the device; `kv`: that of any layer. All layers of the group and all steps use the
    same memory: rows · splits · heads · (rank + 2) · 4 bytes.
    """

    def __init__(self, rows: int, heads: int, kv: LatentKv, bounds: torch.Tensor) -> None:
        device, rank = bounds.device, kv.rank
        self.heads, self.splits, self.bounds = heads, len(bounds) - 1, bounds
        self.together = heads_together(heads)
        self.limit = TILE_ROWS // self.together
        self.work = WorkList(rows, bounds)
        self._programs = _programs(device)
        self.one_request = (
            latent_decode_hopper.OneRequestItems(heads, self._programs)
            if latent_decode_hopper.fits(kv, heads)
            else None
        )
        """What computes items of one request in place of the Triton kernel, with the same bits."""
        tops = torch.empty(rows, self.splits, heads, dtype=torch.float32, device=device)
        outs = torch.empty(rows, self.splits, heads, rank, dtype=torch.float32, device=device)
        self.results = SplitResults(tops, torch.empty_like(tops), outs)

    def plan(self, batch: DecodeBatch, *, window: int = 0, limit: int | None = None, folded: int | None = None) -> None:
        """Make the list of items for a step. For tests, `limit`: most requests of an item; `folded`: see `WorkList`."""
        limit = min(self.limit, limit or self.limit)
        if self.one_request is None:
            self.work.make(batch, limit=limit, small=limit, window=window, folded=0)
            return
        if folded is None:
            folded = latent_decode_hopper.folds(len(batch.positions))
        # To read the entries once more is quicker than a tile that is half empty.
        self.work.make(batch, limit=limit, small=1, window=window, folded=folded, cut=2)

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
        """Write the values that queries [rows, heads, rank + rope] see to `output` [rows, heads, value dim], by the
        last plan. `ahead`: as `decode_attention.DecodeAttention` has it."""
        assert isinstance(kv, LatentKv)
        results = self.results
        of_several = int(self.one_request is not None)
        if self.one_request is not None:
            self.one_request(query, kv, batch, self.work, results, scores, planned=ahead)
        if not of_several or min(self.limit, len(query)) > 1:
            self._by_tiles(query, kv, batch, scores, of_several, planned=ahead)
        merge = merge_values if len(query) <= _MERGED_WITH_VALUES else merge_latents
        merge(results, batch.positions, self.work, kv.values, output, ahead=ahead)

    def _by_tiles(
        self, query: torch.Tensor, kv: LatentKv, batch: DecodeBatch, scores: Scores, size: int, *, planned: bool
    ) -> None:
        """Compute the items of list `size`."""
        rank, rope, results = kv.rank, kv.head_dim - kv.rank, self.results
        _partial[(self._programs,)](
            query, kv.data, batch.positions, batch.table_rows, batch.order, batch.block_tables, self.bounds,
            self.work.items[size], self.work.counts[size:], results.tops, results.totals, results.outs,
            scores.scale * LOG2_E, kv.layer_offset, query.stride(0), query.stride(1), batch.block_tables.stride(0),
            self.splits,
            HEADS=self.heads, TOGETHER=self.together, ROWS=TILE_ROWS, BLOCK_STRIDE=kv.block_stride,
            RANK=rank, RANK_PADDED=_padded(rank), ROPE=rope, ROPE_PADDED=_padded(rope), PLANNED=planned,
            num_warps=_WARPS, num_stages=_STAGES, **LAUNCH,
        )  # fmt: skip


def prefill_latents(
    query: torch.Tensor,
    kv: LatentKv,
    block_tables: torch.Tensor,
    bounds: torch.Tensor,
    tiles: PrefillTiles,
    scores: Scores,
    output: torch.Tensor,
    *,
    on_hopper: bool = True,
) -> None:
    """Write the values that [rows, heads, rank + rope] queries see to `output` [rows, heads, value dim].

    Otherwise as `prefill_attention.prefill_attention`; a tile has at most TILE_ROWS rows. `on_hopper`: by the kernel
    for Hopper where it fits; if not, by the plain one, of the same bits.
    """
    rows, heads, _ = query.shape
    rank, rope = kv.rank, kv.head_dim - kv.rank
    mean = torch.empty(rows, heads, rank, dtype=query.dtype, device=query.device)
    together = heads_together(heads)
    pairs = len(tiles.table) * (heads // together)
    programs = min(pairs, _programs(query.device))
    if on_hopper and latent_prefill_hopper.fits(kv, heads, together):
        latent_prefill_hopper.prefill(
            query, kv, block_tables, bounds, tiles, scores, mean, together=together, programs=programs
        )  # fmt: skip
        head_values(mean, kv.values, output)
        return
    kept = torch.empty(programs, TILE_ROWS, _padded(rank), dtype=torch.float32, device=query.device)
    _prefill[(programs,)](
        query, kv.data, mean, block_tables, bounds, tiles.table, kept, pairs, scores.scale * LOG2_E, kv.layer_offset,
        query.stride(0), query.stride(1), mean.stride(0), mean.stride(1), block_tables.stride(0),
        HEADS=heads, TOGETHER=together, ROWS=TILE_ROWS, BLOCK_STRIDE=kv.block_stride,
        RANK=rank, RANK_PADDED=_padded(rank), ROPE=rope, ROPE_PADDED=_padded(rope),
        num_warps=_WARPS, num_stages=_STAGES, **LAUNCH,
    )  # fmt: skip
    head_values(mean, kv.values, output)


@triton.jit
def _attend_blocks(
    q, q_turned, entries, table, begin, end, last_key, positions, scale, top, weights, out,
    BLOCK_STRIDE: tl.constexpr, RANK: tl.constexpr, RANK_PADDED: tl.constexpr, ROPE: tl.constexpr,
    ROPE_PADDED: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Online softmax over the blocks that hold the keys `begin`..`end` (multiples of a block, but `end`)."""
    column = tl.arange(0, BLOCK)
    r = tl.arange(0, RANK_PADDED)
    t = tl.arange(0, ROPE_PADDED)
    latents = column[:, None] * (RANK + ROPE) + r[None, :]
    turned = column[:, None] * (RANK + ROPE) + RANK + t[None, :]
    for start in range(begin, end, BLOCK):
        key = start + column
        at = tl.load(table + start // BLOCK).to(tl.int64) * BLOCK_STRIDE
        if MASKED:
            # What lies behind the last key was never written: 0 · NaN would be NaN.
            present = (key <= last_key)[:, None]
            c = tl.load(entries + at + latents, mask=present & (r < RANK)[None, :], other=0.0)
            k = tl.load(entries + at + turned, mask=present & (t < ROPE)[None, :], other=0.0)
        elif RANK != RANK_PADDED or ROPE != ROPE_PADDED:
            c = tl.load(entries + at + latents, mask=(r < RANK)[None, :] & (column >= 0)[:, None], other=0.0)
            k = tl.load(entries + at + turned, mask=(t < ROPE)[None, :] & (column >= 0)[:, None], other=0.0)
        else:
            c = tl.load(entries + at + latents)
            k = tl.load(entries + at + turned)
        score = tl.dot(q, tl.trans(c), input_precision="ieee")
        score = tl.dot(q_turned, tl.trans(k), score, input_precision="ieee")
        if MASKED:
            seen = key[None, :] <= positions[:, None]
            score = tl.where(seen, score, HIDDEN)
        # Explicit, as in `attention_splits`.
        new_top = tl.maximum(top, tl.max(score, 1) * scale)
        weight = tl.math.exp2(tl.fma(score, tl.zeros_like(score) + scale, tl.zeros_like(score) - new_top[:, None]))
        if MASKED:
            weight = tl.where(seen, weight, 0.0)
        shrink = tl.math.exp2(top - new_top)
        weights = tl.fma(weights, tl.zeros_like(weights) + shrink[:, None], weight)
        out = tl.dot(weight.to(c.dtype), c, out * shrink[:, None], input_precision="ieee")
        top = new_top
    return top, weights, out


@triton.jit
def _attend_split(
    q, q_turned, entries, table, begin, end, positions, first_position, last_position, scale,
    ROWS: tl.constexpr, BLOCK_STRIDE: tl.constexpr, RANK: tl.constexpr, RANK_PADDED: tl.constexpr, ROPE: tl.constexpr,
    ROPE_PADDED: tl.constexpr,
):  # fmt: skip
    """One split of some rows' entries: (top [ROWS], sum of weights [ROWS], weighted latents [ROWS, RANK_PADDED]).

    Rows that see no key of the split come out as (HIDDEN, 0, 0), which folding leaves out.
    """
    top = tl.full((ROWS,), HIDDEN, tl.float32)
    weights = tl.zeros((ROWS, BLOCK), tl.float32)
    out = tl.zeros((ROWS, RANK_PADDED), tl.float32)
    stop = tl.minimum(end, last_position + 1)
    # Up to here all rows see everything.
    all_see = tl.maximum(begin, tl.minimum(stop, (first_position + 1) // BLOCK * BLOCK))
    top, weights, out = _attend_blocks(
        q, q_turned, entries, table, begin, all_see, last_position, positions, scale, top, weights, out,
        BLOCK_STRIDE, RANK, RANK_PADDED, ROPE, ROPE_PADDED, False,
    )  # fmt: skip
    top, weights, out = _attend_blocks(
        q, q_turned, entries, table, all_see, stop, last_position, positions, scale, top, weights, out,
        BLOCK_STRIDE, RANK, RANK_PADDED, ROPE, ROPE_PADDED, True,
    )  # fmt: skip
    total = sum_columns(weights, ROWS)
    seen = positions >= begin
    return tl.where(seen, top, HIDDEN), tl.where(seen, total, 0.0), tl.where(seen[:, None], out, 0.0)


@triton.jit
def _queries(
    query, row, head, query_row, query_head, real, RANK: tl.constexpr, RANK_PADDED: tl.constexpr,
    ROPE: tl.constexpr, ROPE_PADDED: tl.constexpr,
):  # fmt: skip
    """The two parts of these rows' queries."""
    r = tl.arange(0, RANK_PADDED)
    t = tl.arange(0, ROPE_PADDED)
    start = query + row[:, None] * query_row + head[:, None] * query_head
    q = tl.load(start + r[None, :], mask=real[:, None] & (r < RANK)[None, :], other=0.0)
    return q, tl.load(start + RANK + t[None, :], mask=real[:, None] & (t < ROPE)[None, :], other=0.0)


@triton.jit
def _partial(
    query, kv, positions, table_rows, order, block_tables, bounds, items, count, tops, totals, outs, scale,
    layer_offset, query_row, query_head, table_row, splits,
    HEADS: tl.constexpr, TOGETHER: tl.constexpr, ROWS: tl.constexpr, BLOCK_STRIDE: tl.constexpr, RANK: tl.constexpr,
    RANK_PADDED: tl.constexpr, ROPE: tl.constexpr, ROPE_PADDED: tl.constexpr, PLANNED: tl.constexpr,
):  # fmt: skip
    """Program p computes the pairs (item, heads of a tile) p, p + programs, …; see `decode_attention._partial`."""
    if not PLANNED:
        wait_for_inputs()
    GROUPS: tl.constexpr = HEADS // TOGETHER
    lane = tl.arange(0, ROWS)
    r = tl.arange(0, RANK_PADDED)
    pairs = tl.load(count) * GROUPS
    for pair in range(tl.program_id(0), pairs, tl.num_programs(0)):
        item = items + (pair // GROUPS) * 4
        place = tl.load(item)
        requests = tl.load(item + 1)
        split = tl.load(item + 2)
        real = lane < requests * TOGETHER
        head = pair % GROUPS * TOGETHER + lane % TOGETHER
        row = tl.load(order + place + tl.minimum(lane // TOGETHER, requests - 1))
        position = tl.load(positions + row)
        at = row.to(tl.int64)
        table = block_tables + tl.load(table_rows + tl.load(order + place)).to(tl.int64) * table_row
        begin = tl.load(bounds + split)
        end = tl.load(bounds + split + 1)
        wait_for_inputs()
        let_next_begin()
        q, q_turned = _queries(
            query, at, head, query_row, query_head, real, RANK, RANK_PADDED, ROPE, ROPE_PADDED
        )  # fmt: skip
        top, total, out = _attend_split(
            q, q_turned, kv + layer_offset, table, begin, end, position, tl.min(position, 0), tl.max(position, 0),
            scale, ROWS, BLOCK_STRIDE, RANK, RANK_PADDED, ROPE, ROPE_PADDED,
        )  # fmt: skip
        partial = (at * splits + split) * HEADS + head
        tl.store(tops + partial, top, mask=real)
        tl.store(totals + partial, total, mask=real)
        tl.store(outs + partial[:, None] * RANK + r[None, :], out, mask=real[:, None] & (r < RANK)[None, :])
    # A program without work must not end before what it would have waited for.
    wait_for_inputs()
    let_next_begin()


@triton.jit(do_not_specialize=["pairs"])
def _prefill(
    query, kv, output, block_tables, bounds, tiles, kept, pairs, scale, layer_offset, query_row, query_head, output_row,
    output_head, table_row,
    HEADS: tl.constexpr, TOGETHER: tl.constexpr, ROWS: tl.constexpr, BLOCK_STRIDE: tl.constexpr, RANK: tl.constexpr,
    RANK_PADDED: tl.constexpr, ROPE: tl.constexpr, ROPE_PADDED: tl.constexpr,
):  # fmt: skip
    wait_for_inputs()
    let_next_begin()
    GROUPS: tl.constexpr = HEADS // TOGETHER
    lane = tl.arange(0, ROWS)
    r = tl.arange(0, RANK_PADDED)
    folded = kept + (tl.program_id(0) * ROWS + lane)[:, None] * RANK_PADDED + r[None, :]
    for pair in range(tl.program_id(0), pairs, tl.num_programs(0)):
        tile = tiles + (pair // GROUPS) * 6
        tokens = tl.load(tile + 1)
        position = tl.load(tile + 2)
        table = block_tables + tl.load(tile + 3).to(tl.int64) * table_row
        last_split = tl.load(tile + 5)
        token = tl.minimum(lane // TOGETHER, tokens - 1)
        head = pair % GROUPS * TOGETHER + lane % TOGETHER
        real = lane < tokens * TOGETHER
        row = (tl.load(tile) + token).to(tl.int64)
        positions = position + token
        q, q_turned = _queries(
            query, row, head, query_row, query_head, real, RANK, RANK_PADDED, ROPE, ROPE_PADDED
        )  # fmt: skip
        top = tl.full((ROWS,), HIDDEN, tl.float32)
        total = tl.zeros((ROWS,), tl.float32)
        for split in range(0, last_split + 1):
            split_top, split_total, split_out = _attend_split(
                q, q_turned, kv + layer_offset, table, tl.load(bounds + split), tl.load(bounds + split + 1), positions,
                position, position + tokens - 1, scale, ROWS, BLOCK_STRIDE, RANK, RANK_PADDED, ROPE, ROPE_PADDED,
            )  # fmt: skip
            out = tl.load(folded, mask=(lane >= 0)[:, None] & (r >= 0)[None, :] & (split > 0), other=0.0)
            top, total, out = fold(top, total, out, split_top, split_total, split_out)
            if split == last_split:
                mean = normalize(top, total, out, tl.full((ROWS,), HIDDEN, tl.float32))
                target = output + row[:, None] * output_row + head[:, None] * output_head + r[None, :]
                tl.store(target, mean.to(output.dtype.element_ty), mask=real[:, None] & (r < RANK)[None, :])
            else:
                tl.store(folded, out)
            # What one thread has kept another one may read.
            tl.debug_barrier()
