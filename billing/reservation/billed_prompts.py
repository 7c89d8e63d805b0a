"""How many tokens of a request's prompt were billed, for requests that have ended."""

from __future__ import annotations

from collections.abc import Collection
from uuid import UUID

from sqlalchemy import select

from billing.reservation.hold_service import HoldService
from billing.tables.money import usage_fact
from billing.usage import METERS
from storage.database.database import Database
from storage.database.sql_arrays import one_of

_PROMPT = [meter for meter in METERS if meter != "output"]


async def billed_prompts(database: Database, holds: HoldService, requests: Collection[UUID]) -> dict[UUID, int]:
    """Tokens of the prompt that were billed, by request; 0 for one that ended without usage. Those whose holds are
    still open are absent. Raises DatabaseUnavailable."""
    if not requests:
        return {}
    # before the usage is looked at: a hold ends with its usage
    open_ones = {id_ for id_ in requests if (hold := await holds.get(id_)) is not None and hold.state == "open"}
    async with database.reading() as session:
        # all tenants: leases name requests alone
        query = select(usage_fact.c.id, *(usage_fact.c[meter] for meter in _PROMPT))
        rows = await session.execute(query.where(one_of(database, usage_fact.c.id, requests)))
        billed = {row[0]: sum(row[1:]) for row in rows}
    return {id_: billed.get(id_, 0) for id_ in requests if id_ in billed or id_ not in open_ones}
