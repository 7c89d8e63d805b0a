"""Exports: every format says the same, exactly, for ever; nothing in them is a formula; a month is never in memory."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
import tracemalloc
import zipfile
from collections.abc import AsyncIterator, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import msgspec
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import func, select

from billing.accounts.balances import Balances
from billing.exports.datasets import (
    Column,
    Dataset,
    DisplayNames,
    ExportQuery,
    ExportSnapshot,
    InvalidExport,
)
from billing.exports.files import DATASETS, ExportOrder, Manifest, dataset_of, export, format_of, manifest_path
from billing.exports.formats.workbook import WorkbookWriter
from billing.exports.formats.writers import FORMATS, Format
from billing.exports.journal import ACCOUNT_CODES, parse_account_codes
from billing.ledger.entries import Account
from billing.money import format_pico
from billing.prices import PriceCatalog
from billing.settlement.settlement import settle
from billing.tables.money import ledger_entry
from billing.usage import METERS, Usage, UsageEvent
from storage.database.base import to_instant
from storage.database.database import Database
from storage.free_text import safe_cell
from tests.billing.invoices.customers import set_clock
from tests.billing.money import Tenant
from tests.billing.recorded import DAY, NOVEMBER, Past, record
from tests.fast import only_fast

FORMULA = "=cmd|' /C calc'!A0"


async def _export(
    database: Database, name: str, folder: Path, form: Format = "csv", **asked: Any
) -> tuple[Path, Manifest]:
    path = folder / f"{name}.{form}"
    order = ExportOrder(dataset_of(name), form, ExportQuery(**({"period": "2026-11"} | asked)))
    manifest = await export(database, PriceCatalog(database), order, path)
    assert manifest == msgspec.json.decode(manifest_path(path).read_bytes(), type=Manifest)
    assert manifest.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert manifest.bytes == path.stat().st_size
    assert {each for each in os.listdir(folder) if each.startswith(".")} == set()
    return path, manifest


def _cells(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(path.read_bytes().decode(), newline="")))


def _sheets(path: Path) -> list[list[list[str]]]:
    """The cells of a workbook's sheets, as its XML has them."""
    space = "{http://schemas.openxmlformats.org/spreadsheetml/2006/main}"
    sheets = []
    with zipfile.ZipFile(path) as book:
        for name in sorted(name for name in book.namelist() if name.startswith("xl/worksheets/")):
            root = ElementTree.fromstring(book.read(name))
            assert not list(root.iter(f"{space}f")), "a formula"
            found = [
                {_column(cell.attrib["r"]): "".join(cell.itertext()) for cell in row.iter(f"{space}c")}
                for row in root.iter(f"{space}row")
            ]
            sheets.append([[cells.get(n, "") for n in range(len(found[0]))] for cells in found])
    return sheets


def _column(reference: str) -> int:
    """Where a cell stands: BC7 → 54. Cells that hold nothing are not there."""
    place = 0
    for letter in reference.rstrip("0123456789"):
        place = place * 26 + ord(letter) - ord("A") + 1
    return place - 1


def _names(past: Past) -> DisplayNames:
    return DisplayNames(
        {past.tenant.id: 'Müller, "quoted"\r\nGmbH'}, dict(zip(past.projects, (FORMULA, "plain"), strict=True))
    )


