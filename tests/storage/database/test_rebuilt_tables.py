"""Tables that a migration makes anew keep their rows, and what refers to them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from alembic import command
from sqlalchemy import Connection, MetaData, Table, insert, select, text
from sqlalchemy.exc import DBAPIError

from storage.database import migrate
from storage.database.base import new_id
from storage.database.database import Database

TABLES = ("price_book", "price_sheet", "invoice_line", "ledger_entry")


@pytest.mark.slow
async def test_books_invoices_and_entries_are_as_they_were(tmp_path: Path, empty_postgres_url: str) -> None:
    for url in (f"sqlite:///{tmp_path}/old.sqlite", empty_postgres_url):
        database = await Database.open(url)
        async with database.transaction() as session:
            connection = await session.connection()
            await connection.run_sync(_upgrade_to, "r0051")
            await connection.run_sync(_fill)
            before = await connection.run_sync(_rows)
        async with database.transaction() as session:
            connection = await session.connection()
            await connection.run_sync(_upgrade_to, "head")
            assert await connection.run_sync(_rows) == before
            assert await session.scalar(text("SELECT state FROM invoice")) == "credited"
        for statement in ("DELETE FROM price_book", "DELETE FROM ledger_entry", "UPDATE invoice SET gross = 1"):
            with pytest.raises(DBAPIError, match=r"immutable|refuse"):
                await _execute(database, statement)
        await database.close()


async def _execute(database: Database, statement: str) -> None:
    async with database.transaction() as session:
        await session.execute(text(statement))


def _upgrade_to(connection: Connection, revision: str) -> None:
    config = migrate.configuration()
    config.attributes["connection"] = connection
    command.upgrade(config, revision)


def _tables(connection: Connection) -> dict[str, Table]:
    metadata = MetaData()
    metadata.reflect(connection)
    return dict(metadata.tables)


def _rows(connection: Connection) -> dict[str, Sequence[Any]]:
    tables = _tables(connection)
    return {name: connection.execute(select(tables[name])).all() for name in TABLES}


def _fill(connection: Connection) -> None:
    tables = _tables(connection)
    on_sqlite = connection.dialect.name == "sqlite"
    tenant, document, transaction = (each.bytes if on_sqlite else each for each in (new_id(), new_id(), new_id()))

    def row(table: str, /, **values: object) -> None:
        empty = {
            column.name: "" if "TEXT" in str(column.type) else 0
            for column in tables[table].columns
            if not column.nullable and column.server_default is None and column.name not in values
        }
        connection.execute(insert(tables[table]).values(empty | values))

    row("price_book", id=1, name="base", currency="USD")
    row("price_book", id=2, name="own", currency="USD", base=1, tenant_id=tenant)
    row("price_sheet", id=1, book=2, model="m", kind="whole")
    row("legal_entity", id="acme")
    row("invoice", id=document, kind="invoice", seller="acme", tenant_id=tenant, period="2026-10", state="draft",
        gross=119, payable=119, credited=119)  # fmt: skip
    row("invoice_line", invoice_id=document, n=1, tenant_id=tenant, kind="usage")
    connection.execute(text("UPDATE invoice SET state = 'paid', number = 'INV-1', sha256 = 'x', year = 2026, n = 1"))
    row("ledger_txn", id=transaction, tenant_id=tenant, kind="invoice")
    row("ledger_entry", txn_id=transaction, seq=1, tenant_id=tenant, currency="USD", debit="invoiced", credit="tax",
        amount_pico=10**17)  # fmt: skip
