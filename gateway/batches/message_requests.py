"""The requests of an Anthropic message batch: read from the one body that has them all, and written as lines."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import msgspec
from msgspec import Raw, Struct

from batch_store.records import Line
from gateway.batches.input_lines import (
    MESSAGES_ENDPOINT,
    MOST_LINE_BYTES,
    MOST_LINES,
    InputLine,
    InvalidLine,
    check_id,
    place_of,
)
from gateway.dialects.json_paths import decode, json_object
from gateway.errors import InvalidField

MOST_BYTES = 64 * 1024 * 1024
"""Bytes of the body."""
_SHOWN = 80


class MessageRequest(Struct, frozen=True):
    """A request of a batch."""

    custom_id: str
    params: Annotated[Raw, json_object("The body of a request to /v1/messages.")]


class MessageRequests(Struct, frozen=True):
    """The body of a new batch."""

    requests: list[MessageRequest]


class _Limits(Struct):
    max_tokens: int | None = None


_body, _limits = msgspec.json.Decoder(MessageRequests), msgspec.json.Decoder(_Limits)


def lines_of(body: bytes) -> tuple[list[Line], Iterator[bytes]]:
    """Where the lines of a batch lie, and their content, one after the other. Work for a thread. Raises InvalidRequest,
    which names the request that is wrong."""
    requests = decode(_body, body).requests
    most = MOST_LINES["anthropic"]
    if not 1 <= len(requests) <= most:
        raise InvalidField("$.requests", f"a batch has 1 to {most} requests, and not {len(requests)}")
    lines: list[Line] = []
    ids: dict[str, int] = {}
    offset = 0
    for number, request in enumerate(requests):
        content = _content(request)
        place = _place(number, request, ids)
        lines.append(Line(number=number, offset=offset, length=len(content), place=place))
        offset += len(content)
    return lines, map(_content, requests)


def _content(request: MessageRequest) -> bytes:
    return msgspec.json.encode(InputLine(request.custom_id, "POST", MESSAGES_ENDPOINT, request.params)) + b"\n"


def _place(number: int, request: MessageRequest, ids: dict[str, int]) -> bytes:
    path = f"$.requests[{number}]"
    params = bytes(request.params)
    try:
        check_id(request.custom_id, "anthropic")
        if len(params) > MOST_LINE_BYTES:
            raise InvalidLine("line_too_long", f"it may have {MOST_LINE_BYTES} bytes at most", "body")
        place = place_of(params)
        if _limits.decode(params).max_tokens == 0:
            raise InvalidLine("invalid_request", "a batch prewarms no cache; it must be at least 1", "body.max_tokens")
    except InvalidLine as error:
        field = (error.param or "custom_id").replace("body", "params", 1)
        raise InvalidField(f"{path}.{field}", str(error)) from error
    except msgspec.ValidationError as error:
        raise InvalidField(f"{path}.params.max_tokens", str(error)) from error
    first = ids.setdefault(request.custom_id, number)
    if first != number:
        shown = request.custom_id[:_SHOWN]
        raise InvalidField(f"{path}.custom_id", f"the request {first} has the custom_id {shown!r} too")
    return place
