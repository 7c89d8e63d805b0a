"""Making an export: its file, and beside it a manifest with the number of rows, the sums and the SHA-256.

Neither holds anything of when or where it was made, so that a closed period gives the same bytes for ever.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeAlias
from uuid import UUID

import msgspec

from billing.exports.costs import COSTS
from billing.exports.datasets import Dataset, ExportQuery, ExportSnapshot, InvalidExport
from billing.exports.focus import FOCUS
from billing.exports.invoices import INVOICES
from billing.exports.journal import JOURNAL
from billing.exports.usage import USAGE
from billing.exports.writers import FORMATS, Format, Row, Writer, open_writer
from billing.money import format_pico
from billing.periods.periods import Periods
from billing.prices import PriceCatalog
from billing.usage import check_period
from storage.database.database import Database

MANIFEST_VERSION = 1
DATASETS: dict[str, Dataset] = {dataset.name: dataset for dataset in (USAGE, COSTS, INVOICES, JOURNAL, *FOCUS)}

Progress: TypeAlias = Callable[[int], Awaitable[None]]
"""Told how many rows are written."""


class ExportOrder(msgspec.Struct, frozen=True):
    """What is to be exported, and in which format."""

    dataset: Dataset
    form: Format
    asked: ExportQuery


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What a file holds. `sums` are decimal strings by column and currency; `tenant_id` is None for all tenants.

    `closed` says that the period was closed, so that the same file can be made again for ever.
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
    """The dataset of this name. Raises InvalidExport."""
    try:
        return DATASETS[name]
    except KeyError:
        raise InvalidExport("dataset", f"{name!r} is not one of {', '.join(DATASETS)}") from None


def format_of(name: str) -> Format:
    """The format of this name. Raises InvalidExport."""
    for form in FORMATS:
        if form == name:
            return form
    raise InvalidExport("format", f"{name!r} is not one of {', '.join(FORMATS)}")


def manifest_path(path: Path) -> Path:
    """Where the manifest of a file lies."""
    return path.with_name(f"{path.name}.manifest.json")


async def export(
    database: Database, prices: PriceCatalog, order: ExportOrder, path: Path, progress: Progress | None = None
) -> Manifest:
    """Write the file and its manifest; both are there whole or not at all.

    Everything is read from one snapshot. Raises InvalidPeriod, InvalidExport, CostMismatch, DatabaseUnavailable,
    OSError.
    """
    dataset, asked = order.dataset, order.asked
    check_period(asked.period)
    closed = (await Periods(database).get(asked.period)).state == "closed"
    partial = path.with_name(f".{path.name}.partial")
    try:
        rows, sums = await _write(database, prices, order, partial, progress)
        size, digest = await asyncio.to_thread(_digest, partial)
        manifest = Manifest(
            dataset=dataset.name,
            period=asked.period,
            closed=closed,
            tenant_id=asked.tenant_id,
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
    dataset, asked = order.dataset, order.asked
    count = 0
    totals = _Totals(dataset)
    writer = open_writer(order.form, path, dataset.columns, title=dataset.title, period=asked.period)
    try:
        async with database.reading() as session:
            async for portion in dataset.rows(ExportSnapshot(database, session, prices), asked):
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
