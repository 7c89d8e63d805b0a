"""Instants as people and clients write them: RFC 3339, a date, or seconds since the Unix epoch."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from storage.database.base import from_instant, to_instant

_RFC3339 = re.compile(r"\d{4}-\d\d-\d\d(?:[Tt ]\d\d:\d\d(?::\d\d(?:\.\d{1,6})?)?(?:[Zz]|[+-]\d\d:\d\d))?", re.ASCII)
_SECONDS = re.compile(r"\d{1,12}", re.ASCII)
_LAST_SECOND = 253_402_300_800  # the year 10000


class InvalidInstant(ValueError):
    """Text that is not an instant."""

    def __init__(self, text: str) -> None:
        super().__init__(
            f"{text[:40]!r} is not an instant such as 2027-01-01T00:00:00Z, 2027-01-01 (UTC) or 1798761600"
        )


def parse_instant(text: str) -> int:
    """Microseconds since the Unix epoch. A date alone is its midnight in UTC. Raises InvalidInstant."""
    if _SECONDS.fullmatch(text) and int(text) < _LAST_SECOND:
        return int(text) * 1_000_000
    if _RFC3339.fullmatch(text) is None:
        raise InvalidInstant(text)
    try:
        moment = datetime.fromisoformat(text.upper())
        instant = to_instant(moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment)
    except (ValueError, OverflowError):
        raise InvalidInstant(text) from None
    if instant < 0:
        raise InvalidInstant(text)
    return instant


def format_instant(instant: int) -> str:
    """RFC 3339 in UTC, with a fraction only if there is one: 2027-01-01T00:00:00Z."""
    return from_instant(instant).replace(tzinfo=None).isoformat() + "Z"
