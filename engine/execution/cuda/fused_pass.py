"""How a pass of the fused decoder computes its products: begun ahead or not, with adapters in some rows or in none."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from engine.execution.cuda.adapters import AdaptedRows
from engine.execution.cuda.linears import ExactLinear, input_memory


@dataclass(frozen=True)
class Input:
    """What a linear layer takes: rows, and their scales where they are e4m3. `plain`: what adapters take, the same rows
    in the model's type."""

    values: torch.Tensor
    scales: torch.Tensor | None
    plain: torch.Tensor


@dataclass(frozen=True)
class Pass:
    """`streamed`: see `FusedDecoder`; `adapted`: which of its rows have adapters."""

    streamed: bool
    adapted: AdaptedRows | None

    def product(self, linear: ExactLinear, name: str, x: Input) -> torch.Tensor:
        """The result of a linear layer, with what adapters add to their `name`."""
        if self.adapted is None:
            return linear(x.values, x.scales, streamed=self.streamed)
        self.adapted.shrink(name, x.plain, ahead=self.streamed)
        y = linear(x.values, x.scales, streamed=self.streamed)
        self.adapted.expand(name, y, ahead=self.streamed)
        return y

    def memory(self, like: torch.Tensor, size: int, *, in_fp8: bool) -> Input:
        """Memory for the rows of an input that is still to be computed, as many as `like` has."""
        values, scales = input_memory(like, size, in_fp8)
        apart = in_fp8 and self.adapted is not None
        plain = torch.empty(len(like), size, dtype=like.dtype, device=like.device) if apart else values
        return Input(values, scales, plain)
