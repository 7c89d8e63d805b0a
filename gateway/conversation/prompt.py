"""A conversation as token ids, and where each piece of the request lies in them.

Each segment is tokenized alone, so the tokens of a prefix never depend on what follows it.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from gateway.conversation.chat_template import ChatTemplate
from gateway.conversation.tokenizer import Tokenizer
from gateway.generation import Turn


class Span(Struct, frozen=True):
    """The piece of the request at the JSON path `path` lies in tokens [start, end)."""

    path: str
    start: int
    end: int


class Prompt(Struct, frozen=True):
    """What the model is given."""

    tokens: list[int]
    spans: tuple[Span, ...]


def make_prompt(turns: Sequence[Turn], template: ChatTemplate, tokenizer: Tokenizer) -> Prompt:
    """Render and tokenize. Raises ConversationRefused."""
    rendered = template.render(turns)
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
