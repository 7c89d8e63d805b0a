"""Query parameters of reports, checked one by one. Lists come as `name` or `name[]`, once for each item."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from gateway.errors import InvalidRequest
from storage.database.base import to_instant

_LATEST = 2**40


class Parameters:
    """A request's query. Everything here raises InvalidRequest naming the parameter."""

    def __init__(self, given: Mapping[str, Sequence[str]]) -> None:
        self._given = given
        self._known = {"beta"}  # what a vendor's client adds to the address of a beta, whatever it asks

    def one(self, name: str) -> str | None:
        """The last value that was given; None for none."""
        self._known.add(name)
        values = self._given.get(name)
        return values[-1] if values else None

    def required(self, name: str) -> str:
        """The value, which must be there."""
        value = self.one(name)
        if value is None:
            raise InvalidRequest(f"{name} is missing.", path=name, code="missing_required_parameter")
        return value

    def many(self, name: str) -> list[str] | None:
        """All values; None for none."""
        self._known |= {name, f"{name}[]"}
        return [*self._given.get(name, ()), *self._given.get(f"{name}[]", ())] or None

    def ids(self, name: str) -> list[UUID] | None:
        """All values as ids; None for none."""
        try:
            return [UUID(text) for text in self.many(name) or ()] or None
        except ValueError as error:
            raise _wrong(name, "not an id") from error

    def whole(self, name: str) -> int | None:
        """A whole number; None for none."""
        text = self.one(name)
        if text is None:
            return None
        if not (text.isascii() and text.isdigit() and int(text[:20]) < _LATEST):
            raise _wrong(name, f"{text[:40]!r} is not a whole number")
        return int(text)

    def instant(self, name: str) -> int | None:
        """An RFC 3339 timestamp in microseconds since the Unix epoch; None for none."""
        text = self.one(name)
        if text is None:
            return None
        try:
            # A "+" that was not percent-encoded arrives as a space.
            return to_instant(datetime.fromisoformat(text.replace(" ", "+") if "T" in text else text))
        except ValueError as error:
            raise _wrong(name, f"{text[:40]!r} is not a timestamp such as 2026-11-01T00:00:00Z") from error

    def choice(self, name: str, choices: Sequence[str]) -> Any:
        """One of the choices; None for none."""
        text = self.one(name)
        return None if text is None else _chosen(name, text, choices)

    def choices(self, name: str, choices: Sequence[str]) -> list[Any] | None:
        """Several of the choices; None for none."""
        texts = self.many(name)
        return None if texts is None else [_chosen(name, text, choices) for text in texts]

    def truth(self, name: str) -> bool | None:
        """Whether it is true; None if nothing was said."""
        text = self.one(name)
        return None if text is None else _chosen(name, text.lower(), ("true", "false")) == "true"

    def refuse(self, name: str, why: str) -> None:
        """Refuse a filter that could not be honoured: ignoring it would answer another question."""
        if self.many(name):
            raise _wrong(name, why)

    def nothing_else(self) -> None:
        """Refuse what was not looked at: a filter with a slip of the pen would silently be none."""
        for name in sorted(self._given.keys() - self._known):
            raise InvalidRequest(f"{name[:80]}: there is no such parameter.", path=name[:80], code="unknown_parameter")


def _chosen(name: str, text: str, choices: Sequence[str]) -> str:
    if text not in choices:
        raise _wrong(name, f"{text[:40]!r} is not one of {', '.join(choices)}")
    return text


def _wrong(name: str, problem: str) -> InvalidRequest:
    return InvalidRequest(f"{name}: {problem}.", path=name, code="invalid_value")
