"""FOCUS 1.4, judged by focus-data-toolkit; and what it does not judge: that the invoice is what was used."""

from __future__ import annotations

import csv
import subprocess
import sys
from decimal import Decimal
from pathlib import Path

import msgspec
import pytest

from billing.accounts.adjustments import adjust
from billing.accounts.balances import Balances
from billing.exports.datasets import DisplayNames, ExportQuery
from billing.exports.files import ExportOrder, Manifest, dataset_of, export
from billing.exports.formats.writers import Format
from billing.invoices.collection import void
from billing.invoices.credit_notes import credit
from billing.money import format_pico
from billing.prices import PriceCatalog
from billing.reservation.hold_service import HoldService
from billing.usage import Usage
from storage.database.database import Database
from tests.billing.invoices.customers import Customer, set_clock
from tests.billing.invoices.documents import BUYER
from tests.billing.money import Tenant
from tests.billing.recorded import record
from tests.fast import only_fast

DOMESTIC = msgspec.structs.replace(BUYER, country="DE", vat_id="")
USAGE = Usage(uncached=1_000_001, read={"5m": 3_000_001}, write={"1h": 500_000}, output=7_000_003)
NAMES = {"focus": "cost-and-usage", "focus-invoices": "invoice-detail", "focus-periods": "billing-period"}


async def _export(
    database: Database, name: str, path: Path, period: str, names: DisplayNames, form: Format = "csv"
) -> Manifest:
    order = ExportOrder(dataset_of(name), form, ExportQuery(period=period, names=names, provider="Acme AI"))
    return await export(database, PriceCatalog(database), order, path)


