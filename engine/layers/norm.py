"""Normalization: by the root mean square (Zhang and Sennrich 2019), and of mean and variance (Ba et al. 2016)."""

from __future__ import annotations

from typing import TypeAlias

import torch
from torch.nn.functional import layer_norm, rms_norm

from engine.weights.checkpoint import Checkpoint


class RmsNorm:
    """x / rms(x) · w over the last dimension, each row by itself; in fp32 if w is of that type."""

    def __init__(self, weight: torch.Tensor, eps: float) -> None:
        self.weight = weight
        self.eps = eps
        self.shape = tuple(weight.shape)
        # x / rms(x) · w = x / √(Σ x² + n · eps) · (w · √n), which takes fewer calls.
        size = weight.shape[0]
        self._plain = weight.dtype == torch.float32 and weight.device.type == "cpu"
        self._stretched = weight * size**0.5
        self._least = weight.new_tensor([eps * size])

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[..., size] → the same."""
        if self._plain and x.dtype == torch.float32:
            squares = (x * x).sum(-1, keepdim=True)
            return squares.add_(self._least).rsqrt_().mul(x).mul_(self._stretched)
        if x.dtype != self.weight.dtype:
            return rms_norm(x.to(self.weight.dtype), self.shape, self.weight, self.eps).to(x.dtype)
        return rms_norm(x, self.shape, self.weight, self.eps)


class LayerNorm:
    """(x − mean) / √(variance + eps) · w + b over the last dimension, each row by itself."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor, eps: float) -> None:
        self.weight = weight
        self.bias = bias
        self.eps = eps
        self.shape = tuple(weight.shape)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[..., size] → the same."""
        return layer_norm(x, self.shape, self.weight, self.bias, self.eps)


Norm: TypeAlias = RmsNorm | LayerNorm


def load_norm(
    checkpoint: Checkpoint, name: str, size: int, eps: float, like: torch.Tensor, *, plus_one: bool = False
) -> RmsNorm:
    """The norm with the weight `name`.weight of `size` elements.

    `plus_one`: Hugging Face stores it as w − 1 (Gemma). w is then in fp32, since bf16 has too few digits near 1.
    """
    weight = like.new_empty(size, dtype=torch.float32 if plus_one else like.dtype)
    checkpoint.load(f"{name}.weight", weight)
    return RmsNorm(weight.add_(1.0) if plus_one and not checkpoint.norms_are_whole else weight, eps)
