"""Contracts and corrections on real invoices: terms, storage and adjustments, with all books agreeing."""

from __future__ import annotations

import csv
from decimal import Decimal
from pathlib import Path

import msgspec
import pytest

from billing.accounts.adjustments import adjust
from billing.calendar import period_bounds
from billing.events.rollups import HOUR
from billing.exports.datasets import ExportQuery
from billing.exports.files import ExportOrder, dataset_of, export
from billing.invoices import drill_down
from billing.invoices.errors import PeriodNotClosed
from billing.invoices.store import InvoiceRecord
from billing.periods.periods import Periods
from billing.prices import PriceCatalog
from billing.prices.approval import PriceSheets
from billing.prices.sheets import PriceProposal
from billing.rating.contract_store import Contracts
from billing.rating.hourly_meters import Stored, hourly_lines, record_hours
from billing.rating.terms import parse_terms
from billing.usage import Usage
from billing.verification.audit import audit_money
from billing.verification.reconciliation import reconcile
from storage.database.base import new_id
from storage.database.database import Database
from tests.billing.invoices.customers import Customer, set_clock
from tests.billing.invoices.documents import BUYER

DOLLAR, CENT = 10**12, 10**10
OUTPUT = Usage(output=10_000_000)
"""Sixteen dollars."""
TERMS = {
    "tiers": [
        {"kind": "graduated", "model": "stdlib-qa", "meter": "output",
         "steps": [{"price": "1.60", "up_to": 10_000_000}, {"price": "1.20"}]}
    ],
    "discounts": [{"basis_points": 1000}],
    "minimum": {"amount": "20"},
    "commitment": {"amount": "30", "first": "2026-10", "last": "2026-12"},
}  # fmt: skip


async def _lines(customer: Customer, record: InvoiceRecord) -> list[tuple[str, str, int]]:
    document = await customer.invoices.document(record)
    assert sum(line.net for line in document.lines) == record.net
    return [(line.kind, line.corrects, line.net) for line in document.lines]


async def _in_focus(database: Database, path: Path, record: InvoiceRecord) -> Decimal:
    """What the rows of FOCUS bill by this invoice."""
    order = ExportOrder(dataset_of("focus"), "csv", ExportQuery(period=record.period, provider="Acme AI"))
    await export(database, PriceCatalog(database), order, path)
    with path.open(newline="", encoding="utf-8") as file:
        return sum((Decimal(row["BilledCost"]) for row in csv.DictReader(file)), Decimal())


async def _price_storage(database: Database, catalog: PriceCatalog, customer: Customer) -> None:
    rows = dict(customer.tenant.version.rows) | {("storage", "*", 0): 360_000}
    await PriceSheets(database).put(PriceProposal(model="stdlib-qa", rows=rows), by="ann")
    customer.tenant = msgspec.structs.replace(customer.tenant, version=await catalog.current("stdlib-qa"))


