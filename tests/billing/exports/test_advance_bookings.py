"""Bookings of credit with VAT in advance: paid, used and refunded, all in whole coins."""

from __future__ import annotations

import csv
from collections import defaultdict
from decimal import Decimal
from pathlib import Path

import msgspec

from billing.exports.datasets import ExportQuery
from billing.exports.files import ExportOrder, dataset_of, export
from billing.invoices.advances import top_ups
from billing.prices import PriceCatalog
from billing.usage import Usage
from storage.database.base import new_id
from storage.database.database import Database
from tests.billing.invoices.customers import USD, Customer, set_clock
from tests.billing.invoices.documents import BUYER

DOLLAR = 10**12
ADVANCE = msgspec.structs.replace(USD, prepayment="advance")
GERMAN = msgspec.structs.replace(BUYER, country="DE", vat_id="")
FORTY = Usage(uncached=100_000_000)
"""Usage of 40 USD."""


async def _accounts(database: Database, folder: Path, period: str) -> dict[str, Decimal]:
    path = folder / f"{period}.csv"
    order = ExportOrder(dataset_of("general-ledger"), "csv", ExportQuery(period=period))
    await export(database, PriceCatalog(database), order, path)
    documents: dict[str, Decimal] = defaultdict(Decimal)
    accounts: dict[str, Decimal] = defaultdict(Decimal)
    for row in csv.DictReader(path.read_text().splitlines()):
        amount = Decimal(row["debit"] or 0) - Decimal(row["credit"] or 0)
        documents[row["document"]] += amount
        accounts[row["account"]] += amount
    assert set(documents.values()) <= {Decimal()}
    return {account: amount for account, amount in accounts.items() if amount}


async def test_what_is_paid_used_and_refunded_is_booked_once(database: Database, tmp_path: Path) -> None:
    customer = await Customer.make(database, seller=ADVANCE, buyer=GERMAN)
    set_clock(database, "2026-09-20")
    await top_ups(database).grant(customer.id, 100 * DOLLAR, "USD", reason="card")
    await customer.use("2026-09-21", FORTY)
    september = await _accounts(database, tmp_path, "2026-09")
    assert september == {"clearing": Decimal("119.00"), "prepaid": Decimal(-100), "tax": Decimal(-19)}

    await customer.invoice("2026-09")
    await top_ups(database).refund(customer.id, 60 * DOLLAR, "USD", reason="the rest", refund_id=new_id())
    october = await _accounts(database, tmp_path, "2026-10")
    assert october["clearing"] == Decimal("-71.40")
    assert october["prepaid"] == Decimal(100)
    assert october["revenue"] == Decimal(-40)
    assert sum(one.get("receivable", 0) for one in (september, october)) == 0
    assert sum(one["tax"] for one in (september, october)) == Decimal("-7.60")
