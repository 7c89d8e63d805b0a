"""The ledger: what was given is used first, what was paid next, the rest is owed; and the books agree with it."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from sqlalchemy import insert, select, text
from sqlalchemy.exc import IntegrityError

from billing.accounts.balances import Balances
from billing.prices import PriceCatalog
from billing.reservation.hold_service import HoldService
from billing.settlement.settlement import OVERDRAWN, settle
from billing.tables.money import ledger_entry, ledger_txn, rollup_hour
from billing.usage import Release, SpoolRecord
from billing.verification.audit import audit_money
from storage.database.base import new_id
from storage.database.database import Database
from storage.database.outbox import outbox
from tests.billing.money import Tenant

COST = 100 * 400_000 + 10 * 1_600_000  # what Tenant.event costs


async def _entries(database: Database) -> list[tuple[str, str, int]]:
    query = select(ledger_entry).join(ledger_txn).order_by(ledger_txn.c.posted_at, ledger_entry.c.seq)
    async with database.reading() as session:
        return [(row.debit, row.credit, row.amount_pico) for row in await session.execute(query)]


async def test_promo_then_prepaid_then_receivable(database: Database) -> None:
    tenant, balances, catalog = await Tenant.rich(database, 0), Balances(database), PriceCatalog(database)
    await balances.grant(tenant.id, COST // 2, "USD", kind="promo")
    paid = new_id()
    for _ in range(2):
        await balances.grant(tenant.id, COST, "USD", grant_id=paid)
    late = [tenant.event(await HoldService(database).reserve(tenant.request(0))) for _ in range(2)]
    await settle(database, catalog, late)
    await settle(database, catalog, late)
    balance = await balances.get(tenant.id)
    assert balance is not None
    assert (balance.promo, balance.prepaid, balance.receivable, balance.overdraft) == (0, 0, COST // 2, COST // 2)
    await balances.grant(tenant.id, COST, "USD")
    assert await _entries(database) == [
        ("goodwill", "promo", COST // 2), ("clearing", "prepaid", COST), ("promo", "revenue", COST // 2),
        ("prepaid", "revenue", COST), ("receivable", "revenue", COST // 2), ("clearing", "receivable", COST // 2),
        ("clearing", "prepaid", COST // 2),
    ]  # fmt: skip
    assert await audit_money(database) == []
    async with database.reading() as session:
        (notice,) = (await session.execute(select(outbox))).all()
    assert (notice.topic, notice.tenant_id, notice.sent_at) == (OVERDRAWN, tenant.id, None)
    assert msgspec.json.decode(notice.payload) == {"available": "-0.000028000000", "currency": "USD"}


@pytest.mark.both_databases
@pytest.mark.parametrize(
    "wrong", [{"amount_pico": 0}, {"amount_pico": -1}, {"debit": "revenue"}, {"credit": "pocket"}, {"txn_id": new_id()}]
)
async def test_the_database_refuses_what_does_not_balance(database: Database, wrong: dict[str, object]) -> None:
    tenant = await Tenant.rich(database, 1000)
    async with database.reading() as session:
        row = dict((await session.execute(select(ledger_entry))).one()._mapping)
    assert row["tenant_id"] == tenant.id
    async with database.transaction() as session:
        with pytest.raises(IntegrityError):
            await session.execute(insert(ledger_entry).values(row | {"seq": 9, "credit": "revenue"} | wrong))
        await session.rollback()


@pytest.mark.both_databases
async def test_many_settlers_with_the_same_records_in_any_order(database: Database, database_url: str) -> None:
    """Duplicates, releases beside events, and two tenants: nobody waits for ever, and all counts once."""
    tenants = [await Tenant.rich(database, 10**12), await Tenant.rich(database, 10**12, "big")]
    holds = HoldService(database)
    made = await asyncio.gather(*(holds.reserve(tenants[n % 2].request(COST)) for n in range(60)))
    records: list[SpoolRecord] = [tenants[n % 2].event(hold) for n, hold in enumerate(made)]
    records += [Release(hold.request_id, "late") for hold in made[::3]]
    pools = [await Database.open(database_url) for _ in range(4)]
    orders = [records, records[::-1], records[30:] + records[:30], sorted(records, key=repr)]

    async def one(pool: Database, order: list[SpoolRecord]) -> int:
        catalog = PriceCatalog(pool)
        done = [await settle(pool, catalog, order[at : at + 16]) for at in range(0, len(order), 16)]
        return sum(settled.written for settled in done)

    async def sweep(pool: Database) -> int:
        return await HoldService(pool).sweep(made[0].expires_at + 1)

    try:
        written = await asyncio.gather(*map(one, pools, orders))
        await asyncio.gather(*map(sweep, pools))
    finally:
        for pool in pools:
            await pool.close()
    assert sum(written) == 60
    assert await audit_money(database) == []


@pytest.mark.slow
async def test_the_audit_notices_a_rollup_or_an_entry_that_differs(database: Database) -> None:
    tenant = await Tenant.rich(database, 10**12)
    hold = await HoldService(database).reserve(tenant.request(COST))
    await settle(database, PriceCatalog(database), [tenant.event(hold)])
    async with database.transaction() as session:
        await session.execute(rollup_hour.update().values(output=rollup_hour.c.output + 1))
    assert [f.what for f in await audit_money(database)] == ["a rollup is not the sum of its events"]
    async with database.transaction() as session:
        await session.execute(rollup_hour.update().values(output=rollup_hour.c.output - 1))
        if database.dialect == "postgresql":
            await session.execute(text("SET LOCAL session_replication_role = replica"))
        else:
            await session.execute(text("DROP TRIGGER immutable_ledger_entry_update"))
        await session.execute(text("UPDATE ledger_entry SET amount_pico = amount_pico + 1 WHERE credit = 'revenue'"))
    assert sorted({f.what for f in await audit_money(database)}) == [
        "a row of the books was altered",
        "the ledger is not the balance",
        "the ledger is not the sum of the events",
        "what is left of a grant is not what its entries say",
    ]
