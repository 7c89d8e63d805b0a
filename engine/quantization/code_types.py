"""Types of codes: which number each code of a few bits stands for.

Integers, floats of 8 and of 4 bits, and tables of 16 numbers that a checkpoint brings are all one thing: a table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from math import isfinite

import torch


@dataclass(frozen=True)
class CodeType:
    """The number of each code. Codes of less than 8 bits lie in bytes one after the other, low bits first."""

    values: tuple[float, ...]

    @property
    def bits(self) -> int:
        return (len(self.values) - 1).bit_length()

    @property
    def per_byte(self) -> int:
        return 8 // self.bits

    @property
    def largest(self) -> float:
        """The largest magnitude of a finite number."""
        return max(abs(value) for value in self.values if isfinite(value))


_HALF_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
E2M1 = CodeType((*_HALF_E2M1, *(-value for value in _HALF_E2M1)))
"""Floats of 4 bits: sign, two bits of exponent, one of mantissa (OCP Microscaling Formats 1.0)."""

E8M0 = CodeType((*(2.0 ** (byte - 127) for byte in range(255)), float("nan")))
"""Powers of two. A table, since a GPU's power function is not exact."""


@cache
def integers(bits: int, zero: int = 0) -> CodeType:
    """Whole numbers from −`zero` on."""
    return CodeType(tuple(float(code - zero) for code in range(1 << bits)))


@cache
def bytes_of(dtype: torch.dtype) -> CodeType:
    """The numbers of an 8-bit type of torch."""
    return CodeType(tuple(torch.arange(256, dtype=torch.uint8).view(dtype).float().tolist()))


@cache
def _table(values: tuple[float, ...], device: torch.device) -> torch.Tensor:
    """[256, k] the numbers of every byte as k codes, low bits first."""
    bits = (len(values) - 1).bit_length()
    codes = (torch.arange(256)[:, None] >> torch.arange(0, 8, bits)) & (len(values) - 1)
    return torch.tensor(values)[codes].to(device)


def numbers(codes: torch.Tensor, code_type: CodeType) -> torch.Tensor:
    """[..., n] bytes → [..., n · k] in fp32, of k codes in a byte.

    By a table of all bytes, which is several times faster than converting types or shifting bits.
    """
    table = _table(code_type.values, codes.device)
    flat = codes.reshape(-1).int()
    if table.shape[1] == 2:  # two numbers are moved as one word
        words = table.view(torch.int64).view(-1).index_select(0, flat)
        return words.view(torch.float32).view(*codes.shape[:-1], -1)
    looked_up = table.index_select(0, flat) if table.shape[1] > 1 else table.view(-1).index_select(0, flat)
    return looked_up.view(*codes.shape[:-1], -1)


def pack(codes: torch.Tensor, bits: int) -> torch.Tensor:
    """[outputs, inputs] codes → bytes [outputs, inputs · bits / 8, rounded up], low bits first."""
    per_byte = 8 // bits
    padded = torch.nn.functional.pad(codes.to(torch.uint8), (0, -codes.shape[1] % per_byte))
    parts = padded.view(len(codes), -1, per_byte) << torch.arange(0, 8, bits, dtype=torch.uint8, device=codes.device)
    packed: torch.Tensor = parts.sum(-1, dtype=torch.uint8)
    return packed


def nearest(numbers_: torch.Tensor, positive: Sequence[float]) -> torch.Tensor:
    """The index of the nearest of ascending `positive` numbers to each magnitude; of two equally near the even one."""
    values = torch.tensor(positive, device=numbers_.device)
    middles = (values[1:] + values[:-1]) / 2
    magnitudes = numbers_.abs()
    below, above = torch.bucketize(magnitudes, middles), torch.bucketize(magnitudes, middles, right=True)
    return torch.where(below % 2 == 0, below, above)


def to_e2m1(scaled: torch.Tensor) -> torch.Tensor:
    """The code of the nearest e2m1 number, ties to even, beyond 6 that of 6."""
    return (nearest(scaled, _HALF_E2M1) + 8 * (scaled < 0)).to(torch.uint8)
