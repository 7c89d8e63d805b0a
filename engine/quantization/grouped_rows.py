"""Integers of 4 and 8 bits in the orders of PyTorch's quantized embeddings, which native kernels decode.

A group of inputs of one output is a row: its codes, then scale and bias, in fp16 behind 4-bit codes and in fp32 behind
bytes. The kernel computes code · scale + bias, and bias is −zero · scale − minimum. Where fp16 does not hold that, the
bias is −8 · scale, and the rest is subtracted afterwards; where it does not hold the scale, as with GGUF's K types,
each code takes a byte. Whether this gives the weight to the last bit is seen by decoding it whole in both ways.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from engine.quantization.code_types import integers, numbers
from engine.quantization.packed import PackedWeight

_MIDDLE = 8.0
_CHECKED_OUTPUTS = 512


class GroupedRows:
    """A weight in this order; see `PackedWeight` for what its members are."""

    step = 1

    def __init__(self, rows: torch.Tensor, rest: torch.Tensor | None, weight: PackedWeight, bits: int) -> None:
        self._rows = rows
        self._rest = rest
        self._bits = bits
        self.shape = weight.shape
        self.output_scales = weight.output_scales

    @property
    def nbytes(self) -> int:
        return self._rows.nbytes + (0 if self._rest is None else self._rest.nbytes)

    def rows(self, start: int, stop: int) -> torch.Tensor:
        groups = self._rows[start:stop].flatten(0, 1)
        unpack = _unpack_4_bits if self._bits == 4 else torch.ops.quantized.embedding_bag_byte_unpack
        values: torch.Tensor = unpack(groups)
        if self._rest is not None:
            values.sub_(self._rest[start:stop].view(-1, 1))
        return values.view(stop - start, self.shape[1])


def grouped_rows(weight: PackedWeight) -> GroupedRows | None:
    """The weight in such an order; None where it is no such integer, or would not be the same to the last bit."""
    inputs, size, bits = weight.inputs, weight.block[1], weight.code_type.bits
    zero = 0.0 - weight.code_type.values[0]
    is_integer = bits in (4, 8) and weight.code_type.values == integers(bits, int(zero)).values
    if not is_integer or weight.codes.device.type != "cpu" or weight.group is not None:
        return None
    if weight.block[0] != 1 or inputs % size or size % 8 or weight.scales.dtype == torch.uint8:
        return None
    return next((rows for rows in _orders(weight, size, zero) if _is_same(rows, weight)), None)


def _orders(weight: PackedWeight, size: int, zero: float) -> Iterator[GroupedRows]:
    """The orders to try, the smallest first."""
    scales = weight.scales.float()
    zeros = torch.full_like(scales, zero) if weight.zeros is None else weight.zeros.float()
    bias = -zeros * scales
    if weight.minimums is not None:
        bias = bias - weight.minimums.float()
    if weight.code_type.bits == 4:
        yield GroupedRows(_arranged(weight.codes, size // 2, scales.half(), bias.half()), None, weight, 4)
        if weight.minimums is None:
            rest = (zeros - _MIDDLE) * scales
            middle = -_MIDDLE * scales
            yield GroupedRows(_arranged(weight.codes, size // 2, scales.half(), middle.half()), rest, weight, 4)
        codes = numbers(weight.codes, integers(4)).to(torch.uint8)
    else:
        codes = weight.codes
    yield GroupedRows(_arranged(codes, size, scales, bias), None, weight, 8)


def _arranged(codes: torch.Tensor, size: int, scales: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Bytes [outputs, groups, codes, scale and bias]. `size`: bytes of a group's codes."""
    outputs, groups = scales.shape
    both = torch.stack([scales, bias], -1).view(torch.uint8)
    return torch.cat([codes.view(outputs, groups, size), both], -1)


def _unpack_4_bits(groups: torch.Tensor) -> torch.Tensor:
    values: torch.Tensor = torch.ops.quantized.embedding_bag_4bit_unpack(groups)
    return values


def _is_same(rows: GroupedRows, weight: PackedWeight) -> bool:
    outputs = weight.shape[0]
    try:
        return all(
            torch.equal(rows.rows(start, stop), weight.rows(start, stop))
            for start in range(0, outputs, _CHECKED_OUTPUTS)
            for stop in (min(start + _CHECKED_OUTPUTS, outputs),)
        )
    except (AttributeError, RuntimeError):  # a build of torch without this operation
        return False
