"""Reads and checks query parameters. A list comes as `name` or `name[]`, once for each item."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar
from uuid import UUID

from litestar import Request

from billing.calendar import is_readable
from gateway.errors import InvalidField
from storage.database.base import to_instant

_MOST_INTEGER = 2**40
_SHOWN = 40
"""Characters of a wrong value that an error message repeats."""
Value = TypeVar("Value")


class Parameters:
    """A request's query. Every method may raise InvalidRequest, which names the parameter.

    A method returns None for a parameter that is absent.
    """

    def __init__(self, values: Mapping[str, Sequence[str]]) -> None:
        self._values = values
        self._known = {"beta"}  # which Anthropic's client adds to the URL of every beta endpoint

    @classmethod
    def of(cls, request: Request[Any, Any, Any]) -> Parameters:
        """The query of a request."""
        return cls(request.query_params.dict())

    def text(self, name: str) -> str | None:
        """The value; the last one if there are several."""
        self._known.add(name)
        values = self._values.get(name)
        return values[-1] if values else None

    def required(self, name: str) -> str:
        """The value, which must be there."""
        value = self.text(name)
        if value is None:
            raise InvalidField(name, "it is missing", code="missing_required_parameter")
        return value

    def texts(self, name: str) -> list[str] | None:
        """All values."""
        self._known |= {name, f"{name}[]"}
        return [*self._values.get(name, ()), *self._values.get(f"{name}[]", ())] or None

    def ids(self, name: str) -> list[UUID] | None:
        """All values, as ids."""
        try:
            return [UUID(text) for text in self.texts(name) or ()] or None
        except ValueError as error:
            raise InvalidField(name, "not an id") from error

    def integer(self, name: str) -> int | None:
        """A whole number from 0 to 2**40 - 1."""
        text = self.text(name)
        if text is None:
            return None
        if not (text.isascii() and text.isdigit() and int(text[:20]) < _MOST_INTEGER):
            raise InvalidField(name, f"{text[:_SHOWN]!r} is not a whole number from 0 to {_MOST_INTEGER - 1}")
        return int(text)

    def page_size(self, default: int = 20, least: int = 1, most: int = 100) -> int:
        """The parameter `limit`: how many objects to list. 0, where it is allowed, means the default."""
        limit = self.integer("limit")
        if limit is not None and not least <= limit <= most:
            raise InvalidField("limit", f"it must be from {least} to {most}")
        return limit or default

    def instant(self, name: str) -> int | None:
        """An RFC 3339 timestamp, in microseconds since the Unix epoch."""
        text = self.text(name)
        if text is None:
            return None
        try:
            # A "+" that was not percent-encoded arrives as a space.
            instant = to_instant(datetime.fromisoformat(text.replace(" ", "+") if "T" in text else text))
        except ValueError as error:
            raise InvalidField(name, f"{text[:_SHOWN]!r} is not a timestamp such as 2026-11-01T00:00:00Z") from error
        if not is_readable(instant):
            raise InvalidField(name, "it must not be before 1970, nor after 9998")
        return instant

    def seconds(self, name: str) -> int | None:
        """Seconds since the Unix epoch, as an instant in microseconds."""
        seconds = self.integer(name)
        if seconds is not None and not is_readable(seconds * 1_000_000):
            raise InvalidField(name, "it must not be after the year 9998")
        return None if seconds is None else seconds * 1_000_000

    def choice(self, name: str, choices: Sequence[str]) -> Any:
        """One of the choices."""
        text = self.text(name)
        return None if text is None else _check_choice(name, text, choices)

    def choices(self, name: str, choices: Sequence[str]) -> list[Any] | None:
        """All values, each one of the choices."""
        texts = self.texts(name)
        return None if texts is None else [_check_choice(name, text, choices) for text in texts]

    def mapped(self, name: str, table: Mapping[str, Sequence[Value]]) -> list[Value]:
        """The values of a table whose keys are given, in the order given; empty if absent."""
        return [value for key in self.choices(name, list(table)) or () for value in table[key]]

    def boolean(self, name: str) -> bool | None:
        """`true` or `false`."""
        text = self.text(name)
        return None if text is None else _check_choice(name, text.lower(), ("true", "false")) == "true"

    def reject(self, name: str, why: str) -> None:
        """Refuse a filter that is not supported: the result without it would answer another question."""
        if self.texts(name):
            raise InvalidField(name, why)

    def reject_unknown(self) -> None:
        """Refuse parameters that were not read: a misspelt filter would silently have no effect."""
        for name in sorted(self._values.keys() - self._known):
            raise InvalidField(name[:80], "there is no such parameter", code="unknown_parameter")


def _check_choice(name: str, text: str, choices: Sequence[str]) -> str:
    if text not in choices:
        raise InvalidField(name, f"{text[:_SHOWN]!r} is not one of {', '.join(choices)}")
    return text
