"""The gated feed-forward layer (Shazeer 2020): Wdown · (act(Wgate · x) ⊙ Wup · x), gate and up as one product."""

from __future__ import annotations

import torch

from engine.errors import ModelError
from engine.layers.activation import GATED, PLAIN
from engine.layers.linear import Linear
from engine.layers.loader import Loader
from engine.layers.moe import StackedExperts

PARTS = "gate_proj", "up_proj", "down_proj"


class FeedForward:
    """The layer `name` with inner size `inner`. `parts`: the names of its gate, up and down projections.
    `into`: memory for the weights of both products. `activation`: the configuration's if None.

    Raises ModelError for an activation that is not supported.
    """

    def __init__(
        self,
        load: Loader,
        name: str,
        inner: int,
        parts: tuple[str, str, str] = PARTS,
        into: tuple[torch.Tensor | None, torch.Tensor | None] = (None, None),
        *,
        activation: str | None = None,
    ) -> None:
        config = load.config
        name_of = config.activation if activation is None else activation
        activation_of = GATED.get(name_of)
        if activation_of is None:
            raise ModelError(f"{config.fields.path}: hidden_act {name_of!r} is not supported")
        self.activation = activation_of
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


class PlainFeedForward:
    """Wdown · act(Wup · x + b) + b, the layer before gates: `parts` are the names of both projections in `name`."""

    def __init__(self, load: Loader, name: str, parts: tuple[str, str], *, bias: bool) -> None:
        config = load.config
        activation = PLAIN.get(config.activation)
        if activation is None:
            raise ModelError(f"{config.fields.path}: hidden_act {config.activation!r} is not supported")
        self.activation = activation
        self.up = load.linear([f"{name}.{parts[0]}"], [config.intermediate], config.hidden, bias=bias)
        self.down = load.linear([f"{name}.{parts[1]}"], [config.hidden], config.intermediate, bias=bias)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[rows, hidden] → the same."""
        return self.down(self.activation(self.up(x)))


class SigmoidGated:
    """sigmoid(Wgate · x) · part(x), with a gate of one number for each row (Qwen2-MoE's shared expert)."""

    def __init__(self, load: Loader, gate: str, part: FeedForward) -> None:
        self.part = part
        self.gate = load.gate(gate, 1)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[rows, hidden] → the same."""
        gate = self.gate(x)[:, :1]
        return self.part(x) / (1.0 + gate.neg().exp_())


def load_experts(
    load: Loader, names: str, count: int, inner: int, parts: tuple[str, str, str] = PARTS, *, beside: int = 0
) -> tuple[list[FeedForward], StackedExperts | None]:
    """The experts `names`.0 to `names`.`count` − 1, and their weights, where those are slices of one tensor.

    `beside`: so many more slices are left free, for experts that all tokens have.
    """
    hidden, slices = load.config.hidden, count + beside
    gate_up, down = load.stack(slices, 2 * inner, hidden), load.stack(slices, hidden, inner)
    stacks = (
        [(None, None)] * count if gate_up is None or down is None else list(zip(gate_up, down, strict=False))[:count]
    )
    experts = [FeedForward(load, f"{names}.{expert}", inner, parts, into) for expert, into in enumerate(stacks)]
    if gate_up is None:
        return experts, StackedExperts.of_codes([one.gate_up for one in experts], [one.down for one in experts], beside)
    return experts, StackedExperts.of(gate_up, down, (expert.gate_up for expert in experts))
