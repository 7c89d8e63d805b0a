"""The audit: silent while money adds up, and precise when it does not."""

from __future__ import annotations

from sqlalchemy import delete, insert, select, text, update

from billing.holds.batches import HoldEntry, group_into_batches
from billing.prices import PriceCatalog
from billing.reservation.hold_service import HoldService
from billing.settlement.settlement import settle
from billing.tables.money import balance, hold_batch
from billing.usage import Usage
from billing.verification.audit import audit_money
from storage.database.database import Database
from tests.billing.money import Tenant


async def _whats(database: Database) -> list[str]:
    return sorted(finding.what for finding in await audit_money(database))


async def test_what_is_wrong_is_found(database: Database) -> None:
    tenant = await Tenant.rich(database, 10**12)
    holds = HoldService(database)
    first, _ = await holds.reserve(tenant.request(10**8)), await holds.reserve(tenant.request(10**8))
    event = tenant.event(first, Usage(uncached=100, output=10))
    await settle(database, PriceCatalog(database), [event])
    assert await _whats(database) == []

    open_ones = "a balance is not the sum of its entries"
    async with database.transaction() as session:
        (row,) = (await session.execute(select(hold_batch))).mappings()
        await session.execute(delete(hold_batch))
    assert await _whats(database) == [open_ones, "a tenant's holds did not each end once"]
    async with database.transaction() as session:
        await session.execute(insert(hold_batch), dict(row))
        (ended,) = group_into_batches([HoldEntry(tenant.request(10**8, first.request_id), 10**8)])
        again = {name: getattr(ended, name) for name in ("id", "first", "last", "entries", "requests")}
        await session.execute(insert(hold_batch), dict(row) | again)
    assert await _whats(database) == [
        open_ones,
        "a hold that ended is still open",
        "a tenant's holds did not each end once",
    ]
    async with database.transaction() as session:
        await session.execute(delete(hold_batch).where(hold_batch.c.first == first.request_id))
        await session.execute(update(balance).values(overdraft=1))
    assert await _whats(database) == ["a balance's overdraft is wrong"]
    async with database.transaction() as session:
        await session.execute(update(balance).values(overdraft=0))
    assert await _whats(database) == []
    async with database.transaction() as session:
        await session.execute(update(hold_batch).values(open=2))
    assert await _whats(database) == [
        "a hold was altered",
        "a tenant's holds did not each end once",
    ]
    async with database.transaction() as session:
        await session.execute(update(hold_batch).values(open=1))
    assert await _whats(database) == []

    async with database.transaction() as session:
        if database.dialect == "postgresql":
            await session.execute(text("SET LOCAL session_replication_role = replica"))
        else:
            await session.execute(text("DROP TRIGGER immutable_usage_fact_update"))
        await session.execute(text("UPDATE usage_fact SET output = output + 1"))
    finding, altered, rollup = await audit_money(database)
    assert (altered.what, altered.subject) == ("an event was altered", event.id)
    assert (rollup.what, rollup.subject) == ("a rollup is not the sum of its events", tenant.id)
    assert (finding.what, finding.subject) == ("an event's cost does not recompute", event.id)
    assert str(event.cost_pico) in finding.detail
