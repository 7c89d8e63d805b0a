"""What an export consists of: columns, and rows that come in portions, in one order for ever."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, TypeAlias
from uuid import UUID

import msgspec
from sqlalchemy import ColumnElement, Select
from sqlalchemy.ext.asyncio import AsyncSession

from billing.exports.columns import Column
from billing.exports.writers import Row
from billing.prices import PriceCatalog
from storage.database.database import Database

PORTION = 2000
"""Rows that are read and written at a time."""


PROVIDER = "Turnpike"
"""Who provides, where nothing else was set."""


class InvalidExport(ValueError):
    """An export cannot be asked for like this; `field` says which part of the question is wrong."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field
        self.problem = problem


class DisplayNames(msgspec.Struct, frozen=True):
    """What tenants and projects are called: billing knows only their ids."""

    tenants: Mapping[UUID, str] = {}
    projects: Mapping[UUID, str] = {}


class ExportQuery(msgspec.Struct, frozen=True, kw_only=True):
    """What an export is asked for: a period such as 2026-11, of one tenant or (None) of all.

    `account_codes` are the journal's, by account; `provider` is who FOCUS says provides and invoices.
    """

    period: str
    tenant_id: UUID | None = None
    names: DisplayNames = DisplayNames()
    account_codes: Mapping[str, str] = {}
    provider: str = PROVIDER


class ExportSnapshot(msgspec.Struct, frozen=True):
    """Where the rows come from: one snapshot of the database, and the prices."""

    database: Database
    session: AsyncSession
    prices: PriceCatalog

    async def portions(self, query: Select[Any]) -> AsyncIterator[Sequence[Any]]:
        """The query's rows through a cursor of the server's, so that a month never lies in memory."""
        result = await self.session.stream(query, execution_options={"yield_per": PORTION})
        async for portion in result.partitions(PORTION):
            yield portion

    def in_order(self, column: ColumnElement[Any]) -> ColumnElement[Any]:
        """Text in the order of its bytes, which is the same on every database and in every language."""
        return column.collate("C") if self.database.dialect == "postgresql" else column


Rows: TypeAlias = Callable[[ExportSnapshot, ExportQuery], AsyncIterator[Sequence[Row]]]


class Dataset(msgspec.Struct, frozen=True):
    """One kind of export. `sums` are the columns of money whose sums, by `currency`, the manifest states."""

    name: str
    title: str
    about: str
    columns: tuple[Column, ...]
    rows: Rows
    sums: tuple[str, ...]
    currency: str = "currency"

    def place(self, name: str) -> int:
        """Where a column stands."""
        return next(place for place, column in enumerate(self.columns) if column.name == name)
