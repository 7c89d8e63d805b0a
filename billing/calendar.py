"""Instants and billing periods: text to integers and back, and the arithmetic of months.

An instant is an integer in microseconds since the Unix epoch. A billing period is a calendar month in UTC, written
YYYY-MM. What is read lies from 1970 to 9998, so that the hours, days and months around it exist too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import lru_cache

from storage.database.base import from_instant, to_instant
from storage.reported_error import ReportedError

_RFC3339 = re.compile(r"\d{4}-\d\d-\d\d(?:[Tt ]\d\d:\d\d(?::\d\d(?:\.\d{1,6})?)?(?:[Zz]|[+-]\d\d:\d\d))?", re.ASCII)
_SECONDS = re.compile(r"\d{1,12}", re.ASCII)
_END = 253_370_764_800_000_000
"""The year 9999."""
_PERIOD = re.compile(r"\d{4}-(0[1-9]|1[0-2])", re.ASCII)
_HOUR = 3_600_000_000


class InvalidInstant(ValueError):
    """Text that is not an instant."""

    def __init__(self, text: str) -> None:
        super().__init__(
            f"{text[:40]!r} is not an instant such as 2027-01-01T00:00:00Z, 2027-01-01 (UTC) or 1798761600"
        )


class InvalidPeriod(ReportedError, ValueError):
    """A billing period that is not YYYY-MM."""

    def __init__(self, period: str) -> None:
        super().__init__(f"{period!r} is not a period such as 2026-11")


def parse_instant(text: str) -> int:
    """Microseconds since the Unix epoch. A date alone is its midnight in UTC. Raises InvalidInstant."""
    if _SECONDS.fullmatch(text):
        instant = int(text) * 1_000_000
    elif _RFC3339.fullmatch(text):
        try:
            moment = datetime.fromisoformat(text.upper())
            instant = to_instant(moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment)
        except (ValueError, OverflowError):
            raise InvalidInstant(text) from None
    else:
        raise InvalidInstant(text)
    if not is_readable(instant):
        raise InvalidInstant(text)
    return instant


def is_readable(instant: int) -> bool:
    """Whether an instant that somebody names is from 1970 to 9998."""
    return 0 <= instant < _END


def format_instant(instant: int) -> str:
    """RFC 3339 in UTC, with a fraction only if there is one: 2027-01-01T00:00:00Z."""
    return from_instant(instant).replace(tzinfo=None).isoformat() + "Z"


@lru_cache(64)
def check_period(period: str) -> str:
    """The period, if it is one. Raises InvalidPeriod."""
    if _PERIOD.fullmatch(period) is None or not "1970" <= period[:4] < "9999":
        raise InvalidPeriod(period)
    return period


def period_of(instant: int) -> str:
    """The billing period that an instant is in."""
    return _period_of_hour(instant // _HOUR)


@lru_cache(64)
def _period_of_hour(hour: int) -> str:
    return datetime.fromtimestamp(hour * 3600, UTC).strftime("%Y-%m")


def period_bounds(period: str) -> tuple[int, int]:
    """The first instant of a period, and the first one after it. Raises InvalidPeriod."""
    year, month = map(int, check_period(period).split("-"))
    first, after = datetime(year, month, 1, tzinfo=UTC), datetime(year + month // 12, month % 12 + 1, 1, tzinfo=UTC)
    return to_instant(first), to_instant(after)


def following_period(period: str) -> str:
    """The period after this one. Raises InvalidPeriod."""
    return period_of(period_bounds(period)[1])


def count_months(first: str, last: str) -> int:
    """How many periods there are from one to another, both included."""
    (year, month), (last_year, last_month) = (map(int, check_period(period).split("-")) for period in (first, last))
    return (last_year - year) * 12 + last_month - month + 1


def months(first: str, last: str) -> Iterator[str]:
    """The periods from one to another, both included. Raises InvalidPeriod."""
    month = check_period(first)
    while month <= last:
        yield month
        month = following_period(month)
