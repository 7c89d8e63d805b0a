"""FOCUS 1.4 of contracts: commitments amortised, list prices beside a tenant's own, purchase orders, tags."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path

import msgspec
import pytest

from billing.exports.datasets import DisplayNames
from billing.invoices.accounting.deferral import earn_lapsed_commitments
from billing.prices import EVERY_LANE, PriceCatalog
from billing.prices.approval import PriceSheets
from billing.prices.price_books import PriceBooks
from billing.prices.sheets import PriceProposal
from billing.usage import Usage
from storage.database.database import Database
from tests.billing.exports.test_focus import _export, _judge, _rows
from tests.billing.invoices.customers import Customer, set_clock
from tests.billing.invoices.test_commitments import US, committed, month, set_terms
from tests.billing.money import PRICES

ORDERED = msgspec.structs.replace(US, purchase_order="PO 4711")
MONTHS = ("2026-10", "2026-11", "2026-12")
TEN_DOLLARS = Usage(output=6_250_000)


def _sum(rows: list[dict[str, str]], column: str) -> Decimal:
    return sum((Decimal(row[column]) for row in rows), Decimal())


@pytest.mark.slow
async def test_a_commitment_is_effective_where_it_is_used_or_ends(database: Database, tmp_path: Path) -> None:
    customer = await Customer.make(database, buyer=ORDERED)
    await set_terms(customer, committed("30", last="2026-11"), "2026-09")
    names = DisplayNames({customer.id: "acme"}, {customer.tenant.project_id: "search"})
    invoices = [await month(customer, "2026-10", TEN_DOLLARS), await month(customer, "2026-11", TEN_DOLLARS)]
    set_clock(database, "2026-12-05")
    assert await earn_lapsed_commitments(database) == 1
    billed, effective, drawn = Decimal(), Decimal(), Decimal()
    for period in MONTHS:
        paths = {name: tmp_path / f"{name}-{period}.csv" for name in ("focus", "focus-invoices", "focus-commitments")}
        for name, path in paths.items():
            await _export(database, name, path, period, names)
        if period != "2026-12":
            for name, dataset in (("focus", "cost-and-usage"), ("focus-invoices", "invoice-detail")):
                _judge("validate", str(paths[name]), "--dataset", dataset)
        _judge("validate", str(paths["focus-commitments"]), "--dataset", "contract-commitment")
        rows = _rows(paths["focus"])
        billed, effective = billed + _sum(rows, "BilledCost"), effective + _sum(rows, "EffectiveCost")
        (commitment,) = _rows(paths["focus-commitments"])
        applied = [json.loads(row["ContractApplied"], parse_float=Decimal) for row in rows if row["ContractApplied"]]
        for (element,) in (each["Elements"] for each in applied):
            assert element["ContractCommitmentId"] == commitment["ContractCommitmentId"]
            assert element["ContractId"] == commitment["ContractId"]
            drawn += element["ContractCommitmentAppliedCost"]
        assert Decimal(commitment["x_DrawnCost"]) == drawn
        assert {row["PurchaseOrderNumber"] for row in _rows(paths["focus-invoices"])} <= {"PO 4711"}
        for row in rows:
            if row["SkuId"]:
                assert json.loads(row["Tags"]) == {"turnpike:project": "search", "turnpike:lane": "standard"}
    assert billed == effective == 30
    assert drawn == 20
    assert commitment["ContractCommitmentLifecycleStatus"] == "Expired"
    assert commitment["ContractCommitmentDurationType"] == "2 Months"
    assert [record.payable for record in invoices] == [3000, 0]


@pytest.mark.slow
async def test_list_prices_are_the_base_books(database: Database, tmp_path: Path) -> None:
    customer = await Customer.make(database, buyer=US)
    await PriceBooks(database).create_for(customer.id, "own")
    listed = customer.tenant.version.price("output", "standard", 0)
    own = {("output", EVERY_LANE, 0): listed // 2}
    await PriceSheets(database).put(PriceProposal(model="stdlib-qa", rows=own, book="own", kind="overrides"), by="ann")
    catalog = PriceCatalog(database)
    customer.tenant.version = await catalog.current("stdlib-qa", tenant_id=customer.id)
    assert customer.tenant.version.price("output", "standard", 0) == listed // 2
    await month(customer, "2026-10", Usage(output=1_000_000, uncached=1000))
    path = tmp_path / "focus.csv"
    await _export(database, "focus", path, "2026-10", DisplayNames({customer.id: "acme"}))
    _judge("validate", str(path), "--dataset", "cost-and-usage")
    used = {row["SkuMeter"]: row for row in _rows(path) if row["SkuId"]}
    assert Decimal(used["output"]["ListUnitPrice"]) == Decimal(listed) / 10**6
    assert Decimal(used["output"]["ContractedUnitPrice"]) == Decimal(listed // 2) / 10**6
    assert Decimal(used["output"]["ListCost"]) == 2 * Decimal(used["output"]["ContractedCost"])
    assert used["uncached"]["ListCost"] == used["uncached"]["ContractedCost"]
    assert set(used) == {"output", "uncached"} <= set(PRICES)
