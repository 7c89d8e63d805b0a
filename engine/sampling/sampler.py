"""Samples one token per row by its request's parameters, and computes log probabilities of tokens.

The order: logit bias; repetition, frequency and presence penalties; forbidden tokens (`min_tokens`, a grammar), all in
`logit_shaping`; temperature; top-k; top-p (Holtzman et al. 2020); min-p (Nguyen et al. 2024); the draw. Temperature 0
takes the most likely token after the first three. Last, near its token limit, a grammar replaces a token after which
the output could not be completed.

Random numbers are counter-based (`counter_random`), and every operation is row-wise, so that a row's token is the same
in any batch (E1). Tokens that are equally likely at a threshold are all kept, so that the result does not depend on the
order of a sort.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from engine.sampling.counter_random import signed, uniform
from engine.sampling.grammar_allowance import SEARCHES_S, StepAllowance
from engine.sampling.logit_shaping import shape_logits
from engine.sampling.request_state import SamplingState
from engine.sampling.validation import MOST_LOGPROBS
from protocol.requests import TokenLogprob

_NUCLEUS_TRY = 128
"""Most nuclei have fewer tokens than this; a row is fully sorted only if its nucleus has more."""

_LEAST = -9999.0
"""Replaces minus infinity, which JSON cannot express."""


def sample(logits: torch.Tensor, rows: Sequence[SamplingState], allowance: StepAllowance | None = None) -> list[int]:
    """Token ids for the first `len(rows)` rows of fp32 logits [rows, padded vocabulary].

    `allowance`: the step's grammar time. The token of a row that is then `put_off` is meaningless.
    """
    allowance = allowance or StepAllowance()
    tokens = _likeliest(logits[: len(rows)])
    shaped = [index for index, row in enumerate(rows) if row.changes_logits]
    values = None
    if shaped:
        values = shape_logits(logits[shaped].float(), [rows[index] for index in shaped], allowance)
        for index, token in zip(shaped, _likeliest(values), strict=True):
            tokens[index] = token
    drawn = [index for index, row in enumerate(rows) if row.sampling.temperature > 0]
    if drawn:
        chosen = logits[drawn]
        if values is not None:
            places = {index: place for place, index in enumerate(shaped)}
            changed = [at for at, index in enumerate(drawn) if index in places]
            chosen[changed] = values[[places[drawn[at]] for at in changed]]
        above = (chosen - chosen.amax(-1, keepdim=True)).double()
        for index, token in zip(drawn, _draw(above, [rows[index] for index in drawn]), strict=True):
            tokens[index] = token
    if shaped:
        choose_near_limit(tokens, rows, allowance)
    return tokens


def choose_near_limit(tokens: list[int], rows: Sequence[SamplingState], allowance: StepAllowance) -> None:
    """Replace tokens after which an output under a grammar could not be completed within its limit.

    Rows are marked `put_off` where the step has no time left to find that out.
    """
    guided = allowance.begin(rows)
    allowance.grant(SEARCHES_S)
    for index in guided:
        row = rows[index]
        if row.guide is not None and not row.put_off:
            chosen = row.guide.choose_token_within(tokens[index], row.limit - row.drawn, allowance.has_time)
            row.put_off = chosen is None
            tokens[index] = tokens[index] if chosen is None else chosen


def _likeliest(values: torch.Tensor) -> list[int]:
    """The column of each row's largest value, the first among equals."""
    # On the host numpy's argmax is vectorized, torch's is not.
    on_host = values.device.type == "cpu"
    tokens: list[int] = (values.numpy() if on_host else values).argmax(-1).tolist()
    return tokens


def _draw(above: torch.Tensor, rows: Sequence[SamplingState]) -> list[int]:
    """Token ids sampled from float64 logits [rows, vocabulary] whose maximum is 0 in each row; overwrites them."""
    device = above.device

    def column(values: list[float]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.float64, device=device)[:, None]

    temperature = column([row.sampling.temperature for row in rows])
    weights = above.div_(temperature).exp_()
    limited = [at for at, row in enumerate(rows) if row.sampling.top_k > 0]
    if limited:
        _drop(weights, limited, _top_k_least(weights[limited], [rows[at].sampling.top_k for at in limited]))
    narrow = [at for at, row in enumerate(rows) if row.sampling.top_p < 1.0]
    if narrow:
        _drop(weights, narrow, _nucleus_least(weights[narrow], column([rows[at].sampling.top_p for at in narrow])))
    floored = [at for at, row in enumerate(rows) if row.sampling.min_p > 0]
    if floored:
        # The most likely token's weight is 1.
        _drop(weights, floored, column([rows[at].sampling.min_p for at in floored]))
    total = weights.cumsum(-1)
    seeds = torch.tensor([signed(row.sampling.seed) for row in rows], device=device)
    positions = torch.tensor([row.position for row in rows], device=device)
    target = uniform(seeds, positions)[:, None] * total[:, -1:]
    tokens: list[int] = torch.searchsorted(total, target, right=True).squeeze(-1).tolist()
    return tokens


