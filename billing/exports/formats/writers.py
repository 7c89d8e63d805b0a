"""Writers of export files: CSV and JSON Lines here, and the choice among all formats.

The same rows give the same bytes, whatever the portions in which they are added. No writer holds more than a portion in
memory.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, Protocol, get_args

import msgspec

from billing.calendar import period_bounds
from billing.exports.datasets import Column, Row, as_text
from storage.free_text import safe_cell

Format = Literal["csv", "jsonl", "parquet", "xlsx"]
FORMATS: tuple[Format, ...] = get_args(Format)
MEDIA_TYPES: dict[str, str] = {
    "csv": "text/csv; charset=utf-8; header=present",
    "jsonl": "application/jsonl",
    "parquet": "application/vnd.apache.parquet",
    "xlsx": "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
}

_ENCODER = msgspec.json.Encoder()


class Writer(Protocol):
    """Writes one file. Without `close` it is incomplete."""

    def write(self, rows: Sequence[Row]) -> None:
        """Add rows."""

    def close(self) -> None:
        """Finish the file."""


class CsvWriter:
    """CSV by RFC 4180 in UTF-8: a header, CRLF, quotes where needed; None is empty."""

    def __init__(self, path: Path, columns: Sequence[Column]) -> None:
        self._columns = columns
        self._file = path.open("w", encoding="utf-8", newline="")
        self._csv = csv.writer(self._file)
        self._csv.writerow([column.name for column in columns])

    def write(self, rows: Sequence[Row]) -> None:
        """Add rows; text that a spreadsheet would evaluate is escaped."""
        for row in rows:
            self._csv.writerow([self._cell(column, value) for column, value in zip(self._columns, row, strict=True)])

    def _cell(self, column: Column, value: Any) -> str:
        text = as_text(column.kind, value) or ""
        return safe_cell(text) if column.kind == "text" else text

    def close(self) -> None:
        """Finish the file."""
        self._file.close()


class JsonlWriter:
    """JSON Lines: an object for each row, in the order of the columns; money and prices are strings."""

    def __init__(self, path: Path, columns: Sequence[Column]) -> None:
        self._columns = columns
        self._file = path.open("wb")

    def write(self, rows: Sequence[Row]) -> None:
        """Add rows."""
        objects = [{c.name: self._cell(c, value) for c, value in zip(self._columns, row, strict=True)} for row in rows]
        self._file.write(_ENCODER.encode_lines(objects))

    def _cell(self, column: Column, value: Any) -> str | int | None:
        return value if column.kind == "integer" else as_text(column.kind, value)

    def close(self) -> None:
        """Finish the file."""
        self._file.close()


def open_writer(form: Format, path: Path, columns: Sequence[Column], *, title: str, period: str) -> Writer:
    """A writer of this format. `title` and the first instant of `period` become properties of a workbook."""
    match form:
        case "csv":
            return CsvWriter(path, columns)
        case "jsonl":
            return JsonlWriter(path, columns)
        # Imported when needed: both take longer to load than all of billing.
        case "parquet":
            from billing.exports.formats.parquet import ParquetWriter  # noqa: PLC0415

            return ParquetWriter(path, columns)
        case "xlsx":
            from billing.exports.formats.workbook import WorkbookWriter  # noqa: PLC0415

            return WorkbookWriter(path, columns, title=title, created_at=period_bounds(period)[0])
