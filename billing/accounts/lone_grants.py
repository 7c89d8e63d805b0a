"""What one person alone gave a tenant within a day: small grants count together where an amount takes two people.

The audit log says who gave what, and whether another person approved it.
"""

from __future__ import annotations

from uuid import UUID

import msgspec
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from audit_log.tables import audit_entry
from billing.money import parse_amount
from billing.pending_changes import takes_two_people
from billing.transaction.money_transaction import Grant
from storage.database.database import Database

GRANT_CREATED = "grant.created"
APPROVED = "approved"
"""The field of `after` of such an entry that says that another person approved the grant."""
WINDOW_US = 86_400_000_000
"""Grants count together for so long, in microseconds."""


class TakesTwoPeople(Exception):
    """With the `lately` pico-units that were given before, this grant takes two people: the transaction is undone."""

    def __init__(self, lately: int) -> None:
        super().__init__()
        self.lately = lately


async def given_lately(database: Database, session: AsyncSession, tenant_id: UUID) -> int:
    """Pico-units that were given to the tenant within the window, by one person each; our own jobs' do not count."""
    entry, since = audit_entry.c, await database.now_in(session) - WINDOW_US
    given = (entry.action == GRANT_CREATED, entry.actor_means != "system")
    query = select(entry.after).where(entry.tenant_id == tenant_id, entry.at > since, *given)
    grants = [msgspec.json.decode(after) for after in await session.scalars(query)]
    return sum(parse_amount(said["amount"]) for said in grants if not said.get(APPROVED))


async def check_lone_grant(database: Database, session: AsyncSession, made: Grant) -> None:
    """Raise TakesTwoPeople if a grant that nobody else has approved takes two people with those before it. Its
    transaction has locked the tenant's balance."""
    lately = await given_lately(database, session, made.tenant_id)
    if await takes_two_people(session, lately + made.amount_pico):
        raise TakesTwoPeople(lately)
