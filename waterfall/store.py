"""Keeps the times of requests in the database, each once, for a while and no more than a bounded number of them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from uuid import UUID

from msgspec import Struct
from sqlalchemy import ColumnElement, delete, func, select
from sqlalchemy.ext.asyncio import AsyncSession

from storage.database.database import Database
from storage.database.sql_arrays import array_literal, one_of
from waterfall.record import Record, unpack
from waterfall.tables import request_waterfall

MOST_ROWS = 4_000_000
"""The oldest go when there are more: about 2 GB."""
BATCH = 2000
"""Rows that are deleted at a time."""
_SECOND = 1_000_000
_WATERFALL = request_waterfall.c

_INSERT = """
INSERT INTO request_waterfall (request_id, tenant_id, project_id, at, record)
SELECT * FROM unnest($1::text::uuid[], $2::text::uuid[], $3::text::uuid[], $4::text::bigint[], $5::bytea[])
    AS of_tenant (request_id, tenant_id, project_id, at, record)
ON CONFLICT (request_id) DO NOTHING
"""


class Row(Struct, frozen=True):
    """One request's row as it is written."""

    request_id: UUID
    tenant_id: UUID
    project_id: UUID
    at: int
    record: bytes


class Found(Struct, frozen=True):
    """One request's row as it is read."""

    request_id: UUID
    tenant_id: UUID
    project_id: UUID
    record: Record


class WaterfallStore:
    """`keep_s`: how long times are kept. What is older is not found from then on, whether it was deleted yet or not.
    All methods raise DatabaseUnavailable."""

    def __init__(self, database: Database, keep_s: float) -> None:
        self._database = database
        self._keep = int(keep_s * _SECOND)

    async def write(self, rows: Sequence[Row]) -> None:
        """Keep these. A request that is there already stays as it is."""
        if self._database.dialect == "postgresql":
            async with self._database.direct(transaction=False) as connection:
                await connection.execute(
                    _INSERT,
                    array_literal("uuid", [row.request_id for row in rows]),
                    array_literal("uuid", [row.tenant_id for row in rows]),
                    array_literal("uuid", [row.project_id for row in rows]),
                    array_literal("bigint", [row.at for row in rows]),
                    [row.record for row in rows],
                )
            return
        async with self._database.transaction() as session:
            connection = await session.connection()
            await connection.exec_driver_sql(
                "INSERT INTO request_waterfall (request_id, tenant_id, project_id, at, record) VALUES (?, ?, ?, ?, ?)"
                " ON CONFLICT (request_id) DO NOTHING",
                [(r.request_id.bytes, r.tenant_id.bytes, r.project_id.bytes, r.at, r.record) for r in rows],
            )

    async def find(self, request_id: UUID) -> Found | None:
        """The row of a request, of whichever tenant: the caller decides who may see it."""
        # all tenants: a request is found by its id, and whose it is is in the row
        query = select(request_waterfall).where(_WATERFALL.request_id == request_id)
        async with self._database.reading() as session:
            row = (await session.execute(query.where(await self._kept(session)))).one_or_none()
        return None if row is None else Found(row.request_id, row.tenant_id, row.project_id, unpack(row.record))

    async def find_many(self, tenant_id: UUID, request_ids: Collection[UUID]) -> dict[UUID, Record]:
        """The records of a tenant's requests, of those that have one."""
        if not request_ids:
            return {}
        columns = (_WATERFALL.request_id, _WATERFALL.record)
        wanted = one_of(self._database, _WATERFALL.request_id, list(request_ids))
        query = select(*columns).where(wanted, _WATERFALL.tenant_id == tenant_id)
        async with self._database.reading() as session:
            rows = await session.execute(query.where(await self._kept(session)))
            return {row.request_id: unpack(row.record) for row in rows}

    async def _kept(self, session: AsyncSession) -> ColumnElement[bool]:
        """The condition that a row is young enough."""
        return _WATERFALL.at >= await self._database.now_in(session) - self._keep

    async def forget_old(self, most: int = MOST_ROWS) -> int:
        """Delete a batch of what is older than it is kept, or beyond the most; how many rows. Again if it was a full
        batch."""
        number = _WATERFALL.id
        async with self._database.transaction() as session:  # all tenants: time passes for everyone
            before = await self._database.now_in(session) - self._keep
            last = await session.scalar(select(func.max(number)))
            if last is None:
                return 0
            oldest = select(number, _WATERFALL.at).order_by(number).limit(BATCH)
            rows = (await session.execute(self._database.locked(oldest, skip=True))).all()
            gone = [row.id for row in rows if row.at < before or row.id <= last - most]
            if gone:
                await session.execute(delete(request_waterfall).where(one_of(self._database, number, gone)))
        return len(gone)
