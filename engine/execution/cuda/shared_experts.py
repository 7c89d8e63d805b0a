"""Experts that all rows have beside the chosen ones, as further experts of a mixture.

Such a feed-forward layer is as several experts of the others' size beside each other: its inner elements are theirs,
one behind the other. Each of them takes slices of its weights.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch

from engine.execution.cuda.linears import fp8_weight
from engine.layers.feed_forward import FeedForward
from engine.layers.moe import Expert

Slices: TypeAlias = Callable[[torch.Tensor], list[torch.Tensor]]
"""The weight, or the scales, of experts that all rows have → those of each, as one of the others has them."""


def unlike(shared: Expert, expert: Expert) -> str | None:
    """Why what all rows have cannot be taken for several experts like this one."""
    if not isinstance(shared, FeedForward) or not isinstance(expert, FeedForward) or shared.inner % expert.inner:
        return f"beside the experts there is {type(shared).__name__}"
    if shared.gate_up.bias is not None or (fp8_weight(shared.down) is None) is not (fp8_weight(expert.down) is None):
        return "shared experts are kept in another way"
    return None


def sides_of(count: int) -> Slices:
    """Slices of outputs that are first all of the gate's, then all of up's."""

    def slices(x: torch.Tensor) -> list[torch.Tensor]:
        sides = x.view(2, count, -1, *x.shape[1:])
        return [sides[:, at].flatten(0, 1) for at in range(count)]

    return slices


def columns_of(count: int) -> Slices:
    """Of inputs."""
    return lambda weight: list(weight.chunk(count, 1))


def repeats_of(count: int) -> Slices:
    """What all of them have in common."""
    return lambda scales: [scales] * count


def narrowed(gate: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """A router's weight in the model's type where that loses nothing: products are as exact, and quicker."""
    narrow = gate.to(dtype)
    return narrow if torch.equal(narrow.to(gate.dtype), gate) else gate
