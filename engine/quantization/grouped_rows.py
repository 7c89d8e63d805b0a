"""Integers of 4 bits in the order of PyTorch's 4-bit embeddings, which a native kernel decodes.

A group of inputs of one output is a row: its codes, then scale and bias in fp16. The kernel computes code · scale +
bias, and bias is −zero · scale. Where fp16 does not hold that, the bias is −8 · scale, and the rest is subtracted
afterwards. Whether this gives the weight to the last bit is seen by decoding it whole in both ways.
"""

from __future__ import annotations

import torch

from engine.quantization.packed import PackedWeight

_MIDDLE = 8.0
_CHECKED_OUTPUTS = 512


class GroupedRows:
    """A weight in this order; see `PackedWeight` for what its members are."""

    step = 1

    def __init__(self, rows: torch.Tensor, rest: torch.Tensor | None, weight: PackedWeight) -> None:
        self._rows = rows
        self._rest = rest
        self.shape = weight.shape
        self.output_scales = weight.output_scales

    @property
    def nbytes(self) -> int:
        return self._rows.nbytes + (0 if self._rest is None else self._rest.nbytes)

    def rows(self, start: int, stop: int) -> torch.Tensor:
        groups = self._rows[start:stop].flatten(0, 1)
        values: torch.Tensor = torch.ops.quantized.embedding_bag_4bit_unpack(groups)
        if self._rest is not None:
            values.sub_(self._rest[start:stop].view(-1, 1))
        return values.view(stop - start, self.shape[1])


def grouped_rows(weight: PackedWeight) -> GroupedRows | None:
    """The weight in this order; None where it is no such integer, or would not be the same to the last bit."""
    inputs, size = weight.inputs, weight.block[1]
    zero = 0.0 - weight.code_type.values[0]
    is_integer = weight.code_type.values == tuple(float(code - zero) for code in range(16))
    if not is_integer or weight.codes.device.type != "cpu" or weight.group is not None:
        return None
    if weight.block[0] != 1 or inputs % size or size % 8:
        return None
    scales = weight.scales.float()
    zeros = torch.full_like(scales, zero) if weight.zeros is None else weight.zeros.float()
    for bias in (zeros, torch.full_like(scales, _MIDDLE)):
        rest = None if bias is zeros else (zeros - bias) * scales
        rows = GroupedRows(_arranged(weight, size, -bias * scales), rest, weight)
        if _is_same(rows, weight):
            return rows
    return None


def _arranged(weight: PackedWeight, size: int, bias: torch.Tensor) -> torch.Tensor:
    """Bytes [outputs, groups, codes, scale and bias]."""
    outputs, groups = weight.scales.shape
    halves = torch.stack([weight.scales.half(), bias.half()], -1).view(torch.uint8)
    return torch.cat([weight.codes.view(outputs, groups, size // 2), halves], -1)


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
