"""Muon for the matrices (Jordan et al., 2024), AdamW for the rest: it memorizes a small corpus in fewer steps."""

from __future__ import annotations

from collections import defaultdict

import torch
from torch import Tensor, nn


class Muon:
    """Momentum whose update is made orthogonal, so that rare directions of a matrix learn as fast as common ones."""

    def __init__(self, matrices: list[nn.Parameter], momentum: float = 0.95, decay: float = 0.05) -> None:
        self.momentum, self.decay = momentum, decay
        alike: dict[torch.Size, list[nn.Parameter]] = defaultdict(list)
        for matrix in matrices:
            alike[matrix.shape].append(matrix)
        self.groups = [
            (group, torch.zeros(len(group), *shape, device=group[0].device)) for shape, group in alike.items()
        ]

    @torch.no_grad()
    def step(self, rate: float) -> None:
        """Updates all matrices of one shape together."""
        for group, velocity in self.groups:
            gradient = torch.stack([matrix.grad for matrix in group if matrix.grad is not None])
            velocity.lerp_(gradient, 1 - self.momentum)
            update = orthogonal(gradient.lerp(velocity, self.momentum))
            rows, columns = update.shape[-2:]
            scale = rate * max(1.0, rows / columns) ** 0.5
            torch._foreach_mul_(group, 1 - rate * self.decay)
            torch._foreach_add_(group, list(update.float().unbind()), alpha=-scale)


def orthogonal(matrices: Tensor, steps: int = 5) -> Tensor:
    """The nearest half-orthogonal matrices [n, rows, columns], roughly, by a quintic Newton–Schulz iteration."""
    a, b, c = 3.4445, -4.7750, 2.0315
    x = matrices.bfloat16() if matrices.is_cuda else matrices
    tall = x.shape[-2] > x.shape[-1]
    x = x.mT if tall else x
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        square = x @ x.mT
        x = a * x + (b * square + c * square @ square) @ x
    return x.mT if tall else x


class Optimizer:
    """Both optimizers behind one step. The rate is a factor of 1 at its height."""

    def __init__(self, model: nn.Module, matrix_rate: float = 0.02, other_rate: float = 3e-3) -> None:
        named = list(model.named_parameters())
        self.parameters = [weight for _, weight in named]
        matrices = [weight for name, weight in named if weight.dim() == 2 and "embed" not in name]
        others = [weight for name, weight in named if weight.dim() != 2 or "embed" in name]
        self.matrix_rate, self.other_rate = matrix_rate, other_rate
        self.muon = Muon(matrices)
        self.adam = torch.optim.AdamW(
            others, lr=other_rate, betas=(0.9, 0.95), weight_decay=0.0, fused=others[0].is_cuda
        )

    def step(self, factor: float) -> None:
        torch.nn.utils.clip_grad_norm_(self.parameters, 1.0)
        self.muon.step(self.matrix_rate * factor)
        for group in self.adam.param_groups:
            group["lr"] = self.other_rate * factor
        self.adam.step()
        for weight in self.parameters:
            weight.grad = None
