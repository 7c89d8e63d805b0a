"""Limits on large bodies, checked before they are decoded: the cost of decoding depends on the parts, not the bytes.

A body of 8 MB may be one text, which takes 3 ms to decode, or 200,000 message parts, which take 200 times as long and
block the event loop. So a large body is first decoded into structs that keep nothing and only count; decoding stops
at the first part over the limit.

- A field that occurs twice would be counted once and decoded twice, so each field may occur only once.
- msgspec compares an unknown field with all known ones, so the number of fields is limited first.
- Everything else is left to the decoder that reads the request.
"""

from __future__ import annotations

import threading
from enum import Enum
from typing import Any, TypeAlias

import msgspec
from msgspec import Raw, Struct

from gateway.dialects.json_paths import ABSENT, decode
from gateway.errors import InvalidField, InvalidRequest
from protocol.requests import MOST_CHOICES

LARGE_BYTES = 64 * 1024
"""A smaller body is decoded on the event loop, without these checks."""
MOST_PARTS = 16_384
"""Messages, message parts and tools of a request, together."""
MOST_FIELDS = 4096
"""Fields of a body, with unknown and repeated ones."""
MOST_TOKEN_IDS = 2 * 1024 * 1024
_FIELD_BYTES = 64 * 1024
_GRAMMAR_BYTES = 1024 * 1024
_CHOICE_BYTES = 256 * 1024

_counted = threading.local()
"""Of the body that a thread decodes. `left`: parts that it may still have; `containers`: arrays and objects so far."""


class _TooMany(Exception):
    """The body has more parts than allowed."""


def _count() -> None:
    _counted.left -= 1
    if _counted.left < 0:
        raise _TooMany


class _AnyField(Enum):
    """Any field name. Decoding looks each name up here, which counts it, and stops at the first too many."""

    ANY = "\0"

    @classmethod
    def _missing_(cls, value: object) -> _AnyField:
        _counted.left -= 1
        if _counted.left < 0:
            raise ValueError
        return cls.ANY


class _Part(Struct):
    def __post_init__(self) -> None:
        _count()


class _Message(Struct):
    content: str | list[_Part] | None = None
    tool_calls: Raw = ABSENT

    def __post_init__(self) -> None:
        _count()
        if len(self.tool_calls) > _FIELD_BYTES:
            raise _TooMany


class _Body(Struct):
    messages: list[_Message] = []
    tools: list[_Part] | None = None
    tool_choice: Raw = ABSENT
    prompt: Raw = ABSENT
    stop: Raw = ABSENT
    stop_token_ids: Raw = ABSENT
    logit_bias: Raw = ABSENT
    metadata: Raw = ABSENT
    guided_choice: Raw = ABSENT
    structured_outputs: Raw = ABSENT


class _Object(Struct):
    def __post_init__(self) -> None:
        _counted.containers += 1


class _Array(Struct, array_like=True):
    def __post_init__(self) -> None:
        _counted.containers += 1


_Objects: TypeAlias = _Object | str | float | bool | None
_Arrays: TypeAlias = _Array | str | float | bool | None


class _ContainersOfMessage(Struct):
    tool_calls: _Arrays = None


class _ContainersOfBody(Struct):
    """Counts every array and object that is a field's value, also those of a field that occurs again."""

    messages: list[_ContainersOfMessage] = []
    tool_choice: _Objects = None
    prompt: _Arrays = None
    stop: _Arrays = None
    stop_token_ids: _Arrays = None
    logit_bias: _Objects = None
    metadata: _Objects = None
    guided_choice: _Arrays = None
    structured_outputs: _Objects = None


class _Content(Struct):
    """A content block of the Messages API, in which a tool's result may have blocks of its own."""

    content: str | list[_Part] | None = None

    def __post_init__(self) -> None:
        _count()


class _Said(Struct):
    content: str | list[_Content] = ""

    def __post_init__(self) -> None:
        _count()


class _MessagesBody(Struct):
    """The lists of the Messages API that are decoded part by part. All other lists are taken as they are, and decoded
    when their size is known."""

    messages: list[_Said] = []
    system: str | list[_Part] | None = None
    tools: list[_Part] | None = None


class _Item(Struct):
    """An item of the Responses API: one of its three lists has parts."""

    content: str | list[_Part] | None = None
    output: str | list[_Part] | None = None
    summary: list[_Part] | None = None

    def __post_init__(self) -> None:
        _count()


class _Tools(Struct):
    """A tool of the Responses API, which may be a group of tools."""

    tools: list[_Part] | None = None

    def __post_init__(self) -> None:
        _count()


