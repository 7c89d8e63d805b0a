"""Draw one token per row, each by its own request's parameters, with counter-based random numbers.

In this order, which is the usual one: logit bias; repetition, frequency and presence penalties; forbidden tokens
(`min_tokens`, a grammar); temperature; top-k; top-p (Holtzman et al. 2020); min-p (Nguyen et al. 2024); the draw.
Temperature 0 takes the likeliest token after the first three. The first three are in `shaping`. Last, near the limit of
its tokens, a grammar puts another token in the place of one after which the output could not be completed any more.

Every operation is row-wise in float64, so that a row's token is the same in any batch. Where tokens are equally likely
at a threshold all of them are kept, so that what is kept does not depend on the order of a sort. A step in which nobody
asks for more than temperature and top-p does nothing more than those need.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from engine.sampling.counter_random import signed, uniform
from engine.sampling.grammar_allowance import SEARCHES_S, StepAllowance
from engine.sampling.logit_shaping import shape
from engine.sampling.request_state import SamplingState

_NUCLEUS_TRY = 128
"""Most nuclei have fewer tokens than this: only where one has more is a row sorted in full."""


def sample(logits: torch.Tensor, rows: Sequence[SamplingState], allowance: StepAllowance | None = None) -> list[int]:
    """Token ids for the first `len(rows)` rows of fp32 logits [rows, padded vocabulary].

    `allowance`: the time for grammars; the tokens of rows that it puts off mean nothing.
    """
    allowance = allowance or StepAllowance()
    tokens = _likeliest(logits[: len(rows)])
    shaped = [index for index, row in enumerate(rows) if row.shaped]
    values = None
    if shaped:
        values = shape(logits[shaped].double(), [rows[index] for index in shaped], allowance)
        for index, token in zip(shaped, _likeliest(values), strict=True):
            tokens[index] = token
    drawn = [index for index, row in enumerate(rows) if row.sampling.temperature > 0]
    if drawn:
        chosen = logits[drawn]
        above = (chosen - chosen.amax(-1, keepdim=True)).double()
        if values is not None:
            places = {index: place for place, index in enumerate(shaped)}
            changed = [at for at, index in enumerate(drawn) if index in places]
            own = values[[places[drawn[at]] for at in changed]]
            above[changed] = own - own.amax(-1, keepdim=True)
        for index, token in zip(drawn, _draw(above, [rows[index] for index in drawn]), strict=True):
            tokens[index] = token
    if shaped:
        _settle(tokens, rows, allowance)
    return tokens


def _settle(tokens: list[int], rows: Sequence[SamplingState], allowance: StepAllowance) -> None:
    """Put other tokens, where a grammar has to, in the place of those after which an output could not be completed."""
    guided = allowance.begin(rows)
    allowance.allow(SEARCHES_S)
    for index in guided:
        row = rows[index]
        if row.guide is not None and not row.put_off:
            settled = row.guide.settle_within(tokens[index], row.limit - row.drawn, allowance.has_time)
            row.put_off = settled is None
            tokens[index] = tokens[index] if settled is None else settled


def _likeliest(values: torch.Tensor) -> list[int]:
    """The column of each row's largest value, the first of equal ones."""
    # On the host numpy looks at several values at a time, torch at one.
    on_host = values.device.type == "cpu"
    tokens: list[int] = (values.numpy() if on_host else values).argmax(-1).tolist()
    return tokens


def _draw(above: torch.Tensor, rows: Sequence[SamplingState]) -> list[int]:
    """Token ids by logits that are 0 at each row's maximum, float64 [rows, vocabulary], which are overwritten."""
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
        # The likeliest token's weight is 1.
        _drop(weights, floored, column([rows[at].sampling.min_p for at in floored]))
    total = weights.cumsum(-1)
    seeds = torch.tensor([signed(row.sampling.seed) for row in rows], device=device)
    positions = torch.tensor([row.position for row in rows], device=device)
    target = uniform(seeds, positions)[:, None] * total[:, -1:]
    tokens: list[int] = torch.searchsorted(total, target, right=True).squeeze(-1).tolist()
    return tokens


def _drop(weights: torch.Tensor, rows: list[int], least: torch.Tensor) -> None:
    """Set the weights of these rows that lie below `least` [rows, 1] to 0."""
    kept = weights[rows]
    weights[rows] = kept.masked_fill_(kept < least, 0.0)


def _top_k_least(weights: torch.Tensor, counts: Sequence[int]) -> torch.Tensor:
    """[rows, 1] the smallest of each row's `counts` largest weights."""
    counts = [min(count, weights.shape[-1]) for count in counts]
    largest = weights.topk(max(counts), -1).values
    return largest.gather(-1, torch.tensor(counts, device=weights.device)[:, None] - 1)


def _nucleus_least(weights: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """[rows, 1] the smallest weight in each row's nucleus: the fewest most likely tokens that reach `top_p`."""
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
