"""POST /v1/messages: the response as Anthropic's JSON, whole or in events.

Source: https://docs.anthropic.com/en/api/messages-streaming. An answer's text is one content block; without text
there is none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal
from uuid import UUID

import msgspec
from msgspec import UNSET, Struct, UnsetType

from billing.usage import Usage
from gateway.dialects.anthropic.diagnostics import AnthropicDiagnostics, anthropic_diagnostics
from gateway.dialects.anthropic.errors import envelope
from gateway.dialects.anthropic.message_usage import MessageUsage, message_usage
from gateway.generation.delivery import ChoiceDelta, Failed, Finished, Started
from protocol.requests import Lane

StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "model_context_window_exceeded"]


class TextContent(Struct, frozen=True, tag="text", tag_field="type"):
    text: str
    citations: None = None


class Message(Struct, frozen=True, kw_only=True, tag="message", tag_field="type"):
    """The whole response, and with empty content the beginning of a streamed one."""

    id: str
    role: str = "assistant"
    model: str
    content: tuple[TextContent, ...]
    stop_reason: StopReason | None
    stop_sequence: str | None
    stop_details: None = None
    diagnostics: AnthropicDiagnostics | None = None
    container: None = None
    usage: MessageUsage


class MessageStart(Struct, frozen=True, tag="message_start", tag_field="type"):
    message: Message


class Ping(Struct, frozen=True, tag="ping", tag_field="type"):
    pass


class BlockStart(Struct, frozen=True, tag="content_block_start", tag_field="type"):
    index: int
    content_block: TextContent


class TextDelta(Struct, frozen=True, tag="text_delta", tag_field="type"):
    text: str


class BlockDelta(Struct, frozen=True, tag="content_block_delta", tag_field="type"):
    index: int
    delta: TextDelta


class BlockStop(Struct, frozen=True, tag="content_block_stop", tag_field="type"):
    index: int


class Stop(Struct, frozen=True):
    stop_reason: StopReason
    stop_sequence: str | None
    stop_details: None = None
    container: None = None


class MessageDelta(Struct, frozen=True, tag="message_delta", tag_field="type"):
    """The end of the answer. `usage` is of the whole request, with all fields of its input again. `diagnostics`, which
    clients find in whole messages only, is known here."""

    delta: Stop
    usage: MessageUsage
    diagnostics: AnthropicDiagnostics | UnsetType = UNSET


class MessageStop(Struct, frozen=True, tag="message_stop", tag_field="type"):
    pass


class TokenCount(Struct, frozen=True):
    """The tokens of a prompt."""

    input_tokens: int


class MessageIdentity(Struct, frozen=True):
    """What is the same in every event. `fills_context`: the answer may not be as long as was asked for, because the
    context ends before."""

    id: str
    model: str
    request_id: str
    lane: Lane
    fills_context: bool = False

    @classmethod
    def of(cls, id_: UUID, model: str, request_id: str, *, lane: Lane, fills_context: bool) -> MessageIdentity:
        """The identity of the message that answers the request with this id."""
        return cls(f"msg_{id_.hex}", model, request_id, lane, fills_context)


_encoder = msgspec.json.Encoder()
_LINE_ENDS = (("\x85", b"\\u0085"), ("\u2028", b"\\u2028"), ("\u2029", b"\\u2029"))
_COMMENT = b": keep-alive\n\n"


def _event(body: Struct) -> bytes:
    """One server-sent event, named as its type says. Line ends of Unicode are escaped, for clients that split there."""
    data = _encoder.encode(body)
    for character, escaped in _LINE_ENDS:
        data = data.replace(character.encode(), escaped)
    return b"event: %b\ndata: %b\n\n" % (str(body.__struct_config__.tag).encode(), data)


_PING = _event(Ping())


class MessageWriter:
    """Writes one response, whole or as events."""

    def __init__(self, identity: MessageIdentity) -> None:
        self._identity = identity
        self._opened = False
        self._in_block = False

    def whole(self, deltas: Sequence[ChoiceDelta], end: Finished) -> bytes:
        """The whole response."""
        text = "".join(delta.text for delta in deltas)
        reason, stop = self._stop(end)
        content = (TextContent(text),) if text else ()
        message = self._message(content, self._usage(end), reason, stop)
        return _encoder.encode(msgspec.structs.replace(message, diagnostics=anthropic_diagnostics(end.explanation)))

    def started(self, start: Started) -> bytes:
        """`message_start` with the usage of the input, and a ping."""
        return self._open(start.usage)

    def keep_alive(self) -> bytes:
        """A ping; a comment before `message_start`, since no event may come before it."""
        return _PING if self._opened else _COMMENT

    def events(self, deltas: Sequence[ChoiceDelta]) -> bytes:
        """The block's deltas; before the first the block's start."""
        text = "".join(delta.text for delta in deltas)
        events = self._open(Usage())
        if not text:
            return events
        if not self._in_block:
            self._in_block = True
            events += _event(BlockStart(0, TextContent("")))
        return events + _event(BlockDelta(0, TextDelta(text)))

    def finished(self, end: Finished) -> bytes:
        """The block's end, why the answer ended, the usage, and `message_stop`."""
        reason, stop = self._stop(end)
        events = self._open(end.usage)
        if self._in_block:
            events += _event(BlockStop(0))
        diagnostics = anthropic_diagnostics(end.explanation) or UNSET
        delta = MessageDelta(Stop(reason, stop), self._usage(end), diagnostics)
        return events + _event(delta) + _event(MessageStop())

    def failed(self, end: Failed) -> bytes:
        """The event `error`, which the official client raises as an exception. Nothing follows it."""
        body = _encoder.encode(envelope(end.failure, self._identity.request_id))
        return b"event: error\ndata: %b\n\n" % body

    def _open(self, usage: Usage) -> bytes:
        if self._opened:
            return b""
        self._opened = True
        shown = message_usage(msgspec.structs.replace(usage, output=0), lane=self._identity.lane)
        return _event(MessageStart(self._message((), shown, None, None))) + _PING

    def _usage(self, end: Finished) -> MessageUsage:
        return message_usage(
            end.usage,
            lane=self._identity.lane,
            cost_pico=end.cost_pico,
            currency=end.currency,
            cached_until=end.cached_until,
        )

    def _stop(self, end: Finished) -> tuple[StopReason, str | None]:
        """Why the answer ended, and the stop sequence that ended it."""
        stop = end.stop_strings[0] if end.stop_strings else None
        if stop is not None:
            return "stop_sequence", stop
        match end.reasons[0]:
            case "stop":
                return "end_turn", None
            case "length" if self._identity.fills_context:
                return "model_context_window_exceeded", None
        return "max_tokens", None

    def _message(
        self, content: tuple[TextContent, ...], usage: MessageUsage, reason: StopReason | None, stop: str | None
    ) -> Message:
        return Message(
            id=self._identity.id,
            model=self._identity.model,
            content=content,
            stop_reason=reason,
            stop_sequence=stop,
            usage=usage,
        )
