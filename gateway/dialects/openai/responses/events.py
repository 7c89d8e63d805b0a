"""The events of a streamed response. Each has a type, by which it is named, and a number in the stream.

Source: https://platform.openai.com/docs/api-reference/responses-streaming and the types of the official client.
"""

from __future__ import annotations

from typing import TypeAlias

from msgspec import Struct

from gateway.dialects.openai.common_response import event
from gateway.dialects.openai.logprobs import ContentLogprob
from gateway.dialects.openai.responses.response_object import OutputItem, OutputText, ReasoningText, Response


class StreamEvent(Struct, frozen=True, kw_only=True, tag_field="type"):
    """What every event has: its number, counted from 0."""

    sequence_number: int


class Created(StreamEvent, frozen=True, kw_only=True, tag="response.created"):
    response: Response


class Queued(StreamEvent, frozen=True, kw_only=True, tag="response.queued"):
    response: Response


class InProgress(StreamEvent, frozen=True, kw_only=True, tag="response.in_progress"):
    response: Response


class Completed(StreamEvent, frozen=True, kw_only=True, tag="response.completed"):
    response: Response


class Incomplete(StreamEvent, frozen=True, kw_only=True, tag="response.incomplete"):
    response: Response


class ResponseFailed(StreamEvent, frozen=True, kw_only=True, tag="response.failed"):
    """The response failed, or was cancelled."""

    response: Response


class ItemAdded(StreamEvent, frozen=True, kw_only=True, tag="response.output_item.added"):
    output_index: int
    item: OutputItem


class ItemDone(StreamEvent, frozen=True, kw_only=True, tag="response.output_item.done"):
    output_index: int
    item: OutputItem


class _InItem(StreamEvent, frozen=True, kw_only=True, tag_field="type"):
    item_id: str
    output_index: int


class PartAdded(_InItem, frozen=True, kw_only=True, tag="response.content_part.added"):
    part: OutputText | ReasoningText
    content_index: int = 0


class PartDone(_InItem, frozen=True, kw_only=True, tag="response.content_part.done"):
    part: OutputText | ReasoningText
    content_index: int = 0


class TextDelta(_InItem, frozen=True, kw_only=True, tag="response.output_text.delta"):
    delta: str
    content_index: int = 0
    logprobs: tuple[ContentLogprob, ...] = ()


class TextDone(_InItem, frozen=True, kw_only=True, tag="response.output_text.done"):
    text: str
    content_index: int = 0
    logprobs: tuple[ContentLogprob, ...] = ()


class ReasoningDelta(_InItem, frozen=True, kw_only=True, tag="response.reasoning_text.delta"):
    delta: str
    content_index: int = 0


class ReasoningDone(_InItem, frozen=True, kw_only=True, tag="response.reasoning_text.done"):
    text: str
    content_index: int = 0


class ArgumentsDelta(_InItem, frozen=True, kw_only=True, tag="response.function_call_arguments.delta"):
    delta: str


class ArgumentsDone(_InItem, frozen=True, kw_only=True, tag="response.function_call_arguments.done"):
    arguments: str
    name: str


class InputDelta(_InItem, frozen=True, kw_only=True, tag="response.custom_tool_call_input.delta"):
    delta: str


class InputDone(_InItem, frozen=True, kw_only=True, tag="response.custom_tool_call_input.done"):
    input: str


EVENTS: TypeAlias = (
    Created
    | Queued
    | InProgress
    | Completed
    | Incomplete
    | ResponseFailed
    | ItemAdded
    | ItemDone
    | PartAdded
    | PartDone
    | TextDelta
    | TextDone
    | ReasoningDelta
    | ReasoningDone
    | ArgumentsDelta
    | ArgumentsDone
    | InputDelta
    | InputDone
)


def named_event(body: StreamEvent) -> bytes:
    """One server-sent event, named as its type says."""
    return event(body, str(body.__struct_config__.tag))
