"""A matrix product per head, as latent attention (MLA) has before and after its attention."""

from __future__ import annotations

import torch

from engine.layers.matmul_kernels import ROW_MULTIPLE


class HeadLinear:
    """y[head] = x[head] · W[head]ᵀ; W is [heads, outputs, inputs].

    Computed in tiles of exactly ROW_MULTIPLE rows, so that a row's bits do not depend on how many rows there are.
    """

    def __init__(self, weight: torch.Tensor) -> None:
        self._weight = weight.transpose(1, 2).contiguous()

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[rows, heads, inputs] → [rows, heads, outputs]."""
        rows, heads, inputs = x.shape
        padded = x.new_zeros(rows + -rows % ROW_MULTIPLE, heads, inputs)
        padded[:rows] = x
        tiles = [torch.bmm(tile.transpose(0, 1), self._weight) for tile in torch.split(padded, ROW_MULTIPLE)]
        return torch.cat(tiles, dim=1).transpose(0, 1)[:rows]
