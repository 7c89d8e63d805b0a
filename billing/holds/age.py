"""For how long money has been held at most: a hold that does not end belongs to a request that nobody settles."""

from __future__ import annotations

from sqlalchemy import func, select

from billing.tables.money import hold_batch
from storage.database.database import Database

_SECOND = 1_000_000


async def oldest_hold_s(database: Database) -> float:
    """Seconds since the oldest open hold was taken; 0.0 if there is none. By the database's clock."""
    # all tenants: it tells of none of them
    async with database.reading() as session:
        admitted = await session.scalar(select(func.min(hold_batch.c.admitted_at)))
        if admitted is None:
            return 0.0
        return max(0.0, (await database.now_in(session) - int(admitted)) / _SECOND)