@pytest.mark.slow
async def test_usage_says_every_request_in_every_format(database: Database, tmp_path: Path) -> None:
    past = await record(database, await Tenant.rich(database, 0), count=60)
    await record(database, await Tenant.rich(database, 0, "other"), count=5, seed=3)
    events = sorted(past.events, key=lambda event: event.id.bytes)
    asked = {"tenant_id": past.tenant.id, "names": _names(past)}
    path, manifest = await _export(database, "usage", tmp_path, **asked)
    rows = _cells(path)
    assert (manifest.rows, manifest.sums) == (60, {"cost": {"USD": format_pico(past.cost_pico)}})
    assert b"\r\n" in path.read_bytes()
    for row, event in zip(rows, events, strict=True):
        assert (row["request_id"], row["key_id"], row["lane"]) == (str(event.id), str(event.key_id), event.lane)
        assert {meter: int(row[meter]) for meter in METERS} == event.usage.meters()
        assert Decimal(row["cost"]) * 10**12 == event.cost_pico
        assert row["admitted_at"].endswith("Z")
        assert row["tenant"] == 'Müller, "quoted"\r\nGmbH'
        assert row["project"] == (f"'{FORMULA}" if event.project_id == past.projects[0] else "plain")
    everything, _ = await _export(database, "usage", tmp_path)
    assert len(_cells(everything)) == 65
    jsonl, _ = await _export(database, "usage", tmp_path, "jsonl", **asked)
    objects = [json.loads(line) for line in jsonl.read_text().splitlines()]
    texts = [{name: "" if value is None else str(value) for name, value in one.items()} for one in objects]
    assert [text | {"project": ""} for text in texts] == [row | {"project": ""} for row in rows]
    assert {o["project"] for o in objects} == {FORMULA, "plain"}  # only spreadsheets need a guard
    parquet, _ = await _export(database, "usage", tmp_path, "parquet", **asked)
    table = pq.read_table(parquet)
    assert str(table.schema.field("cost").type) == "decimal128(38, 12)"
    assert [str(cost) for cost in table["cost"].to_pylist()] == [row["cost"] for row in rows]
    assert [to_instant(at) for at in table["admitted_at"].to_pylist()] == [event.admitted_at for event in events]
    workbook, _ = await _export(database, "usage", tmp_path, "xlsx", **asked)
    (sheet,) = _sheets(workbook)
    exact = sheet[0].index("cost (exact)")
    assert [line[exact] for line in sheet[1:]] == [row["cost"] for row in rows]
    assert all(abs(Decimal(line[exact - 1]) - Decimal(line[exact])) < Decimal("1e-12") for line in sheet[1:])
    assert FORMULA in {line[sheet[0].index("project")] for line in sheet}  # text there, whatever it looks like
    with zipfile.ZipFile(workbook) as parts:
        content = parts.read("xl/worksheets/sheet1.xml")
    assert len(sheet) == 61
    assert b"<f>" not in content
    assert b"<hyperlink" not in content


@pytest.mark.parametrize("form", only_fast("csv", of=FORMATS))
async def test_the_same_bytes_again(database: Database, tmp_path: Path, form: Format) -> None:
    past = await record(database, await Tenant.rich(database, 10**15), count=30)
    for name in ("usage", "costs", "journal"):
        found = []
        for again in ("one", "two"):
            (folder := tmp_path / f"{name}-{again}").mkdir()
            path, _ = await _export(database, name, folder, form, names=_names(past))
            found.append((path.read_bytes(), manifest_path(path).read_bytes()))
        assert found[0] == found[1]


async def test_costs_add_up_to_usage(database: Database, tmp_path: Path) -> None:
    past = await record(database, await Tenant.rich(database, 0))
    await record(database, past.tenant, count=5, start=NOVEMBER + 31 * DAY, seed=9)
    path, manifest = await _export(database, "costs", tmp_path)
    rows = _cells(path)
    assert manifest.sums == {"cost": {"USD": format_pico(past.cost_pico)}}
    assert sum(Decimal(row["cost"]) for row in rows) * 10**12 == past.cost_pico
    for row in rows:
        assert int(row["units"]) * Decimal(row["price_per_million"]) / 10**6 == Decimal(row["cost"])
    for meter in METERS:
        used = sum(event.usage.meters()[meter] for event in past.events)
        assert sum(int(row["units"]) for row in rows if row["meter"] == meter) == used
    assert [row["date"] for row in rows] == sorted(row["date"] for row in rows)


