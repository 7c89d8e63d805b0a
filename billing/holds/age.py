"""For how long money has been held at most: a hold that does not end belongs to a request that nobody settles."""

from __future__ import annotations

from sqlalchemy import func, select

from billing.tables.money import hold_batch
from storage.database.database import Database


async def oldest_hold_us(database: Database) -> int:
    """Microseconds since the oldest open hold was taken, by the database's clock; 0 if there is none."""
    # all tenants: it tells of none of them
    async with database.reading() as session:
        admitted = await session.scalar(select(func.min(hold_batch.c.admitted_at)))
        return 0 if admitted is None else max(0, await database.now_in(session) - int(admitted))
