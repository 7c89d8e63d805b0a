"""Leases as reports ask for them: those that are read most, those that end soon, and writes that nobody read."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Literal
from uuid import UUID

import msgspec
from sqlalchemy import select, tuple_

from prompt_cache.promise.lease_decisions import Lease
from prompt_cache.promise.lease_rows import COLUMNS, lease_of
from prompt_cache.tables import ended_lease, lease, lease_tag
from storage.database.database import Database
from storage.database.sql_arrays import one_of

_MOST_LABELS = 10


class LabelledLease(msgspec.Struct, frozen=True):
    """A live lease with the labels of its requests, at most ten."""

    lease: Lease
    labels: list[str]


class WastedLease(msgspec.Struct, frozen=True):
    """A lease that ended, and that nobody read. `new_tokens`: those that it promised alone."""

    id: UUID
    project_id: UUID
    model: str
    tokens: int
    new_tokens: int
    lease_class: str
    created_at: int
    ended_at: int
    cause: Literal["expired", "purged"]


class LeaseReport:
    """Reads leases of some projects. Every method may raise DatabaseUnavailable."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def most_read(
        self, projects: Collection[UUID], models: Collection[str] | None, limit: int
    ) -> list[LabelledLease]:
        """The live leases that most tokens were read of, by their number of reads times their tokens."""
        # projects are a tenant's
        query = self._live(projects, models).order_by((lease.c.reads * lease.c.tokens).desc(), lease.c.id)
        return await self._labelled(query.limit(limit))

    async def ending(
        self,
        projects: Collection[UUID],
        models: Collection[str] | None,
        *,
        until: int,
        limit: int,
        after: UUID | None = None,
    ) -> list[LabelledLease]:
        """The live leases that end before `until`, the earliest first, from the one after the lease `after`."""
        # projects are a tenant's
        of = lease.c
        query = self._live(projects, models).where(of.expires_at < until).order_by(of.expires_at, of.id)
        if after is not None:
            mine = (of.id == after, one_of(self._database, of.project_id, projects))
            place = select(of.expires_at).where(*mine).scalar_subquery()
            query = query.where(tuple_(of.expires_at, of.id) > tuple_(place, after))
        return await self._labelled(query.limit(limit))

    async def wasted(
        self, projects: Collection[UUID], models: Collection[str] | None, *, since: int, limit: int
    ) -> list[WastedLease]:
        """Leases that ended since this instant without ever being read, those with most tokens of their own first. They
        are kept for a day; of those that ended before reads were kept nothing is said."""
        # projects are a tenant's
        of = ended_lease.c
        query = select(of.id, of.project_id, of.model, of.tokens, of.new_tokens, of.lease_class, of.created_at,
                       of.ended_at, of.cause)  # fmt: skip
        query = query.where(
            one_of(self._database, of.project_id, projects), of.ended_at >= since, of.reads == 0, of.new_tokens > 0,
            of.cause.in_(("expired", "purged")),
        )  # fmt: skip
        if models is not None:
            query = query.where(one_of(self._database, of.model, models))
        async with self._database.reading() as session:
            rows = await session.execute(query.order_by(of.new_tokens.desc(), of.id).limit(limit))
            return [WastedLease(*row) for row in rows]

    def _live(self, projects: Collection[UUID], models: Collection[str] | None) -> Any:
        # projects are a tenant's
        of = lease.c
        query = select(*COLUMNS).where(
            one_of(self._database, of.project_id, projects), of.expires_at > self._database.clock, of.told == 1
        )
        return query if models is None else query.where(one_of(self._database, of.model, models))

    async def _labelled(self, query: Any) -> list[LabelledLease]:
        # projects are a tenant's
        async with self._database.reading() as session:
            found = [lease_of(row) for row in await session.execute(query)]
            labels = await self._labels(session, found)
        return [LabelledLease(one, labels.get(one.id, [])) for one in found]

    async def _labels(self, session: Any, found: Sequence[Lease]) -> dict[UUID, list[str]]:
        # all tenants: of leases that were found
        of, labels = lease_tag.c, dict[UUID, list[str]]()
        query = select(of.lease_id, of.tag).where(one_of(self._database, of.lease_id, [one.id for one in found]))
        for lease_id, tag in await session.execute(query.order_by(of.tag)):
            mine = labels.setdefault(lease_id, [])
            if len(mine) < _MOST_LABELS:
                mine.append(tag)
        return labels
