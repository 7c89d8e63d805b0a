"""Whatever is altered in the books, column by column, the audit notices."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from sqlalchemy import CheckConstraint, Column, LargeBinary, Table, Text, insert, select, text, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession

from billing.accounts.balances import Balances
from billing.accounts.budgets import BudgetSettings
from billing.events.rollups import HOUR
from billing.integrity import row_seals
from billing.invoices.collection import pay
from billing.invoices.credit_notes import credit
from billing.invoices.parties.store import Parties
from billing.platform_settings import PlatformSettings
from billing.prices import PriceCatalog
from billing.prices.approval import PriceSheets
from billing.prices.sheets import PriceProposal
from billing.prices.version import STORAGE
from billing.rating.contract_store import Contracts
from billing.rating.storage_hours import Stored, record_storage
from billing.rating.terms import ContractTerms
from billing.replica_journals.lost_journals import declare_lost
from billing.reservation.hold_service import HoldService
from billing.tables.budgets import budget_charge, budget_window
from billing.tables.chain import usage_batch, usage_chain
from billing.tables.invoices import invoice_line, number_series
from billing.tables.journals import replica_journal
from billing.tables.money import balance, ended_hold, grant_balance, hold_batch, ledger_entry, rollup_hour
from billing.tables.prices import price
from billing.tables.rating import storage_event
from billing.tables.seals import seal
from billing.usage import Usage
from billing.verification.audit import audit_money
from storage.database.base import Base, Id, new_id
from storage.database.database import Database
from tests.billing.invoices.customers import Customer, set_clock
from tests.billing.invoices.documents import BUYER

UNSAID = {
    "balance": {"credit_line"},  # a setting
    "budget_window": {"starts_at", "over", "told"},  # of when others are told
    "hold_batch": {"id"},  # its holds are found by their own
    "ended_hold": {"amount_pico", "state", "ended_at"},  # of no money any more
}
"""Columns of which nothing else says what they should be."""
TABLES = (
    *(form.table for form in row_seals.CURRENT.values()),
    *(form.part.table for form in row_seals.CURRENT.values() if form.part is not None),
    balance, budget_charge, budget_window, ended_hold, grant_balance, hold_batch, invoice_line, number_series,
    rollup_hour, seal, usage_batch, usage_chain,
)  # fmt: skip
"""All books but the events, whose columns `test_chain` alters one by one."""
COLUMNS = int(os.environ.get("ALTERED_COLUMNS", "1"))
"""How many columns of each table are altered, one after the other: `make test-long` alters all."""


@pytest.fixture
async def books(database: Database) -> Database:
    """Books with a row in every table."""
    customer = await Customer.make(database, 10**12)
    rows = dict(customer.tenant.version.rows) | {(STORAGE, "*", 0): 3_600_000}
    await PriceSheets(database).put(PriceProposal(model="stdlib-qa", rows=rows), by="ann")
    catalog = PriceCatalog(database)
    customer.tenant.version = await catalog.current("stdlib-qa")
    await PlatformSettings(database).set("approvals", "off", by="ann", via="a test")
    await BudgetSettings(database).set(customer.id, "tenant", "", "total", limit_pico=10**15, currency="USD")
    await Balances(database).grant(customer.id, 10**12, "USD", kind="promo", model="stdlib-qa", expires_at=2 * 10**15)
    set_clock(database, "2026-10-03")
    await Parties(database).set_buyer(customer.id, msgspec.structs.replace(BUYER, country="DE", vat_id=""))
    await Contracts(database, catalog).put(customer.id, ContractTerms(), "2026-10", "ann")
    await customer.use("2026-10-03", Usage(uncached=20_000_000, output=10_000_000))
    hour = await database.now() // HOUR * HOUR
    set_clock(database, "2026-10-04")
    await record_storage(
        database, catalog, [Stored(customer.id, customer.tenant.project_id, "stdlib-qa", hour, 3_600 * 10**6)]
    )
    holds = HoldService(database)
    expired = await holds.reserve(customer.tenant.request(10**9))
    await holds.sweep(expired.expires_at)
    sent = await customer.invoice("2026-10")
    await pay(database, sent, "bank", 100)
    await credit(database, sent, "why", request="1", amounts={1: 10})
    await holds.reserve(customer.tenant.request(10**9))
    async with database.transaction() as session:
        await session.execute(insert(replica_journal).values(journal="a journal", replica="r1", since=1, seen_at=1))
    await declare_lost(database, "a journal", author="ann", reason="a test")
    return database


@asynccontextmanager
async def unguarded(database: Database) -> AsyncIterator[AsyncSession]:
    """Do what somebody could who owns the database: put its triggers aside, and on SQLite its checks."""
    async with database.transaction() as session:
        if database.dialect == "postgresql":
            await session.execute(text("SET LOCAL session_replication_role = replica"))
        else:
            await session.execute(text("PRAGMA ignore_check_constraints = ON"))
            for name in (await session.scalars(text("SELECT name FROM sqlite_schema WHERE type = 'trigger'"))).all():
                await session.execute(text(f"DROP TRIGGER {name}"))
        yield session


@pytest.mark.slow
async def test_columns_of_every_table(books: Database) -> None:
    assert await audit_money(books) == []
    tables = TABLES if books.dialect == "sqlite" else (ledger_entry, price, hold_batch)  # what is compared is the same
    missed, impossible, tried = set(), set(), set()
    for table in tables:
        async with books.reading() as session:
            row = dict((await session.execute(select(table).limit(1))).mappings().one())
        for column in list(table.columns)[-COLUMNS:]:
            tried.add((table.name, column.name))
            there, altered = row, row | {column.name: _other(column, row[column.name])}
            try:
                await _become(books, table, there, altered)
            except IntegrityError:
                impossible.add((table.name, column.name))
                continue
            if not await audit_money(books):
                missed.add((table.name, column.name))
            await _become(books, table, altered, there)
    assert missed == tried & {(table, name) for table, names in UNSAID.items() for name in names}
    may_be_impossible = {(table.name, name) for table in tables for name in _referring(table)}
    if books.dialect == "postgresql":  # whose checks nobody can put aside
        may_be_impossible |= {("ledger_entry", "debit"), ("ledger_entry", "credit")}
    assert impossible <= may_be_impossible
    assert await audit_money(books) == []


def _referring(table: Table) -> set[str]:
    """Columns of which not every value can be: the database itself refuses it."""
    constraints = [each for each in table.constraints if not isinstance(each, CheckConstraint)]
    indexes = [index for index in table.indexes if index.unique]
    return {column.name for each in (*constraints, *indexes) for column in each.columns}


async def _become(database: Database, table: Table, before: dict[str, Any], after: dict[str, Any]) -> None:
    changed = {name: value for name, value in after.items() if value != before[name]}
    async with unguarded(database) as session:
        await session.execute(update(table).where(*(k == before[k.name] for k in table.primary_key)).values(changed))


def _other(column: Column[Any], value: Any) -> Any:
    if isinstance(column.type, Id):
        return new_id()
    if isinstance(column.type, LargeBinary):
        return (value or b"") + b"x"
    if isinstance(column.type, Text):
        return f"{value or ''}1"
    return 7 if value is None else value + 100


@pytest.mark.slow
async def test_storage_that_does_not_recompute_or_is_not_billed(books: Database) -> None:
    for name, more, whats in (
        ("cost_pico", 1, {"storage does not recompute"}),
        ("token_seconds", 3600, {"storage does not recompute", "an invoice is not the sum of its events"}),
    ):
        column = storage_event.c[name]
        async with unguarded(books) as session:
            await session.execute(update(storage_event).values({column: column + more}))
        assert {finding.what for finding in await audit_money(books)} == {"a row of the books was altered", *whats}
        async with unguarded(books) as session:
            await session.execute(update(storage_event).values({column: column - more}))
    assert await audit_money(books) == []


def test_seals_say_all_that_rows_say() -> None:
    """A column that is added to a sealed table needs a second form."""
    changing = {"invoice": {"state", "paid", "credited", "settled_pico"}, "billing_period": {"state"}}
    said_by_content = {"invoice": {"returned_pico"}}  # which is sealed, and which the audit compares with the row
    for form in row_seals.CURRENT.values():
        said = {*form.columns, *([form.instant] if form.instant else [])}
        more = changing.get(form.name, set()) | said_by_content.get(form.name, set())
        assert said | more == set(form.table.columns.keys()), form.name
        assert form.key == tuple(form.table.primary_key.columns.keys())
        if form.part:
            assert {*form.part.columns, form.part.of} == set(form.part.table.columns.keys())


def test_a_seal_is_of_every_column() -> None:
    for form in row_seals.CURRENT.values():
        row = {column.name: new_id() if isinstance(column.type, Id) else 5 for column in form.table.columns}
        parts = {row[form.key[0]]: [{column.name: 5 for column in form.part.table.columns}] * 2 if form.part else []}
        before = row_seals.sealed(form, row, parts)
        for name in (*form.columns, *([form.instant] if form.instant else [])):
            other = row | {name: 6}
            assert row_seals.sealed(form, other, {other[form.key[0]]: parts[row[form.key[0]]]}) != before, (
                form.name,
                name,
            )
        for name in form.part.columns if form.part else ():
            (one, two) = parts[row[form.key[0]]]
            for altered in ([one | {name: 6}, two], [one]):
                assert row_seals.sealed(form, row, {row[form.key[0]]: altered}) != before, (form.name, name)


@pytest.mark.slow
async def test_rows_that_are_gone_and_rows_that_are_new(books: Database) -> None:
    for name in ("price_change", "contract_terms", "storage_event"):
        table = Base.metadata.tables[name]
        async with books.reading() as session:
            row = dict((await session.execute(select(table).limit(1))).mappings().one())
        key = [column == row[column.name] for column in table.primary_key]
        new = row | ({"model": "other"} if name == "storage_event" else {"id": 99})
        async with unguarded(books) as session:
            await session.execute(table.delete().where(*key))
        found = await audit_money(books)
        assert "a row of the books is missing" in {finding.what for finding in found}
        assert any(name in finding.detail for finding in found)
        async with unguarded(books) as session:
            await session.execute(table.insert().values(new))
        whats = {finding.what for finding in await audit_money(books)}
        assert {"a row of the books is missing", "a row of the books was never written"} <= whats
        async with unguarded(books) as session:
            await session.execute(table.delete().where(*(c == new[c.name] for c in table.primary_key)))
            await session.execute(table.insert().values(row))
        assert await audit_money(books) == []
