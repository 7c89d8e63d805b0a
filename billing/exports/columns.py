"""What the columns of an export hold, and how each value is written as text: the same in every format and language."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import msgspec

from billing.money import MICRO, format_pico
from storage.database.base import from_instant

ColumnKind = Literal["text", "id", "integer", "money", "price", "instant", "second", "date"]
"""`money` is in pico-units, `price` in micro-units per 1,000,000; both are exact decimal numbers in files. `instant` is
in microseconds since the Unix epoch; `second` and `date` too, written to the second and as the day in UTC. None is
empty."""

PRICE_PLACES, MONEY_PLACES = 6, 12


class Column(msgspec.Struct, frozen=True):
    """A column; `about` is one line for the documentation."""

    name: str
    kind: ColumnKind
    about: str = ""


def as_text(kind: ColumnKind, value: Any) -> str | None:
    """The value as every text format has it; numbers are plain decimals."""
    return None if value is None else _TEXTS.get(kind, str)(value)


def format_price(micro: int) -> str:
    """A price as a decimal string with all its 6 places: 400000 → "0.400000"."""
    whole, rest = divmod(abs(micro), MICRO)
    return f"{'-' if micro < 0 else ''}{whole}.{rest:06d}"


def safe_cell(text: str) -> str:
    """Text that no spreadsheet takes for a formula: what begins like one gets an apostrophe in front (OWASP's rule)."""
    return f"'{text}" if text[:1] in _FORMULA else text


_FORMULA = frozenset("=+-@\t\r\n＝＋－＠")
_TEXTS: dict[ColumnKind, Callable[[Any], str]] = {
    "money": format_pico,
    "price": format_price,
    "instant": lambda at: from_instant(at).isoformat(timespec="microseconds").replace("+00:00", "Z"),
    "second": lambda at: from_instant(at).strftime("%Y-%m-%dT%H:%M:%SZ"),
    "date": lambda at: from_instant(at).date().isoformat(),
}
