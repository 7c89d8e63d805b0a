"""Log probabilities of tokens by the model's own distribution: before bias, penalties, grammar and temperature.

Every operation is row-wise, and as many likeliest tokens are looked for whatever is asked, so that a row's values are
the same in any batch. Computed in float64, told as float32.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from engine.sampling.validation import MOST_LOGPROBS
from protocol.requests import TokenLogprob

_LEAST = -9999.0
"""Stands for minus infinity, which JSON has not."""


def logprobs_of(logits: torch.Tensor, tokens: Sequence[int], counts: Sequence[int]) -> list[TokenLogprob]:
    """For each row of fp32 logits [rows, padded vocabulary]: its token's, and its `counts` likeliest tokens'."""
    values = logits.double()
    highest = values.amax(-1, keepdim=True)
    # cumsum adds a row from left to right; sum would cut a long row among threads when it is the only one.
    total = highest + (values - highest).exp_().cumsum(-1)[:, -1:].log()
    chosen = values.gather(-1, torch.tensor(tokens, device=logits.device)[:, None]) - total
    best = logits.topk(min(MOST_LOGPROBS, logits.shape[-1]), -1)
    ids, tops = best.indices.tolist(), _told(best.values.double() - total)
    return [
        TokenLogprob(logprob, _likeliest(ids[at], tops[at], counts[at])) for at, (logprob,) in enumerate(_told(chosen))
    ]


def _told(logprobs: torch.Tensor) -> list[list[float]]:
    values: list[list[float]] = logprobs.float().clamp_min_(_LEAST).tolist()
    return values


def _likeliest(ids: list[int], logprobs: list[float], count: int) -> tuple[tuple[int, float], ...]:
    return tuple(sorted(zip(ids, logprobs, strict=True), key=lambda pair: (-pair[1], pair[0]))[:count])
