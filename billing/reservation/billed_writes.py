"""Which tokens of a request's prompt were billed as writes, for requests that have ended."""

from __future__ import annotations

from collections.abc import Collection
from uuid import UUID

from sqlalchemy import select

from billing.reservation.hold_service import HoldService
from billing.tables.money import usage_fact
from billing.usage import LEASE_CLASSES
from storage.database.database import Database
from storage.database.sql_arrays import one_of

_READ, _WRITE = ([usage_fact.c[f"{kind}_{name}"] for name in LEASE_CLASSES] for kind in ("read", "write"))


async def billed_writes(database: Database, holds: HoldService, requests: Collection[UUID]) -> dict[UUID, range]:
    """The tokens of the prompt that were billed as writes of leases, by request: those after what was read. None of one
    that ended without usage. Those whose holds are still open are absent. Raises DatabaseUnavailable."""
    if not requests:
        return {}
    # before the usage is looked at: a hold ends with its usage
    open_ones = {id_ for id_ in requests if (hold := await holds.get(id_)) is not None and hold.state == "open"}
    async with database.reading() as session:
        # all tenants: leases name requests alone
        query = select(usage_fact.c.id, *_READ, *_WRITE)
        rows = await session.execute(query.where(one_of(database, usage_fact.c.id, requests)))
        billed = {row[0]: range(sum(row[1 : len(_READ) + 1]), sum(row[1:])) for row in rows}
    return {id_: billed.get(id_, range(0)) for id_ in requests if id_ in billed or id_ not in open_ones}
