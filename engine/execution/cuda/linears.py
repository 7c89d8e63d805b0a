"""Linear layers whose rows have the same bits at every count of rows, at the speed of the library.

Few rows are multiplied by our own kernel, which reads the weight at the speed of memory. Many rows are multiplied by
the library, at those counts of rows only at which it was seen to give the bits of our kernel (`try_library`).

A weight of 4 bits in tiles has a kernel of its own for up to 64 rows, and the library multiplies by the widened weight
(`ExactTiledLinear`). Where the library has other bits, the kernel multiplies 64 rows after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

import torch

from engine.kernels import packed_linear
from engine.kernels.cuda_source import KernelError
from engine.kernels.linear import LinearTile, fp8_tile_for, linear, shared_memory, tile_for
from engine.layers.linear import Linear, PackedLinear, TiledLinear
from engine.quantization.fp8 import E4M3
from engine.quantization.packed import PackedWeight

try:
    from engine.kernels import linear_hopper as hopper
except ImportError:  # Gluon is an experimental part of Triton
    hopper = None  # type: ignore[assignment]

_HOPPER = 9

_INPUT_MULTIPLE = 16
"""Of inputs, so that our kernel for plain weights multiplies them."""
_WORTH_WIDENING = 256
"""Up to so many rows a weight of 4 bits is rather multiplied several times than widened."""

_FEW_ROWS, _SEVERAL_ROWS = 64, 384
"""With fewer rows our kernel is as quick. Up to the other number rows come in multiples of 32, then of 128."""


Compute: TypeAlias = Callable[[torch.Tensor, torch.Tensor | None], torch.Tensor]
Shape: TypeAlias = tuple[int, int, bool, str]
"""Outputs, inputs, whether there is a bias, and what is special about it."""


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


def input_memory(like: torch.Tensor, size: int, in_fp8: bool) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Memory for inputs of a linear layer, as many rows as `like` has, and for their scales where they are e4m3."""
    rows, device = len(like), like.device
    if not in_fp8:
        return torch.empty(rows, size, dtype=like.dtype, device=device), None
    values = torch.empty(rows, size, dtype=torch.float8_e4m3fn, device=device)
    return values, torch.empty(rows, dtype=torch.float32, device=device)


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
    def device(self) -> torch.device:
        """Where it is."""
        return self.weight.device

    @property
    def shape(self) -> Shape:
        """Linear layers of the same shape are computed in the same way."""
        return self.outputs, self.inputs, self.bias is not None, ""

    @property
    def numerics(self) -> str:
        """What its sums differ in from those of a plain weight."""
        return "fp8" if self.in_fp8 else ""

    def __call__(
        self,
        x: torch.Tensor,
        scales: torch.Tensor | None = None,
        out: torch.Tensor | None = None,
        *,
        streamed: bool = False,
    ) -> torch.Tensor:
        """[rows, inputs] → [rows, outputs], in `out` if given. In e4m3 `scales` [rows] are those of the rows.

        `streamed`, for at most `streamed_rows`: by the kernel for Hopper, if it takes the weight, which is worth it in
        a captured graph.
        """
        if streamed and self.streamed_rows:
            return self._by_stream(x, scales, out)
        return self._in_parts(x, scales, out)

    def _in_parts(self, x: torch.Tensor, scales: torch.Tensor | None, out: torch.Tensor | None) -> torch.Tensor:
        """By the library where it has the bits; of many rows as many as it takes, and then the others."""
        if len(x) in self.library:
            return self._by_library(x, scales, out)
        first = max((count for count in self.library if count < len(x)), default=0)
        if first < _SEVERAL_ROWS:
            return self._by_kernel(x, scales, out)
        out = torch.empty(len(x), self.outputs, dtype=self.dtype, device=x.device) if out is None else out
        for part in (slice(0, first), slice(first, None)):
            into = out[part]
            found = self._in_parts(x[part], None if scales is None else scales[part], into)
            if found is not into:
                into.copy_(found)
        return out

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
        return hopper.linear_streamed(x, self.weight, out, bias=self.bias, scales=both)

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
        if not fits or not hopper.fits(self.weight):
            return 0
        most = hopper.most_rows(self.weight)
        counts = [count for count in (1, 2, 7, 8, 9, 16, 17, 32, 33, 64) if count <= most]
        return most if len(self._same(self._by_stream, counts)) == len(counts) else 0

    def _same(self, compute: Compute, counts: Sequence[int]) -> frozenset[int]:
        """The counts of rows at which `compute` gives the bits of our kernel."""
        if not counts:
            return frozenset()
        device = self.device
        x = torch.randn(max(counts), self.inputs, dtype=self.dtype, device=device)
        scales = None
        if self.in_fp8:
            x = (x * 64).to(torch.float8_e4m3fn)
            scales = torch.rand(len(x), dtype=torch.float32, device=device) + 0.5
        own = self._by_kernel(x, scales)
        same = [
            (compute(x[:count], None if scales is None else scales[:count]) == own[:count]).all() for count in counts
        ]
        return frozenset(count for count, equal in zip(counts, torch.stack(same).tolist(), strict=True) if equal)


