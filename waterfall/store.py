"""Keeps the times of requests in the database, each once, for a while, and no more than a bounded number of them.

The tenants share that number: one that sends very many requests loses its own oldest times, and nobody else's.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from uuid import UUID

from msgspec import Struct
from sqlalchemy import ColumnElement, delete, func, select
from sqlalchemy.ext.asyncio import AsyncSession

from storage.database.database import Database
from storage.database.sql_arrays import array_literal, one_of
from waterfall.record import Record, unpack
from waterfall.tables import request_waterfall

MOST_ROWS = 4_000_000
"""Of all tenants together, about 2 GB. When there are more, the oldest go of who has more than a fair share."""
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

    async def forget_old(self) -> int:
        """Delete a batch of what is older than it is kept; how many rows. Again if it was a full batch."""
        number = _WATERFALL.id
        async with self._database.transaction() as session:  # all tenants: time passes for everyone
            before = await self._database.now_in(session) - self._keep
            oldest = select(number, _WATERFALL.at).order_by(number).limit(BATCH)
            rows = (await session.execute(self._database.locked(oldest, skip=True))).all()
            gone = [row.id for row in rows if row.at < before]
            if gone:
                await session.execute(delete(request_waterfall).where(one_of(self._database, number, gone)))
        return len(gone)

    async def forget_beyond(self, most: int = MOST_ROWS) -> int:
        """Delete what is beyond the most rows, the oldest of those tenants that have more than their share; how many
        rows. Nobody loses a row as long as another tenant has more of them."""
        shares = await self._shares(most)
        return sum([await self._forget_beyond(tenant_id, share) for tenant_id, share in shares.items()])

    async def _shares(self, most: int) -> dict[UUID, int]:
        """How many rows each tenant keeps that has more than its share."""
        number = _WATERFALL.id
        async with self._database.reading() as session:
            # all tenants: they share one room
            first, last = (await session.execute(select(func.min(number), func.max(number)))).one()
            if first is None or last - first < most:
                return {}  # the rows are not counted without need: it reads an index as long as the table
            counting = select(_WATERFALL.tenant_id, func.count()).group_by(_WATERFALL.tenant_id)
            counts = {row[0]: row[1] for row in await session.execute(counting)}
        share = fair_share(counts.values(), most)
        return {tenant_id: share for tenant_id, count in counts.items() if count > share}

    async def _forget_beyond(self, tenant_id: UUID, share: int) -> int:
        """Delete all but the newest rows of a tenant, in batches."""
        number, mine = _WATERFALL.id, _WATERFALL.tenant_id == tenant_id
        forgotten = 0
        async with self._database.reading() as session:
            newest = select(number).where(mine).order_by(number.desc())
            last = await session.scalar(newest.offset(share).limit(1))
        while last is not None:
            async with self._database.transaction() as session:
                oldest = select(number).where(mine, number <= last).order_by(number).limit(BATCH)
                rows = list(await session.scalars(self._database.locked(oldest, skip=True)))
                await session.execute(delete(request_waterfall).where(mine, one_of(self._database, number, rows)))
            forgotten += len(rows)
            if len(rows) < BATCH:
                break
        return forgotten


def fair_share(counts: Iterable[int], most: int) -> int:
    """How many each may keep, so that all together keep at most `most`, and who has less than that keeps all."""
    left, sharing = most, sorted(counts)
    for place, count in enumerate(sharing):
        share = left // (len(sharing) - place)
        if count > share:
            return share
        left -= count
    return max(sharing, default=0)
