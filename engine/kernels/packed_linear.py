"""y = x Wᵀ with a weight of 4-bit codes in tiles: few rows by our kernel, many by the library, with the same bits.

`cuda/packed_linear.cu` widens codes in registers, for up to 64 rows; it says how, and what lies in a tile. Inputs are
added up in order by one accumulator, or by two, one for each half, which are then added in fp32 (`sums_of`): a single
one would be the bottleneck where there are few outputs. The library does the same on the widened weight when its second
product is added to an fp32 result of the first. Whether it does on the machine at hand is for the caller to test.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch

from engine.kernels.cuda_source import CudaKernel, TensorMap, available, compile_kept

__all__ = ["Cut", "Scratch", "TileForm", "Tiles", "available", "multiply", "multiply_widened", "sums_of", "widen"]

INT4_BF16, INT4_FP16, MXFP4, NVFP4, TABLE = range(5)
"""What the words of scales say; see the source."""
TILE_OUTPUTS, TILE_INPUTS = 64, 128
MOST_ROWS = 64
NVFP4_FACTOR = 2.0**9
"""By so much the sums of NVFP4's tiles are too small."""
_SOURCE = "packed_linear.cu"
_CODE_BYTES = TILE_OUTPUTS * TILE_INPUTS // 2
_MANY_OUTPUTS, _FEW_INPUTS = 4_224, 2_048
"""With more outputs one sum suffices: there are as many tiles as multiprocessors, or nearly."""
_INPUT_STEPS = 4
"""128 inputs come in multiples of this for each sum, so that stages are whole."""
_SHARED_BYTES, _RESERVED_BYTES, _MOST_STAGES = 227 << 10, 3 << 10, 32
_PROCESSORS = 132
"""Multiprocessors of an H200. Others have nearly as many, and the cut changes no bits."""
_BOX_BYTES = 128
"""Of a row: what one copy of the tensor memory accelerator has."""
_ROW_ALIGNMENT = 16


@dataclass(frozen=True)
class TileForm:
    """`kind`: what the words of scales say. `group`: inputs that share a scale, 16, 32, 64 or 128."""

    kind: int
    group: int

    @property
    def scale_words(self) -> int:
        """Words of scales for an output's 128 inputs."""
        if self.kind in (MXFP4, NVFP4):  # a byte for each 32 and 16
            return TILE_INPUTS // self.group // 4
        return (2 if self.kind == TABLE else 1) * TILE_INPUTS // self.group

    @property
    def tile_bytes(self) -> int:
        """Bytes of a tile's 128 inputs."""
        return _CODE_BYTES + 4 * TILE_OUTPUTS * self.scale_words


def sums_of(outputs: int, inputs: int) -> int:
    """How many accumulators add up the inputs of a weight of this shape."""
    return 1 if outputs > _MANY_OUTPUTS or inputs < _FEW_INPUTS else 2


