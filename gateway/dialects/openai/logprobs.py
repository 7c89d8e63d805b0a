"""Log probabilities as OpenAI's JSON: `content` entries of chats, four parallel lists of text completions."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from gateway.conversation.tokenizer import Tokenizer
from gateway.generation.transcript import TokenScore

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


def chat_logprobs(scores: Sequence[TokenScore], tokenizer: Tokenizer) -> ChatLogprobs:
    """The entries of generated tokens."""
    entries = []
    for score in scores:
        assert score.score is not None
        text, raw = tokenizer.spelled(score.token)
        tops = []
        for token, logprob in score.score.top:
            top_text, top_raw = tokenizer.spelled(token)
            tops.append(TopLogprob(top_text, logprob, list(top_raw)))
        entries.append(ContentLogprob(text, score.score.logprob, list(raw), tuple(tops)))
    return ChatLogprobs(tuple(entries))


def text_logprobs(scores: Sequence[TokenScore], tokenizer: Tokenizer, wanted: int) -> TextLogprobs:
    """The lists of these tokens. `wanted`: how many likeliest tokens the client asked for."""
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
    """A unique name: the token's text or, if its bytes are no whole characters, the bytes as OpenAI spells them."""
    text, raw = tokenizer.spelled(token)
    return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw) if _REPLACEMENT in text else text
