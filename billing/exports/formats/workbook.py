"""XLSX by xlsxwriter: money and prices as numbers, and beside each a column `NAME (exact)` with its text.

A spreadsheet's number has 15 digits, the text has all. When a sheet is full, the next one continues it. Rows are
written to disk as they are added.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import xlsxwriter  # type: ignore[import-untyped]

from billing.exports.datasets import Column, as_text
from storage.database.base import from_instant

SHEET_ROWS = 1_048_576
"""The format's limit of rows of a sheet, header included."""
_EXACT = ("money", "price")
_WIDTHS = {"text": 24, "id": 38, "integer": 12, "money": 20, "price": 14, "instant": 28, "second": 22, "date": 12}


class WorkbookWriter:
    """One workbook; `created_at` is the date in its properties, in microseconds since the Unix epoch."""

    def __init__(
        self,
        path: Path,
        columns: Sequence[Column],
        *,
        title: str,
        created_at: int,
        sheet_rows: int = SHEET_ROWS,
    ) -> None:
        options = {
            "constant_memory": True,
            "tmpdir": str(path.parent),
            "strings_to_formulas": False,
            "strings_to_urls": False,
            "strings_to_numbers": False,
        }
        self._columns, self._title, self._sheet_rows = columns, title, sheet_rows
        self._book = xlsxwriter.Workbook(str(path), options)
        self._book.set_properties({"title": title, "created": from_instant(created_at).replace(tzinfo=None)})
        self._bold = self._book.add_format({"bold": True})
        self._numbers = {
            "money": self._book.add_format({"num_format": "0.00####"}),
            "price": self._book.add_format({"num_format": "0.00####"}),
            "integer": self._book.add_format({"num_format": "0"}),
        }
        self._sheet: Any = None
        self._sheets = self._row = 0
        self._begin_sheet()

    def _begin_sheet(self) -> None:
        self._sheets += 1
        self._sheet = self._book.add_worksheet(self._title if self._sheets == 1 else f"{self._title} {self._sheets}")
        self._sheet.freeze_panes(1, 0)
        place = 0
        for column in self._columns:
            names = [column.name, *([f"{column.name} (exact)"] if column.kind in _EXACT else [])]
            for name in names:
                self._sheet.set_column(place, place, _WIDTHS[column.kind])
                self._sheet.write_string(0, place, name, self._bold)
                place += 1
        self._row = 1

    def write(self, rows: Sequence[Sequence[Any]]) -> None:
        """Add rows. Text stays text: never a formula, a link or a number."""
        for row in rows:
            if self._row >= self._sheet_rows:
                self._begin_sheet()
            place = 0
            for column, value in zip(self._columns, row, strict=True):
                text = as_text(column.kind, value)
                if column.kind in self._numbers:
                    if text is not None:
                        self._sheet.write_number(self._row, place, Decimal(text), self._numbers[column.kind])
                    place += 1
                if column.kind != "integer":
                    if text:
                        self._sheet.write_string(self._row, place, text)
                    place += 1
            self._row += 1

    def close(self) -> None:
        """Finish the file."""
        self._book.close()
