"""The KV memory behind the block pools: one tensor per layer group, in which each block is contiguous.

Shape: [blocks, layers, parts, KV heads, 64, head dim]. The parts are K and V, or in a latent group the one latent
vector from which both are made. A block is contiguous because it is the unit of transfer between tiers.

In fp8 each vector is stored as 8-bit values followed by its own fp32 scale (one for each token, KV head and part). A
step also reads its own KV back from there, so that a cold prompt sees the same values as a warm one (C2). The KV format
is part of the model digest and so of every block key: KV of another format is never found.
"""

from __future__ import annotations

import math
import mmap
import weakref
from collections.abc import Iterable, Sequence
from contextlib import suppress
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
"""Views of scratch memory that are kept."""

Tensors: TypeAlias = tuple[torch.Tensor, ...]


def row_bytes(dtype: torch.dtype, head_dim: int) -> int:
    """The bytes of one stored vector of `head_dim` elements, with its scale if it has one."""
    return head_dim * dtype.itemsize + (_SCALE_BYTES if dtype == FP8 else 0)


@dataclass(frozen=True)
class KvSlot:
    """The place of a layer's KV: its layer group, and its index among the group's layers."""

    group: int
    layer: int


class KvLayout:
    """Collects the layer groups of a model while its layers are made. Layers with KV of the same kind share a group.

    `dtype`: the type in which vectors are stored.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        self._dtype = dtype
        self._layers: dict[tuple[str, int, int, int], list[int]] = {}

    def place(self, layer: int, kv_heads: int, head_dim: int, *, window: int = 0, latent: bool = False) -> KvSlot:
        """The slot of a layer with KV of this kind. `window`: in tokens, 0 for full attention."""
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
    """The KV of one layer group. `like`: the type of computation, and the device. `pinned`: page-locked host memory."""

    def __init__(self, group: LayerGroup, blocks: int, like: torch.Tensor, *, pinned: bool = False) -> None:
        self.group = group
        layers, heads, per_layer = len(group.layers), group.kv_heads, parts(group)
        self._like = like.new_empty(0)
        self._scaled = group.dtype == str(FP8).removeprefix("torch.")
        # Rows with scales are bytes: their values and scales are of different types.
        stored, dim = (torch.uint8, row_bytes(FP8, group.head_dim)) if self._scaled else (like.dtype, group.head_dim)
        # Not cleared here: a block is when it is allocated, and memory that was never used then costs nothing.
        shape = (blocks, layers, per_layer, heads, BLOCK_TOKENS, dim)
        self.data = self._locked(shape, stored) if pinned else torch.empty(shape, dtype=stored, device=like.device)
        by_row, by_head = self.data.view(-1, dim), self.data.view(-1, BLOCK_TOKENS * dim)
        # Views that begin at a layer's part of the first block: the same index then serves every layer.
        self.rows = [by_row[layer * per_layer * heads * BLOCK_TOKENS :] for layer in range(layers)]
        self.heads = [by_head[layer * per_layer * heads :] for layer in range(layers)]
        self._scratch: dict[str, torch.Tensor] = {}
        self._views: dict[tuple[int, ...], Tensors] = {}

    def _locked(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Page-locked host memory: of this size, where torch's own takes the next power of two."""
        _unlock_abandoned()
        size = math.prod(shape) * dtype.itemsize
        pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        with suppress(OSError):
            pages.madvise(mmap.MADV_HUGEPAGE)
        data = torch.frombuffer(pages, dtype=dtype).view(shape)
        driver = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        torch.cuda.check_error(driver.cudaHostRegister(data.data_ptr(), size, 0))
        weakref.finalize(self, _abandoned.append, (pages, data.data_ptr())).atexit = False
        return data

    def scratch(self, name: str, elements: int, like: torch.Tensor | None = None) -> torch.Tensor:
        """A flat tensor of this many elements whose content means nothing, the same memory each time.

        Of `like`'s type, else of the type of computation. Fresh memory of this size would come from the operating
        system page by page, which costs more than its use.
        """
        held = self._scratch.get(name)
        if held is None or held.numel() < elements:
            held = self._scratch[name] = (self._like if like is None else like).new_empty(elements)
            self._views.clear()
        return held[:elements]

    def queries(self, tiles: int, tokens: int, group: int, rows: int) -> Tensors:
        """Memory for queries [tiles, KV heads, rows, head dim], and the view of it that is to be filled: [tiles, KV
        heads, tokens, group, head dim], without `tokens` if that is 1. The rest is zeros. The same memory each time.
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
        """[rows, size] zeros, not to be written to."""
        key = (0, rows, size)
        views = self._views.get(key) or self._keep(key, (self._like.new_zeros(rows, size),))
        return views[0]

    def _keep(self, key: tuple[int, ...], views: Tensors) -> Tensors:
        # All layers of a step, and many steps, ask for the same views.
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
        """Keys and values, [pairs, KV heads, tokens, head dim] each, from these rows of the layer's `heads`.

        In the type of computation, in scratch memory that the next call overwrites. A latent group's values are its
        keys.
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
        """Scratch memory for `count` gathered rows: as stored, in the type of computation, and the keys and values."""
        group, source = self.group, self.heads[0]
        stored = self.scratch("stored", count * source.shape[1], source).view(count, -1)
        vectors = stored.view(count * BLOCK_TOKENS, -1)
        if self._scaled:
            vectors = self.scratch("computed", len(vectors) * group.head_dim).view(-1, group.head_dim)
        # A head's keys and values are adjacent: in a fused operation one thread gathers both and attends to them.
        held = vectors.view(pairs, group.kv_heads, parts(group), -1, group.head_dim)
        return stored, vectors, held[:, :, 0], held[:, :, -1]

    def zero(self, blocks: Sequence[int]) -> None:
        """Clear newly allocated blocks, so that masked positions hold zeros instead of a former owner's values.

        A masked key has weight 0, but 0 x NaN is NaN: an overflow of one request could otherwise reach another.
        """
        if blocks:
            self.data[list(blocks)] = 0

    def zero_token(self, block: int, place: int) -> None:
        """Clear one token of a block, in the order in which `store` writes it."""
        self.data[block, ..., place, :] = 0

    def copy(self, source: KvMemory, pairs: Iterable[tuple[int, int]]) -> None:
        """Copy blocks (number in `source`, number here) of the same group, in this order. On a GPU this only queues."""
        for there, here in pairs:
            self.data[here].copy_(source.data[there], non_blocking=True)

    def copy_first_token(self, source: int, target: int) -> None:
        """Copy a block that has one token yet, its first."""
        there, here = self.data[target], self.data[source]
        there[..., 0, :].copy_(here[..., 0, :])
        if self.data.dtype == torch.uint8:
            # The scales of all tokens follow their values; the first of them is another token's last bytes by this
            # shape.
            rows, width = there.shape[-2:]
            first = rows * self.group.head_dim
            there, here = (block.view(*block.shape[:-2], rows * width) for block in (there, here))
            there[..., first : first + width - self.group.head_dim].copy_(
                here[..., first : first + width - self.group.head_dim]
            )

    def bytes_of(self, block: int) -> torch.Tensor:
        """A block of host memory as bytes, [block bytes], which other threads may fill or read."""
        return self.data[block].view(-1).view(torch.uint8)

    def poison(self, block: int) -> None:
        """Fill a free block with NaN, so that tests notice any read of it."""
        self.data[block].fill_(0xFF if self._scaled else torch.nan)  # in e4m3 and in fp32 all ones are a NaN


_abandoned: list[tuple[mmap.mmap, int]] = []
"""Page-locked memory that nobody uses any more, with its address."""


def _unlock_abandoned() -> None:
    """Unlock what is in no use. Not when it is given up, which may be while a graph is captured: the driver refuses it
    then, and goes on to take the addresses for locked when they are somebody else's."""
    while _abandoned:
        pages, address = _abandoned.pop()
        driver = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        torch.cuda.check_error(driver.cudaHostUnregister(address))
        del pages


def host_memories(groups: Sequence[LayerGroup], blocks: Sequence[int], like: torch.Tensor) -> list[KvMemory]:
    """Host memory for `blocks` blocks of each group, pinned if `like` is on a GPU."""
    host, pinned = torch.empty(0, dtype=like.dtype), like.device.type == "cuda"
    return [KvMemory(group, count, host, pinned=pinned) for group, count in zip(groups, blocks, strict=True)]
