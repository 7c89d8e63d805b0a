"""Weights of 4-bit codes in the tiles that the kernel for GPUs reads (`engine.kernels.packed_linear`).

The numbers are those of the weight as it is stored, exactly: what a tile cannot hold stays as it was (`tiled` gives
None). Inputs that are not in the order of their groups (GPTQ's act-order) are put into it, and those of the rows that
are multiplied must be too.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from engine.kernels.packed_linear import (
    INT4_BF16,
    INT4_FP16,
    MXFP4,
    NVFP4,
    NVFP4_FACTOR,
    TABLE,
    TILE_INPUTS,
    TILE_OUTPUTS,
    TileForm,
    Tiles,
    steps_of,
)
from engine.quantization.code_types import E2M1, E8M0, bytes_of, integers, numbers
from engine.quantization.packed import PackedWeight, output_scales

_ROW_MULTIPLE = 8
"""The tensor memory accelerator wants rows of whole 16 bytes."""
_LEAST_GROUP, _LEAST_TABLE_GROUP, _NV_GROUP, _MX_GROUP = 16, 32, 16, 32
_MOST_EXPONENT = 128
"""The byte of e8m0 beyond which 2^126 times the scale is not finite."""
_ZERO_BIAS = 128
_MOST_ZERO = 16
_TO_THREADS = (0, 4, 1, 5, 3, 8, 6, 9, 7, 2)
"""[tile, warp, row + 8, g; 128 inputs, half, step, + 8, t, odd] → the order in which threads read codes."""
_FROM_THREADS = (0, 2, 9, 4, 1, 3, 6, 8, 5, 7)
_FLOATS = (MXFP4, NVFP4)
_FLOAT_BITS = ((6, 7, 8, 15), (3, 4, 5, 12), (0, 1, 2, 9), (10, 11, 13, 14))
"""Where the bits of four codes in a half word lie, from the lowest on."""
_IN_BOTH_HALVES = 0x10001
_OUTPUT_PARTS, _INPUT_PARTS = (4, 2, 8), (2, 4, 2, 4, 2)


class TiledWeight:
    """A weight, or several with outputs one behind the other, in tiles; a `Decodable`.

    `order` [inputs]: which input of the weight each input of the tiles is; the same one if None.
    """

    step = TILE_OUTPUTS

    def __init__(self, tiles: Tiles, factors: torch.Tensor | None, order: torch.Tensor | None) -> None:
        self.tiles = tiles
        self.output_scales = factors
        self.order = order
        self.shape = tiles.outputs, tiles.inputs

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        parts = (self.tiles.data, self.tiles.output_scales, self.output_scales, self.order)
        return sum(part.nbytes for part in parts if part is not None)

    def rows(self, start: int, stop: int) -> torch.Tensor:
        """As `PackedWeight.rows`."""
        tiles = self.tiles
        data = tiles.data[start // TILE_OUTPUTS : -(-stop // TILE_OUTPUTS)]
        words = 4 * TILE_OUTPUTS * tiles.form.scale_words
        stored = data[..., :-words].contiguous()
        codes = _from_threads(_moved_bits(stored, back=True) if tiles.form.kind in _FLOATS else stored)
        scales, zeros = _read_scales(tiles.form, data[..., -words:].contiguous())
        grouped = tiles.table[codes.int()].view(len(codes), scales.shape[1], -1)
        values = grouped.sub_(zeros[..., None]).mul_(scales[..., None]).view(len(codes), -1)
        values = values[: stop - start, : tiles.inputs]
        if self.order is None:
            return values.contiguous()
        stored = torch.empty_like(values)
        stored[:, self.order] = values
        return stored


def tiled(pieces: Sequence[PackedWeight]) -> TiledWeight | None:
    """These weights of the same inputs in tiles, one behind the other; None where tiles cannot hold them exactly."""
    first = pieces[0]
    inputs = first.inputs
    if any(not _is_alike(piece, first) for piece in pieces) or first.code_type.bits != 4 or inputs % _ROW_MULTIPLE:
        return None
    groups, order = _groups_in_order(pieces)
    if not groups or (groups > 1 and inputs % groups):
        return None
    group = -(-inputs // groups)
    if groups == 1 or group % TILE_INPUTS == 0:
        shared = TILE_INPUTS
    elif group >= _LEAST_GROUP and TILE_INPUTS % group == 0:
        shared = group
    else:
        return None
    dtype = first.scales.dtype
    # Few operations know types of 8 bits.
    kept = [piece.scales if dtype.itemsize > 1 else piece.scales.view(torch.uint8) for piece in pieces]
    scales = torch.cat([part.expand(piece.shape[0], -1) for part, piece in zip(kept, pieces, strict=True)])
    zeros = _zeros(pieces)
    outputs = len(scales)
    kind = _kind(first, scales, zeros, group)
    if kind == TABLE and shared < _LEAST_TABLE_GROUP:
        return None
    codes = torch.cat([piece.codes for piece in pieces])
    codes = torch.stack([codes & 15, codes >> 4], -1).view(outputs, -1)[:, :inputs]
    form = TileForm(kind, shared)
    if kind == NVFP4:
        # Its scales have no zero there.
        codes = codes * (scales > 0).repeat_interleave(group, 1)
    if order is not None:
        codes = codes.index_select(1, order)
    steps = steps_of(outputs, inputs)
    padded = torch.nn.functional.pad(codes, (0, steps * TILE_INPUTS - inputs, 0, -outputs % TILE_OUTPUTS))
    # Of each 128 inputs and group in them, the group of the weight.
    places = torch.arange(0, steps * TILE_INPUTS, shared, device=scales.device)
    of_group = (places // group).clamp_(max=groups - 1)
    words = _scale_words(form, scales[:, of_group], zeros[:, of_group], dtype)
    words = torch.nn.functional.pad(words, (0, 0, 0, -outputs % TILE_OUTPUTS))
    table = torch.tensor(_code_numbers(first), dtype=torch.float32, device=scales.device)
    factors = output_scales(pieces)
    arranged = _to_threads(padded)
    if kind in _FLOATS:
        arranged = _moved_bits(arranged, back=False)
    data = torch.cat([arranged, _in_tiles(words, steps)], -1)
    of_sums = None if factors is None else factors * (NVFP4_FACTOR if kind == NVFP4 else 1.0)
    return TiledWeight(Tiles(form, data, outputs, inputs, table, of_sums), factors, order)


def _is_alike(piece: PackedWeight, first: PackedWeight) -> bool:
    """Whether it can be one weight with the first."""
    return (
        piece.code_type.bits == 4
        and piece.inputs == first.inputs
        and piece.scales.shape[1] == first.scales.shape[1]
        and piece.scales.dtype == first.scales.dtype
        and piece.minimums is None
        and (piece.block[0] == 1 or len(piece.scales) == 1)
        and (piece.code_type == first.code_type or (_is_integer(piece) and _is_integer(first)))
    )


def _is_integer(weight: PackedWeight) -> bool:
    zero = -weight.code_type.values[0]
    return weight.code_type.values == integers(4, int(zero)).values


def _groups_in_order(pieces: Sequence[PackedWeight]) -> tuple[int, torch.Tensor | None]:
    """How many groups of inputs there are, of one size, and the order of inputs in which they follow each other.

    0 groups where sizes, or the orders of the weights, differ.
    """
    first, groups = pieces[0], pieces[0].scales.shape[1]
    if all(piece.group is None for piece in pieces):
        return (groups if groups == 1 or groups * first.block[1] == first.inputs else 0), None
    if first.group is None or any(piece.group is None or not torch.equal(piece.group, first.group) for piece in pieces):
        return 0, None
    if not bool((first.group.bincount(minlength=groups) * groups == first.inputs).all()):
        return 0, None
    return groups, first.group.argsort(stable=True)


def _zeros(pieces: Sequence[PackedWeight]) -> torch.Tensor:
    """[outputs, groups] in fp32: what is subtracted from numbers of the table."""
    parts = []
    for piece in pieces:
        shape = piece.shape[0], piece.scales.shape[1]
        if piece.zeros is not None:
            parts.append(piece.zeros.float().expand(shape))
        else:
            zero = -piece.code_type.values[0] if _is_integer(piece) else 0.0
            parts.append(torch.full(shape, zero, device=piece.codes.device))
    return torch.cat(parts)


def _kind(first: PackedWeight, scales: torch.Tensor, zeros: torch.Tensor, group: int) -> int:
    """The kind of tile in which the numbers are exact, the quickest."""
    if first.code_type == E2M1:
        dtype = first.scales.dtype
        if dtype == torch.uint8 and group == _MX_GROUP and int(scales.max()) <= _MOST_EXPONENT:
            return MXFP4
        if dtype == torch.float8_e4m3fn and group == _NV_GROUP:
            return NVFP4
    elif _is_integer(first) and scales.dtype != torch.uint8:
        wide = scales.float()
        if bool(((zeros >= 0) & (zeros <= _MOST_ZERO)).all()):
            for kind, dtype in ((INT4_BF16, torch.bfloat16), (INT4_FP16, torch.float16)):
                if torch.equal(wide.to(dtype).float(), wide):
                    return kind
    return TABLE


def _code_numbers(weight: PackedWeight) -> tuple[float, ...]:
    """What codes stand for before a zero is subtracted."""
    if _is_integer(weight):
        return integers(4).values
    return weight.code_type.values


def _scale_words(form: TileForm, scales: torch.Tensor, zeros: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Bytes [outputs, of all groups] of scales, stored as `dtype`, and zeros [outputs, groups]."""
    if form.kind == MXFP4:
        return scales
    of_bytes = E8M0 if dtype == torch.uint8 else bytes_of(dtype) if dtype.itemsize == 1 else None
    wide = scales.float() if of_bytes is None else numbers(scales, of_bytes)
    if form.kind == NVFP4:
        return _five_bits_of_exponent(wide)
    if form.kind == TABLE:
        return torch.stack([wide, zeros], -1).flatten(1).view(torch.uint8)
    half = torch.bfloat16 if form.kind == INT4_BF16 else torch.float16
    halves = [wide.to(half).view(torch.int16), (zeros + _ZERO_BIAS).to(torch.bfloat16).view(torch.int16)]
    return torch.stack(halves, -1).flatten(1).view(torch.uint8)


