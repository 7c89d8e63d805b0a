"""The audit: silent while money adds up, and precise when it does not."""

from __future__ import annotations

from sqlalchemy import text, update

from billing.audit import check
from billing.holds import Holds
from billing.prices import PriceBook
from billing.settlement import settle
from billing.tables import balance, hold
from billing.usage import Usage
from storage.database import Database
from tests.billing.money import Tenant


async def _whats(database: Database) -> list[str]:
    return sorted(finding.what for finding in await check(database))


async def test_what_is_wrong_is_found(database: Database) -> None:
    tenant = await Tenant.rich(database, 10**12)
    holds = Holds(database)
    first, second = await holds.reserve(tenant.request(10**8)), await holds.reserve(tenant.request(10**8))
    event = tenant.event(first, Usage(uncached=100, output=10))
    await settle(database, PriceBook(database), [event])
    assert await _whats(database) == []

    async with database.transaction() as session:
        await session.execute(update(hold).where(hold.c.request_id == second.request_id).values(state="settled"))
    assert await _whats(database) == ["a balance is not the sum of its entries", "a settled hold has no event"]
    async with database.transaction() as session:
        await session.execute(update(hold).where(hold.c.request_id == second.request_id).values(state="open"))
        await session.execute(update(hold).where(hold.c.request_id == first.request_id).values(state="open"))
    assert await _whats(database) == ["a balance is not the sum of its entries", "an event's hold did not end"]
    async with database.transaction() as session:
        await session.execute(update(hold).where(hold.c.request_id == first.request_id).values(state="settled"))
        await session.execute(update(balance).values(overdraft=1))
    assert await _whats(database) == ["a balance's overdraft is wrong"]
    async with database.transaction() as session:
        await session.execute(update(balance).values(overdraft=0))
    assert await _whats(database) == []

    async with database.transaction() as session:
        if database.dialect == "postgresql":
            await session.execute(text("SET LOCAL session_replication_role = replica"))
        else:
            await session.execute(text("DROP TRIGGER immutable_usage_event_update"))
        await session.execute(text("UPDATE usage_event SET output = output + 1"))
    finding, rollup = await check(database)
    assert (rollup.what, rollup.subject) == ("a rollup is not the sum of its events", tenant.id)
    assert (finding.what, finding.subject) == ("an event's cost does not recompute", event.id)
    assert str(event.cost_pico) in finding.detail
