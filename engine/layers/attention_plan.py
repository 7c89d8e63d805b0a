"""What one step's attention reads and writes, worked out once on the host and used by every layer.

Attention is cut at fixed absolute positions: keys are taken in *splits* of `SPLIT_TOKENS`, each computed by itself over
its full fixed length (what lies beyond the query is masked), and the splits of a query are folded by a binary tree over
their absolute numbers. In a window group the splits that lie before the window are left out: they would add nothing,
exactly. So a query at a position gets the same bits whether it came in a long prefill chunk, a short one
or a decode step, in whatever company (E1), and whether its keys were computed or read (C2).

Queries come in *tiles*: one token of each decoding request, or `PREFILL_TILE` tokens of a chunk. A (tile, split) is a
*pair*; all pairs are computed as one batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from engine.kv_memory import parts
from engine.layers.linear import ROW_MULTIPLE
from engine.protocol.replicas import LayerGroup
from prompt_cache.block_groups import ABSENT
from prompt_cache.keys import BLOCK_TOKENS

SPLIT_BLOCKS = 2
SPLIT_TOKENS = SPLIT_BLOCKS * BLOCK_TOKENS
PREFILL_TILE = 64
MASKED = -1e30
"""Added to the score of a key that a query does not see: its weight is then exactly 0, in a split with no other too."""

Indices: TypeAlias = NDArray[np.int64]


@dataclass(frozen=True)
class Chunk:
    """Tokens `start`..`start + count` of one sequence; `table` are its blocks, ABSENT where none is needed (yet)."""

    start: int
    count: int
    table: Sequence[int] | Indices


@dataclass(frozen=True)
class Level:
    """One level of folding: pair left[i] takes in pair right[i]."""

    left: torch.Tensor
    right: torch.Tensor


@dataclass(frozen=True)
class Folding:
    """How the pairs of each tile become one; pairs with masks come first."""

    tile: torch.Tensor
    """Tile of each pair."""
    spread: torch.Tensor
    """[tiles · most pairs of a tile] the pairs of each tile, the first one again where it has fewer."""
    levels: tuple[Level, ...]
    final: torch.Tensor
    """The pair that has taken in all others of each tile."""


@dataclass(frozen=True)
class Tiles:
    """Tiles of `tokens` queries each. `rows`: the batch row of each query, None where tile i is row i."""

    count: int
    tokens: int
    rows: torch.Tensor | None
    output: torch.Tensor | None
    """Index of each real query among all tiles' queries, None where all are real."""
    gather: torch.Tensor
    """[parts, pairs, KV heads · SPLIT_BLOCKS] rows of KvMemory's `heads`."""
    mask: torch.Tensor
    """fp32 [first pairs, 1, query rows or 1, SPLIT_TOKENS], added to scores: 0, or MASKED where a key comes after the
    query or before its window. The other pairs need no mask."""
    folding: Folding | None
    """None where each tile has one pair, in order."""


@dataclass(frozen=True)
class Standing:
    """What a plan of decodes alone is moved on by: for each, the row of `write` that its block begins at.

    Behind it, the pairs that have masks: their tiles and splits.
    """

    write: Indices
    tile: Indices
    split: Indices


@dataclass(frozen=True)
class AttentionPlan:
    """Where the step's keys and values are written, and its tiles; decoding tiles take the first batch rows."""

    group: LayerGroup
    device: torch.device
    write: torch.Tensor
    """[tokens · parts · KV heads] rows of KvMemory's `rows`."""
    tokens: int
    tiles: tuple[Tiles, ...]
    standing: Standing | None
    """None where not all are decodes."""

    def moved(self, positions: Indices) -> AttentionPlan:
        """The plan for the same decodes, whose tokens are at these positions now, in the same blocks as before."""
        assert self.standing is not None
        standing, (tiles,) = self.standing, self.tiles
        write = standing.write + (positions % BLOCK_TOKENS)[:, None]
        mask = _mask(self.group, positions[standing.tile][:, None], standing.split, self.device)
        return replace(
            self,
            write=_tensor(write.reshape(-1), self.device),
            tiles=(replace(tiles, mask=mask),),
        )


