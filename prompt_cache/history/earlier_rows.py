"""Reads what the history has of one project, for several of its requests together: what they share is read once."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from typing import Any, Generic, TypeVar
from uuid import UUID

from msgspec import Struct
from sqlalchemy import Column, ColumnElement, select
from sqlalchemy.ext.asyncio import AsyncSession

from prompt_cache.history.records import RequestRecord, unpack
from prompt_cache.tables import cache_prefix, cache_request, ended_lease
from storage.database.database import Database
from storage.database.sql_arrays import one_of

MOST_BRANCHES = 128
"""How many continuations of a known prefix are looked at, the latest."""
MOST_OTHERS = 32
_AHEAD = 3
"""So many times more rows are read than one request looks at: some are too late for requests that came before it."""

_PREFIX, _REQUEST = cache_prefix.c, cache_request.c
Row = TypeVar("Row")


class Branch(Struct, frozen=True):
    """A node as the database has it, and the requests that had it first and last."""

    key: bytes
    parent: bytes
    start: int
    hashes: bytes
    first_request: UUID
    first_at: int
    last_request: UUID
    last_at: int

    def before(self, at: int) -> tuple[UUID, int] | None:
        """The latest of its requests that we know of, admitted before `at`."""
        if self.last_at < at:
            return self.last_request, self.last_at
        return (self.first_request, self.first_at) if self.first_at < at else None


class EndedLease(Struct, frozen=True):
    """A lease that has ended, and why."""

    prefix_key: bytes
    cause: str
    ended_at: int
    created_at: int
    lease_class: str


class _Latest(Generic[Row]):
    """The latest rows before the instant `until`, each with its own instant. `all_of_them`: there are no more."""

    def __init__(self, until: int, rows: list[tuple[int, Row]], *, all_of_them: bool) -> None:
        self._until = until
        self._rows = rows
        self._all = all_of_them

    def before(self, at: int, most: int) -> list[Row] | None:
        """The latest rows before `at`, at most so many; None if these rows do not tell."""
        rows = [row for own, row in self._rows if own < at][:most]
        return rows if at <= self._until and (self._all or len(rows) == most) else None


class EarlierRows:
    """The rows of one project that one transaction sees. Ask for the latest request first, so that its rows serve the
    others. Every method raises DatabaseUnavailable."""

    def __init__(self, database: Database, session: AsyncSession, tenant_id: UUID, project_id: UUID) -> None:
        self._database = database
        self._session = session
        self._place = (tenant_id, project_id)
        self._continuations: dict[bytes, _Latest[Branch]] = {}
        self._others: dict[tuple[str, bytes], _Latest[RequestRecord]] = {}

    def _of_tenant(self, columns: Any) -> ColumnElement[bool]:
        """The condition that a row is of this tenant's project."""
        own: ColumnElement[bool] = (columns.tenant_id == self._place[0]) & (columns.project_id == self._place[1])
        return own

    async def branches(self, keys: Collection[bytes]) -> dict[bytes, Branch]:
        """The nodes with these keys, of those that are kept."""
        query = select(cache_prefix).where(self._of_tenant(_PREFIX), one_of(self._database, _PREFIX.key, keys))
        return {row.key: _branch(row) for row in await self._session.execute(query)} if keys else {}

    async def continuations(self, parent: bytes, at: int) -> list[Branch]:
        """The latest continuations of a prefix, of those that some request had before `at`."""

        async def read(most: int) -> list[tuple[int, Branch]]:
            query = select(cache_prefix).where(
                self._of_tenant(_PREFIX), _PREFIX.parent == parent, _PREFIX.first_at < at
            )
            rows = await self._session.execute(query.order_by(_PREFIX.last_at.desc()).limit(most))
            return [(row.first_at, _branch(row)) for row in rows]

        return await _latest(self._continuations, parent, at, MOST_BRANCHES, read)

    async def beginning_with(self, column: Column[bytes], key: bytes, at: int) -> list[RequestRecord]:
        """The latest requests of before `at` that have this key of their first pieces."""

        async def read(most: int) -> list[tuple[int, RequestRecord]]:
            query = select(_REQUEST.at, _REQUEST.record).where(
                self._of_tenant(_REQUEST), column == key, _REQUEST.at < at
            )
            rows = await self._session.execute(query.order_by(_REQUEST.at.desc()).limit(most))
            return [(row.at, unpack(row.record)) for row in rows]

        return await _latest(self._others, (column.name, key), at, MOST_OTHERS, read)

    async def records(self, ids: Collection[UUID]) -> dict[UUID, RequestRecord]:
        """The records of these requests, of those that are kept."""
        query = select(_REQUEST.record).where(
            self._of_tenant(_REQUEST), one_of(self._database, _REQUEST.request_id, ids)
        )
        found = [unpack(data) for data in await self._session.scalars(query)] if ids else []
        return {one.id: one for one in found}

    async def ended_leases(self, keys: Collection[bytes]) -> dict[bytes, list[EndedLease]]:
        """The ended leases with these keys, by key, those that ended first before the others."""
        of = ended_lease.c
        query = select(of.prefix_key, of.cause, of.ended_at, of.created_at, of.lease_class)
        query = query.where(self._of_tenant(of), one_of(self._database, of.prefix_key, keys)).order_by(of.ended_at)
        found: dict[bytes, list[EndedLease]] = {}
        for row in await self._session.execute(query) if keys else ():
            found.setdefault(row.prefix_key, []).append(EndedLease(*row))
        return found


async def _latest(
    kept: dict[Any, _Latest[Row]],
    place: object,
    at: int,
    most: int,
    read: Callable[[int], Awaitable[list[tuple[int, Row]]]],
) -> list[Row]:
    found = kept[place].before(at, most) if place in kept else None
    if found is None:
        rows = await read(_AHEAD * most)
        kept[place] = _Latest(at, rows, all_of_them=len(rows) < _AHEAD * most)
        found = [row for _, row in rows[:most]]
    return found


def _branch(row: Any) -> Branch:
    return Branch(
        row.key,
        row.parent,
        row.start_token,
        row.hashes,
        row.first_request,
        row.first_at,
        row.last_request,
        row.last_at,
    )
