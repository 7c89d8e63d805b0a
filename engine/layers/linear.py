"""Matrix products whose rows do not depend on how many rows there are.

In fp32 on the CPU there are two ways, and which of them gives a row the same bits at every count is tried at the
weight's shape when it is loaded (`_holds`):

- The weight is kept transposed, [inputs, outputs], and multiplied plainly: the quickest for small weights, but a single
  row takes another path, so that there are always two.
- The weight is packed once for oneDNN: the quickest for large weights. oneDNN compiles a kernel for each shape and
  count that it meets and keeps it (0.6 MB and some milliseconds each), so rows are padded to one of few counts, and
  all of them are run once at start (`warm_up`).

Where neither is there (other types, other devices) the plain product is used: its kernels take other paths for 1, 2 and
3 rows, but not from multiples of 8, so rows are padded to those. The self-test at start checks whichever it is in the
model itself; where it fails, `row_tile` makes every product one of exactly that many rows, which is slow and right.

A weight in few bits can be kept like that, and is decoded a few outputs at a time whenever it is used: less memory and
more work. oneDNN gives a tile's outputs the bits that they have in the whole product.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TypeAlias

import torch
from torch.nn.functional import linear as product

from engine.quantization.packed import Packed
from engine.threads import all_threads

ROW_MULTIPLE = 8
_TRANSPOSED_ROWS = 512
"""A transposed weight is multiplied with at most so many rows at a time."""
_SMALL, _TRIED = 400_000, 1 << 22
"""Elements of a weight that is better transposed at a decode step's few rows, and of one that is tried at all: for a
larger one a try would take seconds, and the library adds up its inputs in pieces that depend on the count."""
_TILE_OUTPUTS, _TILE_ELEMENTS = 128, 1 << 19
"""Decoded at a time: at least so many outputs, and about so many elements, which a core's cache holds."""


Way: TypeAlias = Callable[[torch.Tensor, torch.Tensor, torch.Tensor | None, torch.Tensor | None], torch.Tensor]
"""Multiplies [rows, inputs] with a weight, and adds a bias [outputs] and something of [rows, outputs] if given."""


@dataclass
class Tiling:
    """How matrix products are cut on this machine: rows come in few counts, and in tiles if `row_tile` is set.

    `row_multiple` is 1 where a count below ROW_MULTIPLE is right, too. `products` has one of each shape of the model.
    `transposed` and `packed` are how many elements all weights of either kind have.
    """

    row_multiple: int = ROW_MULTIPLE
    row_tile: int | None = None
    products: dict[tuple[object, ...], Linear] = field(default_factory=dict)
    transposed: int = 0
    packed: int = 0

    def padding(self, rows: int) -> int:
        """How many rows to add to this many."""
        if rows <= ROW_MULTIPLE and self.row_multiple == 1:
            # Where most products would have to double a single row, it is done once for all.
            least = 2 if self.transposed > self.packed else 1
            return max(least, 1 << (rows - 1).bit_length()) - rows
        return -rows % (ROW_MULTIPLE if rows <= 64 else 32 if rows <= 256 else 64)

    def counts(self, most: int) -> list[int]:
        """All counts that up to `most` rows are padded to."""
        return sorted({rows + self.padding(rows) for rows in range(1, most + 1)})


def best_tiling(like: torch.Tensor) -> Tiling:
    """What to try first on `like`'s device with its type."""
    return Tiling(1 if _packed(like.new_zeros(1, 1)) is not None else ROW_MULTIPLE)


def _packed(weight: torch.Tensor) -> torch.Tensor | None:
    """The weight in oneDNN's own order, None where that does not apply."""
    if weight.device.type != "cpu" or weight.dtype != torch.float32 or not torch._C._has_mkldnn:
        return None
    try:
        packed: torch.Tensor = torch.ops.mkldnn._reorder_linear_weight(weight)
    except (AttributeError, RuntimeError):  # a build of torch without these operations
        return None
    return packed


def _best_way(weight: torch.Tensor, *, few_bits: bool) -> Way:
    if _packed(weight.new_zeros(1, 1)) is None:
        return _plainly
    if few_bits or weight.numel() > _TRIED:
        return _by_onednn
    small = weight.numel() <= _SMALL
    ways: tuple[Way, ...] = (_by_transposed, _by_onednn) if small else (_by_onednn, _by_transposed)
    outputs, inputs = weight.shape
    return next((way for way in ways if _holds(way, outputs, inputs)), _by_onednn)


def _arranged(weight: torch.Tensor, way: Way) -> torch.Tensor:
    """The weight [outputs, inputs] as this way of computing wants it."""
    if way is _by_transposed:
        return weight.t().contiguous()
    packed = _packed(weight) if way is _by_onednn else None
    return weight if packed is None else packed


