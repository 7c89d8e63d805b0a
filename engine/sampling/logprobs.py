"""Log probabilities of tokens under the model's own distribution, before bias, penalties, grammar and temperature.

Every operation is row-wise, with the same top-k whatever is asked, so that a row's values are the same in any batch
(E1). Computed in float64, returned as float32.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from engine.sampling.validation import MOST_LOGPROBS
from protocol.requests import TokenLogprob

_LEAST = -9999.0
"""Replaces minus infinity, which JSON cannot express."""


def logprobs_of(logits: torch.Tensor, tokens: Sequence[int], counts: Sequence[int]) -> list[TokenLogprob]:
    """For each row of fp32 logits [rows, padded vocabulary]: the log probability of its token in `tokens` [rows], and
    its most likely tokens, as many as its number in `counts` [rows]."""
    values = logits.double()
    highest = values.amax(-1, keepdim=True)
    # cumsum adds a row from left to right; sum would split a single long row among threads.
    total = highest + (values - highest).exp_().cumsum(-1)[:, -1:].log()
    chosen = values.gather(-1, torch.tensor(tokens, device=logits.device)[:, None]) - total
    best = logits.topk(min(MOST_LOGPROBS, logits.shape[-1]), -1)
    ids, tops = best.indices.tolist(), _as_lists(best.values.double() - total)
    return [
        TokenLogprob(logprob, _likeliest(ids[at], tops[at], counts[at]))
        for at, (logprob,) in enumerate(_as_lists(chosen))
    ]


def _as_lists(logprobs: torch.Tensor) -> list[list[float]]:
    values: list[list[float]] = logprobs.float().clamp_min_(_LEAST).tolist()
    return values


def _likeliest(ids: list[int], logprobs: list[float], count: int) -> tuple[tuple[int, float], ...]:
    return tuple(sorted(zip(ids, logprobs, strict=True), key=lambda pair: (-pair[1], pair[0]))[:count])
