"""The weights of all experts of a mixture as one tensor, with those of experts that all rows have behind them.

A feed-forward layer that all rows have is as several experts of the others' size beside each other: its inner elements
are theirs, one behind the other. Each of them takes slices of its weights.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch

from engine.execution.cuda.linears import fp8_weight
from engine.layers.feed_forward import FeedForward
from engine.layers.linear import Linear
from engine.layers.moe import Expert

Slices: TypeAlias = Callable[[torch.Tensor], list[torch.Tensor]]
"""The weight, or the scales, of experts that all rows have → those of each, as one of the others has them."""


Shared: TypeAlias = tuple[Linear, Slices, Slices]
"""A product of experts that all rows have, with slices of its weight and of its scales."""


def stacked_weights(
    products: Sequence[Linear], stacked: torch.Tensor | None, shared: Shared | None
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None, torch.dtype]:
    """The weight of all experts' `products`, their biases, the scales of a weight in e4m3, and the outputs' type.

    `stacked`: their weights, if these are slices of one tensor; it then has room for those of `shared`.
    """
    biases = [product.bias for product in products if product.bias is not None]
    bias = torch.stack(biases) if biases else None
    kept = [piece for product in products if (piece := fp8_weight(product)) is not None]
    weights = [piece.codes for piece in kept] or [product.weight for product in products]
    scales = [piece.scales.view(-1) for piece in kept]
    further: list[torch.Tensor] = []
    if shared is not None:
        product, weights_of, scales_of = shared
        piece = fp8_weight(product)
        further = weights_of(product.weight if piece is None else piece.codes)
        scales += [] if piece is None else scales_of(piece.scales.view(-1))
    if stacked is None:
        stacked = torch.stack([*weights, *further])
    else:
        with torch.inference_mode():  # in which weights are loaded
            for memory, weight in zip(stacked[len(weights) :], further, strict=True):
                memory.copy_(weight)
    if not kept:
        return stacked, bias, None, products[0].dtype
    return stacked.view(torch.float8_e4m3fn), bias, torch.stack(scales).float(), products[0].dtype


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
