"""The golden month says to the letter what lies in the tree, on both databases; and what lies there agrees."""

from __future__ import annotations

import csv
import json
from collections import defaultdict
from decimal import Decimal

import pytest

from billing.verification.audit import audit_money
from billing.verification.reconciliation import reconcile
from storage.database.database import Database
from tests.billing.golden import month


@pytest.mark.slow
async def test_documents_and_exports_are_those_of_the_tree(database: Database) -> None:
    await month.make_month(database)
    made, kept = await month.files(database), month.kept()
    assert made.keys() == kept.keys(), "make golden"
    for name, content in made.items():
        encoding = "cp1252" if "datev" in name else "utf-8"
        assert content.decode(encoding) == kept[name].decode(encoding), f"{name}: make golden"
    assert await audit_money(database) == []
    for period in month.MONTHS:
        assert (await reconcile(database, period)).clean


def _rows(name: str) -> list[dict[str, str]]:
    return list(csv.DictReader((month.FOLDER / name).read_text().splitlines()))


def _sum(rows: list[dict[str, str]], column: str) -> Decimal:
    return sum((Decimal(row[column] or 0) for row in rows), Decimal())


@pytest.mark.parametrize("period", month.MONTHS)
def test_the_files_of_a_month_agree(period: str) -> None:
    usage, costs, journal, focus, details = (
        _rows(f"{period}/{name}.csv") for name in ("usage", "costs", "journal", "focus", "focus-invoices")
    )
    assert _sum(usage, "cost") == _sum(costs, "cost") > 0
    assert _sum(journal, "debit") == _sum(journal, "credit")
    revenue = [row for row in journal if row["account"] == "revenue"]
    assert _sum(revenue, "credit") - _sum(revenue, "debit") == _sum(usage, "cost")
    billed: dict[str, Decimal] = defaultdict(Decimal)
    for row in focus:
        billed[row["InvoiceDetailId"]] += Decimal(row["BilledCost"])
    billed.pop("", None)  # credit that was bought or refunded
    assert billed == {row["InvoiceDetailId"]: Decimal(row["BilledCost"]) for row in details}


def test_focus_bills_what_is_to_be_paid_and_what_was_bought() -> None:
    """By the specification what is billed by an invoice is what it asks to be paid, and in all it is what was spent."""
    documents = [json.loads(content) for name, content in month.kept().items() if name.endswith(".json")]
    rows = [row for period in month.MONTHS for row in _rows(f"{period}/focus.csv")]
    billed: dict[str, Decimal] = defaultdict(Decimal)
    for row in rows:
        billed[row["InvoiceId"]] += Decimal(row["BilledCost"])
    bought = Decimal(10 - 2)  # in these two months; what was bought before is used in them too
    returned = {"CN-2026-000001": 0, "CN-2026-000002": 1}  # to the balance, from which all was paid
    signs = {"invoice": 1, "credit_note": -1}
    payable = {each["number"]: Decimal(signs[each["kind"]] * each["payable"]) / 100 for each in documents}
    assert billed == {number: pay + returned.get(number, 0) for number, pay in payable.items()} | {"": bought}
    prepaid = sum((Decimal(each["prepaid"]) / 100 for each in documents), Decimal())
    assert _sum(rows, "EffectiveCost") == _sum(rows, "BilledCost") + prepaid - bought - sum(returned.values()) > 0