class _ResponsesBody(Struct):
    """The lists of the Responses API that are decoded part by part."""

    input: str | list[_Item] | None = None
    tools: list[_Tools] | None = None
    tool_choice: Raw = ABSENT
    metadata: Raw = ABSENT
    include: Raw = ABSENT
    stop: Raw = ABSENT
    stop_token_ids: Raw = ABSENT
    logit_bias: Raw = ABSENT


_FIELDS = {
    "tool_choice": _CHOICE_BYTES,
    "stop": _FIELD_BYTES,
    "stop_token_ids": _FIELD_BYTES,
    "logit_bias": _FIELD_BYTES,
    "metadata": _FIELD_BYTES,
    "guided_choice": _GRAMMAR_BYTES,
    "structured_outputs": _GRAMMAR_BYTES,
}
_fields = msgspec.json.Decoder(dict[_AnyField, Raw])
_body = msgspec.json.Decoder(_Body)
_messages_body = msgspec.json.Decoder(_MessagesBody)
_responses_body = msgspec.json.Decoder(_ResponsesBody)
_containers = msgspec.json.Decoder(_ContainersOfBody)
_prompts = msgspec.json.Decoder(
    msgspec.defstruct(
        "_Prompts",
        [(f"prompt{index}", Raw, ABSENT) for index in range(MOST_CHOICES)],
        array_like=True,
        forbid_unknown_fields=True,
    )
)
"""As many prompts as a request may have; decoding fails at the next one."""


def check_large_body(body: bytes) -> None:
    """Raise InvalidRequest, which names the field, for a large body with more parts than allowed."""
    if len(body) <= LARGE_BYTES:
        return
    _check_fields(body)
    _counted.left, _counted.containers = MOST_PARTS, 0
    try:
        shape = decode(_body, body)
    except _TooMany as error:
        raise InvalidField("$.messages", f"it has more than {MOST_PARTS} messages, message parts and tools") from error
    _check_repeated(decode(_containers, body))
    for name, most in _FIELDS.items():
        if len(getattr(shape, name)) > most:
            raise InvalidField(f"$.{name}", f"it is longer than {most} bytes")
    _check_prompt(shape.prompt)


def check_large_messages(body: bytes) -> None:
    """The same for a large body of the Messages API."""
    if len(body) <= LARGE_BYTES:
        return
    _check_fields(body)
    _counted.left = MOST_PARTS
    try:
        decode(_messages_body, body)
    except _TooMany as error:
        raise InvalidField("$.messages", f"it has more than {MOST_PARTS} messages, blocks and tools") from error


def check_large_responses(body: bytes) -> None:
    """The same for a large body of the Responses API."""
    if len(body) <= LARGE_BYTES:
        return
    _check_fields(body)
    _counted.left = MOST_PARTS
    try:
        shape = decode(_responses_body, body)
    except _TooMany as error:
        raise InvalidField("$.input", f"it has more than {MOST_PARTS} items, parts and tools") from error
    for name, most in (
        ("tool_choice", _CHOICE_BYTES),
        *((name, _FIELD_BYTES) for name in ("metadata", "include", "stop", "stop_token_ids", "logit_bias")),
    ):
        if len(getattr(shape, name)) > most:
            raise InvalidField(f"$.{name}", f"it is longer than {most} bytes")


def _check_fields(body: bytes) -> None:
    _counted.left = MOST_FIELDS
    try:
        _fields.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        if _counted.left < 0:
            raise InvalidField("$", f"the body has more than {MOST_FIELDS} fields") from error


def _check_repeated(body: _ContainersOfBody) -> None:
    values = [*(getattr(body, name) for name in ("prompt", *_FIELDS)), *(m.tool_calls for m in body.messages)]
    if _counted.containers != sum(isinstance(value, _Object | _Array) for value in values):
        raise InvalidRequest("A field occurs twice in the body; give each field once.", code="invalid_json")


def _check_prompt(raw: Any) -> None:
    """Check the number of prompts and token ids. Token ids are counted by their commas: they contain no text."""
    start = bytes(memoryview(raw)[:4096]).lstrip()
    if not start.startswith(b"["):
        return
    if start[1:].lstrip()[:1] in (b"[", b'"'):
        try:
            _prompts.decode(raw)
        except msgspec.ValidationError as error:
            raise InvalidField("$.prompt", f"it has more than {MOST_CHOICES} prompts") from error
        if start[1:].lstrip()[:1] == b'"':
            return
    if bytes(raw).count(b",") >= MOST_TOKEN_IDS:
        raise InvalidField("$.prompt", f"it has more than {MOST_TOKEN_IDS} token ids")
