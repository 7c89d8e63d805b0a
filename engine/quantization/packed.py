"""The interface of packed weights, which stay in their stored format and are decoded a few outputs at a time.

Every format has codes (one or several in a byte), scales, and perhaps zeros; its module decodes rows. Codes are decoded
by a table of all bytes, which is several times faster than converting types or shifting bits.
"""

from __future__ import annotations

from functools import cache
from typing import Protocol

import torch


class PackedWeight(Protocol):
    """A quantized weight [outputs, inputs]. `rows` begins and ends at multiples of `step`, or at the last output."""

    @property
    def shape(self) -> tuple[int, int]:
        """Outputs and inputs."""
        ...

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        ...

    @property
    def step(self) -> int:
        """How many outputs share scales."""
        ...

    def rows(self, start: int, stop: int) -> torch.Tensor:
        """The outputs `start`..`stop` decoded, [stop − start, inputs] in fp32, contiguous and the caller's own."""
        ...

    def to(self, device: torch.device) -> PackedWeight:
        """A copy on the device."""
        ...


def check_scales(scales: torch.Tensor) -> None:
    """Raise ValueError unless scales are finite floating point numbers."""
    if not scales.is_floating_point():
        raise ValueError(f"scales are {scales.dtype}, not floating point")
    if not bool(scales.float().isfinite().all()):
        raise ValueError("scales are not all finite")


def decoded(weight: PackedWeight) -> torch.Tensor:
    """The whole weight, [outputs, inputs] in fp32."""
    return weight.rows(0, weight.shape[0])


def numbers(codes: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """[..., n] bytes → [..., n · k] in fp32 by a `table` [256, k] of each byte's values; k is 1, 2 or 4."""
    flat = codes.reshape(-1).int()
    if table.shape[1] == 2:  # two numbers are moved as one word
        words = table.view(torch.int64).view(-1).index_select(0, flat)
        return words.view(torch.float32).view(*codes.shape[:-1], -1)
    found = table.index_select(0, flat) if table.shape[1] > 1 else table.view(-1).index_select(0, flat)
    return found.view(*codes.shape[:-1], -1)


@cache
def byte_values(dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """[256, 1] the value of every byte in an 8-bit type."""
    return torch.arange(256, dtype=torch.uint8).view(dtype).float().view(256, 1).to(device)


@cache
def part_values(values: tuple[float, ...], device: torch.device) -> torch.Tensor:
    """[256, k] the values of every byte as k codes, low bits first; a code is an index into the 2^(8/k) `values`."""
    bits = (len(values) - 1).bit_length()
    codes = (torch.arange(256)[:, None] >> torch.arange(0, 8, bits)) & (len(values) - 1)
    return torch.tensor(values)[codes].to(device)
