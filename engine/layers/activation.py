"""The gated activation of the feed-forward layer."""

from __future__ import annotations

import torch


def silu_times(gate_up: torch.Tensor) -> torch.Tensor:
    """silu(gate) · up for [rows, gate | up] → [rows, size]: gate · up / (1 + e^-gate).

    Written with `exp` because torch's own silu computes the last few elements of a range with another function, so
    that an element's bits would depend on where threads divide the rows.
    """
    gate, up = gate_up.chunk(2, dim=-1)
    return (gate * up).div_(gate.neg().exp_().add_(1.0))
