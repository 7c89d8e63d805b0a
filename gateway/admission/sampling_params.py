"""Makes a replica's sampling parameters of what the client said, else of the model's defaults; checks them."""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from typing import TypeVar

from gateway.errors import ContextExceeded, InvalidRequest
from gateway.generation_request import GenerationRequest
from gateway.served_models.served_model import ServedModel
from protocol.requests import Reasoning, Sampling

GRAMMAR_TOKENS = 2048
"""Output tokens under a grammar when the client does not say how many."""


def context_exceeded(
    generation: GenerationRequest, prompt_tokens: int, context_tokens: int, *, is_lower_bound: bool = False
) -> ContextExceeded:
    """The error for a prompt that leaves no room in the context."""
    return ContextExceeded(
        generation.turns_path,
        _given(generation),
        prompt_tokens=prompt_tokens,
        context_tokens=context_tokens,
        is_lower_bound=is_lower_bound,
    )


def _given(generation: GenerationRequest) -> str:
    return "messages" if generation.prompt is None else "prompt"


def max_output_tokens(
    generation: GenerationRequest, prompt_tokens: int, context_tokens: int, reasoning: Reasoning | None = None
) -> int:
    """The most output tokens that the request may have. Raises InvalidRequest with the numbers.

    Without `max_tokens` it is all the room left in the context, or `GRAMMAR_TOKENS` under a grammar: there a model
    cannot end an answer before the grammar allows it, and may go on to the limit, near which the engine closes it.
    The reasoning before such an answer has its budget beside.
    """
    room = context_tokens - prompt_tokens
    if room < 1:
        raise context_exceeded(generation, prompt_tokens, context_tokens)
    max_tokens = generation.max_tokens
    if max_tokens is None:
        bound = generation.grammar is not None and not generation.grammar.free
        if not bound or (reasoning is not None and reasoning.budget is None):
            return room
        budget = 0 if reasoning is None or reasoning.budget is None else reasoning.budget
        return min(room, max(GRAMMAR_TOKENS + budget, generation.min_tokens))
    field = generation.max_tokens_path.removeprefix("$.")
    least = 0 if generation.echo or generation.cache.prewarm else 1
    if max_tokens < least:
        raise InvalidRequest(
            f"{field} is {max_tokens}; it must be at least {least}.",
            path=generation.max_tokens_path,
            code="invalid_value",
        )
    if max_tokens > room and generation.fill_context:
        return room
    if max_tokens > room:
        raise InvalidRequest(
            f"This model's maximum context length is {context_tokens} tokens. However, you requested "
            f"{prompt_tokens + max_tokens} tokens ({prompt_tokens} in the {_given(generation)}, {max_tokens} by "
            f"{field}). Please reduce the length of the {_given(generation)}, or ask for at most {room} by {field}.",
            path=generation.max_tokens_path,
            code="context_length_exceeded",
        )
    return max_tokens


Value = TypeVar("Value", int, float)


def sampling_params(generation: GenerationRequest, model: ServedModel, max_output: int) -> Sampling:
    """The protocol's `Sampling`. Raises InvalidRequest for token ids outside the vocabulary, and for `min_tokens`."""
    defaults, size = model.defaults, model.tokenizer.size
    _check_tokens("logit_bias", generation.logit_bias, size)
    _check_tokens("stop_token_ids", generation.stop_tokens, size)
    if generation.min_tokens > max_output:
        raise InvalidRequest(
            f"min_tokens is {generation.min_tokens}, more than the {max_output} tokens that the output may have.",
            path="$.min_tokens",
            code="invalid_value",
        )
    temperature = _or_default(generation.temperature, defaults.temperature)
    top_p = _or_default(generation.top_p, defaults.top_p)
    if top_p == 0:  # clients ask for the likeliest token in this way too; the engine knows it as temperature 0
        temperature, top_p = 0.0, 1.0
    own_end = () if generation.ignore_end else model.stop_tokens
    return Sampling(
        max_tokens=max_output,
        temperature=temperature,
        top_p=top_p,
        seed=secrets.randbits(64) if generation.seed is None else generation.seed % 2**64,
        stop_tokens=tuple(dict.fromkeys(own_end + generation.stop_tokens)),
        top_k=_or_default(generation.top_k, defaults.top_k),
        min_p=_or_default(generation.min_p, defaults.min_p),
        presence_penalty=generation.presence_penalty,
        frequency_penalty=generation.frequency_penalty,
        repetition_penalty=_or_default(generation.repetition_penalty, defaults.repetition_penalty),
        logit_bias=generation.logit_bias,
        min_tokens=generation.min_tokens,
        logprobs=generation.logprobs,
        prompt_logprobs=_prompt_logprobs(generation, max_output),
    )


def _prompt_logprobs(generation: GenerationRequest, max_output: int) -> int | None:
    if not generation.echo:
        return None
    # The engine accepts `max_tokens` 0 only if the prompt's log probabilities are asked for.
    return generation.logprobs if max_output else generation.logprobs or 0


def _or_default(value: Value | None, default: Value) -> Value:
    return default if value is None else value


def _check_tokens(name: str, tokens: Iterable[int], size: int) -> None:
    for token in tokens:
        if token >= size:
            raise InvalidRequest(
                f"{name}: token id {token} is outside the model's vocabulary of {size}.",
                path=f"$.{name}",
                code="invalid_value",
            )