class ExactTiledLinear(ExactLinear):
    """y = x Wᵀ + b, with a weight of 4 bits in tiles."""

    def __init__(self, product: TiledLinear) -> None:
        self.in_fp8 = False
        self._product, self._packed, self._order = product, product.tiles, product.order
        self.bias = product.bias
        self.outputs, self.inputs = self._packed.outputs, self._packed.inputs
        self.dtype = product.dtype
        self.library = frozenset()
        self.streamed_rows = 0

    @property
    def device(self) -> torch.device:
        return self._packed.data.device

    @property
    def shape(self) -> Shape:
        special = f"{self._packed.form} {self._packed.output_scales is None} {self._order is None}"
        return self.outputs, self.inputs, self.bias is not None, special

    @property
    def numerics(self) -> str:
        # Its two sums are another number than one, and NVFP4's factor is one of sums.
        return "tiles/2"

    def _by_kernel(self, x: torch.Tensor, scales: torch.Tensor | None, out: torch.Tensor | None = None) -> torch.Tensor:
        del scales
        x, out = self._in_order(x), self._memory(x, out)
        step = packed_linear.MOST_ROWS
        for rows, into in zip(torch.split(x, step), torch.split(out, step), strict=True):
            packed_linear.multiply(rows, self._packed, into, bias=self.bias)
        return out

    def _by_stream(self, x: torch.Tensor, scales: torch.Tensor | None, out: torch.Tensor | None = None) -> torch.Tensor:
        del scales
        x, out = self._in_order(x), self._memory(x, out)
        return packed_linear.multiply(x, self._packed, out, bias=self.bias, dependent=True)

    def _by_library(
        self, x: torch.Tensor, scales: torch.Tensor | None, out: torch.Tensor | None = None
    ) -> torch.Tensor:
        del scales
        x, out = self._in_order(x), self._memory(x, out)
        return packed_linear.multiply_widened(x, self._packed, self._product.widened(), out, bias=self.bias)

    def _memory(self, x: torch.Tensor, out: torch.Tensor | None) -> torch.Tensor:
        return torch.empty(len(x), self.outputs, dtype=self.dtype, device=x.device) if out is None else out

    def _in_order(self, x: torch.Tensor) -> torch.Tensor:
        """Rows with their inputs in the order of the tiles."""
        return x if self._order is None else x.index_select(1, self._order)

    def _check_kernel(self) -> None:
        """Raise KernelError unless the kernel multiplies by the weight that the tiles hold, and in that order."""
        tiles, first = self._packed, self._packed.first_sum
        weight, some = self._product.widened(), min(self.outputs, packed_linear.TILE_OUTPUTS)
        checked = self._product.pieces[0].rows(0, some)
        factor = packed_linear.NVFP4_FACTOR if tiles.form.kind == packed_linear.NVFP4 else 1.0
        checked = checked if self._order is None else checked[:, self._order]
        if not torch.equal(weight[:some].float() * factor, checked.to(self.dtype).float()):
            raise KernelError("packed_linear widens a weight to other numbers")
        if self.inputs % _INPUT_MULTIPLE:
            return  # our other kernel does not multiply it
        x = torch.randn(packed_linear.MOST_ROWS, self.inputs, dtype=self.dtype, device=self.device)
        expected: torch.Tensor | None = None
        for part in (slice(0, first), slice(first, None))[: tiles.sums]:
            out = torch.empty(len(x), self.outputs, device=self.device)
            expected = linear(x[:, part].contiguous(), weight[:, part].contiguous(), out, plus=expected)
        assert expected is not None
        if tiles.output_scales is not None:
            expected *= tiles.output_scales
        if self.bias is not None:
            expected += self.bias
        out = packed_linear.multiply(x, tiles, torch.empty_like(expected, dtype=self.dtype), bias=self.bias)
        if not torch.equal(out, expected.to(self.dtype)):
            raise KernelError("packed_linear adds up a product otherwise")

    def try_library(self, counts: Sequence[int]) -> frozenset[int]:
        self._check_kernel()
        least = 0 if self._product.is_copied else _WORTH_WIDENING
        return super().try_library([count for count in counts if count > least])

    def try_stream(self) -> int:
        """All rows that the kernel takes, if each of its variants has the bits of the tallest."""
        counts = [1, 2, 7, 8, 9, 16, 17, 32, 33, packed_linear.MOST_ROWS]
        return packed_linear.MOST_ROWS if len(self._same(self._by_stream, counts)) == len(counts) else 0


def exact_linear(product: Linear) -> ExactLinear:
    """The layer `product`, computed exactly."""
    return ExactTiledLinear(product) if isinstance(product, TiledLinear) else ExactLinear(product)


def use_library(products: Iterable[ExactLinear], most: int) -> dict[Shape, frozenset[int]]:
    """Let these products use the library for up to `most` rows where that keeps the bits; returns where, by shape."""
    found: dict[Shape, frozenset[int]] = {}
    for product in products:
        if product.shape not in found:
            found[product.shape] = product.try_library(library_counts(most))
        product.library = found[product.shape]
    return found


def use_stream(products: Iterable[ExactLinear]) -> bool:
    """Let these products be streamed where that keeps the bits; returns whether all of them are."""
    found: dict[Shape, int] = {}
    for product in products:
        if product.shape not in found:
            found[product.shape] = product.try_stream()
        product.streamed_rows = found[product.shape]
    return all(found.values())
