"""How the replica is to draw tokens: what the client said, else the model's own defaults, checked against the model."""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from typing import TypeVar

from engine.protocol.requests import Sampling
from gateway.conversation.served_model import ServedModel
from gateway.failures import InvalidRequest
from gateway.generation import Generation

Value = TypeVar("Value", int, float)


def sampling_for(generation: Generation, model: ServedModel, max_output: int) -> Sampling:
    """The protocol's sampling. Raises InvalidRequest for token ids that the model has not, and for `min_tokens`."""
    defaults, size = model.defaults, model.tokenizer.size
    _check_tokens("logit_bias", generation.logit_bias, size)
    _check_tokens("stop_token_ids", generation.stop_tokens, size)
    if generation.min_tokens > max_output:
        raise InvalidRequest(
            f"min_tokens is {generation.min_tokens}, more than the {max_output} tokens that the output may have.",
            path="$.min_tokens",
            code="invalid_value",
        )
    temperature = _either(generation.temperature, defaults.temperature)
    top_p = _either(generation.top_p, defaults.top_p)
    if top_p == 0:  # clients ask for the likeliest token in this way too; the engine knows it as temperature 0
        temperature, top_p = 0.0, 1.0
    own_end = () if generation.ignore_end else model.stop_tokens
    return Sampling(
        max_tokens=max_output,
        temperature=temperature,
        top_p=top_p,
        seed=secrets.randbits(64) if generation.seed is None else generation.seed % 2**64,
        stop_tokens=tuple(dict.fromkeys(own_end + generation.stop_tokens)),
        top_k=_either(generation.top_k, defaults.top_k),
        min_p=_either(generation.min_p, defaults.min_p),
        presence_penalty=generation.presence_penalty,
        frequency_penalty=generation.frequency_penalty,
        repetition_penalty=_either(generation.repetition_penalty, defaults.repetition_penalty),
        logit_bias=generation.logit_bias,
        min_tokens=generation.min_tokens,
        logprobs=generation.logprobs,
        prompt_logprobs=_of_the_prompt(generation, max_output),
    )


def _of_the_prompt(generation: Generation, max_output: int) -> int | None:
    if not generation.echo:
        return None
    # The engine computes a prompt for its own sake only if something is to be told of it.
    return generation.logprobs if max_output else generation.logprobs or 0


def _either(asked: Value | None, default: Value) -> Value:
    return default if asked is None else asked


def _check_tokens(name: str, tokens: Iterable[int], size: int) -> None:
    for token in tokens:
        if token >= size:
            raise InvalidRequest(
                f"{name}: token id {token} is outside the model's vocabulary of {size}.",
                path=f"$.{name}",
                code="invalid_value",
            )
