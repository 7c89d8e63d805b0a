"""Parquet by pyarrow: money as decimal128(38, 12), prices as decimal128(18, 6), instants in UTC microseconds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from decimal import Decimal
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]

from billing.exports.datasets import MONEY_PLACES, PRICE_PLACES, Column, ColumnKind, as_text
from storage.database.base import from_instant

ROW_GROUP = 50_000
"""Rows of a row group. Fixed, so that the file does not depend on the portions in which rows are added."""

_TYPES: dict[ColumnKind, pa.DataType] = {
    "text": pa.string(),
    "id": pa.string(),
    "integer": pa.int64(),
    "money": pa.decimal128(38, MONEY_PLACES),
    "price": pa.decimal128(18, PRICE_PLACES),
    "instant": pa.timestamp("us", tz="UTC"),
    "second": pa.timestamp("us", tz="UTC"),
    "date": pa.date32(),
}


def _decimal(kind: ColumnKind) -> Callable[[Any], Any]:
    return lambda value: Decimal(as_text(kind, value) or 0)


_VALUES: dict[ColumnKind, Callable[[Any], Any]] = {
    "text": str,
    "id": str,
    "integer": int,
    "money": _decimal("money"),
    "price": _decimal("price"),
    "instant": int,
    "second": int,
    "date": lambda value: from_instant(value).date(),
}


class ParquetWriter:
    """One file, compressed with zstd."""

    def __init__(self, path: Path, columns: Sequence[Column]) -> None:
        self._columns = columns
        self._schema = pa.schema([pa.field(column.name, _TYPES[column.kind]) for column in columns])
        self._writer = pq.ParquetWriter(path, self._schema, compression="zstd", version="2.6", store_schema=False)
        self._waiting: list[Sequence[Any]] = []

    def write(self, rows: Sequence[Sequence[Any]]) -> None:
        """Add rows; a group is written when it is full."""
        self._waiting += rows
        while len(self._waiting) >= ROW_GROUP:
            self._flush()

    def _flush(self) -> None:
        rows = list(islice(self._waiting, ROW_GROUP))
        del self._waiting[:ROW_GROUP]
        arrays = []
        for place, (column, field) in enumerate(zip(self._columns, self._schema, strict=True)):
            convert = _VALUES[column.kind]
            values = [None if row[place] is None else convert(row[place]) for row in rows]
            arrays.append(pa.array(values, field.type))
        self._writer.write_table(pa.Table.from_arrays(arrays, schema=self._schema), row_group_size=ROW_GROUP)

    def close(self) -> None:
        """Finish the file."""
        while self._waiting:
            self._flush()
        self._writer.close()
