"""A conversation as token ids, and where each piece of the request lies in them.

Each segment is tokenized alone, so the tokens of a prefix never depend on what follows it.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from gateway.conversation.chat_template import ChatTemplate
from gateway.conversation.tokenizer import Tokenizer
from gateway.generation_request import Turn


class Span(Struct, frozen=True):
    """The piece of the request at the JSON path `path` lies in tokens [start, end)."""

    path: str
    start: int
    end: int


class Prompt(Struct, frozen=True):
    """What the model is given."""

    tokens: list[int]
    spans: tuple[Span, ...]


class PromptTooLong(Exception):
    """The text has at least `tokens` tokens, which is more than it may have. It was not tokenized."""

    def __init__(self, tokens: int) -> None:
        super().__init__(f"at least {tokens} tokens")
        self.tokens = tokens


def check_length(characters: int, tokenizer: Tokenizer, most_tokens: int) -> None:
    """Raise PromptTooLong for a text of so many characters that it cannot have as few tokens as it may."""
    least = tokenizer.least_tokens(characters)
    if least > most_tokens:
        raise PromptTooLong(least)


def make_prompt(turns: Sequence[Turn], template: ChatTemplate, tokenizer: Tokenizer, most_tokens: int) -> Prompt:
    """Render and tokenize. Raises ConversationRefused; PromptTooLong, sometimes, if that takes over `most_tokens`."""
    rendered = template.render(turns)
    check_length(sum(len(segment.text) for segment in rendered.segments), tokenizer, most_tokens)
    tokens: list[int] = []
    spans: list[Span] = []
    for segment in rendered.segments:
        start = len(tokens)
        if segment.content is None:
            tokens += tokenizer.literal(segment.text)
        else:
            tokens += tokenizer.content(segment.text)
            spans.append(Span(rendered.contents[segment.content].path, start, len(tokens)))
    return Prompt(tokens, tuple(spans))
