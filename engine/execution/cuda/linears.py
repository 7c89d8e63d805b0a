"""Linear layers whose rows have the same bits at every count of rows, at the speed of the library.

Few rows are multiplied by our own kernel, which reads the weight at the speed of memory. Many rows are multiplied by
the library, at those counts of rows only at which it was seen to give the bits of our kernel (`try_library`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

import torch

from engine.kernels.linear import LinearTile, fp8_tile_for, linear, shared_memory, tile_for
from engine.layers.linear import Linear, PackedLinear
from engine.quantization.fp8 import E4M3
from engine.quantization.packed import PackedWeight

try:
    from engine.kernels import linear_hopper as hopper
except ImportError:  # Gluon is an experimental part of Triton
    hopper = None  # type: ignore[assignment]

_HOPPER = 9

_FEW_ROWS, _SEVERAL_ROWS = 64, 384
"""With fewer rows our kernel is as quick. Up to the other number rows come in multiples of 32, then of 128."""


Compute: TypeAlias = Callable[[torch.Tensor, torch.Tensor | None], torch.Tensor]


def padded_rows(rows: int) -> int:
    """How many rows so many are padded to, so that the library meets few counts."""
    if rows <= _FEW_ROWS:
        return rows
    return rows + -rows % (32 if rows <= _SEVERAL_ROWS else 128)


def library_counts(most: int) -> list[int]:
    """The counts of rows up to `most`, padded, at which the library may be used."""
    return sorted({padded_rows(rows) for rows in range(_FEW_ROWS + 1, most + 1)})


def fp8_weight(product: Linear) -> PackedWeight | None:
    """The weight of a layer that is kept in e4m3 with one scale for each output, None for any other."""
    if not isinstance(product, PackedLinear) or len(product.pieces) != 1:
        return None
    piece = product.pieces[0]
    if not isinstance(piece, PackedWeight) or piece.code_type != E4M3:
        return None
    return piece if piece.block == (1, product.inputs) else None


class ExactLinear:
    """y = x Wᵀ + b, with the weight of a layer of the model. `in_fp8`: both x and W are e4m3, with scales."""

    def __init__(self, product: Linear) -> None:
        kept = fp8_weight(product)
        self.in_fp8 = kept is not None
        self.weight = product.weight if kept is None else kept.codes.view(torch.float8_e4m3fn)
        self._scales = None if kept is None else kept.scales.view(-1).contiguous()
        self.bias = product.bias
        self.outputs, self.inputs = self.weight.shape
        self.dtype = product.dtype
        """Of its outputs."""
        self.library: frozenset[int] = frozenset()
        """The counts of rows that the library multiplies."""
        self._tiles: dict[int, LinearTile] = {}
        self.streamed_rows = 0
        """Up to so many rows the kernel for Hopper may multiply, which begins before its inputs are there."""

    @property
    def shape(self) -> tuple[int, int, bool]:
        """Linear layers of the same shape are computed in the same way."""
        return self.outputs, self.inputs, self.bias is not None

    def __call__(
        self,
        x: torch.Tensor,
        scales: torch.Tensor | None = None,
        out: torch.Tensor | None = None,
        *,
        streamed: bool = False,
    ) -> torch.Tensor:
        """[rows, inputs] → [rows, outputs], in `out` if given. In e4m3 `scales` [rows] are those of the rows.

        `streamed`, for at most `streamed_rows`: by the kernel for Hopper, which is worth it in a captured graph.
        """
        if streamed:
            return self._by_stream(x, scales, out)
        if len(x) in self.library:
            return self._by_library(x, scales, out)
        return self._by_kernel(x, scales, out)

    def _by_kernel(self, x: torch.Tensor, scales: torch.Tensor | None, out: torch.Tensor | None = None) -> torch.Tensor:
        rows = len(x)
        tile = self._tiles.get(rows)
        if tile is None:
            tile = fp8_tile_for(rows) if self.in_fp8 else tile_for(rows, self.outputs, self.inputs, x.itemsize)
            tile = self._tiles[rows] = tile.within(shared_memory(x.device), x.itemsize)
        if self._scales is None or scales is None:
            return linear(x, self.weight, out, bias=self.bias, tile=tile)
        out = torch.empty(rows, self.outputs, dtype=self.dtype, device=x.device) if out is None else out
        return linear(x, self.weight, out, bias=self.bias, tile=tile, scales=(scales, self._scales))

    def _by_stream(self, x: torch.Tensor, scales: torch.Tensor | None, out: torch.Tensor | None = None) -> torch.Tensor:
        out = torch.empty(len(x), self.outputs, dtype=self.dtype, device=x.device) if out is None else out
        both = None if self._scales is None or scales is None else (scales, self._scales)
        return hopper.linear_streamed(x, self.weight, out, scales=both)

    def _by_library(
        self, x: torch.Tensor, scales: torch.Tensor | None, out: torch.Tensor | None = None
    ) -> torch.Tensor:
        weight = self.weight.t()
        if self._scales is not None and scales is not None:
            # Without fast accumulation: that is three times less exact, and has other bits than our kernel.
            return torch._scaled_mm(
                x, weight, scales[:, None], self._scales[None], bias=self.bias, out_dtype=self.dtype,
                use_fast_accum=False,
            )  # fmt: skip
        if self.bias is None:
            return torch.mm(x, weight, out=out)
        return torch.addmm(self.bias, x, weight, out=out)

    def try_library(self, counts: Sequence[int]) -> frozenset[int]:
        """Of these counts of rows those at which the library gives the bits of our kernel, on this machine."""
        return self._same(self._by_library, counts)

    def try_stream(self) -> int:
        """Up to how many rows the kernel for Hopper gives the bits of our other one, on this machine: all or none."""
        fits = hopper is not None and torch.cuda.get_device_capability(self.weight.device)[0] == _HOPPER
        if not fits or not hopper.fits(self.weight, self.bias):
            return 0
        most = hopper.most_rows(self.weight)
        counts = [count for count in (1, 2, 7, 8, 9, 16, 17, 32, 33, 64) if count <= most]
        return most if len(self._same(self._by_stream, counts)) == len(counts) else 0

    def _same(self, compute: Compute, counts: Sequence[int]) -> frozenset[int]:
        """The counts of rows at which `compute` gives the bits of our kernel."""
        if not counts:
            return frozenset()
        device = self.weight.device
        x = torch.randn(max(counts), self.inputs, dtype=self.dtype, device=device)
        scales = None
        if self.in_fp8:
            x = (x * 64).to(self.weight.dtype)
            scales = torch.rand(len(x), dtype=torch.float32, device=device) + 0.5
        own = self._by_kernel(x, scales)
        same = [
            (compute(x[:count], None if scales is None else scales[:count]) == own[:count]).all() for count in counts
        ]
        return frozenset(count for count, equal in zip(counts, torch.stack(same).tolist(), strict=True) if equal)


def use_library(products: Iterable[ExactLinear], most: int) -> dict[tuple[int, int, bool], frozenset[int]]:
    """Let these products use the library for up to `most` rows where that keeps the bits; returns where, by shape."""
    found: dict[tuple[int, int, bool], frozenset[int]] = {}
    for product in products:
        if product.shape not in found:
            found[product.shape] = product.try_library(library_counts(most))
        product.library = found[product.shape]
    return found


def use_stream(products: Iterable[ExactLinear]) -> bool:
    """Let these products be streamed where that keeps the bits; returns whether all of them are."""
    found: dict[tuple[int, int, bool], int] = {}
    for product in products:
        if product.shape not in found:
            found[product.shape] = product.try_stream()
        product.streamed_rows = found[product.shape]
    return all(found.values())
