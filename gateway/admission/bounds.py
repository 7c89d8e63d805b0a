"""How long the output may become: what the client asked for, checked against the room that the prompt leaves."""

from __future__ import annotations

from gateway.failures import InvalidRequest
from gateway.generation import Generation

GRAMMAR_TOKENS = 2048
"""Output tokens under a grammar when the client does not say how many."""


def output_bound(generation: Generation, prompt_tokens: int, context_tokens: int) -> int:
    """The most output tokens. Raises InvalidRequest with the numbers.

    Absent `max_tokens` it is all the room left, or under a grammar `GRAMMAR_TOKENS`: there a model cannot end an answer
    that it would rather not give, and goes on to the limit, near which the grammar closes it.
    """
    room = context_tokens - prompt_tokens
    given = "messages take" if generation.prompt is None else "prompt takes"
    if room < 1:
        raise InvalidRequest(
            f"This model's context is {context_tokens} tokens; the {given} {prompt_tokens} tokens"
            + (", which leaves no room for an answer." if room == 0 else "."),
            path=generation.turns_path,
            code="context_length_exceeded",
        )
    asked = generation.max_tokens
    if asked is None:
        return room if generation.grammar is None else min(room, max(GRAMMAR_TOKENS, generation.min_tokens))
    field = generation.max_tokens_path.removeprefix("$.")
    least = 0 if generation.echo else 1
    if asked < least:
        raise InvalidRequest(
            f"{field} is {asked}; it must be at least {least}.", path=generation.max_tokens_path, code="invalid_value"
        )
    if asked > room:
        raise InvalidRequest(
            f"{field} is {asked}, but this model's context of {context_tokens} tokens has room for {room} "
            f"after the {prompt_tokens} tokens of the {given.split(maxsplit=1)[0]}.",
            path=generation.max_tokens_path,
            code="context_length_exceeded",
        )
    return asked