def _judge(*arguments: str) -> str:
    judged = subprocess.run(
        [sys.executable, "-m", "focus_data_toolkit", *arguments], capture_output=True, text=True, check=False
    )
    assert judged.returncode == 0, judged.stdout + judged.stderr
    return judged.stdout


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.mark.slow
async def test_an_invoiced_month(database: Database, tmp_path: Path) -> None:
    customer = await Customer.make(database, buyer=DOMESTIC)
    await customer.use("2026-10-03T12:00", USAGE, Usage(uncached=333))
    await customer.use("2026-10-31T23:59", USAGE)
    late = await customer.requests("2026-10-31T23:59:59", Usage(uncached=77_777))
    await HoldService(database).sweep(late[0].admitted_at + 3_600_000_000)
    sent = await customer.invoice("2026-10")
    paths = {name: tmp_path / f"{name}.csv" for name in NAMES}
    names = DisplayNames({customer.id: "=Acme"}, {customer.tenant.project_id: "search"})
    manifests = {name: await _export(database, name, path, "2026-10", names) for name, path in paths.items()}
    assert {manifest.closed for manifest in manifests.values()} == {True}
    for name, path in paths.items():
        _judge("validate", str(path), "--dataset", NAMES[name])
    said = _judge(
        "validate-bundle",
        *(part for name, path in paths.items() for part in (f"--{NAMES[name]}", str(path))),
    )
    assert said
    usage, details = _rows(paths["focus"]), _rows(paths["focus-invoices"])
    # An invoice's rows of usage and beyond add up to the invoice.
    assert {row["InvoiceId"] for row in usage} == {sent.number}
    billed = sum(Decimal(row["BilledCost"]) for row in usage)
    assert billed == sum(Decimal(row["BilledCost"]) for row in details) == Decimal(sent.gross) / 100
    used = [row for row in usage if row["SkuId"]]
    assert sum(Decimal(row["BilledCost"]) for row in used) == Decimal(format_pico(sent.usage_pico))
    # Each line is what was used of it, before it was rounded.
    lines = {row["InvoiceDetailId"]: row for row in details}
    assert {row["InvoiceDetailId"] for row in used} == {
        each for each, row in lines.items() if row["ChargeCategory"] == "Usage"
    }
    for each, line in lines.items():
        of_all = [Decimal(row["BilledCost"]) for row in usage if row["InvoiceDetailId"] == each]
        assert sum(of_all) == Decimal(line["BilledCost"])
        if line["ChargeCategory"] == "Usage":
            of_line = [row for row in used if row["InvoiceDetailId"] == each]
            assert sum(Decimal(row["EffectiveCost"]) for row in of_line) == Decimal(line["x_ExactCost"])
    for row in used:
        assert Decimal(row["PricingQuantity"]) * 10**6 == int(row["ConsumedQuantity"])
        assert Decimal(row["PricingQuantity"]) * Decimal(row["ListUnitPrice"]) == Decimal(row["ListCost"])
        assert (row["BillingAccountName"], row["SubAccountName"]) == ("'=Acme", "search")
        assert row["InvoiceIssuerName"] == row["ServiceProviderName"] == "Acme AI"
    assert {row["ChargeCategory"] for row in usage} == {"Usage", "Tax"}
    (period,) = _rows(paths["focus-periods"])
    assert (period["BillingPeriodStatus"], period["BillingPeriodStart"]) == ("Closed", "2026-10-01T00:00:00Z")
    # What arrives after the close is a correction, billed in the next month; a credit note is one of its own month.
    await customer.settle(late)
    await customer.use("2026-11-05", Usage(output=1_000_000))
    november = await customer.invoice("2026-11")
    note, _ = await credit(database, november, "An outage", request="1")
    assert note is not None
    for document, sign, month, corrected in (
        (november, 1, "2026-11", ["2026-10-31T23:00:00Z"]),
        (note, -1, "2026-12", ["2026-11-01T00:00:00Z"] * 3),
    ):
        after = {name: tmp_path / f"{name}-{month}.csv" for name in NAMES}
        for name, path in after.items():
            await _export(database, name, path, month, names)
            _judge("validate", str(path), "--dataset", NAMES[name])
        usage, details = _rows(after["focus"]), _rows(after["focus-invoices"])
        assert [row["ChargePeriodStart"] for row in usage if row["ChargeClass"] == "Correction"] == corrected
        assert {row["ReferenceInvoiceId"] for row in details} == {november.number}
        billed = sum(Decimal(row["BilledCost"]) for row in usage if row["InvoiceId"] == document.number)
        assert billed == sum(Decimal(row["BilledCost"]) for row in details if row["InvoiceId"] == document.number)
        assert billed == sign * Decimal(document.gross) / 100
    invoices = tmp_path / "invoices.csv"
    manifest = await _export(database, "invoices", invoices, "2026-10", names)
    assert manifest.sums == {"net": {"USD": format_pico(sent.net * 10**10)}}
    assert {row["number"] for row in _rows(invoices)} == {sent.number}


@pytest.mark.parametrize("form", only_fast("csv", of=["csv", "parquet"]))
async def test_a_month_of_many_without_invoices(fresh_sqlite_url: str, tmp_path: Path, form: Format) -> None:
    database = await Database.open(fresh_sqlite_url)
    past = await record(database, await Tenant.rich(database, 0), count=80)
    path = tmp_path / f"focus.{form}"
    manifest = await _export(database, "focus", path, "2026-11", DisplayNames(), form)
    assert manifest.sums == {"BilledCost": {"USD": format_pico(past.cost_pico)}}
    if form == "csv":
        _judge("validate", str(path), "--dataset", "cost-and-usage")
        wrong = tmp_path / "wrong.csv"
        wrong.write_text(path.read_text().replace("Usage-Based", "Sometimes"))
        with pytest.raises(AssertionError):
            _judge("validate", str(wrong), "--dataset", "cost-and-usage")
    await database.close()


