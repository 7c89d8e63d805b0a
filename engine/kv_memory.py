"""The device memory behind a block pool: one tensor per layer group, a block contiguous.

[blocks, layers, 2 (K|V), KV heads, 64, head dim]. A block is what is moved between tiers, so it lies in one piece.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from engine.protocol import LayerGroup
from prompt_cache.keys import BLOCK_TOKENS


def layer_group(layers: int, kv_heads: int, head_dim: int, dtype: torch.dtype) -> LayerGroup:
    """The description of a full-attention group of this many layers, with its block size in bytes."""
    return LayerGroup(
        kind="full",
        layers=tuple(range(layers)),
        kv_heads=kv_heads,
        head_dim=head_dim,
        window=0,
        dtype=str(dtype).removeprefix("torch."),
        block_bytes=layers * 2 * kv_heads * BLOCK_TOKENS * head_dim * dtype.itemsize,
    )


class KvMemory:
    """The KV of one layer group. `like` gives type and device."""

    def __init__(self, group: LayerGroup, blocks: int, like: torch.Tensor) -> None:
        self.group = group
        layers, heads, dim = len(group.layers), group.kv_heads, group.head_dim
        # Not cleared here: a block is when it is allocated, and memory that was never used then costs nothing.
        self.data = like.new_empty(blocks, layers, 2, heads, BLOCK_TOKENS, dim)
        by_row, by_head = self.data.view(-1, dim), self.data.view(-1, BLOCK_TOKENS * dim)
        # Views that begin at a layer's part of the first block: the same index then serves every layer.
        self.rows = [by_row[layer * 2 * heads * BLOCK_TOKENS :] for layer in range(layers)]
        self.keys = [by_head[layer * 2 * heads :] for layer in range(layers)]
        self.values = [by_head[(layer * 2 + 1) * heads :] for layer in range(layers)]

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

    def poison(self, block: int) -> None:
        """Fill a free block with NaN, so that a test sees any read of it."""
        self.data[block] = torch.nan
