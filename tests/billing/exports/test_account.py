"""Statements of account: what each line says, and that the ledger says the same to the pico-unit."""

from __future__ import annotations

import csv
from decimal import Decimal
from pathlib import Path
from uuid import UUID

import msgspec
import pytest
from sqlalchemy import select

from billing.accounts.adjustments import adjust
from billing.accounts.balances import Balances
from billing.accounts.money_back import charge_back
from billing.calendar import period_of
from billing.exports.account import AccountStatement, account_statements
from billing.exports.datasets import ExportQuery
from billing.exports.files import ExportOrder, dataset_of, export
from billing.invoices.advances import top_ups
from billing.invoices.collection import pay, void
from billing.invoices.credit_notes import credit
from billing.prices import PriceCatalog
from billing.tables.money import ledger_entry, ledger_txn
from billing.usage import Usage
from storage.database.base import new_id
from storage.database.database import Database
from tests.billing.invoices.customers import USD, Customer, set_clock
from tests.billing.invoices.documents import BUYER
from tests.billing.invoices.test_commitments import set_terms

MONTHS = ("2026-09", "2026-10", "2026-11", "2026-12")
USED = Usage(uncached=33_333_333, output=777)
ADVANCE = msgspec.structs.replace(USD, prepayment="advance")
GERMAN = msgspec.structs.replace(BUYER, country="DE", vat_id="")


async def _story(database: Database) -> Customer:
    """Money of every kind: VAT in advance and at use, credit notes, a void invoice, refunds, expiry, a dispute."""
    customer = await Customer.make(database, seller=ADVANCE, buyer=GERMAN)
    await set_terms(customer, {"minimum": {"amount": "20.00"}}, "2026-09")
    await Balances(database).grant(customer.id, 10**12 + 7, "USD", kind="promo", reason="welcome")
    await customer.use("2026-09-20", USED)
    september = await customer.invoice("2026-09")
    await void(database, september, "a wrong address")
    september = await customer.invoice("2026-09")
    await pay(database, september, "bank 1", 300)
    set_clock(database, "2026-10-05")
    await pay(database, september, "bank 2")
    await top_ups(database).grant(customer.id, 50 * 10**12, "USD", reason="bank 3")
    (used,) = await customer.use("2026-10-06", USED)
    set_clock(database, "2026-10-07")
    await top_ups(database).refund(customer.id, 5 * 10**12, "USD", reason="asked for")
    await credit(database, september, "an outage", request="1", amounts={1: 100})
    october = await customer.invoice("2026-10")
    await top_ups(database).grant(customer.id, 9 * 10**12, "USD", expires_at=1_795_000_000_000_000, reason="bank 4")
    await adjust(database, PriceCatalog(database), customer.id, used.id, {"uncached": -5}, reason="a recount")
    await pay(database, october, "bank 5") if october.left else None
    set_clock(database, "2026-12-01")
    await Balances(database).expire()
    disputed = await _a_grant(customer)
    async with database.transaction() as session:
        await charge_back(database, session, customer.id, disputed, 10**12, identity=new_id(), memo="dispute d1")
    return customer


async def _a_grant(customer: Customer) -> UUID:
    grants = await Balances(customer.database).grants(customer.id)
    return next(one.id for one in grants if one.kind == "paid" and one.used)


async def _by_the_ledger(customer: Customer, month: str) -> int:
    """What prepaid credit is there less what is owed at the end of a month, entry by entry."""
    txn, entry = ledger_txn.c, ledger_entry.c
    query = select(entry.debit, entry.credit, entry.amount_pico, txn.period, txn.posted_at)
    query = query.join_from(ledger_entry, ledger_txn, entry.txn_id == txn.id).where(entry.tenant_id == customer.id)
    balance, ours = 0, {"prepaid", "receivable", "invoiced"}
    async with customer.database.reading() as session:
        for debit, credited, pico, period, posted_at in await session.execute(query):
            if (period or period_of(posted_at)) <= month:
                balance += int(pico) * ((credited in ours) - (debit in ours))
    return balance


@pytest.mark.both_databases
async def test_every_month_begins_where_the_last_one_ended_and_agrees_with_the_ledger(database: Database) -> None:
    customer = await _story(database)
    before, kinds = 0, set()
    for month in MONTHS:
        (one,) = await account_statements(database, customer.id, month)
        opening, *lines, closing = one.lines
        assert (opening.kind, opening.balance_pico, closing.kind) == ("opening", before, "closing")
        balance = before
        for line in lines:
            balance += line.amount_pico
            assert line.balance_pico == balance
            assert line.amount_pico
            assert period_of(line.at) == month
        assert closing.balance_pico == balance == await _by_the_ledger(customer, month)
        kinds |= {line.kind for line in lines}
        before = balance
    assert kinds == {"usage", "invoice", "advance", "credit_note", "void", "payment", "refund", "expiry"}


def _of(statement: AccountStatement, kind: str) -> list[tuple[str, str, int]]:
    return [(line.number, line.text, line.amount_pico) for line in statement.lines if line.kind == kind]


async def test_payments_and_documents_are_whole(database: Database) -> None:
    customer = await _story(database)
    (september,) = await account_statements(database, customer.id, "2026-09")
    (october,) = await account_statements(database, customer.id, "2026-10")
    issued = {record.number: record for record in await customer.invoices.list()}
    payments = {text: (number, pico) for number, text, pico in _of(october, "payment")}
    assert payments["bank 1"][1] == 3 * 10**12, "its part for usage and the rest are one line"
    assert payments["bank 3"][1] == 5950 * 10**10, "with its VAT"
    assert [pico for _, _, pico in _of(october, "advance")] == [-950 * 10**10]
    ((number, _, pico),) = _of(october, "credit_note")
    assert pico == issued[number].gross * 10**10
    assert _of(october, "refund") == [("", "asked for", -5 * 10**12)]
    assert len(_of(september, "invoice")) == 2, "the void one too"


async def test_the_export_has_the_same_of_all_tenants(database: Database, tmp_path: Path) -> None:
    one, other = await _story(database), await Customer.make(database, seller=ADVANCE)
    await other.use("2026-12-01", USED)
    path = tmp_path / "account.csv"
    order = ExportOrder(dataset_of("account"), "csv", ExportQuery(period="2026-12"))
    manifest = await export(database, PriceCatalog(database), order, path)
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["tenant_id"] for row in rows} == {str(one.id), str(other.id)}
    for customer in (one, other):
        (statement,) = await account_statements(database, customer.id, "2026-12")
        mine = [row for row in rows if row["tenant_id"] == str(customer.id)]
        said = [(line.kind, Decimal(line.amount_pico), Decimal(line.balance_pico)) for line in statement.lines]
        assert [
            (row["kind"], Decimal(row["amount"]) * 10**12, Decimal(row["balance"]) * 10**12) for row in mine
        ] == said
    assert Decimal(manifest.sums["amount"]["USD"]) == sum(Decimal(row["amount"]) for row in rows)


async def test_a_tenant_without_money_has_no_account(database: Database) -> None:
    assert await account_statements(database, new_id(), "2026-12") == []