@pytest.mark.slow
async def test_what_was_paid_in_advance_is_billed_once_before_and_after_the_invoice(
    database: Database, tmp_path: Path
) -> None:
    unit = 10**12
    customer = await Customer.make(database, 10 * unit)
    await Balances(database).grant(customer.id, unit, "USD", kind="promo")
    for day, tokens in (("09-20", 2), ("10-03", 5), ("10-20", 8), ("11-02", 3)):
        await customer.use(f"2026-{day}", *([Usage(output=250_001)] * tokens * 5))

    async def billed(month: str, step: str) -> tuple[Decimal, Decimal, list[dict[str, str]]]:
        path = tmp_path / f"{month}-{step}.csv"
        await _export(database, "focus", path, month, DisplayNames({customer.id: "acme"}, {}))
        _judge("validate", str(path), "--dataset", "cost-and-usage")
        rows = _rows(path)
        for row in rows:
            if row["SkuId"]:
                assert 0 <= Decimal(row["BilledCost"]) <= Decimal(row["EffectiveCost"]) == Decimal(row["ListCost"])
        of_usage = [row for row in rows if row["ChargeCategory"] in ("Usage", "Credit")]
        sums = [sum(Decimal(row[name]) for row in of_usage) for name in ("BilledCost", "EffectiveCost")]
        return Decimal(sums[0]), Decimal(sums[1]), [row for row in rows if row["SkuId"]]

    cost = Decimal("0.4000016")
    september, october, november = [await billed(f"2026-{month}", "open") for month in ("09", "10", "11")]
    assert september[:2] == (0, 10 * cost - 1)  # one was given, the rest is of the ten that were paid
    assert october[:2] == (75 * cost - 11, 65 * cost)
    assert [Decimal(row["BilledCost"]) for row in october[2]] == [35 * cost - 11, 40 * cost]
    assert november[:2] == (15 * cost, 15 * cost)
    for month, used in (("2026-09", september), ("2026-10", october)):
        sent = await customer.invoice(month)
        after, effective, rows = await billed(month, "sent")
        assert after == Decimal(sent.payable) / 100
        assert abs(after - used[0]) < Decimal("0.01")
        assert abs(effective - used[1]) < Decimal("0.01")
        assert {row["InvoiceId"] for row in rows} == {sent.number}
    await void(database, sent, "a mistake")
    again = await billed("2026-10", "void")
    assert again[:2] == october[:2]
    assert {row["InvoiceId"] for row in again[2]} == {""}
    assert (await billed("2026-11", "later"))[:2] == november[:2]


@pytest.mark.slow
async def test_what_is_taken_back_of_prepaid_usage_is_not_billed(database: Database, tmp_path: Path) -> None:
    customer, catalog = await Customer.make(database, 10**13), PriceCatalog(database)
    (used,) = await customer.use("2026-10-03", Usage(output=1_000_000))
    await customer.invoice("2026-10")
    set_clock(database, "2026-11-10")
    await adjust(database, catalog, customer.id, used.id, {"output": -500_000}, reason="r")

    async def costs(step: str) -> list[tuple[Decimal, Decimal]]:
        path = tmp_path / f"{step}.csv"
        await _export(database, "focus", path, "2026-11", DisplayNames({customer.id: "acme"}, {}))
        _judge("validate", str(path), "--dataset", "cost-and-usage")
        rows = [row for row in _rows(path) if row["SkuId"]]
        assert {row["ChargeClass"] for row in rows if row["EffectiveCost"].startswith("-")} == {"Correction"}
        return [(Decimal(row["BilledCost"]), Decimal(row["EffectiveCost"])) for row in rows]

    assert await costs("alone") == [(0, Decimal("-0.8"))]
    await customer.use("2026-11-12", Usage(output=2_000_000))
    assert await costs("beside usage") == [(0, Decimal("-0.8")), (0, Decimal("3.2"))]


@pytest.mark.slow
async def test_what_is_taken_back_of_usage_to_be_paid_is_taken_off_the_bill(database: Database, tmp_path: Path) -> None:
    customer, catalog = await Customer.make(database), PriceCatalog(database)
    (used,) = await customer.use("2026-10-03", Usage(output=1_000_000))
    await customer.invoice("2026-10")
    set_clock(database, "2026-11-10")
    await adjust(database, catalog, customer.id, used.id, {"output": -500_000}, reason="r")
    await customer.use("2026-11-12", Usage(output=2_000_000))
    path = tmp_path / "focus.csv"
    await _export(database, "focus", path, "2026-11", DisplayNames({customer.id: "acme"}, {}))
    assert [Decimal(row["BilledCost"]) for row in _rows(path)] == [Decimal("-0.8"), Decimal("3.2")]
