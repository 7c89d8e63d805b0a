"""POST /v1/chat/completions: the response as OpenAI's JSON, whole or in chunks.

Source: https://platform.openai.com/docs/api-reference/chat/object. `cost` and `limited_by` are ours.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import UNSET, Struct, UnsetType

from gateway.conversation.tokenizer import Tokenizer
from gateway.dialects.cache_explanation import CacheExplanation
from gateway.dialects.openai.common_response import (
    DONE,
    CompletionWriter,
    ResponseIdentity,
    encoder,
    event,
    finishes_of,
    usage_at,
)
from gateway.dialects.openai.completion_usage import CompletionUsage
from gateway.dialects.openai.diagnostics import PromptCacheDiagnostics, cache_explanation, openai_diagnostics
from gateway.dialects.openai.logprobs import ChatLogprobs, chat_logprobs
from gateway.generation.delivery import ChoiceDelta, Finished
from gateway.generation.request_history import Explanation


class ResponseMessage(Struct, frozen=True):
    content: str
    role: str = "assistant"
    refusal: None = None
    annotations: tuple[()] = ()


class Choice(Struct, frozen=True):
    message: ResponseMessage
    finish_reason: str
    index: int = 0
    logprobs: ChatLogprobs | None = None
    limited_by: str | UnsetType = UNSET


class ChatCompletion(Struct, frozen=True):
    """The whole response."""

    id: str
    created: int
    model: str
    choices: tuple[Choice, ...]
    usage: CompletionUsage
    service_tier: str
    object: str = "chat.completion"
    system_fingerprint: str | None = None
    prompt_cache_diagnostics: PromptCacheDiagnostics | UnsetType = UNSET
    cache_explanation: CacheExplanation | UnsetType = UNSET


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
    """One event of a streamed response."""

    id: str
    created: int
    model: str
    choices: tuple[ChunkChoice, ...]
    service_tier: str
    usage: CompletionUsage | UnsetType | None = UNSET
    object: str = "chat.completion.chunk"
    system_fingerprint: str | None = None
    prompt_cache_diagnostics: PromptCacheDiagnostics | UnsetType = UNSET
    cache_explanation: CacheExplanation | UnsetType = UNSET


class ChatWriter(CompletionWriter):
    """Writes one response, whole or as events."""

    def __init__(
        self, identity: ResponseIdentity, tokenizer: Tokenizer, *, logprobs: bool, include_usage: bool
    ) -> None:
        super().__init__(identity, tokenizer, include_usage=include_usage)
        self._logprobs = logprobs
        self._opened: set[int] = set()
        """The choices whose role was sent."""

    def whole(self, deltas: Sequence[ChoiceDelta], end: Finished) -> bytes:
        """The whole response, of one delta for each choice."""
        return encoder.encode(
            ChatCompletion(
                id=self._identity.id,
                created=self._identity.created,
                model=self._identity.model,
                choices=tuple(
                    Choice(ResponseMessage(d.text), end.reason, d.choice, self._logprobs_of(d), end.limited_by)
                    for d, end in zip(deltas, finishes_of(end.reasons), strict=True)
                ),
                usage=usage_at(end),
                service_tier=self._identity.service_tier,
                system_fingerprint=self._identity.system_fingerprint,
                prompt_cache_diagnostics=openai_diagnostics(end.explanation) or UNSET,
                cache_explanation=cache_explanation(end.explanation) or UNSET,
            )
        )

    def events(self, deltas: Sequence[ChoiceDelta]) -> bytes:
        """A chunk for each delta; before the first of a choice, a chunk with its role."""
        events = b""
        for delta in deltas:
            chunk = ChunkChoice(Delta(content=delta.text), index=delta.choice, logprobs=self._logprobs_of(delta))
            events += self._open(delta.choice) + self._chunk(chunk)
        return events

    def finished(self, end: Finished) -> bytes:
        """A chunk with the finish reason of each choice, the usage if the client asked for it, and `DONE`."""
        events = b""
        for choice, finish in enumerate(finishes_of(end.reasons)):
            chunk = ChunkChoice(Delta(), finish_reason=finish.reason, index=choice, limited_by=finish.limited_by)
            events += self._open(choice) + self._chunk(chunk)
        if self._include_usage or end.explanation is not None:
            events += self._chunk(None, usage_at(end), end.explanation)
        return events + DONE

    def _logprobs_of(self, delta: ChoiceDelta) -> ChatLogprobs | None:
        return chat_logprobs(delta.scores, self._tokenizer) if self._logprobs else None

    def _open(self, choice: int) -> bytes:
        if choice in self._opened:
            return b""
        self._opened.add(choice)
        return self._chunk(ChunkChoice(Delta(role="assistant", content="", refusal=None), index=choice))

    def _chunk(
        self,
        choice: ChunkChoice | None,
        usage: CompletionUsage | None = None,
        explanation: Explanation | None = None,
    ) -> bytes:
        identity = self._identity
        return event(
            ChatChunk(
                id=identity.id,
                created=identity.created,
                model=identity.model,
                choices=() if choice is None else (choice,),
                usage=usage if self._include_usage else UNSET,
                service_tier=identity.service_tier,
                system_fingerprint=identity.system_fingerprint,
                prompt_cache_diagnostics=openai_diagnostics(explanation) or UNSET,
                cache_explanation=cache_explanation(explanation) or UNSET,
            )
        )
