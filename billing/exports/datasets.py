"""What an export consists of: columns and their values as text, the query, and rows read from one snapshot."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias
from uuid import UUID

import msgspec
from sqlalchemy import ColumnElement, Select
from sqlalchemy.ext.asyncio import AsyncSession

from billing.money import MICRO, format_pico
from billing.prices import PriceCatalog
from storage.database.base import from_instant
from storage.database.database import Database
from storage.reported_error import ReportedError

PORTION = 2000
"""Rows that are read and written at a time."""
PROVIDER = "Turnpike"
"""The provider's name in FOCUS datasets, unless another is set."""
PRICE_PLACES, MONEY_PLACES = 6, 12
"""Decimal places of prices and of amounts of money in files."""

ColumnKind = Literal["text", "id", "integer", "money", "price", "instant", "second", "date"]
"""What a column's values are, before they are written. None is an empty cell.

| kind | value | written as |
|---|---|---|
| money | pico-units | decimal with 12 places |
| price | micro-units per 1,000,000 units | decimal with 6 places |
| instant | microseconds since the Unix epoch | UTC to the microsecond |
| second | microseconds since the Unix epoch | UTC to the second |
| date | microseconds since the Unix epoch | day in UTC |
"""

Row: TypeAlias = Sequence[Any]
"""One value for each column, of the column's kind."""


class InvalidExport(ReportedError, ValueError):
    """An export cannot be made from this query; `field` says which part of the query is wrong."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field
        self.problem = problem


class Column(msgspec.Struct, frozen=True):
    """A column; `about` is one line for the documentation."""

    name: str
    kind: ColumnKind
    about: str = ""


def as_text(kind: ColumnKind, value: Any) -> str | None:
    """A value as CSV and JSON Lines write it, in every locale; None stays None."""
    return None if value is None else _TEXTS.get(kind, str)(value)


def format_price(micro: int) -> str:
    """A price as a decimal string with all its 6 places: 400000 → "0.400000"."""
    whole, rest = divmod(abs(micro), MICRO)
    return f"{'-' if micro < 0 else ''}{whole}.{rest:06d}"


_TEXTS: dict[ColumnKind, Callable[[Any], str]] = {
    "money": format_pico,
    "price": format_price,
    "instant": lambda at: from_instant(at).isoformat(timespec="microseconds").replace("+00:00", "Z"),
    "second": lambda at: from_instant(at).strftime("%Y-%m-%dT%H:%M:%SZ"),
    "date": lambda at: from_instant(at).date().isoformat(),
}


class DisplayNames(msgspec.Struct, frozen=True):
    """Names of tenants and projects by id. Billing itself stores only the ids."""

    tenants: Mapping[UUID, str] = {}
    projects: Mapping[UUID, str] = {}


class ExportQuery(msgspec.Struct, frozen=True, kw_only=True):
    """What to export: a period such as 2026-11, of one tenant, or of all tenants (None).

    `account_codes` are the journal's codes by account; `provider` is provider and invoice issuer in FOCUS.
    `seller` is whose bookings they are (empty: of all), `datev` what a batch says of its owner
    (`billing.exports.datev.parse_batch`).
    """

    period: str
    tenant_id: UUID | None = None
    names: DisplayNames = DisplayNames()
    account_codes: Mapping[str, str] = {}
    provider: str = PROVIDER
    seller: str = ""
    datev: str = ""


class ExportSnapshot(msgspec.Struct, frozen=True):
    """Where rows are read from: one snapshot of the database, and the price catalog."""

    database: Database
    session: AsyncSession
    prices: PriceCatalog

    async def portions(self, query: Select[Any]) -> AsyncIterator[Sequence[Any]]:
        """The query's rows through a server-side cursor, PORTION at a time: memory does not grow with the month."""
        result = await self.session.stream(query, execution_options={"yield_per": PORTION})
        async for portion in result.partitions(PORTION):
            yield portion

    def in_order(self, column: ColumnElement[Any]) -> ColumnElement[Any]:
        """A text column ordered by its bytes: the same order on every database and in every locale."""
        return column.collate("C") if self.database.dialect == "postgresql" else column


Rows: TypeAlias = Callable[[ExportSnapshot, ExportQuery], AsyncIterator[Sequence[Row]]]
"""Yields a dataset's rows in portions, always in the same order."""


class Dataset(msgspec.Struct, frozen=True):
    """One kind of export. `sums` are the money columns that the manifest sums by the column `currency`.

    `writer` writes a dataset whose file has a form of its own, of which CSV is the nearest; its name begins with
    `prefix`. Such a dataset is made by the command alone.
    """

    name: str
    title: str
    about: str
    columns: tuple[Column, ...]
    rows: Rows
    sums: tuple[str, ...]
    currency: str = "currency"
    writer: Callable[[Path, ExportQuery], Any] | None = None
    prefix: str = ""

    def place(self, name: str) -> int:
        """The index of a column."""
        return next(place for place, column in enumerate(self.columns) if column.name == name)
