"""MXFP4 weights (OCP Microscaling Formats 1.0): e2m1 values of 4 bits; 32 values share a power of two as scale.

A byte holds two values, the first in its low half. A scale byte is the exponent plus 127.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch

from engine.quantization.packed import numbers, part_values

GROUP = 32
_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_LARGEST_EXPONENT = 2
"""The exponent of e2m1's largest value: 6 = 1.5 · 2²."""


_NO_NUMBER = 255


@cache
def _powers(device: torch.device) -> torch.Tensor:
    """[256, 1] the scale of each scale byte. A table, since a GPU's power function is not exact."""
    return (2.0 ** (torch.arange(256, dtype=torch.float64) - 127)).float().view(256, 1).to(device)


def decode(blocks: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Bytes [..., groups, 16] and scale bytes [..., groups] → [..., groups · 32] in fp32.

    Raises ValueError for scales of any other shape.
    """
    if blocks.dim() < 2 or blocks.shape[:-1] != scales.shape or blocks.shape[-1] * 2 != GROUP:
        raise ValueError(f"scales of shape {list(scales.shape)} do not fit blocks of {list(blocks.shape)}")
    values = numbers(blocks, part_values((*_VALUES, *(-value for value in _VALUES)), blocks.device))
    return values.mul_(numbers(scales, _powers(scales.device))[..., None]).flatten(-2)


def check(blocks: torch.Tensor, scales: torch.Tensor) -> None:
    """Raise ValueError unless these are bytes and no scale is the byte for NaN."""
    if blocks.dtype != torch.uint8 or scales.dtype != torch.uint8:
        raise ValueError(f"MXFP4 blocks and scales are bytes, these are {blocks.dtype} and {scales.dtype}")
    if not blocks.numel():
        raise ValueError(f"blocks of shape {list(blocks.shape)} are not those of a weight")
    if bool((scales == _NO_NUMBER).any()):
        raise ValueError("scales are not all finite")


@dataclass(frozen=True)
class Mxfp4Weight:
    """Bytes [outputs, groups, 16] and scale bytes [outputs, groups]."""

    blocks: torch.Tensor
    scales: torch.Tensor

    @property
    def shape(self) -> tuple[int, int]:
        return self.blocks.shape[0], self.blocks.shape[1] * GROUP

    @property
    def nbytes(self) -> int:
        return self.blocks.nbytes + self.scales.nbytes

    @property
    def step(self) -> int:
        return 1

    def rows(self, start: int, stop: int) -> torch.Tensor:
        return decode(self.blocks[start:stop], self.scales[start:stop])

    def to(self, device: torch.device) -> Mxfp4Weight:
        return Mxfp4Weight(self.blocks.to(device, copy=True), self.scales.to(device, copy=True))


def stored(values: torch.Tensor, scales: torch.Tensor) -> Mxfp4Weight:
    """The weight of bytes [outputs, inputs / 2] and scale bytes [outputs, inputs / 32]. Raises ValueError."""
    check(values, scales)
    if values.dim() != 2 or scales.dim() != 2 or values.shape != (len(scales), scales.shape[-1] * GROUP // 2):
        raise ValueError(f"scales of shape {list(scales.shape)} do not fit values of {list(values.shape)}")
    return Mxfp4Weight(values.view(len(values), -1, GROUP // 2), scales)


def encode(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """[outputs, inputs] → bytes [outputs, groups, 16] and scale bytes [outputs, groups].

    By the standard: the scale is the largest power of two not above the group's largest value, divided by that of e2m1;
    values are rounded to nearest, ties to even, and clamped at 6. Raises ValueError if inputs are not whole groups.
    """
    outputs, inputs = weight.shape
    if inputs % GROUP:
        raise ValueError(f"{inputs} inputs are not whole groups of {GROUP}")
    groups = weight.float().view(outputs, inputs // GROUP, GROUP)
    exponent = torch.frexp(groups.abs().amax(-1)).exponent - 1 - _LARGEST_EXPONENT
    exponent = exponent.clamp(-127, 127)
    scaled = groups * numbers((127 - exponent).to(torch.uint8), _powers(weight.device))[..., None]
    values = torch.tensor(_VALUES, device=weight.device)
    # Midpoints between neighbours; on a tie the even code wins.
    middles = (values[1:] + values[:-1]) / 2
    below = torch.bucketize(scaled.abs(), middles)
    above = torch.bucketize(scaled.abs(), middles, right=True)
    code = torch.where(below % 2 == 0, below, above)
    code = (code + 8 * (scaled < 0)).to(torch.uint8)
    return code[..., ::2] | code[..., 1::2] << 4, (exponent + 127).to(torch.uint8)
