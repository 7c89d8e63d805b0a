"""Bookings in whole coins: the general ledger balances, and DATEV's batch says the same in its own form."""

from __future__ import annotations

import csv
from collections import defaultdict
from decimal import Decimal
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from billing.accounts.balances import Balances
from billing.exports.datasets import ExportQuery, InvalidExport
from billing.exports.datev import FIELDS, DatevBatch, parse_batch
from billing.exports.files import ExportOrder, Manifest, dataset_of, export
from billing.exports.formats.writers import Format
from billing.exports.jobs import ExportJobs
from billing.exports.journal import parse_account_codes
from billing.invoices.collection import pay
from billing.invoices.credit_notes import credit
from billing.prices import PriceCatalog
from billing.usage import Usage
from storage.database.database import Database
from tests.billing.golden import month
from tests.billing.invoices.customers import Customer, set_clock
from tests.billing.invoices.documents import SELLER

USAGE = Usage(uncached=12_000_000, output=700_000)


def _ledger(period: str) -> list[dict[str, str]]:
    text = (month.FOLDER / period / "general-ledger.csv").read_text()
    return list(csv.DictReader(text.splitlines()))


def _batch(content: bytes) -> tuple[list[str], list[dict[str, str]]]:
    """The line about the batch, and the bookings by the names of their fields."""
    head, names, *rows = csv.reader(content.decode("cp1252").splitlines(), delimiter=";")
    assert tuple(names) == FIELDS
    assert {len(row) for row in rows} <= {len(FIELDS)} == {125}
    return head, [dict(zip(names, row, strict=True)) for row in rows]


def test_the_general_ledger_balances_document_by_document() -> None:
    sums: dict[tuple[str, str], Decimal] = defaultdict(Decimal)
    for row in _ledger("2026-11"):
        sums[row["document"], row["currency"]] += Decimal(row["debit"] or 0) - Decimal(row["credit"] or 0)
    assert len(sums) > 5
    assert set(sums.values()) == {Decimal()}


def test_the_batch_says_what_the_general_ledger_says() -> None:
    head, bookings = _batch((month.FOLDER / "2026-11" / "datev.csv").read_bytes())
    assert head[:5] == ["EXTF", "700", "21", "Buchungsstapel", "13"]
    assert head[10:16] == ["1001", "7", "20260101", "4", "20261101", "20261130"]
    assert len(head) == 31
    accounts: dict[str, Decimal] = defaultdict(Decimal)
    for row in _ledger("2026-11"):
        if row["account"] in ("receivable", "clearing", "prepaid"):
            accounts[row["account_code"]] += Decimal(row["debit"] or 0) - Decimal(row["credit"] or 0)
    by_batch: dict[str, Decimal] = defaultdict(Decimal)
    for booking in bookings:
        amount = Decimal(booking["Umsatz (ohne Soll/Haben-Kz)"].replace(",", "."))
        assert amount > 0
        signed = amount if booking["Soll/Haben-Kennzeichen"] == "S" else -amount
        by_batch[booking["Konto"]] += signed
        by_batch[booking["Gegenkonto (ohne BU-Schlüssel)"]] -= signed
    assert {code: by_batch[code] for code in accounts} == accounts
    keys = {booking["BU-Schlüssel"] for booking in bookings if booking["Gegenkonto (ohne BU-Schlüssel)"] == "8336"}
    assert keys == {"41"}


async def _exported(
    database: Database, folder: Path, name: str, form: Format = "csv", **query: str
) -> tuple[Manifest, bytes]:
    path = folder / f"{name}.{form}"
    order = ExportOrder(dataset_of(name), form, ExportQuery(period="2026-11", **query))
    manifest = await export(database, PriceCatalog(database), order, path)
    return manifest, path.read_bytes()


BATCH = "consultant=1001,client=1,currency=USD,year=07-01,length=5"


@pytest.mark.slow
async def test_every_receivable_is_closed_by_what_closed_it(database: Database, tmp_path: Path) -> None:
    """Paid, then credited whole: what was paid goes back to credit, and the customer owes nothing."""
    customer = await Customer.make(database, buyer=month.WERK)
    await customer.use("2026-10-03", USAGE)
    record = await customer.invoice("2026-10")
    set_clock(database, "2026-11-10")
    await pay(database, record, "=bank", 100)
    await credit(database, record, "all of it", request="1")
    await Balances(database).refund(customer.id, 10**12, "USD", reason="closes")
    manifest, ledger = await _exported(database, tmp_path, "general-ledger")
    rows = list(csv.DictReader(ledger.decode().splitlines()))
    left: dict[str, Decimal] = defaultdict(Decimal)
    for row in rows:
        left[row["account"]] += Decimal(row["debit"] or 0) - Decimal(row["credit"] or 0)
    assert set(left) == {"receivable", "revenue", "tax", "clearing", "prepaid"}
    assert set(left.values()) == {Decimal()}
    assert manifest.sums["debit"] == manifest.sums["credit"]
    _, batch = await _exported(database, tmp_path, "datev", datev=BATCH, seller=SELLER.id)
    head, bookings = _batch(batch)
    assert head[12:14] == ["20260701", "5"]
    assert "'=bank" in {booking["Buchungstext"] for booking in bookings}
    assert (await _exported(database, tmp_path, "datev", datev=BATCH, seller="another"))[0].rows == 0
    for wrong, words in ((BATCH.replace("USD", "EUR"), "it needs a rate of exchange"), ("", "whose books")):
        with pytest.raises(InvalidExport, match=words):
            await _exported(database, tmp_path, "datev", datev=wrong)
    with pytest.raises(InvalidExport, match="a form of its own"):
        await _exported(database, tmp_path, "datev", "xlsx", datev=BATCH)
    with pytest.raises(InvalidExport, match="only `turnpike export DATASET`"):
        await ExportJobs(database, PriceCatalog(database), tmp_path).queue(
            customer.id, customer.tenant.key_id, "datev", "2026-11", "csv"
        )


@pytest.mark.parametrize(
    "text",
    [
        *("consultant=1001", "client=1", "consultant=1000,client=1", "consultant=1001,client=0", "x=1", ","),
        *("consultant=١٠٠١", "consultant=1001,client=1,length=3", "consultant=1001,client=1,year=13-01"),
        *("consultant=1001,client=1,year=02-29", "consultant=1001,client=1,year=1-1"),
        *("consultant=1001,client=1,key.S19=x", "consultant=1001,client=1,currency=EURO"),
    ],
)  # fmt: skip
def test_what_is_no_batch(text: str) -> None:
    with pytest.raises(InvalidExport, match="datev"):
        parse_batch(text)


@given(st.text(alphabet="consultant=clieyrk.S19-0,", max_size=60) | st.text(max_size=30))
def test_a_batch_is_parsed_or_refused(text: str) -> None:
    try:
        batch = parse_batch(text)
    except InvalidExport:
        return
    assert batch is None or msgspec.convert(msgspec.to_builtins(batch), DatevBatch) == batch


def test_codes_by_tax_come_first() -> None:
    codes = parse_account_codes("revenue=8000,revenue.S7=8300,revenue.AE=8336,tax.S19=1776")
    assert (codes["revenue"], codes["revenue.S7"], codes["revenue.AE"], codes["tax.S19"]) == (
        "8000",
        "8300",
        "8336",
        "1776",
    )
    for wrong in ("revenue.X=1", "prepaid.S=1", "revenue.S7.=1"):
        with pytest.raises(InvalidExport):
            parse_account_codes(wrong)
