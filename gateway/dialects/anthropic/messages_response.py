"""POST /v1/messages: the response as Anthropic's JSON, whole or in events.

Source: https://docs.anthropic.com/en/api/messages-streaming. Text, thinking and each call are content blocks, in the
order in which the model wrote them; an answer without any has none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Literal, TypeAlias
from uuid import UUID

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from billing.receipts.answer_receipts import Receipt
from billing.usage import Usage
from gateway.conversation.output import events as output
from gateway.dialects.anthropic.diagnostics import AnthropicDiagnostics, anthropic_diagnostics
from gateway.dialects.anthropic.errors import envelope
from gateway.dialects.anthropic.message_usage import MessageUsage, message_usage
from gateway.dialects.json_objects import readable_object
from gateway.dialects.json_paths import json_object
from gateway.generation.delivery import ChoiceDelta, Failed, Finished, Started
from protocol.requests import Lane

StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use", "model_context_window_exceeded"]


class TextContent(Struct, frozen=True, tag="text", tag_field="type"):
    text: str


class ThinkingContent(Struct, frozen=True, tag="thinking", tag_field="type"):
    """Reasoning. It comes back with its signature, which stands for the text where that is not shown; in the event that
    opens the block, both are empty."""

    thinking: str
    signature: str = ""


_NO_INPUT = Raw(b"{}")


class ToolUseContent(Struct, frozen=True, tag="tool_use", tag_field="type"):
    id: str
    name: str
    input: Annotated[Raw, json_object("The arguments; in the event that opens the block, none yet.")]


Content: TypeAlias = TextContent | ThinkingContent | ToolUseContent


class Message(Struct, frozen=True, kw_only=True, tag="message", tag_field="type"):
    """The whole response, and with empty content the beginning of a streamed one."""

    id: str
    role: str = "assistant"
    model: str
    content: tuple[Content, ...]
    stop_reason: StopReason | None
    stop_sequence: str | None
    stop_details: None = None
    diagnostics: AnthropicDiagnostics | None = None
    container: None = None
    usage: MessageUsage
    receipts: tuple[Receipt, ...] | UnsetType = UNSET


class MessageStart(Struct, frozen=True, tag="message_start", tag_field="type"):
    message: Message


class Ping(Struct, frozen=True, tag="ping", tag_field="type"):
    pass


class BlockStart(Struct, frozen=True, tag="content_block_start", tag_field="type"):
    index: int
    content_block: Content


class TextDelta(Struct, frozen=True, tag="text_delta", tag_field="type"):
    text: str


class ThinkingDelta(Struct, frozen=True, tag="thinking_delta", tag_field="type"):
    thinking: str


class SignatureDelta(Struct, frozen=True, tag="signature_delta", tag_field="type"):
    """The signature of the thinking that ends with it."""

    signature: str


class InputDelta(Struct, frozen=True, tag="input_json_delta", tag_field="type"):
    partial_json: str


class BlockDelta(Struct, frozen=True, tag="content_block_delta", tag_field="type"):
    index: int
    delta: TextDelta | ThinkingDelta | SignatureDelta | InputDelta


class BlockStop(Struct, frozen=True, tag="content_block_stop", tag_field="type"):
    index: int


class Stop(Struct, frozen=True):
    stop_reason: StopReason
    stop_sequence: str | None
    stop_details: None = None
    container: None = None


class MessageDelta(Struct, frozen=True, tag="message_delta", tag_field="type"):
    """The end of the answer. `usage` is of the whole request, with all fields of its input again. `diagnostics`, which
    clients find in whole messages only, is known here. `receipts` are ours."""

    delta: Stop
    usage: MessageUsage
    diagnostics: AnthropicDiagnostics | UnsetType = UNSET
    receipts: tuple[Receipt, ...] | UnsetType = UNSET


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


def _said(deltas: Sequence[ChoiceDelta]) -> Iterator[output.OutputEvent]:
    """What the answer says, in events."""
    for delta in deltas:
        if delta.text:
            yield output.TextDelta(delta.text)
        yield from delta.events


def _object(arguments: str) -> Raw:
    """Arguments as the object that a whole response has. Where the limit cut them off, what is whole of it, as the
    official client reads a stream."""
    try:
        whole = isinstance(msgspec.json.decode(arguments), dict)
    except (ValueError, RecursionError):
        whole = False
    return Raw(arguments.encode() if whole else msgspec.json.encode(readable_object(arguments, half_strings=False)[0]))


class MessageWriter:
    """Writes one response, whole or as events.

    `sign`: the signature of the thinking of a block. `shows_thinking`: whether the client sees its text as well.
    """

    def __init__(self, identity: MessageIdentity, sign: Callable[[str], str], *, shows_thinking: bool = True) -> None:
        self._identity = identity
        self._sign = sign
        self._shows_thinking = shows_thinking
        self._thinking: list[str] = []
        """The text of the block of thinking that is open."""
        self._opened = False
        self._blocks = 0
        """Blocks that were begun; the last one is open while `_kind` says of what kind it is."""
        self._kind: type[Struct] | None = None
        self._called = False
        self.withholds = False

    def whole(self, deltas: Sequence[ChoiceDelta], end: Finished) -> bytes:
        """The whole response."""
        content = self._content(deltas)
        self._called = any(isinstance(block, ToolUseContent) for block in content)
        reason, stop = self._stop(end)
        message = self._message(content, self._usage(end), reason, stop)
        diagnostics, receipts = anthropic_diagnostics(end.explanation), end.receipts or UNSET
        return _encoder.encode(msgspec.structs.replace(message, diagnostics=diagnostics, receipts=receipts))

    def started(self, start: Started) -> bytes:
        """`message_start` with the usage of the input, and a ping."""
        return self._open(start.usage)

    def keep_alive(self) -> bytes:
        """A ping; a comment before `message_start`, since no event may come before it."""
        return _PING if self._opened else _COMMENT

    def events(self, deltas: Sequence[ChoiceDelta]) -> bytes:
        """The block's deltas; before the first the block's start."""
        events = self._open(Usage())
        for said in _said(deltas):
            match said:
                case output.TextDelta(text):
                    events += self._in_block(TextContent("")) + self._delta(TextDelta(text))
                case output.ReasoningDelta(text):
                    events += self._in_block(ThinkingContent(""))
                    self._thinking.append(text)
                    if self._shows_thinking:
                        events += self._delta(ThinkingDelta(text))
                case output.CallStart(call, name):
                    self._called = True
                    events += self._close() + self._in_block(ToolUseContent(self._call_id(call), name, _NO_INPUT))
                case output.ArgumentsDelta(_, text):
                    events += self._delta(InputDelta(text))
        self.withholds = self._kind is ThinkingContent and not self._shows_thinking
        return events

    def finished(self, end: Finished) -> bytes:
        """The block's end, why the answer ended, the usage, and `message_stop`."""
        reason, stop = self._stop(end)
        events = self._open(end.usage)
        events += self._close()
        diagnostics = anthropic_diagnostics(end.explanation) or UNSET
        delta = MessageDelta(Stop(reason, stop), self._usage(end), diagnostics, end.receipts or UNSET)
        return events + _event(delta) + _event(MessageStop())

    def failed(self, end: Failed) -> bytes:
        """The event `error`, which the official client raises as an exception. Nothing follows it."""
        body = _encoder.encode(envelope(end.failure, self._identity.request_id))
        return b"event: error\ndata: %b\n\n" % body

    def _content(self, deltas: Sequence[ChoiceDelta]) -> tuple[Content, ...]:
        """The blocks of a whole response."""
        blocks: list[Content] = []
        calls: dict[int, list[str]] = {}
        for said in _said(deltas):
            last = blocks[-1] if blocks else None
            match said:
                case output.TextDelta(text):
                    if isinstance(last, TextContent):
                        blocks[-1] = TextContent(last.text + text)
                    else:
                        blocks.append(TextContent(text))
                case output.ReasoningDelta(text):
                    if isinstance(last, ThinkingContent):
                        blocks[-1] = ThinkingContent(last.thinking + text)
                    else:
                        blocks.append(ThinkingContent(text))
                case output.CallStart(call, name):
                    calls[call] = []
                    blocks.append(ToolUseContent(self._call_id(call), name, _NO_INPUT))
                case output.ArgumentsDelta(call, text):
                    calls[call].append(text)
        arguments = iter("".join(parts) for parts in calls.values())
        return tuple(self._complete(block, arguments) for block in blocks)

    def _complete(self, block: Content, arguments: Iterator[str]) -> Content:
        """A block of a whole response with what is only known at its end."""
        match block:
            case ToolUseContent():
                return msgspec.structs.replace(block, input=_object(next(arguments)))
            case ThinkingContent(text):
                return ThinkingContent(text if self._shows_thinking else "", self._sign(text))
        return block

    def _call_id(self, call: int) -> str:
        return f"toolu_{self._identity.id.removeprefix('msg_')}{call:02x}"

    def _in_block(self, block: Content) -> bytes:
        """The start of a block of this kind, unless one is open; the end of another one before it."""
        if self._kind is type(block):
            return b""
        events = self._close()
        self._kind = type(block)
        self._blocks += 1
        return events + _event(BlockStart(self._blocks - 1, block))

    def _delta(self, delta: TextDelta | ThinkingDelta | SignatureDelta | InputDelta) -> bytes:
        return _event(BlockDelta(self._blocks - 1, delta))

    def _close(self) -> bytes:
        if self._kind is None:
            return b""
        signed = b""
        if self._kind is ThinkingContent:
            signed = self._delta(SignatureDelta(self._sign("".join(self._thinking))))
            self._thinking.clear()
        self._kind = None
        return signed + _event(BlockStop(self._blocks - 1))

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
            reasoning=end.reasoning,
        )

    def _stop(self, end: Finished) -> tuple[StopReason, str | None]:
        """Why the answer ended, and the stop sequence that ended it."""
        stop = end.stop_strings[0] if end.stop_strings else None
        if stop is not None:
            return "stop_sequence", stop
        match end.reasons[0]:
            case "stop":
                return "tool_use" if self._called else "end_turn", None
            case "length" if self._identity.fills_context:
                return "model_context_window_exceeded", None
        return "max_tokens", None

    def _message(
        self, content: tuple[Content, ...], usage: MessageUsage, reason: StopReason | None, stop: str | None
    ) -> Message:
        return Message(
            id=self._identity.id,
            model=self._identity.model,
            content=content,
            stop_reason=reason,
            stop_sequence=stop,
            usage=usage,
        )
