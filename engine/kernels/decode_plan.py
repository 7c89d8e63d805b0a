"""The work list of decode attention: which runs of neighbouring requests read which splits of keys together.

Runs of neighbouring requests whose split is the same block become one item each. Requests that share a prefix must be
neighbours in `DecodeBatch.order` to be found; any order gives the same results.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from engine.kernels.dependent_launch import LAUNCH, let_next_begin, wait_for_inputs


@dataclass(frozen=True)
class DecodeBatch:
    """Decoding requests, one row each; all int32 on the device. Rows with position −1 are padding.

    `positions` [rows]: where each row's token stands. `table_rows` [rows]: its row of `block_tables` [sequences,
    blocks]. `order` [rows]: the rows sorted so that those with common blocks are neighbours.
    """

    positions: torch.Tensor
    table_rows: torch.Tensor
    order: torch.Tensor
    block_tables: torch.Tensor


@dataclass(frozen=True)
class SplitResults:
    """Where the results of splits go: fp32 [rows, splits, heads], and for `outs` [rows, splits, heads, head dim]."""

    tops: torch.Tensor
    totals: torch.Tensor
    outs: torch.Tensor


class WorkList:
    """The items of a step of at most `rows` requests; `bounds`: as `split_bounds` gives them, int32 on the device.

    `items` int32 [2, rows · splits, 4]: those of few requests, and of many; each is (first place in the order,
    requests, split, further splits). `counts` int32 [2]: how many there are. `folded_rows` int32 [rows]: which requests
    have their first `folded` splits in one item, whose results are those of all of them, folded, and lie where those of
    the first one would.
    """

    def __init__(self, rows: int, bounds: torch.Tensor) -> None:
        self.bounds, self.folded, self._splits = bounds, 0, len(bounds) - 1
        self.items = torch.zeros(2, rows * self._splits, 4, dtype=torch.int32, device=bounds.device)
        self.counts = torch.zeros(2, dtype=torch.int32, device=bounds.device)
        self.folded_rows = torch.zeros(rows, dtype=torch.int32, device=bounds.device)
        # The same for all steps, so that the plan is compiled once.
        self._rows_padded = triton.next_power_of_2(max(2, rows))

    def make(self, batch: DecodeBatch, *, limit: int, small: int, window: int, folded: int, cut: int = 0) -> None:
        """Make the list. Items have at most `limit` requests; `small`: so many are few.

        Up to `cut` requests that could be one item are items of `small` each.
        """
        self.folded = folded
        self.counts.zero_()
        _plan[(self._splits,)](
            batch.positions,
            batch.table_rows,
            batch.order,
            batch.block_tables,
            self.bounds,
            self.items,
            self.counts,
            self.folded_rows,
            len(batch.positions),
            batch.block_tables.stride(0),
            self.items.stride(0),
            FOLDED=folded,
            LIMIT=limit,
            SMALL=small,
            CUT=cut,
            WINDOW=window,
            ROWS=self._rows_padded,
            num_warps=4,
            **LAUNCH,
        )


@triton.jit
def _later(a, b):
    return tl.maximum(a, b)


@triton.jit
def _earlier(a, b):
    return tl.minimum(a, b)


@triton.jit(do_not_specialize=["rows"])
def _plan(
    positions,
    table_rows,
    order,
    block_tables,
    bounds,
    items,
    counts,
    folded,
    rows,
    table_row,
    list_stride,
    FOLDED: tl.constexpr,
    LIMIT: tl.constexpr,
    SMALL: tl.constexpr,
    CUT: tl.constexpr,
    WINDOW: tl.constexpr,
    ROWS: tl.constexpr,
):
    """The items of one split, small ones in list 0, large ones in list 1."""
    wait_for_inputs()
    let_next_begin()
    split = tl.program_id(0)
    begin = tl.load(bounds + split)
    end = tl.load(bounds + split + 1)
    place = tl.arange(0, ROWS)
    # What shares a split has the same last block in it. What is not shared gets a key that is nobody else's.
    key, active = _split_key(place, positions, table_rows, order, block_tables, begin, end, rows, table_row, WINDOW)
    before, _ = _split_key(place - 1, positions, table_rows, order, block_tables, begin, end, rows, table_row, WINDOW)
    after, _ = _split_key(place + 1, positions, table_rows, order, block_tables, begin, end, rows, table_row, WINDOW)
    further = tl.zeros((ROWS,), tl.int32)
    if FOLDED and split < FOLDED:
        first_end = tl.load(bounds + 1)
        own, _ = _split_key(place, positions, table_rows, order, block_tables, 0, first_end, rows, table_row, 0)
        left, _ = _split_key(place - 1, positions, table_rows, order, block_tables, 0, first_end, rows, table_row, 0)
        right, _ = _split_key(place + 1, positions, table_rows, order, block_tables, 0, first_end, rows, table_row, 0)
        alone = (own != left) & (own != right)
        if split == 0:
            further = tl.where(alone, FOLDED - 1, 0)
            row = tl.load(order + place, mask=place < rows, other=0)
            tl.store(folded + row, alone.to(tl.int32), mask=place < rows)
        else:
            active = active & (alone == 0)
    first = tl.associative_scan(tl.where(key != before, place, 0), 0, _later)
    within = (place - first) % LIMIT
    is_last = (within + 1 == LIMIT) | (key != after)
    requests = within + 1
    if CUT > SMALL:
        end_place = tl.associative_scan(tl.where(is_last, place, ROWS), 0, _earlier, reverse=True)
        together = within + end_place - place + 1
        requests = tl.where(together <= CUT, within % SMALL + 1, requests)
        is_last = is_last | ((together <= CUT) & (requests == SMALL))
    emitted = active & is_last
    for size in tl.static_range(2):
        mine = emitted & ((requests <= SMALL) if size == 0 else (requests > SMALL))
        many = tl.sum(mine.to(tl.int32), 0)
        at = tl.atomic_add(counts + size, many) + tl.cumsum(mine.to(tl.int32), 0) - 1
        item = items + size * list_stride + at * 4
        tl.store(item, place - requests + 1, mask=mine)
        tl.store(item + 1, requests, mask=mine)
        tl.store(item + 2, tl.zeros((ROWS,), tl.int32) + split, mask=mine)
        tl.store(item + 3, further, mask=mine)


@triton.jit
def _split_key(place, positions, table_rows, order, block_tables, begin, end, rows, table_row, WINDOW: tl.constexpr):
    """(what rows that share this split have in common, whether they see the split at all) for places in the order."""
    inside = (place >= 0) & (place < rows)
    row = tl.load(order + place, mask=inside, other=0)
    position = tl.load(positions + row, mask=inside, other=-1)
    active = inside & (position >= begin)
    shared = active & (position + 1 >= end)
    if WINDOW:
        active = active & (position - WINDOW + 1 < end)
        shared = shared & (position - WINDOW + 1 <= begin)
    table = block_tables + tl.load(table_rows + row, mask=inside, other=0).to(tl.int64) * table_row
    block = tl.load(table + (end // 64 - 1), mask=shared, other=0)
    return tl.where(shared, block, -2 - place), active
