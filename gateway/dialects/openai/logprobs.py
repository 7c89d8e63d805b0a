"""Log probabilities as OpenAI's JSON: `content` entries of chats, four parallel lists of text completions.

What is said of a token is encoded by itself. So the last step, which nothing can interrupt, only copies bytes: it would
take a second for what an answer may have at most.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import Raw, Struct

from gateway.conversation.output.events import TokenScore
from gateway.conversation.tokenizer import Tokenizer
from gateway.dialects.openai.common_response import encoder
from protocol.requests import TokenLogprob

_REPLACEMENT = "\ufffd"


class TopLogprob(Struct, frozen=True):
    token: str
    logprob: float
    bytes: list[int]


class ContentLogprob(Struct, frozen=True):
    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: tuple[TopLogprob, ...]


class ChatLogprobs(Struct, frozen=True):
    content: tuple[ContentLogprob, ...]
    refusal: None = None


class TextLogprobs(Struct, frozen=True):
    """`top_logprobs` includes the token itself. The first token of an echoed prompt has neither value."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None] | None
    text_offset: list[int]

    def followed_by(self, more: TextLogprobs) -> TextLogprobs:
        """These and more."""
        tops = None if self.top_logprobs is None else [*self.top_logprobs, *(more.top_logprobs or ())]
        return TextLogprobs(
            self.tokens + more.tokens,
            self.token_logprobs + more.token_logprobs,
            tops,
            self.text_offset + more.text_offset,
        )


def chat_logprobs(scores: Sequence[TokenScore], tokenizer: Tokenizer) -> ChatLogprobs:
    """The entries of generated tokens."""
    entries: list[Any] = []
    for score in scores:
        assert score.score is not None
        text, raw = tokenizer.spelled(score.token)
        tops = []
        for token, logprob in score.score.top:
            top_text, top_raw = tokenizer.spelled(token)
            tops.append(TopLogprob(top_text, logprob, list(top_raw)))
        entries.append(_encoded(ContentLogprob(text, score.score.logprob, list(raw), tuple(tops))))
    return ChatLogprobs(tuple(entries))


def text_logprobs(scores: Sequence[TokenScore], tokenizer: Tokenizer, wanted: int) -> TextLogprobs:
    """The lists of these tokens. `wanted`: how many likeliest tokens the client asked for."""
    names = [_name(score.token, tokenizer) for score in scores]
    values = [None if score.score is None else score.score.logprob for score in scores]
    tops: list[Any] | None = None
    if wanted:
        tops = [
            None if score.score is None else _encoded(_tops(name, score.score, tokenizer))
            for name, score in zip(names, scores, strict=True)
        ]
    return TextLogprobs(names, values, tops, [score.offset for score in scores])


def _tops(name: str, score: TokenLogprob, tokenizer: Tokenizer) -> dict[str, float]:
    return {_name(token, tokenizer): logprob for token, logprob in score.top} | {name: score.logprob}


def _encoded(value: Any) -> Raw:
    return Raw(encoder.encode(value))


def _name(token: int, tokenizer: Tokenizer) -> str:
    """A unique name: the token's text or, if its bytes are no whole characters, the bytes as OpenAI spells them."""
    text, raw = tokenizer.spelled(token)
    return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw) if _REPLACEMENT in text else text
