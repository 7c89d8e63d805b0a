"""The plan of one step's attention: what it reads and writes, computed once on the host and used by every layer.

Keys are cut into *splits* at fixed absolute positions (see `Cut`). Each split is computed by itself, and the splits of
a query are folded by a binary tree over their absolute numbers (split-K, as in Flash-Decoding). The length of a split's
computation depends on the query's position alone: the whole split, or in the query's own split up to the end of the
query's *step*, with keys beyond the query masked. In a window group, splits before the window are left out, as they
would add exactly nothing. So a query at a position gets the same bits in a long or short prefill chunk or a decode
step, in any batch (E1), and whether its keys were computed or read (C2).

Queries come in *tiles*: one token of each decoding request, or `PREFILL_TILE` tokens of a chunk. A (tile, split) is a
*pair*; all pairs of one length are computed as one batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from engine.kernels.paged_kv import Scores
from engine.kv_cache.memory import KvMemory, parts
from engine.layers.matmul_kernels import ROW_MULTIPLE
from prompt_cache.kv.block_keys import BLOCK_TOKENS
from prompt_cache.kv.grouped_pool import ABSENT
from protocol.replicas import LayerGroup

PREFILL_TILE = 64
MASKED = -1e30
"""Added to the score of a key that a query does not see, so that its weight is exactly 0."""

Fast: TypeAlias = Callable[[torch.Tensor, KvMemory, int, Scores, int], torch.Tensor]
"""See `engine.layers.fast_attention.FastAttention`."""
Indices: TypeAlias = NDArray[np.int64]
Flags: TypeAlias = NDArray[np.bool_]


@dataclass(frozen=True)
class Cut:
    """How keys are cut: splits of `split` tokens; a query's own split is read up to the end of its `step`.

    A split is a multiple of the step, and the step of the block and of the prefill tile. `slab_bytes`: keys and scores
    of the pairs that are computed at a time. `apart`: pairs with and without masks are computed separately.
    """

    split: int
    step: int
    slab_bytes: int
    apart: bool


CUTS = {"cpu": Cut(512, 64, 4 << 20, apart=True), "cuda": Cut(128, 128, 256 << 20, apart=False)}
"""On the CPU longer splits save joins, and a slab is what a core's cache holds. On a GPU the number of kernel launches
matters: all pairs have one length and are one batch."""


@dataclass(frozen=True)
class Chunk:
    """Tokens `start`..`start + count` of one sequence. `table`: its blocks, ABSENT where none is needed (yet).

    `first`: keys before it are not seen, as those of a head that began to draft there.
    """

    start: int
    count: int
    table: Sequence[int] | Indices
    first: int = 0


@dataclass(frozen=True)
class FoldLevel:
    """One level of the folding tree: pair right[i] is added to pair left[i]."""

    left: torch.Tensor
    right: torch.Tensor


@dataclass(frozen=True)
class Folding:
    """How the pairs of each tile are folded into one."""

    tile: torch.Tensor
    """Tile of each pair."""
    spread: torch.Tensor
    """[tiles · most pairs of a tile] the pairs of each tile, padded with its first pair."""
    levels: tuple[FoldLevel, ...]


@dataclass(frozen=True)
class Pairs:
    """Pairs that are computed as one batch, each with keys of `length` tokens."""

    count: int
    length: int
    tile: torch.Tensor | None
    """Tile of each pair, None where pair i is the one of tile i."""
    gather: torch.Tensor
    """[pairs · KV heads · parts · blocks] rows of KvMemory's `heads`."""
    mask: torch.Tensor | None
    """fp32 [first pairs, 1, query rows, length], added to scores: 0, or MASKED where a key comes after the query or
    before its window. The other pairs need no mask; None: none does."""
    fused: bool
    """Whether torch's fused operation may be used."""


@dataclass(frozen=True)
class Tiles:
    """Tiles of `tokens` queries each. `rows`: the batch row of each query, None where tile i is row i."""

    count: int
    tokens: int
    rows: torch.Tensor | None
    output: torch.Tensor | None
    """Index of each query that is no padding among all tiles' queries; None if there is no padding."""
    pairs: tuple[Pairs, ...]
    folding: Folding | None
    """None where each tile has one pair."""
    final: torch.Tensor | None
    """The index of the pair with each tile's result; None where pair i has the result of tile i."""


@dataclass(frozen=True)
class DecodeAdvance:
    """What `AttentionPlan.move` needs to advance a plan of decodes alone.

    `write`: the row at which each decode's block begins. `masked`: for each of `Tiles.pairs`, its pairs with masks.
    """

    write: Indices
    masked: tuple[MaskedPairs, ...]


@dataclass(frozen=True)
class MaskedPairs:
    """Pairs with masks: their tiles, where their keys start, and before which key nothing is seen (None: all is)."""

    tile: Indices
    start: Indices
    first: Indices | None