@cache
def _holds(way: Way, outputs: int, inputs: int) -> bool:
    """Whether on this machine rows have the same bits at every count and place, with one thread and with all."""
    chance = torch.Generator().manual_seed(outputs)
    weight = _arranged(torch.randn(outputs, inputs, generator=chance), way)
    x = torch.randn(_TRANSPOSED_ROWS, inputs, generator=chance)
    plus = torch.randn(_TRANSPOSED_ROWS, outputs, generator=chance)
    whole, more = way(x, weight, None, None), way(x, weight, None, plus)
    threads = torch.get_num_threads()
    try:
        for count in sorted({1, all_threads()}):
            torch.set_num_threads(count)
            for rows in Tiling(1).counts(_TRANSPOSED_ROWS):
                # Of many rows one place is enough: they are all places of few.
                for at in {0, _TRANSPOSED_ROWS - rows if rows <= 64 else 0}:
                    part = slice(at, at + rows)
                    if not torch.equal(way(x[part], weight, None, None), whole[part]):
                        return False
                    if not torch.equal(way(x[part], weight, None, plus[part]), more[part]):
                        return False
    finally:
        torch.set_num_threads(threads)
    return True


class Linear:
    """y = x Wᵀ + b for one or several fused projections: W is [sum of outputs, inputs].

    `few_bits`: it is to have the bits that it would have with its weight kept in few bits.
    """

    def __init__(
        self, weight: torch.Tensor, bias: torch.Tensor | None, tiling: Tiling, *, few_bits: bool = False
    ) -> None:
        self._way = _best_way(weight, few_bits=few_bits)
        self._weight = _arranged(weight, self._way)
        self._bias = bias
        self.tiling = tiling
        self.inputs = weight.shape[1]
        self.dtype = weight.dtype
        tiling.transposed += weight.numel() * (self._way is _by_transposed)
        tiling.packed += weight.numel() * (self._way is _by_onednn)
        tiling.products.setdefault((Linear, *weight.shape, bias is not None, weight.dtype, self._way), self)

    @property
    def weight(self) -> torch.Tensor:
        """Its weight as it is kept: plain, transposed or in oneDNN's own order."""
        return self._weight

    @property
    def nbytes(self) -> int:
        """What its weight takes in memory."""
        return self._weight.numel() * self._weight.itemsize

    def __call__(self, x: torch.Tensor, plus: torch.Tensor | None = None) -> torch.Tensor:
        """[rows, inputs] → [rows, outputs], to which `plus` is added if given; rows padded as the tiling says."""
        tile = self.tiling.row_tile
        if tile is None or x.shape[0] <= tile:
            return self._product(x, plus)
        return _in_tiles(self._product, x, plus, tile)

    def _product(self, x: torch.Tensor, plus: torch.Tensor | None) -> torch.Tensor:
        return self._way(x, self._weight, self._bias, plus)


class PackedLinear(Linear):
    """The same with weights kept in few bits: `pieces`, whose outputs follow each other. `like` as the model's type."""

    def __init__(self, pieces: Sequence[Packed], bias: torch.Tensor | None, tiling: Tiling, like: torch.Tensor) -> None:
        self._pieces = list(pieces)
        self._bias = bias
        self._onednn = _packed(like.new_zeros(1, 1)) is not None
        self.tiling = tiling
        self.inputs = pieces[0].shape[1]
        self.dtype = like.dtype
        outputs = [piece.shape[0] for piece in pieces]
        tiling.packed += sum(outputs) * self.inputs
        tiling.products.setdefault((PackedLinear, *outputs, self.inputs, bias is not None), self)

    @property
    def nbytes(self) -> int:
        return sum(piece.nbytes for piece in self._pieces)

    def _product(self, x: torch.Tensor, plus: torch.Tensor | None) -> torch.Tensor:
        way = _by_onednn if self._onednn else _plainly
        # Of a weight that is not in its own order, oneDNN takes another path for a single row.
        rows = x.repeat(2, 1) if self._onednn and len(x) == 1 else x
        parts = []
        offset = 0
        for piece in self._pieces:
            outputs = piece.shape[0]
            tile = -(-max(_TILE_OUTPUTS, _TILE_ELEMENTS // self.inputs) // piece.step) * piece.step
            for start in range(0, outputs, tile):
                stop = min(start + tile, outputs)
                weight = piece.rows(start, stop).to(x.dtype)
                bias = None if self._bias is None else self._bias[offset + start : offset + stop]
                parts.append(way(rows, weight, bias, None))
            offset += outputs
        y = torch.cat(parts, 1)[: len(x)]
        return y if plus is None else y.add_(plus)


def _plainly(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, plus: torch.Tensor | None
) -> torch.Tensor:
    y = product(x, weight, bias)
    return y if plus is None else y.add_(plus)


def _by_onednn(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, plus: torch.Tensor | None
) -> torch.Tensor:
    y: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return y if plus is None else y.add_(plus)


def _by_transposed(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, plus: torch.Tensor | None
) -> torch.Tensor:
    if x.shape[0] > _TRANSPOSED_ROWS:
        return _in_tiles(lambda rows, more: _by_transposed(rows, weight, bias, more), x, plus, _TRANSPOSED_ROWS)
    if x.shape[0] == 1:
        return _by_transposed(x.repeat(2, 1), weight, bias, None if plus is None else plus.repeat(2, 1))[:1]
    y = torch.mm(x, weight) if plus is None else torch.addmm(plus, x, weight)
    return y if bias is None else y.add_(bias)


def _in_tiles(
    multiply: Callable[[torch.Tensor, torch.Tensor | None], torch.Tensor],
    x: torch.Tensor,
    plus: torch.Tensor | None,
    rows: int,
) -> torch.Tensor:
    parts = torch.split(x, rows)
    others = [None] * len(parts) if plus is None else torch.split(plus, rows)
    return torch.cat([multiply(*both) for both in zip(parts, others, strict=True)])
