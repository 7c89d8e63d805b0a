"""What a controller reads: revenue by model, what is owed in service, and what is overdue tie to the ledger."""

from __future__ import annotations

import csv
from decimal import Decimal
from pathlib import Path

import msgspec

from billing.exports.datasets import ExportQuery
from billing.exports.files import ExportOrder, dataset_of, export
from billing.invoices.accounting.deferral import earn_lapsed_commitments
from billing.invoices.advances import top_ups
from billing.invoices.collection import pay
from billing.invoices.credit_notes import credit
from billing.prices import PriceCatalog
from billing.usage import Usage
from storage.database.database import Database
from tests.billing.invoices.customers import USD, Customer, set_clock
from tests.billing.invoices.test_commitments import US, committed, month, set_terms

FORTY = Usage(uncached=100_000_000)
GERMAN = msgspec.structs.replace(US, country="DE")
MONTHS = ("2026-09", "2026-10", "2026-11", "2026-12")


async def _rows(database: Database, name: str, period: str, folder: Path) -> list[dict[str, str]]:
    path = folder / f"{name}-{period}.csv"
    order = ExportOrder(dataset_of(name), "csv", ExportQuery(period=period))
    await export(database, PriceCatalog(database), order, path)
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


async def _story(database: Database) -> Customer:
    """Credit for 20, a commitment of 30 for October and November, usage of 5 a month, 2 credited, 15 lapsed."""
    customer = await Customer.make(database, seller=msgspec.structs.replace(USD, prepayment="advance"), buyer=US)
    await set_terms(customer, committed("30", last="2026-11"), "2026-09")
    october = await month(customer, "2026-10")
    await pay(database, october, "bank", 1000)
    set_clock(database, "2026-11-03")
    await top_ups(database).grant(customer.id, 20 * 10**12, "USD")
    set_clock(database, "2026-11-04")
    await credit(database, october, "an outage", request="1", amounts={1: 200})
    await month(customer, "2026-11", Usage(output=3_125_000))
    set_clock(database, "2026-12-05")
    await earn_lapsed_commitments(database)
    return customer


async def test_what_is_earned_and_owed_is_the_ledgers(database: Database, tmp_path: Path) -> None:
    customer = await _story(database)
    accounts = await customer.accounts()
    earned = {"usage": "revenue"}
    totals: dict[str, Decimal] = {}
    closing: dict[str, Decimal] = {}
    for period in MONTHS:
        for row in await _rows(database, "revenue", period, tmp_path):
            account = earned.get(row["source"], row["source"])
            totals[account] = totals.get(account, Decimal()) + Decimal(row["recognized"])
            assert (row["model"] == "stdlib-qa") == (row["source"] == "usage")
        rows = await _rows(database, "deferred", period, tmp_path)
        for row in rows:
            opening, added, taken, end = (Decimal(row[name]) for name in ("opening", "added", "taken", "closing"))
            assert opening == closing.get(row["account"], 0)
            assert end == opening + added - taken
            closing[row["account"]] = end
    for account in ("revenue", "charges", "credited", "breakage"):
        assert totals.get(account, 0) == Decimal(accounts.get(account, 0)) / 10**12, account
    assert {name: closing.get(name, 0) for name in ("prepaid", "deferred")} == {
        name: Decimal(accounts.get(name, 0)) / 10**12 for name in ("prepaid", "deferred")
    }
    assert totals["breakage"] > 0


async def test_what_is_not_paid_by_how_long_it_is_overdue(database: Database, tmp_path: Path) -> None:
    await _story(database)
    assert await _rows(database, "ageing", "2026-10", tmp_path) == []  # issued on 2 November, due on 2 December
    (november,) = await _rows(database, "ageing", "2026-11", tmp_path)
    (december,) = await _rows(database, "ageing", "2026-12", tmp_path)
    assert (november["due"], november["bucket"], november["left"]) == ("2026-12-02", "not due", "18.000000000000")
    assert (december["days_overdue"], december["bucket"]) == ("29", "1-30")


async def _focus_sums(database: Database, folder: Path) -> tuple[Decimal, Decimal]:
    """All that was billed, and all that was effective, in FOCUS."""
    rows = [row for period in MONTHS for row in await _rows(database, "focus", period, folder)]
    billed, effective = (
        sum((Decimal(row[name]) for row in rows), Decimal()) for name in ("BilledCost", "EffectiveCost")
    )
    return billed, effective


async def test_focus_bills_what_is_asked_for_with_vat_in_advance(database: Database, tmp_path: Path) -> None:
    customer = await Customer.make(database, seller=msgspec.structs.replace(USD, prepayment="advance"), buyer=GERMAN)
    set_clock(database, "2026-09-20")
    await top_ups(database).grant(customer.id, 100 * 10**12, "USD")
    await month(customer, "2026-10", FORTY)
    await top_ups(database).refund(customer.id, 10 * 10**12, "USD")
    assert await _focus_sums(database, tmp_path) == (Decimal("107.1"), 40 + Decimal("17.1"))
    details = [row for period in MONTHS for row in await _rows(database, "focus-invoices", period, tmp_path)]
    assert sum(Decimal(row["BilledCost"]) for row in details) == Decimal("107.1")


async def test_focus_bills_what_is_asked_for_with_vat_at_use(database: Database, tmp_path: Path) -> None:
    customer = await Customer.make(
        database, seller=msgspec.structs.replace(USD, prepayment="multi_purpose"), buyer=GERMAN
    )
    set_clock(database, "2026-09-20")
    await top_ups(database).grant(customer.id, 100 * 10**12, "USD")
    await month(customer, "2026-10", FORTY)
    assert await _focus_sums(database, tmp_path) == (100, Decimal("47.6"))
