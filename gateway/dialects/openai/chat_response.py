"""POST /v1/chat/completions: the response as OpenAI's JSON, whole or in chunks.

Source: https://platform.openai.com/docs/api-reference/chat/object. `cost` and `limited_by` are ours.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import UNSET, Struct, UnsetType

from gateway.conversation.output.events import (
    ArgumentsDelta,
    CallStart,
    ReasoningDelta,
    TextDelta,
    TokenScore,
    whole_output,
    with_scores,
)
from gateway.conversation.tokenizer import Tokenizer
from gateway.dialects.cache_explanation import CacheExplanation
from gateway.dialects.openai.common_response import (
    DONE,
    CompletionWriter,
    Finish,
    Receipts,
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


class CalledFunction(Struct, frozen=True):
    name: str
    arguments: str


class ResponseToolCall(Struct, frozen=True):
    id: str
    function: CalledFunction
    type: str = "function"


class ResponseMessage(Struct, frozen=True):
    """`content` is null where there are only calls. `reasoning_content` is vLLM's."""

    content: str | None
    role: str = "assistant"
    refusal: None = None
    annotations: tuple[()] = ()
    tool_calls: tuple[ResponseToolCall, ...] | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET


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
    receipts: Receipts = UNSET


class FunctionDelta(Struct, frozen=True):
    arguments: str
    name: str | UnsetType = UNSET


class ToolCallDelta(Struct, frozen=True):
    """More of a call. Only its first delta has its id, type and name."""

    index: int
    function: FunctionDelta
    id: str | UnsetType = UNSET
    type: str | UnsetType = UNSET


class Delta(Struct, frozen=True, omit_defaults=True):
    role: str | UnsetType = UNSET
    content: str | UnsetType = UNSET
    refusal: UnsetType | None = UNSET
    tool_calls: tuple[ToolCallDelta, ...] | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET


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
    receipts: Receipts = UNSET


class ChatWriter(CompletionWriter):
    """Writes one response, whole or as events."""

    def __init__(
        self, identity: ResponseIdentity, tokenizer: Tokenizer, *, logprobs: bool, include_usage: bool
    ) -> None:
        super().__init__(identity, tokenizer, include_usage=include_usage)
        self._logprobs = logprobs
        self._opened: set[int] = set()
        """The choices whose role was sent."""
        self._called: set[int] = set()
        """The choices with a call."""

    def whole(self, deltas: Sequence[ChoiceDelta], end: Finished) -> bytes:
        """The whole response, of one delta for each choice."""
        return encoder.encode(
            ChatCompletion(
                id=self._identity.id,
                created=self._identity.created,
                model=self._identity.model,
                choices=tuple(
                    Choice(
                        self._said(d),
                        self._reason(finish, d.choice),
                        d.choice,
                        self._logprobs_of([*d.scores, *(score for _, some in with_scores(d.events) for score in some)]),
                        finish.limited_by,
                    )
                    for d, finish in zip(deltas, finishes_of(end.reasons), strict=True)
                ),
                usage=usage_at(end),
                service_tier=self._identity.service_tier,
                system_fingerprint=self._identity.system_fingerprint,
                prompt_cache_diagnostics=openai_diagnostics(end.explanation) or UNSET,
                cache_explanation=cache_explanation(end.explanation) or UNSET,
                receipts=end.receipts or UNSET,
            )
        )

    def events(self, deltas: Sequence[ChoiceDelta]) -> bytes:
        """A chunk for each delta; before the first of a choice, a chunk with its role."""
        events = b""
        for delta in deltas:
            for said, scores in self._deltas(delta):
                logprobs = self._logprobs_of(scores) if scores else None
                chunk = ChunkChoice(said, index=delta.choice, logprobs=logprobs)
                events += self._open(delta.choice) + self._chunk(chunk)
        return events

    def finished(self, end: Finished) -> bytes:
        """A chunk with the finish reason of each choice, the usage if the client asked for it, and `DONE`."""
        events = b""
        for choice, finish in enumerate(finishes_of(end.reasons)):
            reason = self._reason(finish, choice)
            chunk = ChunkChoice(Delta(), finish_reason=reason, index=choice, limited_by=finish.limited_by)
            events += self._open(choice) + self._chunk(chunk)
        if self._include_usage or end.explanation is not None or end.receipts:
            events += self._chunk(None, usage_at(end), end)
        return events + DONE

    def _reason(self, finish: Finish, choice: int) -> str:
        return "tool_calls" if finish.reason == "stop" and choice in self._called else finish.reason

    def _call_id(self, choice: int, call: int) -> str:
        return f"call_{self._identity.id.partition('-')[2]}{choice:02x}{call:02x}"

    def _said(self, delta: ChoiceDelta) -> ResponseMessage:
        """All that a choice says, whole."""
        if not delta.events:
            return ResponseMessage(delta.text)
        whole = whole_output(delta.events)
        if whole.calls:
            self._called.add(delta.choice)
        calls = tuple(
            ResponseToolCall(self._call_id(delta.choice, at), CalledFunction(name, arguments))
            for at, (name, arguments) in enumerate(whole.calls)
        )
        return ResponseMessage(
            whole.text or (None if calls else ""),
            tool_calls=calls or UNSET,
            reasoning_content=whole.reasoning or UNSET,
        )

    def _deltas(self, delta: ChoiceDelta) -> Iterator[tuple[Delta, Sequence[TokenScore]]]:
        """The deltas of OpenAI's stream for more of a choice, each with the scores of its tokens."""
        if not delta.events:
            yield Delta(content=delta.text), delta.scores
        for said, scores in with_scores(delta.events):
            match said:
                case TextDelta(text):
                    yield Delta(content=text), scores
                case ReasoningDelta(text):
                    yield Delta(reasoning_content=text), scores
                case CallStart(call, name):
                    self._called.add(delta.choice)
                    first = ToolCallDelta(call, FunctionDelta("", name), self._call_id(delta.choice, call), "function")
                    yield Delta(tool_calls=(first,)), scores
                case ArgumentsDelta(call, text):
                    yield Delta(tool_calls=(ToolCallDelta(call, FunctionDelta(text)),)), scores
                case _ if scores:  # the tokens of a call's end
                    yield Delta(), scores

    def _logprobs_of(self, scores: Sequence[TokenScore]) -> ChatLogprobs | None:
        return chat_logprobs(scores, self._tokenizer) if self._logprobs else None

    def _open(self, choice: int) -> bytes:
        if choice in self._opened:
            return b""
        self._opened.add(choice)
        return self._chunk(ChunkChoice(Delta(role="assistant", content="", refusal=None), index=choice))

    def _chunk(
        self,
        choice: ChunkChoice | None,
        usage: CompletionUsage | None = None,
        end: Finished | None = None,
    ) -> bytes:
        identity, explanation = self._identity, None if end is None else end.explanation
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
                receipts=UNSET if end is None else end.receipts or UNSET,
            )
        )
