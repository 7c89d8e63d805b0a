"""Linear layers that are batch invariant: a row's bits do not depend on the number of rows (E1).

In fp32 on the CPU there are two kernels. From how many rows on each gives a row the same bits is measured for the
weight's shape at loading (`matmul_kernels.least_rows`), and fewer rows are padded to that number. The kernel that needs
the least padding is chosen; among equals, the one that is faster at the weight's size.

For other types and devices torch's plain product is used. It takes other paths for 1, 2 and 3 rows but not for
multiples of 8, to which rows are padded. The self-test at start checks the model as a whole. If it fails, more rows are
padded, and in the end `row_tile` makes every product one of exactly that many rows, which is slow and always right.

oneDNN compiles and keeps a kernel for each shape and row count (0.6 MB and some milliseconds each), so rows are padded
to one of few counts, all of which are run before the replica has work (`warm_up`).

A quantized weight can be kept packed. It is decoded a few outputs at a time at each use: less memory, more work. oneDNN
gives a tile's outputs the same bits as in the whole product. On a GPU one of 4 bits may be kept in the order in which a
kernel reads it (`TiledLinear`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch

from engine.kernels.packed_linear import Scratch, widen
from engine.layers import matmul_kernels as kernels
from engine.layers.matmul_kernels import (
    ROW_MULTIPLE,
    MatmulKernel,
    MatmulKernels,
    least_rows,
    padded_count,
    padded_counts,
)
from engine.quantization.grouped_rows import grouped_rows
from engine.quantization.packed import Decodable, PackedWeight, output_scales
from engine.quantization.tiles import TiledWeight

_SMALL = 400_000
"""The most elements of a weight for which `transposed` is faster at a decode step's few rows."""
_FEW_ROWS = 2
"""Rows to which one row can be padded at almost no cost, since the weight is read once in any case."""
_TILE_OUTPUTS, _TILE_ELEMENTS = 128, 1 << 19
"""Outputs of a packed weight that are decoded at a time, at least, and about how many elements: a core's cache."""


@dataclass
class Tiling:
    """How matrix products are padded and cut on this machine.

    `row_multiple`: the least number of rows; from ROW_MULTIPLE on counts are multiples of that. `row_tile`: rows of
    every product, None for any count. `products`: a linear layer of each shape in the model. `kernels`: the machine's.
    """

    row_multiple: int = ROW_MULTIPLE
    row_tile: int | None = None
    kernels: MatmulKernels = field(default_factory=lambda: kernels.NATIVE)
    products: dict[tuple[object, ...], Linear] = field(default_factory=dict)
    least: int = 1
    """The rows that most products need: padded once for all of them."""
    _elements: Counter[int] = field(default_factory=Counter)
    """least rows -> elements of all weights that need them"""

    @property
    def elements(self) -> int:
        """The elements of all weights."""
        return self._elements.total()

    def add(self, product: Linear, shape: tuple[object, ...], least: int) -> None:
        """Register a product of this shape that needs at least `least` rows."""
        self.products.setdefault(shape, product)
        self._elements[least] += product.elements
        below = 0
        for rows in sorted(self._elements):
            below += self._elements[rows]
            if 2 * below >= self.elements:
                self.least = rows
                break

    def padding(self, rows: int) -> int:
        """How many rows to add to `rows`."""
        return padded_count(rows, max(self.least, self.row_multiple)) - rows

    def counts(self, most: int) -> list[int]:
        """All counts that 1 to `most` rows are padded to."""
        return padded_counts(most, max(self.least, self.row_multiple))


def best_tiling(like: torch.Tensor) -> Tiling:
    """The tiling to try first with `like`'s device and type."""
    return Tiling(1 if kernels.has_onednn(like) else ROW_MULTIPLE)