def _drop(weights: torch.Tensor, rows: list[int], least: torch.Tensor) -> None:
    """Set the weights of these rows that lie below `least` [rows, 1] to 0."""
    chosen = weights[rows]
    weights[rows] = chosen.masked_fill_(chosen < least, 0.0)


def _top_k_least(weights: torch.Tensor, counts: Sequence[int]) -> torch.Tensor:
    """[rows, 1] the smallest of each row's `counts` largest weights."""
    counts = [min(count, weights.shape[-1]) for count in counts]
    largest = weights.topk(max(counts), -1).values
    return largest.gather(-1, torch.tensor(counts, device=weights.device)[:, None] - 1)


def _nucleus_least(weights: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """[rows, 1] the smallest weight in each row's nucleus: the fewest most likely tokens that reach `top_p`."""
    # cumsum adds a row from left to right; sum would split a single long row among threads.
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


def logprobs_of(logits: torch.Tensor, tokens: Sequence[int], counts: Sequence[int]) -> list[TokenLogprob]:
    """For each row of fp32 logits [rows, padded vocabulary]: the log probability of its token in `tokens` [rows], and
    its most likely tokens, as many as its number in `counts` [rows].

    By the model's own distribution, before bias, penalties, grammar and temperature. With the same top-k whatever is
    asked, so that a row's values are the same in any batch. Computed in float64, returned as float32.
    """
    return told_logprobs(logprob_values(logits, torch.tensor(tokens, device=logits.device)), counts)


def logprob_values(logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """What `told_logprobs` reads, on the device: float64 [rows, 1 + 2 · likeliest].

    Of each row the log probability of its token, then the ids of its likeliest tokens, then their log probabilities.
    """
    values = logits.double()
    highest = values.amax(-1, keepdim=True)
    total = highest + _row_sums((values - highest).exp_()).log()
    chosen = values.gather(-1, tokens.long()[:, None]) - total
    best = logits.topk(min(MOST_LOGPROBS, logits.shape[-1]), -1)
    return torch.cat([_rounded(chosen), best.indices.double(), _rounded(best.values.double() - total)], -1)


def _row_sums(weights: torch.Tensor) -> torch.Tensor:
    """[rows, 1] the sums of rows of float64, each with the same bits whatever rows are beside it."""
    if weights.device.type == "cpu":
        # cumsum adds a row from left to right; sum would split a single long row among threads.
        return weights.cumsum(-1)[:, -1:]
    # On a GPU both cut a row into parts by the number of rows. Halves are added element by element.
    while (width := weights.shape[-1]) > 1:
        half = width // 2
        sums = weights[:, :half] + weights[:, width - half :]
        weights = sums if width % 2 == 0 else torch.cat([sums, weights[:, half : half + 1]], -1)
    return weights


def told_logprobs(values: torch.Tensor, counts: Sequence[int]) -> list[TokenLogprob]:
    """The log probabilities of rows of `logprob_values`."""
    likeliest = values.shape[-1] // 2
    ids, tops = values[:, 1 : 1 + likeliest].long().tolist(), values[:, 1 + likeliest :].tolist()
    return [
        TokenLogprob(logprob, _most_likely(ids[at], tops[at], counts[at]))
        for at, logprob in enumerate(values[:, 0].tolist())
    ]


def _rounded(logprobs: torch.Tensor) -> torch.Tensor:
    """float32 values, in float64."""
    return logprobs.float().clamp_min_(_LEAST).double()


def _most_likely(ids: list[int], logprobs: list[float], count: int) -> tuple[tuple[int, float], ...]:
    return tuple(sorted(zip(ids, logprobs, strict=True), key=lambda pair: (-pair[1], pair[0]))[:count])
