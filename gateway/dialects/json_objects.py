"""Reads the JSON objects within a request, schemas and arguments, and bounds their number of values and their depth."""

from __future__ import annotations

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

    def _count(self, value: dict[str, Any], path: str) -> None:
        level: list[Any] = [value]
        depth = 0
        while level:
            self._left -= len(level)
            if self._left < 0:
                raise InvalidField(path, f"the request's schemas and arguments have more than {MOST_VALUES} values")
            if depth > MAX_SCHEMA_DEPTH:
                raise InvalidField(path, f"it is nested more than {MAX_SCHEMA_DEPTH} levels deep")
            level = [
                item
                for container in level
                if isinstance(container, dict | list)
                for item in (container.values() if isinstance(container, dict) else container)
            ]
            depth += 1
