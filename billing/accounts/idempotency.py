"""Ids of money and usage: one id is one thing, whatever kind of thing that is, and nothing else is booked under it.

A payment, a refund or a correction of usage may carry an id, as an idempotency key. A repeat with the same content gets
the first answer, and books nothing. An id that was used for other content is refused.
"""

from __future__ import annotations

from uuid import UUID

from sqlalchemy import select

from billing.holds.store import open_hold
from billing.tables.money import ended_hold, grant, ledger_txn, usage_fact
from storage.database.database import Database
from storage.reported_error import ReportedError

_STANDS_FOR = (usage_fact.c.id, ended_hold.c.request_id, grant.c.id, ledger_txn.c.id)
"""Where an id may stand, beside open holds: usage and its adjustments, requests that ended without usage, money in and
out."""


class IdempotencyConflict(ReportedError, ValueError):
    """The id belongs to something else already: another amount, another tenant, another kind of movement, a request."""

    def __init__(self, identity: UUID, what: str) -> None:
        super().__init__(
            f"the id {identity} was used before, and not for {what}: repeat that as it was, or choose another"
        )
        self.identity = identity


async def check_id_unused(database: Database, identity: UUID, what: str) -> None:
    """Raises IdempotencyConflict if the id stands for something already; `what` it is wanted for. Raises
    DatabaseUnavailable."""
    async with database.reading() as session:
        for column in _STANDS_FOR:  # all tenants: an id is one for all of them
            if await session.scalar(select(column).where(column == identity)) is not None:
                raise IdempotencyConflict(identity, what)
        if await open_hold(session, identity) is not None:
            raise IdempotencyConflict(identity, what)
