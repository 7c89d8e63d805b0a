"""The device memory behind the block pools: one tensor per layer group, a block contiguous.

[blocks, layers, parts, KV heads, 64, head dim], where the parts are K and V, or for a latent group the one latent
vector from which both are made. A block is what is moved between tiers, so it lies in one piece.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from engine.protocol import LayerGroup
from prompt_cache.keys import BLOCK_TOKENS


def parts(group: LayerGroup) -> int:
    """How many vectors a token has in each KV head of a layer: key and value, or one latent."""
    return 1 if group.kind == "latent" else 2


@dataclass(frozen=True)
class KvSlot:
    """Where a layer's KV lies: in which group, and as which of its layers."""

    group: int
    layer: int


class KvLayout:
    """Collects the layer groups of a model while its layers are made: layers whose KV is alike share a group."""

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
        size = BLOCK_TOKENS * self._dtype.itemsize
        return tuple(
            LayerGroup(
                kind=kind,
                layers=tuple(layers),
                kv_heads=kv_heads,
                head_dim=head_dim,
                window=window,
                dtype=str(self._dtype).removeprefix("torch."),
                block_bytes=len(layers) * (1 if kind == "latent" else 2) * kv_heads * head_dim * size,
            )
            for (kind, kv_heads, head_dim, window), layers in self._layers.items()
        )


class KvMemory:
    """The KV of one layer group. `like` gives type and device; `pinned` for host memory that a GPU copies to."""

    def __init__(self, group: LayerGroup, blocks: int, like: torch.Tensor, *, pinned: bool = False) -> None:
        self.group = group
        layers, heads, dim, per_layer = len(group.layers), group.kv_heads, group.head_dim, parts(group)
        # Not cleared here: a block is when it is allocated, and memory that was never used then costs nothing.
        shape = (blocks, layers, per_layer, heads, BLOCK_TOKENS, dim)
        self.data = torch.empty(shape, dtype=like.dtype, device=like.device, pin_memory=pinned)
        by_row, by_head = self.data.view(-1, dim), self.data.view(-1, BLOCK_TOKENS * dim)
        # Views that begin at a layer's part of the first block: the same index then serves every layer.
        self.rows = [by_row[layer * per_layer * heads * BLOCK_TOKENS :] for layer in range(layers)]
        self.keys = [by_head[layer * per_layer * heads :] for layer in range(layers)]
        # A latent's keys hold its values: those are the first elements of the same vectors.
        self.values = [by_head[(layer * per_layer + per_layer - 1) * heads :] for layer in range(layers)]

        self._scratch: dict[str, torch.Tensor] = {}

    def scratch(self, name: str, elements: int) -> torch.Tensor:
        """A flat tensor of this many elements whose content means nothing, the same memory each time.

        Fresh memory of this size would come from the operating system page by page, which costs more than its use.
        """
        held = self._scratch.get(name)
        if held is None or held.numel() < elements:
            held = self._scratch[name] = self.data.new_empty(elements)
        return held[:elements]

    def gather(self, source: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """[rows, 64 · head dim] of `keys` or `values`, in scratch memory that the next call overwrites."""
        into = self.scratch("gather", len(rows) * source.shape[1]).view(len(rows), source.shape[1])
        torch.index_select(source, 0, rows, out=into)
        return into

    def zero(self, blocks: Sequence[int]) -> None:
        """Clear newly allocated blocks: masked positions meet zeros, never what a former owner left there.

        A masked key has weight 0, but 0 x NaN is NaN: without this, one request's overflow could reach another.
        """
        if blocks:
            self.data[list(blocks)] = 0.0

    def copy(self, source: KvMemory, pairs: Iterable[tuple[int, int]]) -> None:
        """Copy blocks (in `source`, here) of the same group, in this order.

        On a GPU the copies are queued behind what was queued before and ahead of what follows; nobody waits for them.
        """
        for there, here in pairs:
            self.data[here].copy_(source.data[there], non_blocking=True)

    def poison(self, block: int) -> None:
        """Fill a free block with NaN, so that a test sees any read of it."""
        self.data[block] = torch.nan


def swap_memories(groups: Sequence[LayerGroup], blocks: int, like: torch.Tensor) -> list[KvMemory]:
    """Host memory for so many blocks of each group, pinned where `like` is on a GPU."""
    host = torch.empty(0, dtype=like.dtype)
    return [KvMemory(group, blocks, host, pinned=like.device.type == "cuda") for group in groups]
