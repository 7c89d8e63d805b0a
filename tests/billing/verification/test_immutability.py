"""What was written about money stays as it was: the database itself refuses to change it."""

from __future__ import annotations

import pytest
from sqlalchemy import Executable, delete, text, update
from sqlalchemy.exc import DBAPIError

from billing.prices import PriceCatalog
from billing.settlement.settlement import settle
from billing.tables.books import usage_batch
from billing.tables.money import grant, ledger_entry, ledger_txn, price, price_version, usage_fact, usage_traits
from storage.database.database import Database
from tests.billing.money import Tenant


@pytest.mark.both_databases
@pytest.mark.parametrize(
    "name",
    ["usage_fact", "usage_traits", "grant", "price", "price_version", "ledger_txn", "ledger_entry", "usage_batch"],
)
async def test_rows_cannot_be_changed_or_deleted(database: Database, name: str) -> None:
    tenant = await Tenant.rich(database, 10**12)
    await settle(database, PriceCatalog(database), [tenant.event(tenant.request(0))])
    table, column = {
        "usage_fact": (usage_fact, "cost_pico"),
        "usage_traits": (usage_traits, "id"),
        "grant": (grant, "amount_pico"),
        "price": (price, "price_micro"),
        "price_version": (price_version, "effective_at"),
        "ledger_txn": (ledger_txn, "posted_at"),
        "ledger_entry": (ledger_entry, "amount_pico"),
        "usage_batch": (usage_batch, "events"),
    }[name]
    statements: list[Executable] = [update(table).values({column: 1}), delete(table)]
    if database.dialect == "postgresql":
        statements.append(text(f'TRUNCATE "{name}" CASCADE'))
    for statement in statements:
        async with database.transaction() as session:
            with pytest.raises(DBAPIError, match="immutable"):
                await session.execute(statement)
            await session.rollback()
