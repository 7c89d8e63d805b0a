"""What came of a chat completion, as OpenAI's JSON: the whole answer, or chunks as they come."""

from __future__ import annotations

import msgspec
from msgspec import UNSET, Struct, UnsetType

from billing.money import format_pico
from billing.usage import Usage
from gateway.delivery import Failed, Finished
from gateway.dialects.errors import envelope

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
    logprobs: None = None


class ChatCompletion(Struct, frozen=True):
    id: str
    created: int
    model: str
    choices: tuple[Choice, ...]
    usage: ChatUsage
    object: str = "chat.completion"
    service_tier: str = "default"
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
    logprobs: None = None


class ChatChunk(Struct, frozen=True):
    id: str
    created: int
    model: str
    choices: tuple[ChunkChoice, ...]
    usage: ChatUsage | UnsetType | None = UNSET
    object: str = "chat.completion.chunk"
    service_tier: str = "default"
    system_fingerprint: str | None = None


class Header(Struct, frozen=True):
    """What all objects of one answer have in common."""

    id: str
    created: int
    model: str
    request_id: str
    system_fingerprint: str | None = None


_encoder = msgspec.json.Encoder()
_LINE_ENDS = (("\x85", b"\\u0085"), ("\u2028", b"\\u2028"), ("\u2029", b"\\u2029"))
_DONE = b"data: [DONE]\n\n"


def frame(body: object) -> bytes:
    """One event. JSON escapes line feeds, so text cannot forge one; of what Unicode calls line ends we escape the
    rest too, for readers that split at them."""
    data = _encoder.encode(body)
    for character, escaped in _LINE_ENDS:
        data = data.replace(character.encode(), escaped)
    return b"data: " + data + b"\n\n"


def completion(header: Header, text: str, end: Finished) -> bytes:
    """The whole answer as JSON."""
    return _encoder.encode(
        ChatCompletion(
            id=header.id,
            created=header.created,
            model=header.model,
            choices=(Choice(AnswerMessage(text), end.reason),),
            usage=chat_usage(end.usage, end.cost_pico, end.currency),
            system_fingerprint=header.system_fingerprint,
        )
    )


class ChatEvents:
    """The events of one streamed answer, as bytes."""

    def __init__(self, header: Header, *, include_usage: bool) -> None:
        self._header = header
        self._include_usage = include_usage
        self._opened = False

    def piece(self, text: str) -> bytes:
        """A chunk with text; before the first, the one with the role."""
        return self._open() + self._chunk(ChunkChoice(Delta(content=text)))

    def finished(self, end: Finished) -> bytes:
        """The finish reason, the usage if it was asked for, and the end mark."""
        frames = self._open() + self._chunk(ChunkChoice(Delta(), finish_reason=end.reason))
        if self._include_usage:
            frames += self._chunk(None, chat_usage(end.usage, end.cost_pico, end.currency))
        return frames + _DONE

    def failed(self, end: Failed) -> bytes:
        """An error event, which the official client raises as an exception. No end mark follows."""
        return frame(envelope(end.failure, self._header.request_id))

    def _open(self) -> bytes:
        if self._opened:
            return b""
        self._opened = True
        return self._chunk(ChunkChoice(Delta(role="assistant", content="", refusal=None)))

    def _chunk(self, choice: ChunkChoice | None, usage: ChatUsage | None = None) -> bytes:
        header = self._header
        return frame(
            ChatChunk(
                id=header.id,
                created=header.created,
                model=header.model,
                choices=() if choice is None else (choice,),
                usage=usage if self._include_usage else UNSET,
                system_fingerprint=header.system_fingerprint,
            )
        )
