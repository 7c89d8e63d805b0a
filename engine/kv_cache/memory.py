"""The device memory behind the block pools: one tensor per layer group, a block contiguous.

[blocks, layers, parts, KV heads, 64, head dim], where the parts are K and V, or for a latent group the one latent
vector from which both are made. A block is what is moved between tiers, so it lies in one piece.

In fp8 each vector is 8-bit values and, behind them in the same row, its own fp32 scale (one for each token, KV head and
part). What a step computes is read back from there as well, so a cold prompt meets the very values that a warm one
reads: cold = warm holds, among replicas that keep their KV like that. Their model digest says so, and thereby every
block key: KV of another format is never found under it, nor theirs by others.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch

from engine.quantization import fp8
from prompt_cache.kv.block_keys import BLOCK_TOKENS
from protocol.replicas import LayerGroup


def parts(group: LayerGroup) -> int:
    """How many vectors a token has in each KV head of a layer: key and value, or one latent."""
    return 1 if group.kind == "latent" else 2


FP8 = torch.float8_e4m3fn
_SCALE_BYTES = 4
_VIEWS = 64
"""So many views of scratch memory are kept."""

Tensors: TypeAlias = tuple[torch.Tensor, ...]


def row_bytes(dtype: torch.dtype, head_dim: int) -> int:
    """The bytes of one stored vector of `head_dim` elements, with its scale if it has one."""
    return head_dim * dtype.itemsize + (_SCALE_BYTES if dtype == FP8 else 0)


@dataclass(frozen=True)
class KvSlot:
    """Where a layer's KV lies: in which group, and as which of its layers."""

    group: int
    layer: int


