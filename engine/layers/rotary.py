"""Rotary position embedding: pairs of a head's elements turned by an angle that grows with the position."""

from __future__ import annotations

import math

import torch

from engine.models.config import RopeConfig


def frequencies(rope: RopeConfig, head_dim: int) -> torch.Tensor:
    """[head_dim / 2] angles per position, in radians, fp32."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
    inverse = 1.0 / rope.theta**exponents
    if rope.kind != "llama3":
        return inverse
    # Llama 3: long waves are stretched by `factor`, short ones left alone, those between blended.
    wavelength = 2 * math.pi / inverse
    smooth = (rope.original_context / wavelength - rope.low_freq_factor) / (
        rope.high_freq_factor - rope.low_freq_factor
    )
    blended = (1 - smooth) * inverse / rope.factor + smooth * inverse
    long = wavelength > rope.original_context / rope.low_freq_factor
    short = wavelength < rope.original_context / rope.high_freq_factor
    return torch.where(long, inverse / rope.factor, torch.where(short, inverse, blended))


class Rotary:
    """Tables of cosines and sines for every position of the context."""

    def __init__(self, rope: RopeConfig, head_dim: int, context_tokens: int, like: torch.Tensor) -> None:
        positions = torch.arange(context_tokens, dtype=torch.float32)
        angles = torch.outer(positions, frequencies(rope, head_dim))
        self.head_dim = head_dim
        # The rotated half of each element carries its sign here, so that a turn is two products and a sum.
        cos, sin = angles.cos(), angles.sin()
        self._cos = torch.cat([cos, cos], -1)[:, None].to(like)
        self._sin = torch.cat([-sin, sin], -1)[:, None].to(like)

    def at(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosines and signed sines for these positions, [rows, 1, head_dim] each: once a step, for all layers."""
        return self._cos[positions], self._sin[positions]

    def turn(self, x: torch.Tensor, tables: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        """[rows, heads, head_dim] → the same, turned by the tables that `at` gave."""
        cos, sin = tables
        half = self.head_dim // 2
        swapped = torch.cat([x[..., half:], x[..., :half]], -1)
        return (x * cos).add_(swapped.mul_(sin))
