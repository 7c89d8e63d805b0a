"""POST /v1/responses: the response as OpenAI's JSON, whole or in events."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from msgspec import UNSET
from msgspec.structs import replace

from gateway.conversation.output.events import OutputEvent, ScoredTokens, TextDelta
from gateway.conversation.tokenizer import Tokenizer
from gateway.dialects.openai.common_response import KEEP_ALIVE, encoder, finishes_of
from gateway.dialects.openai.diagnostics import cache_explanation, openai_diagnostics
from gateway.dialects.openai.logprobs import chat_logprobs
from gateway.dialects.openai.responses import events as told
from gateway.dialects.openai.responses.output import OutputFold, Seal
from gateway.dialects.openai.responses.response_object import (
    IncompleteDetails,
    Response,
    response_error,
    response_usage,
)
from gateway.dialects.openai.responses.tools import ToolNames
from gateway.errors import GatewayError
from gateway.generation.delivery import ChoiceDelta, Failed, Finished, Started

_OPENING = 2
"""Events before the one that says that a response in the background runs."""


class ResponsesWriter:
    """Writes one response, whole or as events. `response` is the object as far as it is known; after an end, for good.

    `seal` seals reasoning for a client who wants it so. `prewarm`: nothing is generated. `told_before`: events of the
    response that were told by another writer.
    """

    withholds = False

    def __init__(
        self,
        response: Response,
        tokenizer: Tokenizer,
        names: ToolNames,
        *,
        logprobs: bool = False,
        seal: Seal | None = None,
        prewarm: bool = False,
        told_before: int = 0,
    ) -> None:
        self.response = response
        entries = (lambda scores: chat_logprobs(scores, tokenizer).content) if logprobs else None
        self._fold = OutputFold(response.id.partition("_")[2], names, seal, entries)
        self._fold.number = told_before
        self._prewarm = prewarm
        self._opened = told_before > _OPENING
        self._ended: list[told.StreamEvent] | None = None

    # ------------------------------------------------ as one object

    def whole(self, deltas: Sequence[ChoiceDelta], end: Finished) -> bytes:
        """The whole response, of one delta."""
        for _ in self._said(deltas):
            pass
        self.end(end)
        return encoder.encode(self.response)

    # ------------------------------------------------ as events

    def started(self, start: Started) -> bytes:
        """The events that open the stream."""
        return _encoded(self.open())

    def keep_alive(self) -> bytes:
        """What opens the stream, else a comment, which clients skip."""
        return _encoded(self.open()) or KEEP_ALIVE

    def events(self, deltas: Sequence[ChoiceDelta]) -> bytes:
        """The events for more of the output."""
        return _encoded(self.more(deltas))

    def finished(self, end: Finished) -> bytes:
        """The ends of what is open, and the whole response."""
        return _encoded(self.end(end))

    def failed(self, end: Failed) -> bytes:
        """The response as it failed. No client takes it for a whole one."""
        return _encoded(self.fail(end.failure))

    # ------------------------------------------------ as structs, for whoever keeps them

    def queue(self) -> list[told.StreamEvent]:
        """The events of a response that waits in the background."""
        self.response = replace(self.response, status="queued")
        return [
            told.Created(sequence_number=self._fold.next_number(), response=self.response),
            told.Queued(sequence_number=self._fold.next_number(), response=self.response),
        ]

    def open(self) -> list[told.StreamEvent]:
        """The events that open the stream; none if they were told."""
        if self._opened:
            return []
        self._opened = True
        self.response = replace(self.response, status="in_progress")
        created: list[told.StreamEvent] = []
        if self._fold.number == 0:
            created.append(told.Created(sequence_number=self._fold.next_number(), response=self.response))
        return [*created, told.InProgress(sequence_number=self._fold.next_number(), response=self.response)]

    def more(self, deltas: Sequence[ChoiceDelta]) -> list[told.StreamEvent]:
        """More of the output."""
        return [*self.open(), *self._said(deltas)]

    def end(self, end: Finished) -> list[told.StreamEvent]:
        """A good end. Asked again, the same events."""
        if self._ended is None:
            finish = finishes_of(end.reasons)[0]
            whole = finish.reason == "stop" or self._prewarm
            status = "completed" if whole else "incomplete"
            events = self.open()
            if not self._prewarm:
                events += self._fold.finish("completed" if whole else "incomplete")
            self.response = replace(
                self.response,
                status="completed" if whole else "incomplete",
                completed_at=int(time.time()) if whole else None,
                incomplete_details=None if whole else IncompleteDetails("max_output_tokens", finish.limited_by),
                output=tuple(self._fold.items),
                usage=response_usage(end),
                prompt_cache_diagnostics=openai_diagnostics(end.explanation) or UNSET,
                cache_explanation=cache_explanation(end.explanation) or UNSET,
                receipts=end.receipts or UNSET,
            )
            last = told.Completed if status == "completed" else told.Incomplete
            self._ended = [*events, last(sequence_number=self._fold.next_number(), response=self.response)]
        return self._ended

    def fail(self, failure: GatewayError | None) -> list[told.StreamEvent]:
        """An end with an error, or None for a response that was cancelled. Asked again, the same events."""
        if self._ended is None:
            events = [*self.open(), *self._fold.end("incomplete")]
            self.response = replace(
                self.response,
                status="cancelled" if failure is None else "failed",
                error=None if failure is None else response_error(failure),
                output=tuple(self._fold.items),
            )
            last = told.ResponseFailed(sequence_number=self._fold.next_number(), response=self.response)
            self._ended = [*events, last]
        return self._ended

    def _said(self, deltas: Sequence[ChoiceDelta]) -> Iterator[told.StreamEvent]:
        for delta in deltas:
            yield from self._fold.take(_events_of(delta))


def _events_of(delta: ChoiceDelta) -> Sequence[OutputEvent]:
    if delta.events:
        return delta.events
    said = (TextDelta(delta.text),) if delta.text or delta.scores else ()
    return (*said, ScoredTokens(delta.scores)) if delta.scores else said


def _encoded(events: Sequence[told.StreamEvent]) -> bytes:
    return b"".join(map(told.named_event, events))
