"""What came of a chat completion, as OpenAI's JSON: the whole answer, or chunks as they come."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal
from uuid import UUID

import msgspec
from msgspec import UNSET, Struct, UnsetType

from billing.money import format_pico
from billing.usage import Usage
from gateway.conversation.tokenizer import Tokenizer
from gateway.dialects.openai.common_fields import TIER_OF
from gateway.dialects.openai.errors import envelope
from gateway.dialects.openai.logprobs import ChatLogprobs, chat_logprobs
from gateway.generation.delivery import ChoiceDelta, Failed, Finished, FinishReason
from gateway.served_models.served_model import ServedModel
from protocol.requests import Lane

# ---------------------------------------------------------------- usage


class PromptDetails(Struct, frozen=True):
    cached_tokens: int
    cache_write_tokens: int = 0
    audio_tokens: int = 0


class CompletionDetails(Struct, frozen=True):
    reasoning_tokens: int = 0
    audio_tokens: int = 0
    accepted_prediction_tokens: int = 0
    rejected_prediction_tokens: int = 0


class Cost(Struct, frozen=True):
    """Not OpenAI's: what the request cost, exactly."""

    currency: str
    amount: str


class ChatUsage(Struct, frozen=True):
    """OpenAI's view of usage: the details are parts of the totals, not beside them."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails
    completion_tokens_details: CompletionDetails
    cost: Cost


def chat_usage(usage: Usage, cost_pico: int, currency: str) -> ChatUsage:
    """Usage as the client sees it."""
    return ChatUsage(
        prompt_tokens=usage.prompt,
        completion_tokens=usage.output,
        total_tokens=usage.prompt + usage.output,
        prompt_tokens_details=PromptDetails(sum(usage.read.values()), sum(usage.write.values())),
        completion_tokens_details=CompletionDetails(),
        cost=Cost(currency, format_pico(cost_pico)),
    )


# ---------------------------------------------------------------- why it ended


class Finish(Struct, frozen=True):
    """OpenAI's finish reason, and ours beside it where it says more: `limited_by` is not OpenAI's."""

    reason: Literal["stop", "length"]
    limited_by: Literal["budget"] | UnsetType = UNSET


def finish_of(reason: FinishReason) -> Finish:
    """A choice's end as OpenAI's clients understand it."""
    return Finish("length", "budget") if reason == "budget" else Finish(reason)


# ---------------------------------------------------------------- the whole


class AnswerMessage(Struct, frozen=True):
    content: str
    role: str = "assistant"
    refusal: None = None
    annotations: tuple[()] = ()


class Choice(Struct, frozen=True):
    message: AnswerMessage
    finish_reason: str
    index: int = 0
    logprobs: ChatLogprobs | None = None
    limited_by: str | UnsetType = UNSET


class ChatCompletion(Struct, frozen=True):
    id: str
    created: int
    model: str
    choices: tuple[Choice, ...]
    usage: ChatUsage
    service_tier: str
    object: str = "chat.completion"
    system_fingerprint: str | None = None


# ---------------------------------------------------------------- chunks


class Delta(Struct, frozen=True, omit_defaults=True):
    role: str | UnsetType = UNSET
    content: str | UnsetType = UNSET
    refusal: UnsetType | None = UNSET


class ChunkChoice(Struct, frozen=True):
    delta: Delta
    finish_reason: str | None = None
    index: int = 0
    logprobs: ChatLogprobs | None = None
    limited_by: str | UnsetType = UNSET


class ChatChunk(Struct, frozen=True):
    id: str
    created: int
    model: str
    choices: tuple[ChunkChoice, ...]
    service_tier: str
    usage: ChatUsage | UnsetType | None = UNSET
    object: str = "chat.completion.chunk"
    system_fingerprint: str | None = None


class Header(Struct, frozen=True):
    """What all objects of one answer have in common."""

    id: str
    created: int
    model: str
    request_id: str
    service_tier: str
    system_fingerprint: str | None = None

    @classmethod
    def of(cls, kind: str, id: UUID, model: ServedModel, request_id: str, created: int, *, lane: Lane) -> Header:
        """The header of an answer of this model in this lane; `kind` begins its id."""
        tier, fingerprint = TIER_OF[lane], f"fp_{model.text_digest[:12]}"
        return cls(f"{kind}-{id.hex}", created, model.name, request_id, tier, fingerprint)


_encoder = msgspec.json.Encoder()
_LINE_ENDS = (("\x85", b"\\u0085"), ("\u2028", b"\\u2028"), ("\u2029", b"\\u2029"))
DONE = b"data: [DONE]\n\n"


def frame(body: object) -> bytes:
    """One event. JSON escapes line feeds, so text cannot forge one; of what Unicode calls line ends we escape the
    rest too, for readers that split at them."""
    data = _encoder.encode(body)
    for character, escaped in _LINE_ENDS:
        data = data.replace(character.encode(), escaped)
    return b"data: " + data + b"\n\n"


class ChatAnswer:
    """One answer as bytes, whole or in events."""

    def __init__(self, header: Header, tokenizer: Tokenizer, *, logprobs: bool, include_usage: bool) -> None:
        self._header = header
        self._tokenizer = tokenizer
        self._logprobs = logprobs
        self._include_usage = include_usage
        self._opened: set[int] = set()

    def whole(self, parts: Sequence[ChoiceDelta], end: Finished) -> bytes:
        """The whole answer as JSON, of one part for each choice."""
        return _encoder.encode(
            ChatCompletion(
                id=self._header.id,
                created=self._header.created,
                model=self._header.model,
                choices=tuple(
                    Choice(AnswerMessage(part.text), end.reason, part.choice, self._scored(part), end.limited_by)
                    for part, end in zip(parts, map(finish_of, end.reasons), strict=True)
                ),
                usage=chat_usage(end.usage, end.cost_pico, end.currency),
                service_tier=self._header.service_tier,
                system_fingerprint=self._header.system_fingerprint,
            )
        )

    def piece(self, parts: Sequence[ChoiceDelta]) -> bytes:
        """Chunks with text; before a choice's first, the one with the role."""
        frames = b""
        for part in parts:
            chunk = ChunkChoice(Delta(content=part.text), index=part.choice, logprobs=self._scored(part))
            frames += self._open(part.choice) + self._chunk(chunk)
        return frames

    def finished(self, end: Finished) -> bytes:
        """The finish reasons, the usage if it was asked for, and the end mark."""
        frames = b""
        for choice, finish in enumerate(map(finish_of, end.reasons)):
            chunk = ChunkChoice(Delta(), finish_reason=finish.reason, index=choice, limited_by=finish.limited_by)
            frames += self._open(choice) + self._chunk(chunk)
        if self._include_usage:
            frames += self._chunk(None, chat_usage(end.usage, end.cost_pico, end.currency))
        return frames + DONE

    def failed(self, end: Failed) -> bytes:
        """An error event, which the official client raises as an exception. No end mark follows."""
        return frame(envelope(end.failure, self._header.request_id))

    def _scored(self, part: ChoiceDelta) -> ChatLogprobs | None:
        return chat_logprobs(part.scores, self._tokenizer) if self._logprobs else None

    def _open(self, choice: int) -> bytes:
        if choice in self._opened:
            return b""
        self._opened.add(choice)
        return self._chunk(ChunkChoice(Delta(role="assistant", content="", refusal=None), index=choice))

    def _chunk(self, choice: ChunkChoice | None, usage: ChatUsage | None = None) -> bytes:
        header = self._header
        return frame(
            ChatChunk(
                id=header.id,
                created=header.created,
                model=header.model,
                choices=() if choice is None else (choice,),
                usage=usage if self._include_usage else UNSET,
                service_tier=header.service_tier,
                system_fingerprint=header.system_fingerprint,
            )
        )
