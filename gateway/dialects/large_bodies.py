"""Bounds on large bodies, checked before they are decoded: what a body costs us follows its parts, not its bytes.

A body of 8 MB may be one text, which costs 3 ms, or 200,000 parts of a message, which cost 200 times that while nobody
else is served. So a large body is first decoded into shapes that hold nothing and count what there is; decoding ends
with the first part too many. Of a field that is given twice only the last one would be counted, while the decoder that
reads the fields decodes both; so each field is given once. A field that nobody knows is compared with all that are
known, so how many fields a body has is bounded first. What is wrong otherwise is left to that decoder.
"""

from __future__ import annotations

import threading
from enum import Enum
from typing import Any, TypeAlias

import msgspec
from msgspec import Raw, Struct

from gateway.dialects.json_paths import ABSENT, decode
from gateway.errors import InvalidRequest
from protocol.requests import MOST_CHOICES

LARGE_BYTES = 64 * 1024
"""A smaller body is decoded at once, where it is read."""
MOST_PARTS = 16_384
"""Messages and parts of messages that a request may have."""
MOST_FIELDS = 4096
"""Fields of a body, those that nobody knows and repeated ones too."""
MOST_TOKEN_IDS = 2 * 1024 * 1024
_FIELD_BYTES = 64 * 1024
_GRAMMAR_BYTES = 1024 * 1024

_counted = threading.local()
"""`left`: how many more parts the body may have that this thread decodes; `met`: values that have parts, so far."""


class _TooMany(Exception):
    """There are more parts than a request may have."""


def _count() -> None:
    _counted.left -= 1
    if _counted.left < 0:
        raise _TooMany


class _AnyField(Enum):
    """The name of any field. Decoding looks each one up here, which counts it, and ends with the first one too many."""

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
    prompt: Raw = ABSENT
    stop: Raw = ABSENT
    stop_token_ids: Raw = ABSENT
    logit_bias: Raw = ABSENT
    metadata: Raw = ABSENT
    guided_choice: Raw = ABSENT
    structured_outputs: Raw = ABSENT


class _Object(Struct):
    def __post_init__(self) -> None:
        _counted.met += 1


class _Array(Struct, array_like=True):
    def __post_init__(self) -> None:
        _counted.met += 1


_Objects: TypeAlias = _Object | str | float | bool | None
_Arrays: TypeAlias = _Array | str | float | bool | None


class _GivenMessage(Struct):
    tool_calls: _Arrays = None


class _GivenBody(Struct):
    """Every value of a field is met, also one that another follows under the same name."""

    messages: list[_GivenMessage] = []
    prompt: _Arrays = None
    stop: _Arrays = None
    stop_token_ids: _Arrays = None
    logit_bias: _Objects = None
    metadata: _Objects = None
    guided_choice: _Arrays = None
    structured_outputs: _Objects = None


_FIELDS = {
    "stop": _FIELD_BYTES,
    "stop_token_ids": _FIELD_BYTES,
    "logit_bias": _FIELD_BYTES,
    "metadata": _FIELD_BYTES,
    "guided_choice": _GRAMMAR_BYTES,
    "structured_outputs": _GRAMMAR_BYTES,
}
_fields = msgspec.json.Decoder(dict[_AnyField, Raw])
_body = msgspec.json.Decoder(_Body)
_given = msgspec.json.Decoder(_GivenBody)
_prompts = msgspec.json.Decoder(
    msgspec.defstruct(
        "_Prompts",
        [(f"prompt{index}", Raw, ABSENT) for index in range(MOST_CHOICES)],
        array_like=True,
        forbid_unknown_fields=True,
    )
)
"""As many prompts as a request may have; decoding ends with the first one more."""


def check_large_body(body: bytes) -> None:
    """Raise InvalidRequest, naming the field, for a large body with more parts than a request may have."""
    if len(body) <= LARGE_BYTES:
        return
    _check_fields(body)
    _counted.left, _counted.met = MOST_PARTS, 0
    try:
        shape = decode(_body, body)
    except _TooMany as error:
        raise _too_long("$.messages", f"has more than {MOST_PARTS} messages and parts of messages") from error
    _check_repeated(decode(_given, body))
    for name, most in _FIELDS.items():
        if len(getattr(shape, name)) > most:
            raise _too_long(f"$.{name}", f"is longer than {most} bytes")
    _check_prompt(shape.prompt)


def _check_fields(body: bytes) -> None:
    _counted.left = MOST_FIELDS
    try:
        _fields.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        if _counted.left < 0:
            raise InvalidRequest(
                f"The body has more than {MOST_FIELDS} fields.", path="$", code="invalid_value"
            ) from error


def _check_repeated(given: _GivenBody) -> None:
    values = [*(getattr(given, name) for name in ("prompt", *_FIELDS)), *(each.tool_calls for each in given.messages)]
    if _counted.met != sum(isinstance(value, _Object | _Array) for value in values):
        raise InvalidRequest("A body names each field once.", code="invalid_json")


def _check_prompt(raw: Any) -> None:
    """Lists of token ids are counted by their commas: there is no text in them."""
    start = bytes(memoryview(raw)[:4096]).lstrip()
    if not start.startswith(b"["):
        return
    if start[1:].lstrip()[:1] in (b"[", b'"'):
        try:
            _prompts.decode(raw)
        except msgspec.ValidationError as error:
            raise _too_long("$.prompt", f"has more than {MOST_CHOICES} prompts") from error
        if start[1:].lstrip()[:1] == b'"':
            return
    if bytes(raw).count(b",") >= MOST_TOKEN_IDS:
        raise _too_long("$.prompt", f"has more than {MOST_TOKEN_IDS} token ids")


def _too_long(path: str, what: str) -> InvalidRequest:
    return InvalidRequest(f"{path} {what}.", path=path, code="invalid_value")