async def test_the_journal_balances_and_is_the_ledger(database: Database, tmp_path: Path) -> None:
    set_clock(database, "2026-11-20")
    tenants = [await Tenant.rich(database, 3 * 10**9) for _ in range(2)]
    catalog = PriceCatalog(database)
    for tenant in tenants:
        await Balances(database).grant(tenant.id, 10**8, "USD", kind="promo")
        events: list[UsageEvent] = []
        for number in range(5):
            event = tenant.event(tenant.request(0), Usage(uncached=1000 * number + 1, output=500))
            events.append(msgspec.structs.replace(event, period="2026-11"))
        settled = await settle(database, catalog, events)
        assert settled.written == 5
    async with database.reading() as session:
        of = ledger_entry.c
        query = select(of.debit, of.credit, func.sum(of.amount_pico)).group_by(of.debit, of.credit)
        entries = [(debit, credit, int(pico)) for debit, credit, pico in await session.execute(query)]  # all tenants
    ledger = sum(pico for *_, pico in entries)
    assert ledger > 2 * (3 * 10**9 + 10**8)
    rows = _cells((await _export(database, "journal", tmp_path))[0])
    codes = {code: account for account, code in ACCOUNT_CODES.items()}
    for side, at in (("debit", 0), ("credit", 1)):
        assert sum(Decimal(row[side] or 0) for row in rows) * 10**12 == ledger
        for account in codes.values():
            of_account = sum(Decimal(row[side] or 0) for row in rows if codes[row["account_code"]] == account)
            assert of_account * 10**12 == sum(entry[2] for entry in entries if entry[at] == account)
    for txn in {row["transaction_id"] for row in rows}:
        sides = [(Decimal(r["debit"] or 0), Decimal(r["credit"] or 0)) for r in rows if r["transaction_id"] == txn]
        assert sum(debit for debit, _ in sides) == sum(credit for _, credit in sides)
    assert all(bool(row["debit"]) != bool(row["credit"]) for row in rows)
    own, manifest = await _export(
        database, "journal", tmp_path, tenant_id=tenants[0].id, account_codes={"revenue": "8400"}
    )
    assert {row["tenant_id"] for row in _cells(own)} == {str(tenants[0].id)}
    assert "8400" in {row["account_code"] for row in _cells(own)}
    assert manifest.sums["debit"] == manifest.sums["credit"]


def test_every_account_has_a_code() -> None:
    assert set(ACCOUNT_CODES) == set(Account.__args__)  # type: ignore[attr-defined]
    assert parse_account_codes("revenue = 8400, clearing=1") == ACCOUNT_CODES | {"revenue": "8400", "clearing": "1"}
    for wrong in ("cash=1", "revenue", "revenue="):
        with pytest.raises(InvalidExport, match="account_codes"):
            parse_account_codes(wrong)


ROWS_OF = {"2026-01": 1_000, "2026-02": 10_000}


async def _counted(reading: ExportSnapshot, asked: ExportQuery) -> AsyncIterator[Sequence[Any]]:
    for start in range(0, ROWS_OF[asked.period], 500):
        yield [(start + n, "x" * 40, "USD", n) for n in range(500)]


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMATS)
async def test_memory_does_not_grow_with_rows(
    fresh_sqlite_url: str, tmp_path: Path, form: Format, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten times the rows take the same memory."""
    monkeypatch.setattr(
        "billing.exports.formats.parquet.ROW_GROUP", 1000
    )  # holds that many rows, 50,000 of them otherwise
    columns = (Column("n", "integer"), Column("text", "text"), Column("currency", "text"), Column("cost", "money"))
    counted = Dataset("counted", "Counted", "", columns, _counted, ("cost",))
    database = await Database.open(fresh_sqlite_url)
    peaks = []
    for period, rows in ROWS_OF.items():
        order = ExportOrder(counted, form, ExportQuery(period=period))
        tracemalloc.start()
        manifest = await export(database, PriceCatalog(database), order, tmp_path / f"{period}.{form}")
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert manifest.rows == rows
    await database.close()
    assert peaks[1] < peaks[0] + 2**19, peaks  # 10,000 rows are 2.5 MiB


def test_a_full_sheet_is_continued(tmp_path: Path) -> None:
    columns = [Column("n", "integer"), Column("cost", "money")]
    writer = WorkbookWriter(tmp_path / "b.xlsx", columns, title="Costs", created_at=NOVEMBER, sheet_rows=4)
    writer.write([(n, n) for n in range(7)])
    writer.close()
    sheets = _sheets(tmp_path / "b.xlsx")
    assert [[row[0] for row in sheet] for sheet in sheets] == [["n", "0", "1", "2"], ["n", "3", "4", "5"], ["n", "6"]]


@given(st.text())
def test_no_cell_of_text_begins_a_formula(text: str) -> None:
    safe = safe_cell(text)
    assert safe in (text, f"'{text}")
    assert safe[:1] not in {"=", "+", "-", "@", "\t", "\r"}


async def test_what_cannot_be_exported_is_refused(fresh_sqlite_url: str, tmp_path: Path) -> None:
    for wrong, call in (("dataset", dataset_of), ("format", format_of)):
        with pytest.raises(InvalidExport) as refusal:
            call("nothing")
        assert refusal.value.field == wrong
    assert {"usage", "costs", "journal"} <= set(DATASETS)
    database = await Database.open(fresh_sqlite_url)
    with pytest.raises(ValueError, match="2026-13"):
        await _export(database, "usage", tmp_path, period="2026-13")
    await database.close()
    assert not [name for name in os.listdir(tmp_path) if "csv" in name]