def _choose_kernel(
    weight: torch.Tensor, machine: MatmulKernels, *, few_bits: bool
) -> tuple[MatmulKernel, int, torch.Tensor]:
    """The kernel for this weight, the least rows that it needs, and the weight arranged for it."""
    if not kernels.has_onednn(weight):
        return machine.plain, 1, machine.plain.arranged(weight)
    quicker = [machine.transposed, machine.onednn] if weight.numel() <= _SMALL else [machine.onednn, machine.transposed]
    best: tuple[MatmulKernel, int, torch.Tensor | None] | None = None
    for kernel in [machine.onednn] if few_bits else quicker:
        arranged = kernel.arranged(weight) if kernels.is_large(weight) else None
        least = least_rows(kernel, weight, arranged)
        if least is not None and (best is None or least < best[1]):
            best = kernel, least, arranged
        if best is not None and best[1] <= _FEW_ROWS:
            break
    # If no kernel is batch invariant, the self-test notices and sets `row_tile`.
    kernel, least, arranged = best or (machine.onednn, 1, None)
    return kernel, least, kernel.arranged(weight) if arranged is None else arranged


class Linear:
    """y = x Wᵀ + b for one or several fused projections; W is [sum of outputs, inputs].

    `few_bits`: the result must have the same bits as with the weight kept packed. `output_scales` [outputs]: factors of
    x Wᵀ, in fp32.
    """

    def __init__(
        self,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        tiling: Tiling,
        *,
        few_bits: bool = False,
        output_scales: torch.Tensor | None = None,
    ) -> None:
        self._output_scales = output_scales
        self._kernel, self._least, self._weight = _choose_kernel(weight, tiling.kernels, few_bits=few_bits)
        self._bias = bias
        self.tiling = tiling
        self.inputs = weight.shape[1]
        self.dtype = weight.dtype
        self.elements = weight.numel()
        tiling.add(self, (Linear, *weight.shape, bias is not None, weight.dtype, self._kernel), self._least)

    @property
    def weight(self) -> torch.Tensor:
        """The weight as the kernel has it: plain, transposed or in oneDNN's order."""
        return self._weight

    @property
    def is_plain(self) -> bool:
        """Whether it is no more than a weight that is kept as [outputs, inputs], and a bias."""
        return self._kernel is self.tiling.kernels.plain and self._output_scales is None

    @property
    def output_scales(self) -> torch.Tensor | None:
        """Factors of x Wᵀ [outputs], if there are any."""
        return self._output_scales

    @property
    def bias(self) -> torch.Tensor | None:
        """Its bias [outputs], if it has one."""
        return self._bias

    @property
    def nbytes(self) -> int:
        """Bytes of the weight."""
        return self._weight.numel() * self._weight.itemsize

    def __call__(self, x: torch.Tensor, plus: torch.Tensor | None = None) -> torch.Tensor:
        """[rows, inputs] → [rows, outputs], plus `plus` if given. Rows must be padded as the tiling says."""
        tile = self.tiling.row_tile
        if tile is None or x.shape[0] <= tile:
            return self._product(x, plus)
        return kernels.in_tiles(self._product, x, plus, tile)

    def _product(self, x: torch.Tensor, plus: torch.Tensor | None) -> torch.Tensor:
        if self._output_scales is None:
            return self._multiplied(x, self._bias, plus)
        return self._scaled(self._multiplied(x, None, None), plus)

    def _scaled(self, y: torch.Tensor, plus: torch.Tensor | None) -> torch.Tensor:
        """The sums `y`, which are changed, times their factors, plus the bias."""
        assert self._output_scales is not None
        y.mul_(self._output_scales)
        if self._bias is not None:
            y.add_(self._bias)
        return y if plus is None else y.add_(plus)

    def _multiplied(self, x: torch.Tensor, bias: torch.Tensor | None, plus: torch.Tensor | None) -> torch.Tensor:
        rows, least = x.shape[0], self._least
        if rows >= least:
            return self._kernel.multiply(x, self._weight, bias, plus)
        more = None if plus is None else _repeated(plus, least)
        return self._kernel.multiply(_repeated(x, least), self._weight, bias, more)[:rows]