class KvLayout:
    """Collects the layer groups of a model while its layers are made: layers whose KV is alike share a group.

    `dtype`: what vectors are stored in.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        self._dtype = dtype
        self._layers: dict[tuple[str, int, int, int], list[int]] = {}

    def place(self, layer: int, kv_heads: int, head_dim: int, *, window: int = 0, latent: bool = False) -> KvSlot:
        """The slot of a layer with such KV; `window` 0 for one that attends to everything."""
        kind = "latent" if latent else "window" if window else "full"
        shape = (kind, kv_heads, head_dim, window)
        members = self._layers.setdefault(shape, [])
        members.append(layer)
        return KvSlot(list(self._layers).index(shape), len(members) - 1)

    def groups(self) -> tuple[LayerGroup, ...]:
        """The groups in the order in which their first layers were placed, with their block sizes in bytes."""
        return tuple(
            LayerGroup(
                kind=kind,
                layers=tuple(layers),
                kv_heads=kv_heads,
                head_dim=head_dim,
                window=window,
                dtype=str(self._dtype).removeprefix("torch."),
                block_bytes=len(layers)
                * (1 if kind == "latent" else 2)
                * kv_heads
                * BLOCK_TOKENS
                * row_bytes(self._dtype, head_dim),
            )
            for (kind, kv_heads, head_dim, window), layers in self._layers.items()
        )


class KvMemory:
    """The KV of one layer group. `like` gives the type that is computed with, and the device.

    `pinned` for host memory that a GPU copies to.
    """

    def __init__(self, group: LayerGroup, blocks: int, like: torch.Tensor, *, pinned: bool = False) -> None:
        self.group = group
        layers, heads, per_layer = len(group.layers), group.kv_heads, parts(group)
        self._like = like.new_empty(0)
        self._scaled = group.dtype == str(FP8).removeprefix("torch.")
        # Rows with scales are bytes: their values and scales are of different types.
        stored, dim = (torch.uint8, row_bytes(FP8, group.head_dim)) if self._scaled else (like.dtype, group.head_dim)
        # Not cleared here: a block is when it is allocated, and memory that was never used then costs nothing.
        shape = (blocks, layers, per_layer, heads, BLOCK_TOKENS, dim)
        self.data = torch.empty(shape, dtype=stored, device=like.device, pin_memory=pinned)
        by_row, by_head = self.data.view(-1, dim), self.data.view(-1, BLOCK_TOKENS * dim)
        # Views that begin at a layer's part of the first block: the same index then serves every layer.
        self.rows = [by_row[layer * per_layer * heads * BLOCK_TOKENS :] for layer in range(layers)]
        self.heads = [by_head[layer * per_layer * heads :] for layer in range(layers)]
        self._scratch: dict[str, torch.Tensor] = {}
        self._views: dict[tuple[int, ...], Tensors] = {}

    def scratch(self, name: str, elements: int, like: torch.Tensor | None = None) -> torch.Tensor:
        """A flat tensor of this many elements whose content means nothing, the same memory each time.

        Of `like`'s type, else of the one that is computed with.

        Fresh memory of this size would come from the operating system page by page, which costs more than its use.
        """
        held = self._scratch.get(name)
        if held is None or held.numel() < elements:
            held = self._scratch[name] = (self._like if like is None else like).new_empty(elements)
            self._views.clear()
        return held[:elements]

    def queries(self, tiles: int, tokens: int, group: int, rows: int) -> Tensors:
        """Memory for queries, [tiles, KV heads, rows, head dim], and what of it is to be filled: [tiles, KV heads,
        tokens, group, head dim], without `tokens` where that is 1. All else in it is zeros; the same memory each time.
        """
        key = (tiles, tokens, group, rows)
        views = self._views.get(key)
        if views is None:
            name, heads, dim = f"queries of {tokens} x {group} in {rows}", self.group.kv_heads, self.group.head_dim
            held = self._scratch.get(name)
            if held is None or len(held) < tiles:
                held = self._scratch[name] = self._like.new_zeros(tiles, heads, rows, dim)
                self._views.clear()
            whole = held[:tiles]
            real = whole[:, :, : tokens * group]
            views = self._keep(key, (whole, real if tokens == 1 else real.view(tiles, heads, tokens, group, dim)))
        return views

    def zeros(self, rows: int, size: int) -> torch.Tensor:
        """[rows, size] zeros that nobody writes to."""
        key = (0, rows, size)
        views = self._views.get(key) or self._keep(key, (self._like.new_zeros(rows, size),))
        return views[0]

    def _keep(self, key: tuple[int, ...], views: Tensors) -> Tensors:
        # The layers of a step ask for the same ones in turn, and so do many steps.
        if len(self._views) >= _VIEWS:
            self._views.clear()
        self._views[key] = views
        return views

    def store(self, layer: int, rows: torch.Tensor, vectors: torch.Tensor) -> None:
        """Write vectors [n, head dim] to these rows, counted from the layer's part of the first block."""
        if self._scaled:
            values, scales = fp8.encode(vectors)
            vectors = torch.cat([values.view(torch.uint8), scales.view(torch.uint8)], -1)
        self.rows[layer].index_copy_(0, rows, vectors)

    def gather(self, layer: int, rows: torch.Tensor, pairs: int) -> Tensors:
        """Keys and values, [pairs, KV heads, tokens, head dim], from these rows of the layer's `heads`.

        As they are computed with; in scratch memory that the next call overwrites. A latent's keys hold its values.
        """
        key = (rows.shape[0], pairs)
        stored, computed, keys, values = self._views.get(key) or self._keep(key, self._gathered(*key))
        torch.index_select(self.heads[layer], 0, rows, out=stored)
        if self._scaled:
            dim = self.group.head_dim
            vectors = stored.view(len(computed), -1)
            computed.copy_(vectors[:, :dim].view(FP8))
            computed.mul_(vectors[:, dim:].contiguous().view(torch.float32))
        return keys, values

    def _gathered(self, count: int, pairs: int) -> Tensors:
        """Where so many rows are gathered, the same as they are computed with, and the keys and values in that."""
        group, source = self.group, self.heads[0]
        stored = self.scratch("stored", count * source.shape[1], source).view(count, -1)
        vectors = stored.view(count * BLOCK_TOKENS, -1)
        if self._scaled:
            vectors = self.scratch("computed", len(vectors) * group.head_dim).view(-1, group.head_dim)
        # Keys beside values: who attends to a head's is, in a fused operation, the thread that gathered both.
        held = vectors.view(pairs, group.kv_heads, parts(group), -1, group.head_dim)
        return stored, vectors, held[:, :, 0], held[:, :, -1]

    def zero(self, blocks: Sequence[int]) -> None:
        """Clear newly allocated blocks: masked positions meet zeros, never what a former owner left there.

        A masked key has weight 0, but 0 x NaN is NaN: without this, one request's overflow could reach another.
        """
        if blocks:
            self.data[list(blocks)] = 0

    def copy(self, source: KvMemory, pairs: Iterable[tuple[int, int]]) -> None:
        """Copy blocks (in `source`, here) of the same group, in this order.

        On a GPU the copies are queued behind what was queued before and ahead of what follows; nobody waits for them.
        """
        for there, here in pairs:
            self.data[here].copy_(source.data[there], non_blocking=True)

    def poison(self, block: int) -> None:
        """Fill a free block with NaN, so that a test sees any read of it."""
        self.data[block].fill_(0xFF if self._scaled else torch.nan)  # in e4m3 and in fp32 all ones are a NaN


def swap_memories(groups: Sequence[LayerGroup], blocks: Sequence[int], like: torch.Tensor) -> list[KvMemory]:
    """Host memory for so many blocks of each group, pinned where `like` is on a GPU."""
    host, pinned = torch.empty(0, dtype=like.dtype), like.device.type == "cuda"
    return [KvMemory(group, count, host, pinned=pinned) for group, count in zip(groups, blocks, strict=True)]
