"""Mixtures of experts (Shazeer et al. 2017): a router chooses a few experts for each token.

Each expert's rows are computed as one product, padded as the tiling says. A token's experts are added in the order of
their ranks, in fp32, and rounded once. So a token's bits do not depend on which other tokens chose its experts (E1).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch

from engine.layers.linear import Linear, PackedLinear
from engine.quantization.packed import PackedWeight

Router: TypeAlias = Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]
"""Router logits [rows, experts] in fp32 → chosen experts [rows, k] and their weights [rows, k]."""
Expert: TypeAlias = Callable[[torch.Tensor], torch.Tensor]
"""[rows, hidden] → the same; rows padded as the tiling says."""


def softmax(logits: torch.Tensor) -> torch.Tensor:
    """Softmax of each row, its sum taken from left to right."""
    weights = (logits - logits.amax(-1, keepdim=True)).exp_()
    return weights / weights.cumsum(-1)[:, -1:]


def normalized(weights: torch.Tensor) -> torch.Tensor:
    """Weights [rows, k] divided by their sum, taken from left to right."""
    return weights / weights.cumsum(-1)[:, -1:]


def highest(scores: torch.Tensor, count: int) -> torch.Tensor:
    """[rows, count] indices of the highest scores of each row, the best first; among equals the first.

    By a stable sort, since `topk` does not specify the order of equals.
    """
    indices: torch.Tensor = scores.sort(stable=True, dim=-1, descending=True).indices
    return indices[:, :count]


@dataclass(frozen=True)
class TopExperts:
    """The router that most families have: the `ranks` experts of the highest logits, among equals the first.

    Their weights are the softmax over all experts, or with `normalize` over the chosen ones: the same as the softmax
    over all, divided by its sum over these.
    """

    ranks: int
    normalize: bool

    def __call__(self, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """See `Router`."""
        chosen = highest(logits, self.ranks)
        if self.normalize:
            return chosen, softmax(logits.gather(1, chosen))
        return chosen, softmax(logits).gather(1, chosen)


@dataclass(frozen=True)
class StackedExperts:
    """The weights of all experts, of which each expert's products have slices; there may be free slices behind them.

    `gate_up` [experts, 2 · inner, hidden], first all of the gate, then all of up; `down` [experts, hidden, inner]. Of
    weights that are kept in codes of 8 bits they are the codes.
    """

    gate_up: torch.Tensor
    down: torch.Tensor

    @classmethod
    def of(
        cls, gate_up: torch.Tensor | None, down: torch.Tensor | None, products: Iterable[Linear]
    ) -> StackedExperts | None:
        """The experts of these `products`; None if they are not stacked, or more than weights."""
        if gate_up is None or down is None or any(product.output_scales is not None for product in products):
            return None
        return cls(gate_up, down)

    @classmethod
    def of_codes(cls, gate_up: Sequence[Linear], down: Sequence[Linear], beside: int = 0) -> StackedExperts | None:
        """Move the codes of these packed products to one tensor each; None if they are no codes of 8 bits. `beside`:
        slices that are left free."""
        if not (_are_codes(gate_up) and _are_codes(down)):
            return None
        return cls(_stacked_codes(gate_up, beside), _stacked_codes(down, beside))


def _are_codes(products: Sequence[Linear]) -> bool:
    """Whether each of them is one packed weight, with a code of 8 bits for each input."""
    pieces = [product.pieces for product in products if isinstance(product, PackedLinear)]
    if len(pieces) < len(products):
        return False
    return all(
        len(each) == 1 and isinstance(each[0], PackedWeight) and each[0].codes.shape[1] == each[0].inputs
        for each in pieces
    )


def _stacked_codes(products: Sequence[Linear], beside: int) -> torch.Tensor:
    packed = [product for product in products if isinstance(product, PackedLinear)]
    first = packed[0].pieces[0]
    assert isinstance(first, PackedWeight)
    stack = first.codes.new_empty(len(packed) + beside, *first.codes.shape)
    for product, memory in zip(packed, stack[: len(packed)], strict=True):
        product.move_codes(memory)
    return stack


class MixtureOfExperts:
    """Σ over the chosen experts of weight · expert(x). `stacked`: their weights, if they are slices of one tensor."""

    def __init__(
        self, gate: Linear, router: Router, experts: Sequence[Expert], stacked: StackedExperts | None = None
    ) -> None:
        self.gate = gate
        self.router = router
        self.experts = experts
        self.stacked = stacked

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[rows, hidden] → the same."""
        chosen, weights = self.router(self.gate(x.to(self.gate.dtype)).float()[:, : len(self.experts)])
        rows, ranks = chosen.shape
        # Pairs of row and rank, in order of the expert, then of the row.
        order = chosen.reshape(-1).argsort(stable=True)
        counts = chosen.reshape(-1).bincount(minlength=len(self.experts)).tolist()
        results = x.new_empty(rows * ranks, x.shape[1])
        for expert, pairs in zip(self.experts, torch.split(order, counts), strict=True):
            if len(pairs):
                padded = x.new_zeros(len(pairs) + self.gate.tiling.padding(len(pairs)), x.shape[1])
                padded[: len(pairs)] = x[pairs // ranks]
                results[pairs] = expert(padded)[: len(pairs)]
        results = results.view(rows, ranks, -1)
        total = results[:, 0] * weights[:, :1]
        for rank in range(1, ranks):
            total = total + results[:, rank] * weights[:, rank : rank + 1]
        return total.to(x.dtype)
