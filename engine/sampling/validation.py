"""Checks sampling parameters before a request is queued. Errors name the field."""

from __future__ import annotations

import math

from protocol.requests import Sampling

MOST_LOGPROBS = 20
"""The limit of OpenAI's `top_logprobs`."""


class InvalidSampling(ValueError):
    """A parameter is out of its range; the message names it."""


def check_sampling(sampling: Sampling, vocabulary: int) -> None:
    """Raise InvalidSampling unless every parameter is in its range; `max_tokens` is checked with the context.

    `vocabulary`: number of tokens.
    """
    _number("temperature", sampling.temperature, least=0)
    _number("top_p", sampling.top_p, above=0, most=1)
    _number("min_p", sampling.min_p, least=0, most=1)
    _number("presence_penalty", sampling.presence_penalty)
    _number("frequency_penalty", sampling.frequency_penalty)
    _number("repetition_penalty", sampling.repetition_penalty, above=0)
    _number("top_k", sampling.top_k, least=0)
    _number("min_tokens", sampling.min_tokens, least=0, most=sampling.max_tokens)
    for name, count in (("logprobs", sampling.logprobs), ("prompt_logprobs", sampling.prompt_logprobs)):
        if count is not None:
            _number(name, count, least=0, most=MOST_LOGPROBS)
    for name, tokens in (("stop_tokens", sampling.stop_tokens), ("logit_bias", sampling.logit_bias)):
        for token in tokens:
            if not 0 <= token < vocabulary:
                raise InvalidSampling(f"sampling.{name}: token id {token} is outside the vocabulary of {vocabulary}")
    if sampling.min_tokens and len(set(sampling.stop_tokens)) == vocabulary:
        raise InvalidSampling("sampling.stop_tokens: it lists the whole vocabulary, and min_tokens forbids all of it")
    for token, bias in sampling.logit_bias.items():
        _number(f"logit_bias[{token}]", bias)


def _number(
    name: str, value: float, *, above: float | None = None, least: float | None = None, most: float | None = None
) -> None:
    if not math.isfinite(value):
        raise InvalidSampling(f"sampling.{name}: {value} is not a finite number")
    bounds = []
    if above is not None:
        bounds.append((value > above, f"above {above}"))
    if least is not None:
        bounds.append((value >= least, f"at least {least}"))
    if most is not None:
        bounds.append((value <= most, f"at most {most}"))
    if not all(holds for holds, _ in bounds):
        raise InvalidSampling(f"sampling.{name}: {value} is not {' and '.join(words for _, words in bounds)}")
