"""What attention kernels are told of paged KV and of scores, and their reference in PyTorch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from prompt_cache.kv.block_keys import BLOCK_TOKENS

_SCALE_BYTES = 4


@dataclass(frozen=True)
class PagedKv:
    """One layer's keys and values in a pool of blocks [blocks, layers, 2, KV heads, 64, head dim].

    `data` is the whole pool. `layer` counts within it. As bytes it is stored in 8 bits, with four bytes more for each
    vector (`stored_in_fp8`).
    """

    data: torch.Tensor
    layer: int

    @property
    def kv_heads(self) -> int:
        """KV heads of the layer."""
        return self.data.shape[3]

    @property
    def head_dim(self) -> int:
        """Elements of a key."""
        return self.data.shape[5] - (_SCALE_BYTES if self.in_fp8 else 0)

    @property
    def in_fp8(self) -> bool:
        """Whether keys and values are stored in 8 bits."""
        return self.data.dtype == torch.uint8

    @property
    def block_stride(self) -> int:
        """Elements from one block to the next."""
        return self.data.stride(0)

    @property
    def layer_offset(self) -> int:
        """Elements from a block's begin to this layer's keys."""
        return self.layer * self.data.stride(1)

    @property
    def part_stride(self) -> int:
        """Elements from keys to values."""
        return self.data.stride(2)

    @property
    def head_stride(self) -> int:
        """Elements from one KV head to the next."""
        return self.data.stride(3)


@dataclass(frozen=True)
class LatentKv(PagedKv):
    """One layer's entries of latent attention, in a pool of blocks [blocks, layers, 1, 1, 64, rank + rope].

    `values` [heads, rank, value dim]: what makes values of latents.
    """

    values: torch.Tensor

    @property
    def rank(self) -> int:
        """Elements of a latent."""
        return self.values.shape[1]

    @property
    def value_dim(self) -> int:
        """Elements of a value."""
        return self.values.shape[2]


@dataclass(frozen=True)
class Scores:
    """How scores are made of queries and keys: `scale` · q·k, then `soft_cap` · tanh(score / `soft_cap`) if given.

    `window`: a token sees so many, itself included; 0 for all before it. `sinks` fp32 [heads]: one more score for each
    head that has no value (Xiao et al. 2023).
    """

    scale: float
    window: int = 0
    soft_cap: float | None = None
    sinks: torch.Tensor | None = None


def reference_attention(
    query: torch.Tensor, kv: PagedKv, tables: Sequence[Sequence[int]], positions: Sequence[int], scores: Scores
) -> torch.Tensor:
    """[rows, heads, head dim] queries → the same, in float64. Row i stands at positions[i], its blocks are tables[i].

    Vaswani et al. 2017, with grouped query heads (Ainslie et al. 2023).
    """
    outputs = []
    group = query.shape[1] // kv.kv_heads
    for row, table, position in zip(query.double(), tables, positions, strict=True):
        first = max(0, position - scores.window + 1) if scores.window else 0
        seen = [(table[key // BLOCK_TOKENS], key % BLOCK_TOKENS) for key in range(first, position + 1)]
        blocks, within = (torch.tensor(index, device=query.device) for index in zip(*seen, strict=True))
        # [keys, KV heads, head dim] of keys and of values, each repeated for its query heads
        k, v = (kv.data[blocks, kv.layer, part, :, within].double().repeat_interleave(group, 1) for part in range(2))
        score = torch.einsum("hd,khd->hk", row, k) * scores.scale
        if scores.soft_cap is not None:
            score = scores.soft_cap * torch.tanh(score / scores.soft_cap)
        if scores.sinks is not None:
            score = torch.cat([score, scores.sinks.double()[:, None]], 1)
        weights = score.softmax(-1)[:, : len(seen)]
        outputs.append(torch.einsum("hk,khd->hd", weights, v))
    return torch.stack(outputs)
