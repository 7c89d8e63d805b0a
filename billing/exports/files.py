"""Writing an export: its file, and beside it a manifest with the number of rows, the sums and the SHA-256.

Neither contains when or where it was made, so a closed period always gives the same bytes.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeAlias
from uuid import UUID

import msgspec

from billing.calendar import check_period
from billing.exports.account import ACCOUNT
from billing.exports.costs import COSTS
from billing.exports.datasets import Dataset, ExportQuery, ExportSnapshot, InvalidExport, Row
from billing.exports.datev import DATEV
from billing.exports.focus.commitments import CONTRACT_COMMITMENT
from billing.exports.focus.cost_and_usage import COST_AND_USAGE
from billing.exports.focus.invoice_detail import BILLING_PERIOD, INVOICE_DETAIL
from billing.exports.formats.writers import FORMATS, Format, Writer, open_writer
from billing.exports.general_ledger import GENERAL_LEDGER
from billing.exports.invoices import INVOICES
from billing.exports.journal import JOURNAL
from billing.exports.revenue import AGEING, DEFERRED, REVENUE
from billing.exports.usage import USAGE
from billing.money import format_pico
from billing.periods.periods import Periods
from billing.prices import PriceCatalog
from storage.database.database import Database

MANIFEST_VERSION = 1
DATASETS: dict[str, Dataset] = {
    dataset.name: dataset
    for dataset in (
        USAGE,
        COSTS,
        INVOICES,
        JOURNAL,
        GENERAL_LEDGER,
        DATEV,
        REVENUE,
        DEFERRED,
        AGEING,
        ACCOUNT,
        COST_AND_USAGE,
        INVOICE_DETAIL,
        BILLING_PERIOD,
        CONTRACT_COMMITMENT,
    )
}
"""Every dataset by name. A new export is a Dataset in a module of its own, named here."""

Progress: TypeAlias = Callable[[int], Awaitable[None]]
"""Called with the number of rows written so far."""


class ExportOrder(msgspec.Struct, frozen=True):
    """A dataset, its format and its query."""

    dataset: Dataset
    form: Format
    query: ExportQuery


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What a file contains. `sums` are decimal strings by column and currency; `tenant_id` is None for all tenants.

    `closed`: the period was closed, so the same file can always be made again.
    """

    version: int = MANIFEST_VERSION
    dataset: str
    period: str
    closed: bool
    tenant_id: UUID | None
    format: str
    file: str
    rows: int
    sums: dict[str, dict[str, str]]
    bytes: int
    sha256: str
    columns: list[str]


def dataset_of(name: str) -> Dataset:
    """The dataset with this name. Raises InvalidExport."""
    try:
        return DATASETS[name]
    except KeyError:
        raise InvalidExport("dataset", f"{name!r} is not one of {', '.join(DATASETS)}") from None


def format_of(name: str) -> Format:
    """The format with this name. Raises InvalidExport."""
    for form in FORMATS:
        if form == name:
            return form
    raise InvalidExport("format", f"{name!r} is not one of {', '.join(FORMATS)}")


def manifest_path(path: Path) -> Path:
    """The path of a file's manifest."""
    return path.with_name(f"{path.name}.manifest.json")


async def export(
    database: Database, prices: PriceCatalog, order: ExportOrder, path: Path, progress: Progress | None = None
) -> Manifest:
    """Write the file and its manifest, and return the manifest. Nothing is written if it fails.

    All rows are read from one snapshot. Raises InvalidPeriod, InvalidExport, CostMismatch, DatabaseUnavailable,
    OSError.
    """
    dataset, wanted = order.dataset, order.query
    check_period(wanted.period)
    if dataset.writer is not None and order.form != "csv":
        raise InvalidExport("format", f"{dataset.name} has a form of its own, which is called csv here")
    closed = (await Periods(database).get(wanted.period)).state == "closed"
    partial = path.with_name(f".{path.name}.partial")
    try:
        rows, sums = await _write(database, prices, order, partial, progress)
        size, digest = await asyncio.to_thread(_digest, partial)
        manifest = Manifest(
            dataset=dataset.name,
            period=wanted.period,
            closed=closed,
            tenant_id=wanted.tenant_id,
            format=order.form,
            file=path.name,
            rows=rows,
            sums=sums,
            bytes=size,
            sha256=digest,
            columns=[column.name for column in dataset.columns],
        )
        partial.replace(path)
        manifest_path(path).write_bytes(msgspec.json.format(msgspec.json.encode(manifest)) + b"\n")
    finally:
        partial.unlink(missing_ok=True)
    return manifest


async def _write(
    database: Database, prices: PriceCatalog, order: ExportOrder, path: Path, progress: Progress | None
) -> tuple[int, dict[str, dict[str, str]]]:
    dataset, wanted = order.dataset, order.query
    count = 0
    totals = _Totals(dataset)
    if dataset.writer is not None:
        writer: Writer = dataset.writer(path, wanted)
    else:
        writer = open_writer(order.form, path, dataset.columns, title=dataset.title, period=wanted.period)
    try:
        async with database.reading() as session:
            async for portion in dataset.rows(ExportSnapshot(database, session, prices), wanted):
                await asyncio.to_thread(_add, writer, totals, portion)  # a gateway may run in this process too
                count += len(portion)
                if progress is not None:
                    await progress(count)
    finally:
        await asyncio.to_thread(writer.close)
    return count, totals.stated()


def _add(writer: Writer, totals: _Totals, rows: Any) -> None:
    writer.write(rows)
    totals.add(rows)


class _Totals:
    """Sums of the columns of money, by currency."""

    def __init__(self, dataset: Dataset) -> None:
        self._currency = dataset.place(dataset.currency) if dataset.sums else 0
        self._places = {name: dataset.place(name) for name in dataset.sums}
        self._sums: dict[str, dict[str, int]] = {name: {} for name in dataset.sums}

    def add(self, rows: list[Row]) -> None:
        for name, place in self._places.items():
            sums = self._sums[name]
            for row in rows:
                currency = row[self._currency]
                sums[currency] = sums.get(currency, 0) + (row[place] or 0)

    def stated(self) -> dict[str, dict[str, str]]:
        return {
            name: {currency: format_pico(pico) for currency, pico in sorted(sums.items())}
            for name, sums in self._sums.items()
        }


def _digest(path: Path) -> tuple[int, str]:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return path.stat().st_size, digest
