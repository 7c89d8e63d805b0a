"""The gated feed-forward layer (Shazeer 2020): Wdown · (act(Wgate · x) ⊙ Wup · x), gate and up as one product."""

from __future__ import annotations

import torch

from engine.errors import ModelError
from engine.layers.activation import GATED
from engine.layers.linear import Linear
from engine.layers.loader import Loader
from engine.layers.moe import StackedExperts

PARTS = "gate_proj", "up_proj", "down_proj"


class FeedForward:
    """The layer `name` with inner size `inner`. `parts`: the names of its gate, up and down projections.
    `into`: memory for the weights of both products.

    Raises ModelError for an activation that is not supported.
    """

    def __init__(
        self,
        load: Loader,
        name: str,
        inner: int,
        parts: tuple[str, str, str] = PARTS,
        into: tuple[torch.Tensor | None, torch.Tensor | None] = (None, None),
    ) -> None:
        config = load.config
        activation = GATED.get(config.activation)
        if activation is None:
            raise ModelError(f"{config.fields.path}: hidden_act {config.activation!r} is not supported")
        self.activation = activation
        self.inner = inner
        gate, up, down = (f"{name}.{part}" for part in parts)
        bias = config.mlp_bias
        self.gate_up: Linear = load.fused(
            f"{name}.gate_up_proj", [gate, up], [inner] * 2, config.hidden, bias=bias, into=into[0]
        )
        self.down: Linear = load.linear([down], [config.hidden], inner, bias=bias, into=into[1])

    def __call__(self, x: torch.Tensor, plus: torch.Tensor | None = None) -> torch.Tensor:
        """[rows, hidden] → the same, to which `plus` is added if given."""
        gate_up = self.gate_up(x)
        gate, up = gate_up.narrow(1, 0, self.inner), gate_up.narrow(1, self.inner, self.inner)
        return self.down(self.activation(gate, up), plus)


def load_experts(
    load: Loader, names: str, count: int, inner: int, parts: tuple[str, str, str] = PARTS
) -> tuple[list[FeedForward], StackedExperts | None]:
    """The experts `names`.0 to `names`.`count` − 1, and their weights, where those are slices of one tensor."""
    hidden = load.config.hidden
    gate_up, down = load.stack(count, 2 * inner, hidden), load.stack(count, hidden, inner)
    stacks = [(None, None)] * count if gate_up is None or down is None else list(zip(gate_up, down, strict=True))
    experts = [FeedForward(load, f"{names}.{expert}", inner, parts, into) for expert, into in enumerate(stacks)]
    if gate_up is None:
        return experts, StackedExperts.of_codes([one.gate_up for one in experts], [one.down for one in experts])
    return experts, StackedExperts.of(gate_up, down, (expert.gate_up for expert in experts))
