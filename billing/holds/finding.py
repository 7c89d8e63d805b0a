"""Finding the open hold of a request by its id alone: in the few rows between whose first and last id it lies."""

from __future__ import annotations

from uuid import UUID

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from billing.holds.batches import Batch
from billing.holds.records import Hold
from billing.tables.money import hold_batch

COLUMNS = [hold_batch.c[name] for name in Batch.__struct_fields__]


async def open_hold(session: AsyncSession, request_id: UUID) -> Hold | None:
    """The hold of this request, if it is open."""
    # all tenants: a journal knows requests alone
    query = select(*COLUMNS).where(hold_batch.c.first <= request_id, hold_batch.c.last >= request_id)
    for row in await session.execute(query):
        for found in Batch(*row).holds():
            if found.request_id == request_id:
                return found
    return None
