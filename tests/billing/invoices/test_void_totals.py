"""A void document is listed and counts for nothing, in every list and file that finance sums up."""

from __future__ import annotations

import csv
from decimal import Decimal
from pathlib import Path

import msgspec

from billing.exports.datasets import ExportQuery
from billing.exports.files import ExportOrder, dataset_of, export
from billing.invoices.collection import void
from billing.prices import PriceCatalog
from billing.usage import Usage
from storage.database.database import Database
from tests.billing.invoices.customers import Customer
from tests.billing.invoices.documents import BUYER

GERMAN = msgspec.structs.replace(BUYER, country="DE", vat_id="")


async def _sum(database: Database, dataset: str, column: str, path: Path) -> Decimal:
    await export(
        database,
        PriceCatalog(database),
        ExportOrder(dataset_of(dataset), "csv", ExportQuery(period="2026-10", provider="A")),
        path,
    )
    with path.open(newline="", encoding="utf-8") as file:
        return sum((Decimal(row[column] or 0) for row in csv.DictReader(file)), Decimal())


async def test_a_void_document_counts_for_nothing(database: Database, tmp_path: Path) -> None:
    customer = await Customer.make(database, buyer=GERMAN)
    await customer.use("2026-10-03", Usage(output=10_000_000))
    first = await customer.invoice("2026-10")
    gone = await void(database, first, "a mistake")
    assert gone.gross == first.gross
    assert set(gone.counted.values()) == {0}
    second = await customer.invoice("2026-10")
    assert second.counted["gross"] == second.gross == 1904
    assert await _sum(database, "invoices", "net", tmp_path / "invoices.csv") == Decimal("16")
    assert await _sum(database, "invoices", "exact", tmp_path / "exact.csv") == Decimal("16")
    for dataset in ("focus", "focus-invoices"):
        assert await _sum(database, dataset, "BilledCost", tmp_path / f"{dataset}.csv") == Decimal("19.04")
