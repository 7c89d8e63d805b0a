"""Matrix products whose rows do not depend on how many rows there are.

CPU matrix kernels take other paths for 1, 2 and 3 rows; from multiples of 8 the bits of a row were the same at every
count on all machines tried. So the engine pads its rows to `ROW_MULTIPLE`, and the self-test at start checks it at the
model's shapes; where it fails, `row_tile` makes every product one of exactly that many rows, which is slow and right.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn.functional import linear as product

from engine.weights.checkpoint import Checkpoint

ROW_MULTIPLE = 8


@dataclass
class Tiling:
    """How matrix products are cut on this machine. `row_tile` None: as they come, in multiples of `ROW_MULTIPLE`."""

    row_tile: int | None = None


class Linear:
    """y = x Wᵀ + b for one or several fused projections: W is [sum of outputs, inputs]."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None, tiling: Tiling) -> None:
        self.weight = weight
        self.bias = bias
        self.tiling = tiling

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[rows, inputs] → [rows, outputs]; rows a multiple of `ROW_MULTIPLE`."""
        tile = self.tiling.row_tile
        if tile is None or x.shape[0] <= tile:
            return product(x, self.weight, self.bias)
        return torch.cat([product(rows, self.weight, self.bias) for rows in torch.split(x, tile)])


def load_linear(
    checkpoint: Checkpoint,
    names: list[str],
    outputs: list[int],
    inputs: int,
    *,
    bias: bool,
    like: torch.Tensor,
    tiling: Tiling,
) -> Linear:
    """Fuse the projections `names` (without `.weight`) with these output sizes into one Linear of `like`'s kind."""
    weight = like.new_empty(sum(outputs), inputs)
    biases = like.new_empty(sum(outputs)) if bias else None
    for name, rows in zip(names, torch.split(weight, outputs), strict=True):
        checkpoint.load(f"{name}.weight", rows)
    if biases is not None:
        for name, part in zip(names, torch.split(biases, outputs), strict=True):
            checkpoint.load(f"{name}.bias", part)
    return Linear(weight, biases, tiling)
