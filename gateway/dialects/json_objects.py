"""Reads the JSON objects within a request, schemas and arguments, and bounds their number of values and their depth."""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec
from msgspec import Raw

from gateway.errors import InvalidField
from protocol.grammar_limits import MAX_SCHEMA_BYTES, MAX_SCHEMA_DEPTH

MOST_VALUES = 32_768
"""Values in all schemas and arguments of a request: each is marked, and found again, one by one."""


class JsonObjects:
    """The objects of one request."""

    def __init__(self) -> None:
        self._left = MOST_VALUES

    def read(self, raw: Raw, path: str) -> dict[str, Any]:
        """The object at this path. Raises InvalidRequest if it is none, or too large, or there are too many values."""
        if len(raw) > MAX_SCHEMA_BYTES:
            raise InvalidField(path, f"it has more than {MAX_SCHEMA_BYTES} bytes")
        try:
            value = msgspec.json.decode(raw)
        except (ValueError, RecursionError) as error:
            raise InvalidField(path, f"it is not JSON: {error}") from error
        if not isinstance(value, dict):
            raise InvalidField(path, "Expected `object`", code="invalid_type")
        self._count(value, path)
        return value

    def read_arguments(self, text: str, path: str) -> tuple[str, str]:
        """The arguments that a model wrote for a call, as `text` and `readable` of a `ToolCall`. Without any they are
        an empty object. Raises InvalidRequest if they are too large, or there are too many values."""
        if len(text) > MAX_SCHEMA_BYTES:
            raise InvalidField(path, f"it has more than {MAX_SCHEMA_BYTES} characters")
        try:
            value = msgspec.json.decode(text)
        except (ValueError, RecursionError):
            value = None
        if isinstance(value, dict):
            self._count(value, path)
            return text.strip(), ""
        readable, marks = readable_object(text, self._left)
        self._spend(marks, path)
        return text if text.strip() else "{}", json.dumps(readable, ensure_ascii=False)

    def _spend(self, values: int, path: str) -> None:
        self._left -= values
        if self._left < 0:
            raise InvalidField(path, f"the request's schemas and arguments have more than {MOST_VALUES} values")

    def _count(self, value: dict[str, Any], path: str) -> None:
        level: list[Any] = [value]
        depth = 0
        while level:
            self._spend(len(level), path)
            if depth > MAX_SCHEMA_DEPTH:
                raise InvalidField(path, f"it is nested more than {MAX_SCHEMA_DEPTH} levels deep")
            level = [
                item
                for container in level
                if isinstance(container, dict | list)
                for item in (container.values() if isinstance(container, dict) else container)
            ]
            depth += 1


_MARK = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+(?P<close>")?|[{}\[\],]', re.DOTALL)
"""A string, with its closing quote if there is one, or a character of JSON's structure."""
WHOLE_CHARACTERS = re.compile(
    r'(?:[^"\\]|\\u(?![dD][89abAB])[0-9a-fA-F]{4}|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\[^u])*'
)
"""Characters of a JSON string and whole escapes, both halves of a surrogate pair among them."""
_CLOSING = {"{": "}", "[": "]"}


def readable_object(
    text: str, most_marks: int = MOST_VALUES, *, half_strings: bool = True
) -> tuple[dict[str, Any], int]:
    """The object that a text begins: what is whole of it and, with `half_strings`, a last string as far as it came. An
    empty one where it begins none, or has more than `most_marks` marks of structure. And how many were looked at."""
    closing: list[str] = []
    marks = whole = 0
    opened: int | None = None
    """Where a string begins that does not end."""
    for mark in _MARK.finditer(text):
        marks += 1
        if marks > most_marks or len(closing) > MAX_SCHEMA_DEPTH:
            return {}, marks
        match mark[0]:
            case "{" | "[" as opening:
                closing.append(_CLOSING[opening])
                whole = mark.end()
            case ",":
                whole = mark.start()
            case "}" | "]" as closed:
                if not closing or closing.pop() != closed:
                    return {}, marks
                whole = mark.end()
                if not closing:
                    break
            case _ if mark["close"] is None:
                opened = mark.start() + 1
    ends = "".join(reversed(closing))
    begun = text
    if opened is not None and half_strings and (said := WHOLE_CHARACTERS.match(text, opened)) is not None:
        begun = text[: said.end()] + '"'
    for candidate in (begun + ends, text[:whole] + ends):
        try:
            value = msgspec.json.decode(candidate)
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict):
            return value, marks
    return {}, marks
