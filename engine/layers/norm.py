"""Root-mean-square normalization."""

from __future__ import annotations

import torch
from torch.nn.functional import rms_norm

from engine.weights.checkpoint import Checkpoint


class RmsNorm:
    """x / rms(x) · w, each row by itself."""

    def __init__(self, weight: torch.Tensor, eps: float) -> None:
        self.weight = weight
        self.eps = eps
        self.shape = tuple(weight.shape)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[rows, hidden] → the same."""
        return rms_norm(x, self.shape, self.weight, self.eps)


def load_norm(checkpoint: Checkpoint, name: str, size: int, eps: float, like: torch.Tensor) -> RmsNorm:
    """The norm with the weight `name`.weight of `size` elements."""
    weight = like.new_empty(size)
    checkpoint.load(f"{name}.weight", weight)
    return RmsNorm(weight, eps)