def padded_rows(rows: int) -> int:
    """The next multiple of ROW_MULTIPLE."""
    return -(-rows // ROW_MULTIPLE) * ROW_MULTIPLE


def plan_attention(
    chunks: Sequence[Chunk],
    decodes: int,
    heads: int,
    *,
    group: LayerGroup,
    device: torch.device,
    tile: int = PREFILL_TILE,
) -> AttentionPlan:
    """The plan for chunks that lie one after the other in the batch, the first `decodes` of them of one token each."""
    tables = np.concatenate([np.asarray(chunk.table, np.int64) for chunk in chunks])
    sizes = np.array([len(chunk.table) for chunk in chunks], np.int64)
    offsets = np.cumsum(sizes) - sizes
    starts = np.array([chunk.start for chunk in chunks], np.int64)
    counts = np.array([chunk.count for chunk in chunks], np.int64)
    if group.window:
        # What is absent is masked wherever it is met; the block of the chunk's last token stands in for it.
        present = tables[offsets + (starts + counts - 1) // BLOCK_TOKENS]
        tables = np.where(tables == ABSENT, np.repeat(present, sizes), tables)
    layout = _Layout(heads, group, device, tables, sizes, offsets)
    tiles = []
    standing = None
    lanes = np.arange(parts(group) * group.kv_heads)
    sequence = np.repeat(np.arange(len(chunks)), counts)
    positions = _ramp(counts) + starts[sequence]
    block = tables[offsets[sequence] + positions // BLOCK_TOKENS]
    write = (block[:, None] * (len(group.layers) * len(lanes)) + lanes) * BLOCK_TOKENS
    if decodes:
        own = starts[:decodes]
        decoding, tile_of, split = layout.tiles(1, np.arange(decodes), begin=own, last=own, rows=None, real=None)
        tiles.append(decoding)
        if decodes == len(chunks):
            standing = Standing(write, tile_of, split)
    if decodes < len(chunks):
        tiles.append(_prefill_tiles(layout, starts, counts, decodes, tile))
    write = write + (positions % BLOCK_TOKENS)[:, None]
    return AttentionPlan(group, device, _tensor(write.reshape(-1), device), len(positions), tuple(tiles), standing)


def _ramp(counts: Indices) -> Indices:
    """0, 1, … counts[0] − 1, 0, 1, … counts[1] − 1, …"""
    ends = np.cumsum(counts)
    return np.arange(ends[-1]) - np.repeat(ends - counts, counts)


def _tensor(values: Indices, device: torch.device) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(values)).to(device)


def _prefill_tiles(layout: _Layout, starts: Indices, counts: Indices, decodes: int, tile: int) -> Tiles:
    # Cut at absolute multiples of the tile, so that no tile reaches over the end of a split.
    first = starts[decodes:] // tile
    tiles_of = -(-(starts[decodes:] + counts[decodes:]) // tile) - first
    sequence = np.repeat(np.arange(decodes, len(starts)), tiles_of)
    number = _ramp(tiles_of) + np.repeat(first, tiles_of)
    begin = np.maximum(number * tile, starts[sequence])
    end = np.minimum((number + 1) * tile, starts[sequence] + counts[sequence])
    slots = np.arange(tile)
    real = slots < (end - begin)[:, None]
    batch_start = (np.cumsum(counts) - counts)[sequence] + begin - starts[sequence]
    rows = batch_start[:, None] + np.minimum(slots, (end - begin - 1)[:, None])
    return layout.tiles(
        tile,
        sequence,
        begin=begin,
        last=end - 1,
        rows=rows.reshape(-1),
        real=np.flatnonzero(real.reshape(-1)),
    )[0]


def _mask(group: LayerGroup, query: Indices, split: Indices, device: torch.device) -> torch.Tensor:
    """[pairs, 1, queries, SPLIT_TOKENS] for queries at the positions [pairs, queries] and these splits of keys."""
    place = (query - split[:, None] * SPLIT_TOKENS)[:, None, :, None]
    key = np.arange(SPLIT_TOKENS)
    hidden = key > place
    if group.window:
        hidden |= key <= place - group.window
    # Not in memory of numpy's: for what is larger than 4 MiB it asks the kernel for huge pages, and the place stays
    # marked when others have it, which seem to take ever more memory then.
    mask = torch.empty(hidden.shape, dtype=torch.float32)
    np.multiply(hidden, np.float32(MASKED), out=mask.numpy())
    return mask.to(device)


@dataclass(frozen=True)
class _Layout:
    heads: int
    group: LayerGroup
    device: torch.device
    tables: Indices
    sizes: Indices
    offsets: Indices

    def tiles(
        self,
        tokens: int,
        sequence: Indices,
        *,
        begin: Indices,
        last: Indices,
        rows: Indices | None,
        real: Indices | None,
    ) -> tuple[Tiles, Indices, Indices]:
        """Tiles of the given sequences whose queries stand at positions `begin`..`last`; tiles and splits of the pairs
        that have masks. For the splits only blocks count, so that they stay the same while a query is in one.
        """
        count = len(sequence)
        window = self.group.window
        first = np.zeros_like(begin)
        if window:
            first = np.maximum(begin - begin % BLOCK_TOKENS - window + 1, 0) // SPLIT_TOKENS
        splits = last // SPLIT_TOKENS + 1 - first
        pair_tile = np.repeat(np.arange(count), splits)
        pair_split = _ramp(splits) + first[pair_tile]
        # With one pair for each tile the pairs stay in order; else those that need a mask come first.
        single = len(pair_tile) == count
        masked = count
        folding = None
        if not single:
            needs_mask = (pair_split + 1) * SPLIT_TOKENS > (begin - begin % BLOCK_TOKENS)[pair_tile]
            if window:
                needs_mask |= (
                    pair_split * SPLIT_TOKENS < (last - last % BLOCK_TOKENS + BLOCK_TOKENS - window)[pair_tile]
                )
            masked = int(needs_mask.sum())
            order = np.argsort(~needs_mask, kind="stable")
            folding = self._folding(order, pair_tile, pair_split, first, splits)
            pair_tile, pair_split = pair_tile[order], pair_split[order]
        tile_of, split = pair_tile[:masked], pair_split[:masked]
        # Where a tile is one token, all its rows are its query heads and have the same mask.
        token = np.zeros(1, np.int64)
        if tokens > 1:
            query_heads = self.heads // self.group.kv_heads
            token = np.minimum(np.arange(padded_rows(tokens * query_heads)) // query_heads, tokens - 1)
        query = np.minimum(begin[tile_of][:, None] + token, last[tile_of][:, None])
        tiles = Tiles(
            count=count,
            tokens=tokens,
            rows=None if rows is None else _tensor(rows, self.device),
            output=None if real is None else _tensor(real, self.device),
            gather=self._gather(sequence[pair_tile], pair_split),
            mask=_mask(self.group, query, split, self.device),
            folding=folding,
        )
        return tiles, tile_of, split

    def _gather(self, sequence: Indices, split: Indices) -> torch.Tensor:
        within = split[:, None] * SPLIT_BLOCKS + np.arange(SPLIT_BLOCKS)
        # A last split that is not full repeats the sequence's last block: all masked.
        within = np.minimum(within, self.sizes[sequence][:, None] - 1)
        blocks = self.tables[self.offsets[sequence][:, None] + within]
        lanes = np.arange(parts(self.group) * self.group.kv_heads).reshape(-1, 1, self.group.kv_heads, 1)
        rows = blocks[None, :, None, :] * (len(self.group.layers) * lanes.size) + lanes
        return _tensor(rows.reshape(len(lanes), len(split), -1), self.device)

    def _folding(self, order: Indices, tile: Indices, split: Indices, first: Indices, splits: Indices) -> Folding:
        """How each tile's splits `first`..`first + splits` become one, by halves of absolute numbers.

        `tile` and `split` are those of the pairs in order of both; pair order[i] of these is pair i of the step.
        """
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        starts = np.cumsum(splits) - splits
        # A node of the tree lies where its leftmost split is. Split s is the right half of a node of 2 · low splits,
        # where low is its lowest bit, and is taken in by the left half; the first one of a tile is never taken in.
        low = split & -split
        into = place[starts[tile] + np.maximum(split - low - first[tile], 0)]
        taken = split > first[tile]
        levels = [
            Level(_tensor(into[now], self.device), _tensor(place[now], self.device))
            for now in (taken & (low == size) for size in 1 << np.arange(int(split.max()).bit_length()))
            if now.any()
        ]
        within = np.arange(splits.max())
        spread = place[starts[:, None] + np.where(within < splits[:, None], within, 0)]
        return Folding(
            _tensor(tile[order], self.device),
            _tensor(spread.reshape(-1), self.device),
            tuple(levels),
            _tensor(place[starts], self.device),
        )
