"""How long the output may become: what the client asked for, checked against the room that the prompt leaves."""

from __future__ import annotations

from typing import NoReturn

from gateway.failures import InvalidRequest
from gateway.generation import Generation
from storage.plurals import counted

GRAMMAR_TOKENS = 2048
"""Output tokens under a grammar when the client does not say how many."""


def refuse_prompt(generation: Generation, context_tokens: int, prompt_tokens: str, reason: str = "") -> NoReturn:
    """Raise InvalidRequest for a prompt that leaves no room in the context."""
    given = "messages take" if generation.prompt is None else "prompt takes"
    raise InvalidRequest(
        f"This model's context is {context_tokens} tokens; the {given} {prompt_tokens} tokens{reason}.",
        path=generation.turns_path,
        code="context_length_exceeded",
    )


def output_bound(generation: Generation, prompt_tokens: int, context_tokens: int) -> int:
    """The most output tokens. Raises InvalidRequest with the numbers.

    Absent `max_tokens` it is all the room left, or under a grammar `GRAMMAR_TOKENS`: there a model cannot end an answer
    that it would rather not give, and goes on to the limit, near which the grammar closes it.
    """
    room = context_tokens - prompt_tokens
    if room < 1:
        reason = ", which leaves no room for an answer" if room == 0 else ""
        refuse_prompt(generation, context_tokens, str(prompt_tokens), reason)
    asked = generation.max_tokens
    if asked is None:
        return room if generation.grammar is None else min(room, max(GRAMMAR_TOKENS, generation.min_tokens))
    field = generation.max_tokens_path.removeprefix("$.")
    given = "messages" if generation.prompt is None else "prompt"
    least = 0 if generation.echo else 1
    if asked < least:
        raise InvalidRequest(
            f"{field} is {asked}; it must be at least {least}.", path=generation.max_tokens_path, code="invalid_value"
        )
    if asked > room:
        raise InvalidRequest(
            f"{field} is {asked}, but this model's context of {context_tokens} tokens has room for {room} "
            f"after {counted(prompt_tokens, 'token')} of the {given}.",
            path=generation.max_tokens_path,
            code="context_length_exceeded",
        )
    return asked
