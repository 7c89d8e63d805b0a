"""What the books say of a request whose gateway may have died: whether it may still be billed, and whether it was."""

from __future__ import annotations

from uuid import UUID

from msgspec import Struct
from sqlalchemy import select

from billing.holds.store import open_hold
from billing.tables.money import usage_event
from storage.database.database import Database


class RequestTrace(Struct, frozen=True):
    """`held`: its hold is open, so that its usage may still come. `billed`: it ended well, or something of it was paid
    for. Without either it came to nothing."""

    held: bool
    billed: bool


async def trace_of(database: Database, request_id: UUID) -> RequestTrace:
    """The trace of a request whose hold is a row of its own, none of an allowance. Raises DatabaseUnavailable."""
    # all tenants: the request's id says whose it is
    async with database.reading() as session:
        held = await open_hold(session, request_id) is not None
    # Only after that: usage is written in the transaction that ends the hold.
    of = usage_event.c
    async with database.reading() as session:
        query = select(of.status, of.cost_pico).where(of.id == request_id)
        row = (await session.execute(query)).one_or_none()
    return RequestTrace(held, row is not None and (row.status == "ok" or row.cost_pico > 0))
