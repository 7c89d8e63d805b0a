"""The activations of the feed-forward layer, gated and alone, by their names in configurations.

They use `exp`, `tanh` and `erf` of whole tensors: torch's silu and gelu compute the last few elements of a range by
another function, so that an element's bits would depend on how threads divide the rows (E1).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

import torch


@cache
def _one(dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """1 as a tensor, since torch takes longer to add a number."""
    return torch.ones(1, dtype=dtype, device=device)


def silu_times(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """silu(gate) · up = gate · up / (1 + e^-gate); all of the same shape."""
    return (gate * up).div_(gate.neg().exp_().add_(_one(gate.dtype, gate.device)))


def gelu_tanh_times(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """gelu(gate) · up with the tanh approximation of gelu; all of the same shape."""
    inner = (gate * gate).mul_(gate).mul_(0.044715).add_(gate).mul_(math.sqrt(2 / math.pi))
    return inner.tanh_().add_(1.0).mul_(gate).mul_(0.5).mul_(up)


def gelu_times(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """gelu(gate) · up, all of the same shape; gelu(x) = x · ½ (1 + erf(x / √2))."""
    return (gate * math.sqrt(0.5)).erf_().add_(1.0).mul_(gate).mul_(0.5).mul_(up)


def _alone(times: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda x: times(x, _one(x.dtype, x.device))


GATED: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "silu": silu_times,
    "gelu": gelu_times,
    "gelu_pytorch_tanh": gelu_tanh_times,
}
PLAIN: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    **{name: _alone(times) for name, times in GATED.items()},
    "gelu_new": _alone(gelu_tanh_times),
    "relu": torch.relu,
}
