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
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from engine.kv_memory import parts
from engine.layers.linear import ROW_MULTIPLE
from engine.protocol import LayerGroup
from prompt_cache.block_groups import ABSENT
from prompt_cache.keys import BLOCK_TOKENS

SPLIT_BLOCKS = 2
SPLIT_TOKENS = SPLIT_BLOCKS * BLOCK_TOKENS
PREFILL_TILE = 64

Indices: TypeAlias = NDArray[np.int64]


@dataclass(frozen=True)
class Chunk:
    """Tokens `start`..`start + count` of one sequence; `table` are its blocks, ABSENT where none is needed (yet)."""

    start: int
    count: int
    table: Sequence[int]


@dataclass(frozen=True)
class Level:
    """One level of folding: node i becomes node left[i], plus right[i] for the first len(right) nodes."""

    left: torch.Tensor
    right: torch.Tensor


@dataclass(frozen=True)
class Tiles:
    """Tiles of `tokens` queries each. `rows`: the batch row of each query, None where tile i is row i."""

    count: int
    tokens: int
    rows: torch.Tensor | None
    output: torch.Tensor | None
    """Index of each real query among all tiles' queries, None where all are real."""
    pair_tile: torch.Tensor | None
    """Tile of each pair, None where each tile has one pair, in order."""
    gather: torch.Tensor
    """[pairs · KV heads · SPLIT_BLOCKS] rows of KvMemory's keys and values."""
    masked: torch.Tensor
    """[first pairs, 1, query rows, SPLIT_TOKENS], true where a key comes after the query or before its window.

    The other pairs need no mask.
    """
    levels: tuple[Level, ...]
    final: torch.Tensor | None
    """The node that holds each tile's result, None where node i holds tile i's."""


