"""Draw one token per row: greedy, or by temperature and nucleus (top-p) with counter-based random numbers.

Every operation is row-wise in float64, so that a row's token is the same in any batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from engine.protocol import Sampling
from engine.sampling.counter_random import uniform

_NUCLEUS_TRY = 128
"""Most nuclei have fewer tokens than this: only where one has more is a row sorted in full."""


@dataclass(frozen=True)
class Draw:
    """How one row is drawn: its parameters, and the position of the token in its sequence."""

    sampling: Sampling
    position: int


def sample(logits: torch.Tensor, draws: Sequence[Draw]) -> list[int]:
    """Token ids for the first `len(draws)` rows of fp32 logits [rows, padded vocabulary]."""
    tokens: list[int] = logits[: len(draws)].argmax(-1).tolist()
    drawn = [row for row, draw in enumerate(draws) if draw.sampling.temperature > 0]
    if drawn:
        chosen = _draw(logits[drawn], [draws[row] for row in drawn])
        for row, token in zip(drawn, chosen, strict=True):
            tokens[row] = token
    return tokens


def _draw(logits: torch.Tensor, draws: Sequence[Draw]) -> list[int]:
    device = logits.device

    def column(values: list[float]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.float64, device=device)[:, None]

    temperature = column([draw.sampling.temperature for draw in draws])
    scaled = (logits - logits.amax(-1, keepdim=True)).double() / temperature
    weights = scaled.exp_()
    narrow = [row for row, draw in enumerate(draws) if draw.sampling.top_p < 1.0]
    if narrow:
        kept = weights[narrow]
        least = _nucleus_least(kept, column([draws[row].sampling.top_p for row in narrow]))
        weights[narrow] = kept.masked_fill_(kept < least, 0.0)
    total = weights.cumsum(-1)
    seeds = torch.tensor([_signed(draw.sampling.seed) for draw in draws], device=device)
    positions = torch.tensor([draw.position for draw in draws], device=device)
    target = uniform(seeds, positions)[:, None] * total[:, -1:]
    tokens: list[int] = torch.searchsorted(total, target, right=True).squeeze(-1).tolist()
    return tokens


def _signed(seed: int) -> int:
    """The seed's low 64 bits as a signed integer."""
    return ((seed + 2**63) % 2**64) - 2**63


def _nucleus_least(weights: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """[rows, 1] the smallest weight in each row's nucleus: the fewest most likely tokens that reach `top_p`.

    Tokens as likely as the last one belong to it too, so that the nucleus does not depend on the order of a sort.
    """
    # cumsum adds a row from left to right; sum would cut a long row among threads when it is the only one.
    reach = top_p * weights.cumsum(-1)[:, -1:]
    first = weights.topk(min(_NUCLEUS_TRY, weights.shape[-1]), -1).values
    least, reached = _where_reached(first, reach)
    if not bool(reached.all()):
        full, _ = _where_reached(weights.sort(-1, descending=True).values, reach)
        least = torch.where(reached, least, full)
    return least


def _where_reached(descending: torch.Tensor, reach: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    total = descending.cumsum(-1)
    count = (total < reach).sum(-1, keepdim=True)
    size = descending.shape[-1]
    return descending.gather(-1, count.clamp_max_(size - 1)), total[:, -1:] >= reach