class PackedLinear(Linear):
    """A linear layer with packed weights `pieces`, whose outputs are concatenated. `like`: the model's type."""

    def __init__(
        self, pieces: Sequence[Decodable], bias: torch.Tensor | None, tiling: Tiling, like: torch.Tensor
    ) -> None:
        self._pieces: list[Decodable] = [_arranged(piece) for piece in pieces]
        self._bias = bias
        self.tiling = tiling
        self.inputs = pieces[0].shape[1]
        self.dtype = like.dtype
        onednn = kernels.has_onednn(like)
        # For a weight that is not in its packed order, oneDNN takes other paths for few rows.
        self._multiply = (tiling.kernels.unordered if onednn else tiling.kernels.plain).multiply
        self._least = self._find_least(tiling.kernels.unordered, like) if onednn else 1
        outputs = [piece.shape[0] for piece in pieces]
        self._output_scales = output_scales(pieces)
        self.elements = sum(outputs) * self.inputs
        tiling.add(self, (type(self), *outputs, self.inputs, bias is not None), self._least)

    @property
    def pieces(self) -> Sequence[Decodable]:
        """Its weight as it is kept."""
        return self._pieces

    def move_codes(self, memory: torch.Tensor) -> None:
        """Keep the codes of its only piece in `memory`, uint8 of their shape."""
        (piece,) = self._pieces
        assert isinstance(piece, PackedWeight)
        memory.copy_(piece.codes)
        self._pieces[0] = replace(piece, codes=memory)

    @property
    def nbytes(self) -> int:
        return sum(piece.nbytes for piece in self._pieces)

    def _find_least(self, kernel: MatmulKernel, like: torch.Tensor) -> int:
        sizes = {stop - start for piece in self._pieces for start, stop in self._tiles(piece)}
        # Only the size of a tile matters, not its values.
        return max(least_rows(kernel, like.new_empty(size, self.inputs)) or 1 for size in sizes)

    def _tiles(self, piece: Decodable) -> list[tuple[int, int]]:
        """The begin and end of the tiles in which a piece is decoded."""
        outputs = piece.shape[0]
        tile = -(-max(_TILE_OUTPUTS, _TILE_ELEMENTS // self.inputs) // piece.step) * piece.step
        return [(start, min(start + tile, outputs)) for start in range(0, outputs, tile)]

    def _product(self, x: torch.Tensor, plus: torch.Tensor | None) -> torch.Tensor:
        rows = x if x.shape[0] >= self._least else _repeated(x, self._least)
        whole_bias = self._bias if self._output_scales is None else None
        parts = []
        offset = 0
        for piece in self._pieces:
            for start, stop in self._tiles(piece):
                weight = piece.rows(start, stop).to(x.dtype)
                bias = None if whole_bias is None else whole_bias[offset + start : offset + stop]
                parts.append(self._multiply(rows, weight, bias, None))
            offset += piece.shape[0]
        y = torch.cat(parts, 1)[: len(x)]
        if self._output_scales is not None:
            return self._scaled(y, plus)
        return y if plus is None else y.add_(plus)


class TiledLinear(PackedLinear):
    """A linear layer with a packed weight in the order in which a kernel of the GPU reads it.

    Many rows are multiplied by the widened weight: a copy that is kept, or what is made in `scratch` for each product.
    """

    def __init__(
        self,
        weight: TiledWeight,
        bias: torch.Tensor | None,
        tiling: Tiling,
        like: torch.Tensor,
        scratch: Scratch | None,
    ) -> None:
        super().__init__([weight], bias, tiling, like)
        self.tiles, self.order = weight.tiles, weight.order
        self._scratch = scratch
        self._copy: torch.Tensor | None = None
        if scratch is None:
            self._copy = widen(self.tiles, like.new_empty(weight.shape))
        else:
            scratch.reserve(self.elements)

    @property
    def is_copied(self) -> bool:
        """Whether a widened copy of its weight is kept."""
        return self._copy is not None

    @property
    def nbytes(self) -> int:
        return super().nbytes + (0 if self._copy is None else self._copy.nbytes)

    def widened(self) -> torch.Tensor:
        """The weight [outputs, inputs] as the kernel multiplies by it, until another one is widened."""
        if self._copy is not None:
            return self._copy
        assert self._scratch is not None
        return self._scratch.widened(self.tiles)


def _arranged(piece: Decodable) -> Decodable:
    """The weight in the order that is decoded the fastest here."""
    return grouped_rows(piece) or piece if isinstance(piece, PackedWeight) else piece


def _repeated(x: torch.Tensor, rows: int) -> torch.Tensor:
    """`x` padded to `rows` rows with its first one."""
    return torch.cat([x, x[:1].expand(rows - x.shape[0], -1)])
