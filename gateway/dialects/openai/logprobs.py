"""Log probabilities as OpenAI's JSON: the chat's `content` entries, and the four parallel lists of text completions."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from gateway.conversation.tokenizer import Tokenizer
from gateway.generation.transcript import TokenScore

_UNKNOWN = "\ufffd"


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
    """`top_logprobs` also holds the token itself, as OpenAI's does; a prompt's first token has neither."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None] | None
    text_offset: list[int]


def chat_logprobs(scores: Sequence[TokenScore], tokenizer: Tokenizer) -> ChatLogprobs:
    """The entries of these tokens."""
    entries = []
    for score in scores:
        assert score.score is not None
        text, raw = tokenizer.spelled(score.token)
        tops = []
        for token, logprob in score.score.top:
            other, other_raw = tokenizer.spelled(token)
            tops.append(TopLogprob(other, logprob, list(other_raw)))
        entries.append(ContentLogprob(text, score.score.logprob, list(raw), tuple(tops)))
    return ChatLogprobs(tuple(entries))


def text_logprobs(scores: Sequence[TokenScore], tokenizer: Tokenizer, wanted: int) -> TextLogprobs:
    """The lists of these tokens; `wanted` is how many likeliest ones the client asked for."""
    names = [_name(score.token, tokenizer) for score in scores]
    values = [None if score.score is None else score.score.logprob for score in scores]
    tops = [
        None
        if score.score is None
        else {_name(token, tokenizer): logprob for token, logprob in score.score.top} | {name: score.score.logprob}
        for name, score in zip(names, scores, strict=True)
    ]
    return TextLogprobs(names, values, tops if wanted else None, [score.offset for score in scores])


def _name(token: int, tokenizer: Tokenizer) -> str:
    """The token's text; where that is no whole character, its bytes in OpenAI's spelling, so that names differ."""
    text, raw = tokenizer.spelled(token)
    return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw) if _UNKNOWN in text else text
