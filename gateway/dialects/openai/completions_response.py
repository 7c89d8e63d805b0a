"""What came of a text completion, as OpenAI's JSON: the whole answer, or the same object in pieces."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import UNSET, Struct, UnsetType

from gateway.conversation.tokenizer import Tokenizer
from gateway.dialects.openai.chat_response import DONE, ChatUsage, Finish, Header, chat_usage, finish_of, frame
from gateway.dialects.openai.errors import envelope
from gateway.dialects.openai.logprobs import TextLogprobs, text_logprobs
from gateway.generation.delivery import ChoiceDelta, Failed, Finished


class TextChoice(Struct, frozen=True):
    text: str
    finish_reason: str | None
    index: int
    logprobs: TextLogprobs | None = None
    limited_by: str | UnsetType = UNSET


class TextCompletion(Struct, frozen=True):
    id: str
    created: int
    model: str
    choices: tuple[TextChoice, ...]
    service_tier: str
    usage: ChatUsage | UnsetType | None = UNSET
    object: str = "text_completion"
    system_fingerprint: str | None = None


class TextAnswer:
    """One answer as bytes, whole or in events. `logprobs`: how many likeliest tokens were asked for."""

    def __init__(self, header: Header, tokenizer: Tokenizer, *, logprobs: int | None, include_usage: bool) -> None:
        self._header = header
        self._tokenizer = tokenizer
        self._logprobs = logprobs
        self._include_usage = include_usage

    def whole(self, parts: Sequence[ChoiceDelta], end: Finished) -> bytes:
        """The whole answer as JSON, of one part for each choice."""
        choices = [self._choice(part, finish_of(reason)) for part, reason in zip(parts, end.reasons, strict=True)]
        return msgspec.json.encode(self._object(choices, chat_usage(end.usage, end.cost_pico, end.currency)))

    def piece(self, parts: Sequence[ChoiceDelta]) -> bytes:
        """Events with text."""
        return b"".join(self._event([self._choice(part, None)]) for part in parts)

    def finished(self, end: Finished) -> bytes:
        """The finish reasons, the usage if it was asked for, and the end mark."""
        frames = b"".join(
            self._event([TextChoice("", finish.reason, choice, limited_by=finish.limited_by)])
            for choice, finish in enumerate(map(finish_of, end.reasons))
        )
        if self._include_usage:
            frames += frame(self._object([], chat_usage(end.usage, end.cost_pico, end.currency)))
        return frames + DONE

    def failed(self, end: Failed) -> bytes:
        """An error event, which the official client raises as an exception. No end mark follows."""
        return frame(envelope(end.failure, self._header.request_id))

    def _choice(self, part: ChoiceDelta, finish: Finish | None) -> TextChoice:
        told = None if self._logprobs is None else text_logprobs(part.scores, self._tokenizer, self._logprobs)
        if finish is None:
            return TextChoice(part.text, None, part.choice, told)
        return TextChoice(part.text, finish.reason, part.choice, told, finish.limited_by)

    def _event(self, choices: list[TextChoice]) -> bytes:
        return frame(self._object(choices, None if self._include_usage else UNSET))

    def _object(self, choices: list[TextChoice], usage: ChatUsage | UnsetType | None) -> TextCompletion:
        header = self._header
        return TextCompletion(
            id=header.id,
            created=header.created,
            model=header.model,
            choices=tuple(choices),
            service_tier=header.service_tier,
            usage=usage,
            system_fingerprint=header.system_fingerprint,
        )
