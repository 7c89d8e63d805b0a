"""Reports, exports and invoices say the same: usage and hourly meters, to the pico, also after adjustments."""

from __future__ import annotations

import json
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

from billing.accounts.adjustments import adjust
from billing.calendar import period_bounds
from billing.exports.datasets import DisplayNames, ExportQuery
from billing.exports.files import ExportOrder, dataset_of, export, format_of
from billing.prices import PriceCatalog
from billing.prices.approval import PriceSheets
from billing.prices.sheets import PriceProposal
from billing.prices.version import RESIDENT, STORAGE
from billing.rating.contract_store import Contracts
from billing.rating.hourly_meters import READY_ADAPTERS, Stored, record_hours
from billing.rating.terms import ContractTerms, Discount
from billing.reports.cost_report import cost_buckets
from billing.reports.usage_report import usage_buckets, usage_by_project_and_model
from billing.usage import Usage
from billing.verification.audit import audit_money
from storage.database.database import Database
from tests.billing.invoices.customers import Customer, set_clock
from tests.billing.recorded import HOUR

_NAMES = DisplayNames()
_USED = ("usage", "storage", "residency")


async def _month(database: Database) -> tuple[Customer, PriceCatalog, str]:
    """Tokens, storage, a ready adapter and a discount in October, one adjustment before its close and one after it."""
    customer, catalog = await Customer.make(database, 10**13), PriceCatalog(database)
    rows = dict(customer.tenant.version.rows) | {(STORAGE, "*", 0): 3_600_000, (RESIDENT, "*", 0): 50_000_000}
    await PriceSheets(database).put(PriceProposal(model="stdlib-qa", rows=rows), by="ann")
    customer.tenant.version = await catalog.current("stdlib-qa")
    terms = ContractTerms(discounts=(Discount(basis_points=1_000),))
    set_clock(database, "2026-10-01")
    await Contracts(database, catalog).put(customer.id, terms, "2026-10", "ann")
    early = await customer.use("2026-10-03T12:20", Usage(uncached=20_000_001, output=10_000_003))
    await adjust(database, catalog, customer.id, early[0].id, {"output": -7}, reason="in time")
    for day in ("2026-10-04", "2026-10-31T22:00"):
        set_clock(database, day)
        hour = await database.now() // HOUR * HOUR - HOUR
        stored = Stored(customer.id, customer.tenant.project_id, "stdlib-qa", hour, 3_599 * 10**6 + 1)
        assert await record_hours(database, catalog, [stored]) == 1
        ready = Stored(customer.id, customer.tenant.project_id, "stdlib-qa:support", hour, 777, base="stdlib-qa")
        assert await record_hours(database, catalog, [ready], READY_ADAPTERS) == 1
        assert await record_hours(database, catalog, [ready], READY_ADAPTERS) == 0, "an hour is recorded once"
    await customer.invoice("2026-10")
    return customer, catalog, str(early[0].id)


async def test_every_report_agrees_with_the_invoice(database: Database, tmp_path: Path) -> None:
    customer, catalog, _ = await _month(database)
    invoiced = await _invoiced(customer, "2026-10")
    used = {kind: sum(pico for k, _, pico in invoiced if k == kind) for kind in (*_USED, "discount")}
    assert used["usage"] > 0
    assert used["storage"] > 0
    assert used["residency"] == 2 * 777 * 50_000_000
    assert used["discount"] < 0
    said = await _said(customer, catalog, "2026-10", tmp_path)
    whole = sum(used[kind] for kind in _USED)
    assert said == dict.fromkeys(said, whole) | {"usage by time": used["usage"], "usage export": used["usage"]}
    line_items = {meter: pico for kind, meter, pico in invoiced if kind in _USED}
    assert await _by_meter(customer, catalog, "2026-10") == line_items
    focus = await _rows(customer, catalog, "focus", "2026-10", tmp_path)
    of_lines = _sum((row for row in focus if row["ChargeCategory"] == "Usage"), lambda row: row["ListCost"])
    record = await customer.invoices.of_period(customer.id, "2026-10")
    assert record is not None
    lines = (await customer.invoices.document(record)).lines
    assert of_lines == sum(line.net for line in lines if line.kind in _USED) * 10**10


