"""A conversation as token ids, and the span of tokens of each text of the request.

Each segment is tokenized separately, so the tokens of a prefix never depend on the text after it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from gateway.conversation.chat_template import ChatTemplate
from gateway.conversation.tokenizer import Tokenizer
from gateway.generation_request import Tool, Turn


class Span(Struct, frozen=True):
    """The text at the JSON path `path` is in the tokens [start, end)."""

    path: str
    start: int
    end: int


class Prompt(Struct, frozen=True):
    """The model's input."""

    tokens: list[int]
    spans: tuple[Span, ...]


class PromptTooLong(Exception):
    """The text has at least `tokens` tokens, more than allowed. It was not tokenized."""

    def __init__(self, tokens: int) -> None:
        super().__init__(f"at least {tokens} tokens")
        self.tokens = tokens


def check_length(characters: int, tokenizer: Tokenizer, most_tokens: int) -> None:
    """Raise PromptTooLong if a text of so many characters must have more than `most_tokens` tokens."""
    least = tokenizer.least_tokens(characters)
    if least > most_tokens:
        raise PromptTooLong(least)


def make_prompt(
    turns: Sequence[Turn],
    template: ChatTemplate,
    tokenizer: Tokenizer,
    most_tokens: int,
    tools: Sequence[Tool] = (),
    *,
    continued: bool = False,
    variables: Mapping[str, object] = {},  # never changed
) -> Prompt:
    """Render and tokenize a conversation. `continued` and `variables`: as in `ChatTemplate.render`.

    Raises ConversationRefused; PromptTooLong if `most_tokens` is certainly exceeded, but not in every case of it.
    """

    def check(characters: int) -> None:
        check_length(characters, tokenizer, most_tokens)

    rendered = template.render(turns, tools, continued=continued, variables=variables, check_length=check)
    check(sum(len(segment.text) for segment in rendered.segments))
    tokens: list[int] = []
    spans: list[Span] = []
    for segment in rendered.segments:
        start = len(tokens)
        if segment.content is None:
            tokens += tokenizer.literal(segment.text)
        else:
            tokens += tokenizer.content(segment.text)
            path = rendered.contents[segment.content].path
            if spans and spans[-1].path == path:  # a tool or call with special tokens of the template within it
                start = spans.pop().start
            spans.append(Span(path, start, len(tokens)))
    return Prompt(tokens, tuple(spans))