@dataclass(frozen=True)
class AttentionPlan:
    """Where the step's keys and values are written, and its tiles; decoding tiles take the first batch rows."""

    write: torch.Tensor
    """[tokens · parts · KV heads] rows of KvMemory's `rows`."""
    tokens: int
    tiles: tuple[Tiles, ...]


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
    tables = np.fromiter((block for chunk in chunks for block in chunk.table), np.int64)
    sizes = np.array([len(chunk.table) for chunk in chunks], np.int64)
    offsets = np.cumsum(sizes) - sizes
    starts = np.array([chunk.start for chunk in chunks], np.int64)
    counts = np.array([chunk.count for chunk in chunks], np.int64)
    # What is absent is masked wherever it is met; the block of the chunk's last token stands in for it.
    present = tables[offsets + (starts + counts - 1) // BLOCK_TOKENS]
    tables = np.where(tables == ABSENT, np.repeat(present, sizes), tables)
    layout = _Layout(heads, group, device, tables, sizes, offsets)
    tiles = []
    if decodes:
        tiles.append(
            layout.tiles(1, np.arange(decodes), begin=starts[:decodes], last=starts[:decodes], rows=None, real=None)
        )
    if decodes < len(chunks):
        tiles.append(_prefill_tiles(layout, starts, counts, decodes, tile))
    sequence = np.repeat(np.arange(len(chunks)), counts)
    positions = _ramp(counts) + starts[sequence]
    block = tables[offsets[sequence] + positions // BLOCK_TOKENS]
    lanes = np.arange(parts(group) * group.kv_heads)
    write = (block[:, None] * (len(group.layers) * len(lanes)) + lanes) * BLOCK_TOKENS
    write += (positions % BLOCK_TOKENS)[:, None]
    return AttentionPlan(_tensor(write.reshape(-1), device), int(counts.sum()), tuple(tiles))


def _ramp(counts: Indices) -> Indices:
    """0, 1, … counts[0] − 1, 0, 1, … counts[1] − 1, …"""
    ends = np.cumsum(counts)
    return np.arange(ends[-1]) - np.repeat(ends - counts, counts)


def _tensor(indices: NDArray[np.int64] | NDArray[np.bool_], device: torch.device) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(indices)).to(device)


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
    )


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
    ) -> Tiles:
        """Tiles of the given sequences whose queries stand at positions `begin`..`last`."""
        count = len(sequence)
        window = self.group.window
        first = np.maximum(begin - window + 1, 0) // SPLIT_TOKENS if window else np.zeros_like(begin)
        splits = last // SPLIT_TOKENS + 1 - first
        pair_tile = np.repeat(np.arange(count), splits)
        pair_split = _ramp(splits) + first[pair_tile]
        # With one pair for each tile the pairs stay in order; else those that need a mask come first.
        single = len(pair_tile) == count
        needs_mask = single | ((pair_split + 1) * SPLIT_TOKENS - 1 > begin[pair_tile])
        if window:
            needs_mask |= pair_split * SPLIT_TOKENS <= last[pair_tile] - window
        order = np.argsort(~needs_mask, kind="stable")
        node = np.empty_like(order)
        node[order] = np.arange(len(order))
        levels, final = self._fold(node, first, splits)
        pair_tile, pair_split = pair_tile[order], pair_split[order]
        masked = int(needs_mask.sum())
        return Tiles(
            count=count,
            tokens=tokens,
            rows=None if rows is None else _tensor(rows, self.device),
            output=None if real is None else _tensor(real, self.device),
            pair_tile=None if single else _tensor(pair_tile, self.device),
            gather=self._gather(sequence[pair_tile], pair_split),
            masked=self._mask(tokens, begin, last, pair_tile[:masked], pair_split[:masked]),
            levels=levels,
            final=None if single else _tensor(final, self.device),
        )

    def _gather(self, sequence: Indices, split: Indices) -> torch.Tensor:
        within = split[:, None] * SPLIT_BLOCKS + np.arange(SPLIT_BLOCKS)
        # A last split that is not full repeats the sequence's last block: all masked.
        within = np.minimum(within, self.sizes[sequence][:, None] - 1)
        blocks = self.tables[self.offsets[sequence][:, None] + within]
        kv_heads = self.group.kv_heads
        rows = (
            blocks[:, None, :] * (len(self.group.layers) * parts(self.group) * kv_heads) + np.arange(kv_heads)[:, None]
        )
        return _tensor(rows.reshape(-1), self.device)

    def _mask(self, tokens: int, begin: Indices, last: Indices, tile: Indices, split: Indices) -> torch.Tensor:
        query_heads = self.heads // self.group.kv_heads
        rows = padded_rows(tokens * query_heads)
        token = np.minimum(np.arange(rows) // query_heads, tokens - 1)
        query = np.minimum(begin[tile][:, None] + token, last[tile][:, None])
        key = split[:, None] * SPLIT_TOKENS + np.arange(SPLIT_TOKENS)
        distance = query[:, None, :, None] - key[:, None, None, :]
        hidden = distance < 0
        if self.group.window:
            hidden |= distance >= self.group.window
        return _tensor(hidden, self.device)

    def _fold(self, node: Indices, first: Indices, counts: Indices) -> tuple[tuple[Level, ...], Indices]:
        """The levels of folding each tile's splits `first`..`first + counts` into one, by halves of absolute numbers.

        `node` numbers the splits in order of tile and split.
        """
        levels = []
        while counts.max() > 1:
            starts, last = np.cumsum(counts) - counts, first + counts - 1
            parents = last // 2 - first // 2 + 1
            tile = np.repeat(np.arange(len(counts)), parents)
            left = 2 * (_ramp(parents) + (first // 2)[tile])
            both = (left >= first[tile]) & (left < last[tile])
            # The left child, or the right one where the left lies before the first split.
            at = starts[tile] + np.maximum(left, first[tile]) - first[tile]
            order = np.argsort(~both, kind="stable")
            levels.append(Level(_tensor(node[at[order]], self.device), _tensor(node[at[both] + 1], self.device)))
            node = np.empty_like(order)
            node[order] = np.arange(len(order))
            first, counts = first // 2, parents
        return tuple(levels), node