async def test_a_closed_month_stays_as_it_was_closed(database: Database, tmp_path: Path) -> None:
    customer, catalog, _ = await _month(database)
    before = await _said(customer, catalog, "2026-10", tmp_path)
    events = [row for row in await _rows(customer, catalog, "usage", "2026-10", tmp_path) if row["corrects"] is None]
    set_clock(database, "2026-11-07")
    await adjust(database, catalog, customer.id, UUID(events[0]["request_id"]), {"uncached": -1_001}, reason="late")
    late = await database.now() // HOUR * HOUR - 24 * 20 * HOUR  # an hour of October that was recorded late
    stored = Stored(customer.id, customer.tenant.project_id, "stdlib-qa", late, 17)
    assert await record_hours(database, catalog, [stored]) == 1
    assert await _said(customer, catalog, "2026-10", tmp_path) == before
    await customer.invoice("2026-11")
    invoiced = await _invoiced(customer, "2026-11")
    of_usage = sum(pico for kind, _, pico in invoiced if kind == "usage")
    whole = of_usage + sum(pico for kind, _, pico in invoiced if kind == "storage")
    assert of_usage < 0 < whole - of_usage
    said = await _said(customer, catalog, "2026-11", tmp_path)
    assert said == dict.fromkeys(said, whole) | {"usage by time": of_usage, "usage export": of_usage}
    assert await audit_money(database) == []


async def _invoiced(customer: Customer, period: str) -> list[tuple[str, str | None, int]]:
    """Kind, meter and exact amount of each line of a month's invoice."""
    record = await customer.invoices.of_period(customer.id, period)
    assert record is not None
    document = await customer.invoices.document(record)
    return [(line.kind, line.meter, int(line.exact)) for line in document.lines]


async def _said(customer: Customer, catalog: PriceCatalog, period: str, folder: Path) -> dict[str, int]:
    """What each report says that a month cost, in pico-units."""
    database = customer.database
    start, end = period_bounds(period)
    month = await usage_by_project_and_model(database, period, customer.id)
    events = await usage_by_project_and_model(database, period, customer.id, source="events")
    usage = await usage_buckets(database, customer.id, start_at=start, end_at=end, limit=31)
    hours = [await usage_buckets(database, customer.id, start_at=at, end_at=min(at + 168 * HOUR, end), width="1h",
                                 limit=168) for at in range(start, end, 168 * HOUR)]  # fmt: skip
    minutes = sum(r.costs_pico["USD"] for page in hours for b in page.buckets for r in b.results)
    by_time = sum(r.costs_pico["USD"] for bucket in usage.buckets for r in bucket.results)
    assert minutes == by_time
    costs = await cost_buckets(database, catalog, customer.id, start_at=start, end_at=end, limit=31)
    files = {name: await _rows(customer, catalog, name, period, folder) for name in ("usage", "costs")}
    return {
        "turnpike usage": sum(row.cost_pico for row in month),
        "turnpike usage, from events": sum(row.cost_pico for row in events),
        "usage by time": by_time,
        "costs by day": sum(cost.cost_pico for bucket in costs.buckets for cost in bucket.costs),
        "usage export": _sum(files["usage"], lambda row: row["cost"]),
        "costs export": _sum(files["costs"], lambda row: row["cost"]),
    }


async def _by_meter(customer: Customer, catalog: PriceCatalog, period: str) -> dict[str | None, int]:
    start, end = period_bounds(period)
    page = await cost_buckets(
        customer.database, catalog, customer.id, start_at=start, end_at=end, limit=31, group_by=["meter"]
    )
    sums: dict[str | None, int] = {}
    for cost in (cost for bucket in page.buckets for cost in bucket.costs):
        sums[cost.group["meter"]] = sums.get(cost.group["meter"], 0) + cost.cost_pico
    return sums


async def _rows(customer: Customer, catalog: PriceCatalog, name: str, period: str, folder: Path) -> list[Any]:
    order = ExportOrder(
        dataset_of(name), format_of("jsonl"), ExportQuery(period=period, tenant_id=customer.id, names=_NAMES)
    )
    await export(customer.database, catalog, order, folder / f"{name}.jsonl")
    return [json.loads(line) for line in (folder / f"{name}.jsonl").read_text().splitlines()]


def _sum(rows: Any, amount: Callable[[Any], str]) -> int:
    return int(sum(Decimal(amount(row)) for row in rows) * 10**12)
