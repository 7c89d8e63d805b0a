"""What a layer's parts add to the hidden states, with norms behind them and factors, and the head with soft caps."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from engine.execution.cuda.experts import Mixed
from engine.execution.cuda.fused_pass import Input, Pass
from engine.execution.cuda.linears import ExactLinear
from engine.kernels.expert_routing import combine_and_norm
from engine.kernels.rows import cap_logits, rms_norm
from engine.layers.embedding import Head
from engine.layers.norm import LayerNorm, Norm, RmsNorm


@dataclass(frozen=True)
class Part:
    """Rows that are to be added to the hidden states: normalized by `norm` if there is one, then times `factor`."""

    rows: torch.Tensor
    norm: RmsNorm | None
    factor: float


class FusedHead(ExactLinear):
    """The head: its logits are divided and softly capped, each once rounded, as those of transformers are."""

    def __init__(self, head: Head) -> None:
        super().__init__(head.linear)
        self._cap, self._divisor = head.cap, head.divisor

    def __call__(
        self,
        x: torch.Tensor,
        scales: torch.Tensor | None = None,
        out: torch.Tensor | None = None,
        *,
        streamed: bool = False,
    ) -> torch.Tensor:
        """See `ExactLinear`."""
        logits = super().__call__(x, scales, out, streamed=streamed)
        if self._cap is not None or self._divisor != 1.0:
            cap_logits(logits, self._cap, self._divisor)
        return logits


def normalized(h: torch.Tensor, norm: Norm | None, plus: Part | Mixed | None, in_fp8: bool, how: Pass) -> Input:
    """Add `plus` to h in place, and return the norm of the sum; without `norm` the sum."""
    out = how.memory(h, h.shape[1], in_fp8=in_fp8)
    values, scales, ahead = out.values, out.scales, how.streamed
    if isinstance(plus, Mixed):
        assert isinstance(norm, RmsNorm)
        combine_and_norm(h, plus.results, plus.routes, norm.weight, norm.eps, values, scales=scales, ahead=ahead)
        if out.plain is not values:
            rms_norm(h, norm.weight, norm.eps, out.plain)  # the sum is in h already
        return out
    behind = None if plus is None or plus.norm is None else (plus.norm.weight, plus.norm.eps)
    rms_norm(
        h, None if norm is None else norm.weight, 0.0 if norm is None else norm.eps, values,
        bias=norm.bias if isinstance(norm, LayerNorm) else None, plus=None if plus is None else plus.rows,
        behind=behind, factor=1.0 if plus is None else plus.factor, scales=scales, ahead=ahead, plain=out.plain,
    )  # fmt: skip
    return out
