"""What was written about money stays as it was: the database itself refuses to change it."""

from __future__ import annotations

import pytest
from sqlalchemy import Executable, delete, literal, text, update
from sqlalchemy.exc import DBAPIError

from billing.prices import PriceCatalog
from billing.receipts.day_files import DAY, close_days
from billing.settlement.settlement import settle
from billing.tables.books import usage_batch
from billing.tables.money import grant, ledger_entry, ledger_txn, price, price_version, usage_fact, usage_traits
from billing.tables.receipts import receipt_day
from storage.database.base import Count
from storage.database.database import Database
from tests.billing.money import Tenant


@pytest.mark.both_databases
@pytest.mark.parametrize(
    "name",
    [
        "usage_fact",
        "usage_traits",
        "grant",
        "price",
        "price_version",
        "ledger_txn",
        "ledger_entry",
        "usage_batch",
        "receipt_day",
    ],
)
async def test_rows_cannot_be_changed_or_deleted(database: Database, name: str) -> None:
    tenant = await Tenant.rich(database, 10**12)
    event = tenant.event(tenant.request(0))
    await settle(database, PriceCatalog(database), [event])
    database.clock = literal(event.admitted_at + 2 * DAY, Count())
    assert await close_days(database, tenant.id, event.period)
    table, column = {
        "usage_fact": (usage_fact, "cost_pico"),
        "usage_traits": (usage_traits, "id"),
        "grant": (grant, "amount_pico"),
        "price": (price, "price_micro"),
        "price_version": (price_version, "effective_at"),
        "ledger_txn": (ledger_txn, "posted_at"),
        "ledger_entry": (ledger_entry, "amount_pico"),
        "usage_batch": (usage_batch, "events"),
        "receipt_day": (receipt_day, "events"),
    }[name]
    statements: list[Executable] = [update(table).values({column: 1}), delete(table)]
    if database.dialect == "postgresql":
        statements.append(text(f'TRUNCATE "{name}" CASCADE'))
    for statement in statements:
        async with database.transaction() as session:
            with pytest.raises(DBAPIError, match="immutable"):
                await session.execute(statement)
            await session.rollback()