def _five_bits_of_exponent(scales: torch.Tensor) -> torch.Tensor:
    """e4m3 from 0 on → bytes of 5 bits of exponent, plus 15, and 3 of mantissa: its subnormals are none there."""
    fraction, exponent = torch.frexp(scales)
    # 1 + m / 8 times a power of two is fraction · 2, times one power less.
    code = (fraction * 16 - 8) + (exponent + 14) * 8
    return torch.where(fraction > 0, code, 0).to(torch.uint8)


def _read_scales(form: TileForm, stored: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Scales and zeros in fp32 [outputs, groups] of bytes [tiles, steps, all of a tile's]."""
    tiles, steps, _ = stored.shape
    rows = stored.view(tiles, steps, TILE_OUTPUTS, -1).transpose(1, 2).reshape(tiles * TILE_OUTPUTS, -1)
    if form.kind == MXFP4:
        scales = numbers(rows, E8M0)
        return scales, torch.zeros_like(scales)
    if form.kind == NVFP4:
        exact = torch.ldexp((rows & 7) / 8 + 1, (rows >> 3).int() - 15)
        return exact, torch.zeros_like(exact)
    if form.kind == TABLE:
        both = rows.view(torch.float32).view(len(rows), -1, 2)
        return both[..., 0], both[..., 1]
    halves = rows.view(torch.int16).view(len(rows), -1, 2)
    dtype = torch.bfloat16 if form.kind == INT4_BF16 else torch.float16
    zeros = halves[..., 1].contiguous().view(torch.bfloat16).float() - _ZERO_BIAS
    return halves[..., 0].contiguous().view(dtype).float(), zeros


def _in_tiles(words: torch.Tensor, steps: int) -> torch.Tensor:
    """Bytes [outputs, of all groups] → [tiles, steps, of a tile's]."""
    outputs = len(words)
    parts = words.view(outputs // TILE_OUTPUTS, TILE_OUTPUTS, steps, -1).transpose(1, 2)
    return parts.reshape(outputs // TILE_OUTPUTS, steps, -1)


def _to_threads(codes: torch.Tensor) -> torch.Tensor:
    """[outputs, inputs] → bytes [tiles, steps, of a tile's codes], in the order in which threads read them."""
    outputs, inputs = codes.shape
    tiles, steps = outputs // TILE_OUTPUTS, inputs // TILE_INPUTS
    parts = codes.view(tiles, *_OUTPUT_PARTS, steps, *_INPUT_PARTS).permute(_TO_THREADS)
    pairs = parts.reshape(tiles, steps, -1, 2)
    return pairs[..., 0] | pairs[..., 1] << 4


def _moved_bits(stored: torch.Tensor, *, back: bool) -> torch.Tensor:
    """Half words of four codes in order ↔ with their bits where the kernel wants those of floats."""
    words = stored.view(torch.int32)
    moved = torch.zeros_like(words)
    for code, places in enumerate(_FLOAT_BITS):
        for bit, place in enumerate(places):
            old, new = (place, 4 * code + bit) if back else (4 * code + bit, place)
            moved |= ((words >> old) & _IN_BOTH_HALVES) << new
    return moved.view(torch.uint8)


def _from_threads(stored: torch.Tensor) -> torch.Tensor:
    """[outputs, inputs] of what `_to_threads` gave."""
    tiles, steps, _ = stored.shape
    pairs = torch.stack([stored & 15, stored >> 4], -1)
    parts = pairs.view(tiles, steps, 4, 2, 8, 4, 4, 2, 2, 2).permute(_FROM_THREADS)
    return parts.reshape(tiles * TILE_OUTPUTS, steps * TILE_INPUTS)