@pytest.mark.slow
async def test_a_contract_and_storage_on_real_invoices(database: Database, tmp_path: Path) -> None:
    catalog = PriceCatalog(database)
    customer = await Customer.make(database, buyer=msgspec.structs.replace(BUYER, country="DE", vat_id=""))
    await _price_storage(database, catalog, customer)
    tenant = customer.tenant
    await Contracts(database, catalog).put(customer.id, parse_terms(TERMS), "2026-10", by="ann")

    events = await customer.use("2026-10-03", OUTPUT, OUTPUT)
    hour = period_bounds("2026-10")[0]
    stored = [  # at 0.36 a million hours
        Stored(customer.id, project, "stdlib-qa", hour, billions * 10**9 * 3600)
        for project, billions in ((tenant.project_id, 4), (new_id(), 6))
    ]
    assert await record_hours(database, catalog, stored) == 2
    october = await customer.invoice("2026-10")
    # 32.00 of output, 4.00 less by steps and 2.80 by the discount; with 3,600.00 of storage all 30.00 are drawn
    assert await _lines(customer, october) == [
        ("usage", "", 3200), ("storage", "", 360_000), ("discount", "", -400), ("discount", "", -280),
        ("commitment", "", 3000), ("commitment", "", -3000),
    ]  # fmt: skip
    (day,) = await drill_down.days(database, october, 2)
    assert (day.units, day.exact_pico) == (10 * 10**9 * 3600, 3600 * DOLLAR), "of both projects"
    assert (october.usage_pico, october.charges_pico) == (32 * DOLLAR, 3600 * DOLLAR - 680 * CENT)
    assert october.gross == 362_520 * 119 // 100 + (362_520 * 119 % 100 >= 50)
    assert await _in_focus(database, tmp_path / "october.csv", october) == Decimal(october.gross) / 100

    less = {"output": -1_000_000}
    tried = await adjust(database, catalog, customer.id, events[0].id, less, reason="looped", dry_run=True)
    assert (tried.period, tried.cost_pico) == ("2026-11", -16 * DOLLAR // 10)
    made = await adjust(database, catalog, customer.id, events[0].id, less, reason="looped")
    assert (made.period, made.cost_pico) == ("2026-11", -16 * DOLLAR // 10)
    await customer.use("2026-11-05", OUTPUT)
    november = await customer.invoice("2026-11")
    # 16.00 less 1.60 of October, ten percent off what is left; the minimum asks for the rest of 20.00
    assert await _lines(customer, november) == [
        ("usage", "", 1600), ("discount", "", -144), ("minimum", "", 704), ("usage", "2026-10", -160)
    ]  # fmt: skip
    (day,) = await drill_down.days(database, november, 4)
    assert (day.start, day.units, day.exact_pico) == (
        period_bounds("2026-10")[0] + 2 * drill_down.DAY,
        -1_000_000,
        made.cost_pico,
    )
    assert await _in_focus(database, tmp_path / "november.csv", november) == Decimal(november.gross) / 100

    for period, requests, adjusted, late in (("2026-10", 2, 0, 0), ("2026-11", 1, 1, 0)):
        report = await reconcile(database, period)
        assert report.clean, report
        assert (report.events, report.adjustments, report.late, report.invoiced) == (requests, adjusted, late, 1)
    assert await audit_money(database) == []
    accounts = await customer.accounts()
    unpaid = (october.payable + november.payable) * CENT
    assert -accounts["receivable"] - accounts["invoiced"] == unpaid


@pytest.mark.slow
async def test_a_month_in_which_nothing_counted_holds_up_no_later_one(database: Database) -> None:
    customer = await Customer.make(database)
    await customer.use("2026-10-03", Usage())
    (event,) = await customer.use("2026-10-04", OUTPUT)
    await adjust(
        database, PriceCatalog(database), customer.id, event.id, {"output": -OUTPUT.output}, reason="all of it"
    )
    await customer.close("2026-10")
    await customer.use("2026-11-05", OUTPUT)
    november = await customer.invoice("2026-11")
    assert november.net == 1600
    assert await audit_money(database) == []


@pytest.mark.slow
async def test_late_storage_is_a_correction_on_the_next_invoice(database: Database, tmp_path: Path) -> None:
    catalog = PriceCatalog(database)
    customer = await Customer.make(database, buyer=msgspec.structs.replace(BUYER, country="DE", vat_id=""))
    await _price_storage(database, catalog, customer)
    tenant = customer.tenant
    first, million_hours = period_bounds("2026-10")[0], 3600 * 10**6

    def stored(*hours: int) -> list[Stored]:
        return [Stored(customer.id, tenant.project_id, "stdlib-qa", first + n * HOUR, million_hours) for n in hours]

    await customer.use("2026-10-03", OUTPUT)
    assert await record_hours(database, catalog, stored(0, 1)) == 2
    october = await customer.invoice("2026-10")
    assert await _lines(customer, october) == [("usage", "", 1600), ("storage", "", 72)]
    assert (
        await record_hours(database, catalog, stored(0, 1, 2, 3)) == 2
    )  # once each, whichever month they are booked in
    (line,) = await hourly_lines(database, catalog, customer.id, "2026-10")
    assert line.units == 2 * million_hours
    set_clock(database, "2026-11-05")
    assert await record_hours(database, catalog, stored(31 * 24)) == 1
    assert await audit_money(database) == []
    november = await customer.invoice("2026-11")  # without any usage of its own
    assert await _lines(customer, november) == [("storage", "", 36), ("storage", "2026-10", 72)]
    document = await customer.invoices.document(november)
    assert [(line.service_from, line.service_until) for line in document.lines] == [
        ("2026-11-01", "2026-11-30"), ("2026-10-01", "2026-10-31")
    ]  # fmt: skip
    for n, line in enumerate(document.lines, 1):  # opened down to the hours
        (day,) = await drill_down.days(database, november, n)
        hours = await drill_down.hours(database, november, n, day.start)
        assert sum(part.exact_pico for part in hours) == day.exact_pico == int(line.exact)
        assert [(part.requests, part.units) for part in hours] == [(0, million_hours)] * n
    assert await _in_focus(database, tmp_path / "november.csv", november) == Decimal(november.gross) / 100
    with (tmp_path / "november.csv").open(newline="", encoding="utf-8") as file:
        late = [row for row in csv.DictReader(file) if row["ChargeClass"] == "Correction"]
    assert [(row["ChargePeriodStart"][:7], row["BilledCost"]) for row in late] == [("2026-10", "0.720000000000")]
    assert await audit_money(database) == []
    for period in ("2026-10", "2026-11"):
        assert (await reconcile(database, period)).clean


@pytest.mark.slow
async def test_a_month_of_storage_alone_is_invoiced_before_the_next(database: Database) -> None:
    catalog = PriceCatalog(database)
    customer = await Customer.make(database)
    await _price_storage(database, catalog, customer)
    tenant = customer.tenant
    set_clock(database, "2026-10-03")
    hour = Stored(customer.id, tenant.project_id, "stdlib-qa", period_bounds("2026-10")[0], 3600 * 10**6)
    assert await record_hours(database, catalog, [hour]) == 1
    await Periods(database).close("2026-09")
    await customer.close("2026-10")
    await customer.use("2026-11-05", OUTPUT)
    with pytest.raises(PeriodNotClosed, match="2026-10 has usage that is not invoiced yet"):
        await customer.invoice("2026-11")
    assert (await customer.invoice("2026-10")).net == 36
    assert (await customer.invoice("2026-11")).net == 1600
