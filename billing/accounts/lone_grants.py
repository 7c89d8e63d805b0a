"""What one person alone gave a tenant within a day: small grants count together where an amount takes two people."""

from __future__ import annotations

from uuid import UUID

from sqlalchemy import delete, func, insert, select
from sqlalchemy.ext.asyncio import AsyncSession

from audit_log.actors import current_actor
from billing.pending_changes import takes_two_people
from billing.tables.money import lone_grant
from billing.transaction.money_transaction import Grant
from storage.database.database import Database

_LONE = lone_grant.c
WINDOW_US = 86_400_000_000
"""Grants count together for so long, in microseconds."""


class TakesTwoPeople(Exception):
    """With the `lately` pico-units that were given before, this grant takes two people: the transaction is undone."""

    def __init__(self, lately: int) -> None:
        super().__init__()
        self.lately = lately


async def given_lately(database: Database, session: AsyncSession, tenant_id: UUID) -> int:
    """Pico-units that were given to the tenant within the window, by one person each."""
    since = await database.now_in(session) - WINDOW_US
    given = select(func.sum(_LONE.amount_pico)).where(_LONE.tenant_id == tenant_id, _LONE.at > since)
    return int(await session.scalar(given) or 0)


async def note_lone_grant(database: Database, session: AsyncSession, made: Grant) -> None:
    """Note a grant that nobody else has approved, in its transaction, which has locked the tenant's balance; those
    of our own jobs do not count. Raises TakesTwoPeople."""
    if current_actor().means == "system":
        return
    lately = await given_lately(database, session, made.tenant_id)
    if await takes_two_people(session, lately + made.amount_pico):
        raise TakesTwoPeople(lately)
    now = await database.now_in(session)
    over = (_LONE.tenant_id == made.tenant_id, _LONE.at <= now - WINDOW_US)
    await session.execute(delete(lone_grant).where(*over))
    noted = {"grant_id": made.id, "tenant_id": made.tenant_id, "amount_pico": made.amount_pico, "at": now}
    await session.execute(insert(lone_grant).values(noted))