def steps_of(outputs: int, inputs: int) -> int:
    """How many times 128 inputs a tile has, the last ones padded."""
    multiple = _INPUT_STEPS * sums_of(outputs, inputs)
    steps = -(-inputs // TILE_INPUTS)
    return steps + -steps % multiple


@dataclass(frozen=True)
class Tiles:
    """A weight [outputs, inputs] as the kernel reads it.

    `data`: bytes [tiles, times 128 inputs, `form.tile_bytes`]. `table` fp32 [16]: the numbers of codes. `output_scales`
    fp32 [outputs]: factors of sums.
    """

    form: TileForm
    data: torch.Tensor
    outputs: int
    inputs: int
    table: torch.Tensor
    output_scales: torch.Tensor | None = None

    @property
    def sums(self) -> int:
        """How many accumulators add up the inputs."""
        return sums_of(self.outputs, self.inputs)

    @property
    def first_sum(self) -> int:
        """How many inputs the first of them has."""
        return self.data.shape[1] * TILE_INPUTS // self.sums if self.sums > 1 else self.inputs


@dataclass(frozen=True)
class Cut:
    """How a product is cut: tiles of a block, times 128 inputs that are fetched at once, blocks of a multiprocessor."""

    tiles: int = 1
    step: int = 2
    blocks: int = 3


def cut_for(rows: int, outputs: int, inputs: int) -> Cut:
    """The quickest cut known on an H200 (`benchmarks/gpu/NOTES.md`): as many blocks of a multiprocessor as there are.

    Few blocks have more of the weight under way each.
    """
    blocks = -(-outputs // TILE_OUTPUTS) * sums_of(outputs, inputs)
    at_once = min(3, -(-blocks // _PROCESSORS))
    if rows <= 16:
        return Cut(1, 4, at_once)
    return Cut(1, 2, min(2, at_once)) if rows <= 32 else Cut(1, 1, min(2, at_once))


def _tall(rows: int) -> int:
    """The rows of a product with so many, of which there is a kernel."""
    return max(8, 1 << (rows - 1).bit_length())


def _variant(form: TileForm, sums: int, rows: int, cut: Cut) -> tuple[dict[str, int], int]:
    """The macros of a kernel, and its bytes of shared memory."""
    parts = (sums - 1) * cut.tiles * rows * TILE_OUTPUTS * 4
    stage = cut.step * (2 * rows * _BOX_BYTES + cut.tiles * form.tile_bytes) + 16
    stages = min(_MOST_STAGES, (_SHARED_BYTES // cut.blocks - _RESERVED_BYTES - parts) // stage)
    defines = {
        "FORM": form.kind, "GROUP": form.group, "ROWS": rows, "STAGES": stages, "STEP": cut.step, "TILES": cut.tiles,
        "SUMS": sums, "BLOCKS": cut.blocks,
    }  # fmt: skip
    return defines, stages * stage + parts + 1_040


def compile_kernel(form: TileForm, sums: int, rows: int, cut: Cut) -> None:
    """Compile a kernel without loading it, so that several can be compiled at once. Raises KernelError."""
    compile_kept(_SOURCE, _variant(form, sums, rows, cut)[0])


@cache
def _kernel(form: TileForm, sums: int, rows: int, cut: Cut) -> CudaKernel:
    return CudaKernel(_SOURCE, "packed_linear", *_variant(form, sums, rows, cut))


@cache
def _helper(form: TileForm, name: str) -> CudaKernel:
    return CudaKernel(_SOURCE, name, {"FORM": form.kind, "GROUP": form.group}, 0)


def multiply(
    x: torch.Tensor,
    tiles: Tiles,
    out: torch.Tensor,
    *,
    bias: torch.Tensor | None = None,
    dependent: bool = False,
    cut: Cut | None = None,
) -> torch.Tensor:
    """[rows, inputs] · Wᵀ + bias → `out` [rows, outputs], for at most 64 rows, in bf16.

    `dependent`: the kernel may begin before the one in front of it has ended.
    """
    rows, high = len(x), _tall(len(x))
    if x.data_ptr() % _ROW_ALIGNMENT or x.stride(0) * x.itemsize % _ROW_ALIGNMENT or x.stride(1) != 1:
        x = x.contiguous().clone()
    cut = cut or cut_for(rows, tiles.outputs, tiles.inputs)
    blocks = -(-len(tiles.data) // cut.tiles) * tiles.sums
    scales = tiles.output_scales
    _kernel(tiles.form, tiles.sums, high, cut)(
        (blocks, 1), cut.tiles * 128 + 32, tiles.data, TensorMap(x, rows), out, tiles.table,
        out if scales is None else scales, out if bias is None else bias, rows, tiles.outputs, tiles.data.shape[1],
        out.stride(0), int(scales is not None), int(bias is not None), dependent=dependent,
    )  # fmt: skip
    return out


def widen(tiles: Tiles, out: torch.Tensor) -> torch.Tensor:
    """The weight as the kernel multiplies by it, in bf16 → `out` [outputs, inputs]."""
    count, steps, _ = tiles.data.shape
    _helper(tiles.form, "widen_weight")(
        (steps, count), 128, tiles.data, tiles.table, out, tiles.outputs, tiles.inputs, steps
    )
    return out


def multiply_widened(
    x: torch.Tensor, tiles: Tiles, weight: torch.Tensor, out: torch.Tensor, *, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """As `multiply` by the library, for any number of rows. `weight`: the tiles, widened."""
    scales, first = tiles.output_scales, tiles.first_sum
    if tiles.sums == 1 and scales is None:
        return torch.mm(x, weight.t(), out=out) if bias is None else torch.addmm(bias, x, weight.t(), out=out)
    total = torch.mm(x[:, :first], weight[:, :first].t(), out_dtype=torch.float32)
    if tiles.sums > 1:
        # Into itself, else it would be copied.
        torch.addmm(total, x[:, first:], weight[:, first:].t(), out_dtype=torch.float32, out=total)
    _helper(tiles.form, "finish_sums")(
        (-(-tiles.outputs // 256), len(x)), 256, total, total if scales is None else scales,
        out if bias is None else bias, out, tiles.outputs, out.stride(0),
        int(scales is not None), int(bias is not None),
    )  # fmt: skip
    return out


class Scratch:
    """Memory for one widened weight, for all weights whose widened copies are not kept.

    One stream computes everything, so that a weight is widened after the product before it has ended.
    """

    def __init__(self, like: torch.Tensor) -> None:
        self._memory = like.new_empty(0)

    @property
    def nbytes(self) -> int:
        """Its bytes."""
        return self._memory.nbytes

    def reserve(self, elements: int) -> None:
        """Make it hold so many elements, before anything is captured that uses it."""
        if self._memory.numel() < elements:
            self._memory = self._memory.new_empty(elements)

    def widened(self, tiles: Tiles) -> torch.Tensor:
        """The weight, until the next call."""
        return widen(tiles, self._memory[: tiles.outputs * tiles.inputs].view(tiles.outputs, tiles.inputs))