@dataclass(frozen=True)
class AttentionPlan:
    """Where the step's keys and values are written, and its tiles. Decoding tiles take the first batch rows."""

    group: LayerGroup
    device: torch.device
    write: torch.Tensor
    """[tokens · parts · KV heads] rows of KvMemory's `rows`."""
    tokens: int
    tiles: tuple[Tiles, ...]
    standing: DecodeAdvance | None
    """None where not all are decodes."""
    fast: Fast | None = None
    """What computes the step in place of the tiles, of which there are none then."""

    def move(self, positions: Indices) -> None:
        """Change the plan in place to the same decodes at later positions in the same blocks."""
        assert self.standing is not None
        standing, (tiles,) = self.standing, self.tiles
        write = standing.write + (positions % BLOCK_TOKENS)[:, None]
        self.write.copy_(torch.from_numpy(write.reshape(-1)))
        for pairs, masked in zip(tiles.pairs, standing.masked, strict=True):
            if pairs.mask is not None:
                mask = _mask(self.group, positions[masked.tile][:, None], masked, pairs.length)
                pairs.mask.narrow(2, 0, 1).copy_(mask)  # all rows are one


def padded_rows(rows: int, dim: int) -> int:
    """A KV head's query rows, padded: matrix products of longer vectors need larger multiples for equal bits."""
    multiple = ROW_MULTIPLE // 2 if dim <= 64 else ROW_MULTIPLE if dim <= 128 else 2 * ROW_MULTIPLE
    return -(-rows // multiple) * multiple


def plan_attention(
    chunks: Sequence[Chunk],
    decodes: int,
    heads: int,
    *,
    group: LayerGroup,
    device: torch.device,
    tile: int = PREFILL_TILE,
    fused: bool = False,
    tiled: bool = True,
) -> AttentionPlan:
    """The plan for chunks that lie one after the other in the batch, the first `decodes` of them of one token each.

    Unless it is `tiled`, it only says where keys and values are written.
    """
    tables = np.concatenate([np.asarray(chunk.table, np.int64) for chunk in chunks])
    sizes = np.array([len(chunk.table) for chunk in chunks], np.int64)
    offsets = np.cumsum(sizes) - sizes
    starts = np.array([chunk.start for chunk in chunks], np.int64)
    counts = np.array([chunk.count for chunk in chunks], np.int64)
    if group.window:
        # What is absent is masked wherever it is met; the block of the chunk's last token stands in for it.
        present = tables[offsets + (starts + counts - 1) // BLOCK_TOKENS]
        tables = np.where(tables == ABSENT, np.repeat(present, sizes), tables)
    firsts = np.array([chunk.first for chunk in chunks], np.int64)
    layout = _Layout(heads, group, device, tables, sizes, offsets, fused, firsts if firsts.any() else None)
    tiles = []
    standing = None
    lanes = np.arange(parts(group) * group.kv_heads)
    sequence = np.repeat(np.arange(len(chunks)), counts)
    positions = _ramp(counts) + starts[sequence]
    block = tables[offsets[sequence] + positions // BLOCK_TOKENS]
    write = (block[:, None] * (len(group.layers) * len(lanes)) + lanes) * BLOCK_TOKENS
    if decodes and tiled:
        own = starts[:decodes]
        decoding, masked = layout.tiles(1, np.arange(decodes), begin=own, last=own, rows=None, real=None)
        tiles.append(decoding)
        if decodes == len(chunks):
            standing = DecodeAdvance(write, masked)
    if decodes < len(chunks) and tiled:
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


def _mask(group: LayerGroup, query: Indices, masked: MaskedPairs, length: int) -> torch.Tensor:
    """[pairs, 1, queries, length] for queries at the positions [pairs, queries] of these pairs."""
    place = (query - masked.start[:, None])[:, None, :, None]
    key = np.arange(length)
    hidden = key > place
    if group.window:
        hidden |= key <= place - group.window
    if masked.first is not None:
        hidden |= key < (masked.first - masked.start)[:, None, None, None]
    # Not in numpy's memory: above 4 MiB it asks the kernel for huge pages, and the address range keeps that mark for
    # later owners, whose memory then seems to grow.
    mask = torch.empty(hidden.shape, dtype=torch.float32)
    np.multiply(hidden, np.float32(MASKED), out=mask.numpy())
    return mask


@dataclass(frozen=True)
class _Layout:
    heads: int
    group: LayerGroup
    device: torch.device
    tables: Indices
    sizes: Indices
    offsets: Indices
    fused: bool
    firsts: Indices | None
    """Of each sequence the first key that is seen; None where that is 0 for all."""

    def tiles(
        self,
        tokens: int,
        sequence: Indices,
        *,
        begin: Indices,
        last: Indices,
        rows: Indices | None,
        real: Indices | None,
    ) -> tuple[Tiles, tuple[MaskedPairs, ...]]:
        """Tiles of these sequences with queries at positions `begin`..`last`; the pairs with masks.

        Which pairs have masks depends on the query's block alone, so it stays the same while a query is in one block.
        """
        count, window, cut = len(sequence), self.group.window, CUTS[self.device.type]
        first = np.zeros_like(begin)
        if window:
            first = np.maximum(begin - begin % BLOCK_TOKENS - window + 1, 0) // cut.split
        splits = last // cut.split + 1 - first
        tile_of = np.repeat(np.arange(count), splits)
        split = _ramp(splits) + first[tile_of]
        start = split * cut.split
        length = np.minimum((last // cut.step + 1)[tile_of] * cut.step - start, cut.split)
        masked = start + length > (begin - begin % BLOCK_TOKENS)[tile_of]
        if window:
            masked |= start < (last - last % BLOCK_TOKENS + BLOCK_TOKENS - window)[tile_of]
        seen = None if self.firsts is None else self.firsts[sequence][tile_of]
        if seen is not None:
            masked |= start < seen
        order = np.lexsort((~masked, length))
        alone = len(tile_of) == count
        in_order = alone and bool((order == np.arange(count)).all())
        query_heads = self.heads // self.group.kv_heads
        rows_of = padded_rows(tokens * query_heads, self.group.head_dim)
        # If a tile is one token, all its rows are query heads with the same mask.
        token = np.minimum(np.arange(rows_of) // query_heads, tokens - 1) if tokens > 1 else np.zeros(1, np.int64)
        pairs, with_masks = [], []
        for these in self._batches(order, length, masked, rows_of):
            tile, begins, size = tile_of[these], start[these], int(length[these[0]])
            hidden = int(masked[these].sum())
            query = np.minimum(begin[tile[:hidden]][:, None] + token, last[tile[:hidden]][:, None])
            with_masks.append(
                MaskedPairs(tile[:hidden], begins[:hidden], None if seen is None else seen[these[:hidden]])
            )
            pairs.append(
                Pairs(
                    count=len(these),
                    length=size,
                    tile=None if in_order and len(these) == count else _tensor(tile, self.device),
                    gather=self._gather(sequence[tile], begins, size),
                    mask=self._mask(query, with_masks[-1], size, rows_of) if hidden else None,
                    fused=self.fused,
                )
            )
        tiles = Tiles(
            count=count,
            tokens=tokens,
            rows=None if rows is None else _tensor(rows, self.device),
            output=None if real is None else _tensor(real, self.device),
            pairs=tuple(pairs),
            folding=None if alone else self._folding(tile_of, split, splits, order),
            final=None if in_order else _tensor(np.argsort(order)[np.cumsum(splits) - splits], self.device),
        )
        return tiles, tuple(with_masks)

    def _mask(self, query: Indices, masked: MaskedPairs, length: int, rows: int) -> torch.Tensor:
        return _mask(self.group, query, masked, length).to(self.device).expand(-1, -1, rows, -1)

    def _gather(self, sequence: Indices, start: Indices, length: int) -> torch.Tensor:
        within = start[:, None] // BLOCK_TOKENS + np.arange(length // BLOCK_TOKENS)
        # Positions behind the sequence's last block repeat it; they are masked.
        within = np.minimum(within, self.sizes[sequence][:, None] - 1)
        blocks = self.tables[self.offsets[sequence][:, None] + within]
        lanes = np.arange(parts(self.group) * self.group.kv_heads).reshape(-1, self.group.kv_heads)
        rows = blocks[:, None, None] * (len(self.group.layers) * lanes.size) + lanes.T[:, :, None]
        return _tensor(rows.reshape(-1), self.device)

    def _batches(self, order: Indices, length: Indices, masked: Flags, rows: int) -> Iterator[Indices]:
        """Batches of the pairs `order`, which are sorted by length and then by mask. `rows`: query rows of a pair."""
        cut, group = CUTS[self.device.type], self.group
        kind = length[order] * 2 + masked[order] if cut.apart else length[order]
        for alike in np.split(order, np.flatnonzero(np.diff(kind)) + 1):
            vector = rows + parts(group) * group.head_dim
            slab = max(1, cut.slab_bytes // (group.kv_heads * vector * int(length[alike[0]]) * 4))
            for at in range(0, len(alike), slab):
                yield alike[at : at + slab]

    def _folding(self, tile: Indices, split: Indices, splits: Indices, order: Indices) -> Folding:
        """The folding of each tile's splits, a binary tree over their absolute numbers.

        `tile`, `split`: of the pairs, sorted by both. `splits`: how many each tile has. `order`: pair i of the step is
        pair order[i] of these.
        """
        place = np.argsort(order)
        starts = np.cumsum(splits) - splits
        first = split[starts]
        # A node is stored at its leftmost split. Split s is the right half of a node of 2 · low splits, where low is
        # its lowest set bit, and is added to the left half. A tile's first split is never added to another.
        low = split & -split
        into = place[starts[tile] + np.maximum(split - low - first[tile], 0)]
        taken = split > first[tile]
        levels = [
            FoldLevel(_tensor(into[now], self.device), _tensor(place[now], self.device))
            for now in (taken & (low == size) for size in 1 << np.arange(int(split.max()).bit_length()))
            if now.any()
        ]
        within = np.arange(splits.max())
        spread = place[starts[:, None] + np.where(within < splits[:, None], within, 0)]
        return Folding(
            _tensor(tile[order], self.device),
            _tensor(spread.reshape(-1), self.device),
            tuple(levels),
        )
