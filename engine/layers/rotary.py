"""Rotary position embedding (Su et al. 2021): rotates pairs of a head's elements by angles proportional to position."""

from __future__ import annotations

import math
from typing import assert_never

import torch

from engine.errors import ModelError
from engine.model_config.rope import RopeConfig


def frequencies(rope: RopeConfig, dim: int, context_tokens: int) -> torch.Tensor:
    """[dim / 2, rounded up] radians per position, fp32, for contexts of up to `context_tokens` tokens."""
    exponents = torch.arange(0, dim, 2, dtype=torch.float32) / dim
    inverse = 1.0 / rope.theta**exponents
    match rope.kind:
        case "default":
            return inverse
        case "linear":
            return inverse / rope.factor
        case "llama3":
            return _llama3(rope, inverse)
        case "yarn":
            return _yarn(rope, inverse, dim)
        case "longrope":
            factors = rope.long_factors if rope.stretched(context_tokens) else rope.short_factors
            if len(factors) != len(exponents):
                field = "long_factor" if rope.stretched(context_tokens) else "short_factor"
                raise ModelError(f"rope: field {field} has {len(factors)} factors for {len(exponents)} rotated pairs")
            return 1.0 / (torch.tensor(factors) * rope.theta**exponents)
    assert_never(rope.kind)


def _llama3(rope: RopeConfig, inverse: torch.Tensor) -> torch.Tensor:
    # Low frequencies are divided by `factor`, high ones are kept, those between are blended.
    wavelength = 2 * math.pi / inverse
    smooth = (rope.original_context / wavelength - rope.low_freq_factor) / (
        rope.high_freq_factor - rope.low_freq_factor
    )
    blended = (1 - smooth) * inverse / rope.factor + smooth * inverse
    long = wavelength > rope.original_context / rope.low_freq_factor
    short = wavelength < rope.original_context / rope.high_freq_factor
    return torch.where(long, inverse / rope.factor, torch.where(short, inverse, blended))


def _yarn(rope: RopeConfig, inverse: torch.Tensor, dim: int) -> torch.Tensor:
    # Blended linearly over the pairs between those that rotate beta_fast and beta_slow times over the original context.
    def pair(turns: float) -> float:
        return dim * math.log(rope.original_context / (turns * 2 * math.pi)) / (2 * math.log(rope.theta))

    low, high = pair(rope.beta_fast), pair(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    if low == high:
        high += 0.001
    stretched = ((torch.arange(len(inverse), dtype=torch.float32) - low) / (high - low)).clamp(0, 1)
    return inverse / rope.factor * stretched + inverse * (1 - stretched)


class Rotary:
    """Cosines and sines for every position of the context. The first `dim` elements of a head are rotated."""

    def __init__(self, rope: RopeConfig, head_dim: int, context_tokens: int, like: torch.Tensor) -> None:
        share = int(head_dim * rope.partial)
        self.dim = share + share % 2  # a whole number of pairs
        self._made_of = rope, share, context_tokens
        cos, sin = self.exact_tables()
        # The sines carry the sign of the swapped half, so that a rotation is two products and a sum.
        self._cos = torch.cat([cos, cos], -1)[:, None].to(like)
        self._sin = torch.cat([-sin, sin], -1)[:, None].to(like)

    def exact_tables(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosines and sines in fp32 on the CPU, [context, turned pairs] each: for kernels that turn in fp32."""
        rope, share, context_tokens = self._made_of
        positions = torch.arange(context_tokens, dtype=torch.float32)
        angles = torch.outer(positions, frequencies(rope, share, context_tokens))
        return angles.cos() * rope.magnitude, angles.sin() * rope.magnitude

    def at(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosines and signed sines for these positions, [rows, 1, dim] each; once a step for all layers."""
        return self._cos.index_select(0, positions), self._sin.index_select(0, positions)

    def apply_rotary_(self, x: torch.Tensor, tables: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        """Rotate the first `dim` elements of [rows, heads, head dim] in place by the tables of `at`."""
        cos, sin = tables
        if x.shape[-1] > self.dim:
            self.apply_rotary_(x.narrow(-1, 0, self.dim), tables)
            return x
        swapped = x.roll(self.dim // 2, -1).mul_(sin)
        return x.mul_(cos).add_(swapped)


def interleaved_as_halves_(x: torch.Tensor, dim: int) -> None:
    """Reorder, in place, the interleaved pairs of the first `dim` elements of each head into two halves.

    Scores are the same in any order that queries and keys share.
    """
    turned = x.narrow(-1, 0, dim)
    turned.copy_(torch.cat([turned[..., ::2], turned[..., 1::2]], -1))


class NoRotary(Rotary):
    """Of layers that turn nothing (NoPE, Kazemnejad et al. 2023): cosines are 1 and sines 0, for kernels that turn."""

    def exact_tables(self) -> tuple[torch.Tensor, torch.Tensor]:
        """See `Rotary`."""
        cos, sin = super().exact_tables()
        return torch.ones_like(cos), torch.zeros_like(sin)

    def apply_rotary_(self, x: torch.Tensor, tables: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        """Nothing."""
        return x
