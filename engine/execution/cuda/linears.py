"""Linear layers whose rows have the same bits at every count of rows, at the speed of the library.

Few rows are multiplied by our own kernel, which reads the weight at the speed of memory. Many rows are multiplied by
the library, at those counts of rows only at which it was seen to give the bits of our kernel (`try_library`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from engine.kernels.linear import LinearTile, linear, tile_for
from engine.layers.linear import Linear

_LEAST_LIBRARY_ROWS = 384
"""With fewer rows our kernel is as quick, and the library cuts the inputs of long rows into parts."""
_ROW_MULTIPLE = 128


def padded_rows(rows: int) -> int:
    """How many rows so many are padded to, so that the library meets few counts."""
    return rows if rows < _LEAST_LIBRARY_ROWS else rows + -rows % _ROW_MULTIPLE


def library_counts(most: int) -> list[int]:
    """The counts of rows up to `most`, padded, at which the library may be used."""
    return list(range(_LEAST_LIBRARY_ROWS, padded_rows(most) + 1, _ROW_MULTIPLE))


class ExactLinear:
    """y = x Wᵀ + b, with the weight of a layer of the model."""

    def __init__(self, product: Linear) -> None:
        self.weight = product.weight
        self.bias = product.bias
        self.outputs, self.inputs = self.weight.shape
        self.library: frozenset[int] = frozenset()
        """The counts of rows that the library multiplies."""
        self._tiles: dict[int, LinearTile] = {}

    @property
    def shape(self) -> tuple[int, int, bool]:
        """Linear layers of the same shape are computed in the same way."""
        return self.outputs, self.inputs, self.bias is not None

    def __call__(self, x: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """[rows, inputs] → [rows, outputs], in `out` if given."""
        rows = len(x)
        if rows in self.library:
            return self._by_library(x, out)
        tile = self._tiles.get(rows) or self._tiles.setdefault(rows, tile_for(rows, self.outputs, self.inputs))
        return linear(x, self.weight, out, bias=self.bias, tile=tile)

    def _by_library(self, x: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        if self.bias is None:
            return torch.mm(x, self.weight.t(), out=out)
        return torch.addmm(self.bias, x, self.weight.t(), out=out)

    def try_library(self, counts: Sequence[int]) -> frozenset[int]:
        """Of these counts of rows those at which the library gives the bits of our kernel, on this machine."""
        if not counts:
            return frozenset()
        x = torch.randn(max(counts), self.inputs, dtype=self.weight.dtype, device=self.weight.device)
        own = linear(x, self.weight, bias=self.bias, tile=tile_for(len(x), self.outputs, self.inputs))
        same = [(self._by_library(x[:count]) == own[:count]).all() for count in counts]
        return frozenset(count for count, equal in zip(counts, torch.stack(same).tolist(), strict=True) if equal)

    def tiles_agree(self) -> bool:
        """Whether our kernel's tiles give a row the same bits at few rows and at many."""
        x = torch.randn(200, self.inputs, dtype=self.weight.dtype, device=self.weight.device)
        outputs = [linear(x[:rows], self.weight, bias=self.bias, tile=tile_for(rows, self.outputs, self.inputs))
                   for rows in (1, 16, 17, 32, 33, 64, 65, 200)]  # fmt: skip
        return all(torch.equal(y, outputs[-1][: len(y)]) for y in outputs)


def use_library(products: Iterable[ExactLinear], most: int) -> dict[tuple[int, int, bool], frozenset[int]]:
    """Let these products use the library for up to `most` rows where that keeps the bits; returns where, by shape."""
    found: dict[tuple[int, int, bool], frozenset[int]] = {}
    for product in products:
        if product.shape not in found:
            found[product.shape] = product.try_library(library_counts(most))
        product.library = found[product.shape]
    return found
