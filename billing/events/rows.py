"""A usage event as a row of its table: for one database as a mapping, for the other as the bytes of its binary COPY."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property, lru_cache
from struct import Struct
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Column, Integer, RowMapping, Text

from billing.events.columns import Bytes, EventColumns, EventDimensions, Numbers, as_bytes
from billing.tables.money import usage_fact
from billing.usage import METERS
from storage.database.base import Id

NAMES = tuple(column.name for column in usage_fact.columns)
_PLAIN = [name for name in NAMES if name != "traits" and name not in METERS and not name.startswith("count_")]
_ZERO_IF_LEFT_OUT = [column.name for column in usage_fact.columns if column.server_default is not None]

_SIGNATURE = b"PGCOPY\n\xff\r\n\0" + bytes(8)
_TRAILER = b"\xff\xff"
_PERIOD_BYTES = len("2026-11")
_NULL = -1


_OWNER = np.dtype([(name, "V16") for name in ("tenant_id", "project_id", "key_id")] + [("period", f"S{_PERIOD_BYTES}")])


_BLOCK = 1024
"""Rows that are made at once: of a few hundred bytes each, so that they stay in a processor's cache and in memory that
is used over and over; what is larger the operating system gives and takes page by page."""


class EventRows:
    """Events with the numbers of their traits.

    Their records are the rows of a binary COPY of all columns of `usage_fact`, in the order of NAMES. Every value has a
    fixed size, so that a row is one record; that of an event which corrects another is of another shape. What is copied
    leaves out the columns in which none of the events has anything: each would cost the database as much as the others.
    """

    def __init__(self, columns: EventColumns, traits: Mapping[EventDimensions, int]) -> None:
        self.columns = columns
        self.traits = traits
        self.numbers: Numbers = np.array([traits[kind] for kind in columns.kinds], np.int64)[columns.kind]

    def records(self) -> Iterator[tuple[Numbers, Bytes]]:
        """Some records of one shape at a time (k × size), with the places of their events (k)."""
        correcting = self.columns.correcting
        for shape in (False, True):
            places = np.flatnonzero(correcting == shape)
            for at in range(0, len(places), _BLOCK):
                some = places[at : at + _BLOCK]
                yield some, self._records(some, correcting=shape)

    @cached_property
    def said(self) -> tuple[str, ...]:
        """The columns in which any of the events has something, in the order of NAMES."""
        of = self.columns
        none = {name for name in _ZERO_IF_LEFT_OUT if not (name in of.numbers and of.numbers[name].any())}
        if not of.correcting.any():
            none.add("corrects")
        return tuple(name for name in NAMES if name not in none)

    def binary(self) -> Iterator[bytes]:
        """All rows as one binary COPY of the columns that are `said`, in pieces."""
        count = np.frombuffer(len(self.said).to_bytes(2, "big"), np.uint8)
        yield _SIGNATURE
        for places, records in self.records():
            counts = np.broadcast_to(count, (len(places), 2))
            parts = _parts(self.said, correcting=bool(self.columns.correcting[places[0]]))
            yield np.concatenate((counts, *(records[:, part] for part in parts)), axis=1).tobytes()
        yield _TRAILER

    def mappings(self) -> list[dict[str, Any]]:
        """All rows by name."""
        return [
            {name: getattr(event, name) for name in _PLAIN}
            | {"traits": number}
            | {f"count_{name}": tokens for name, tokens in msgspec.structs.asdict(event.counts).items()}
            | event.usage.meters()
            for event, number in zip(self.columns.events, self.numbers.tolist(), strict=True)
        ]

    @cached_property
    def _owners(self) -> NDArray[np.void]:
        """Each owner of `columns.owners` as a record has it."""
        return np.array(
            [
                (*(one.to_bytes(16, "big") for one in (tenant, project, key)), period.encode())
                for tenant, project, key, period in self.columns.owners
            ],
            _OWNER,
        )

    def _records(self, places: Numbers, *, correcting: bool) -> Bytes:
        """The records of the events in these places, all of one shape."""
        of, shape = self.columns, _SHAPES[correcting]
        rows = np.frombuffer(bytearray(_EMPTY[correcting] * len(places)), shape)
        for name, numbers in of.numbers.items():
            rows[name] = numbers[places]
        rows["traits"] = self.numbers[places]
        rows["id"] = of.ids[places].view("V16")[:, 0]
        owners = self._owners[of.owner[places]]
        for name in _OWNER.names or ():
            rows[name] = owners[name]
        if correcting:
            corrected = [of.events[place].corrects for place in places.tolist()]
            rows["corrects"] = as_bytes([id for id in corrected if id is not None]).view("V16")[:, 0]
        return rows.view(np.uint8).reshape(len(places), shape.itemsize)


def record_of(row: RowMapping) -> bytes:
    """The record of an event as the database has it, by name."""
    values: list[Any] = [len(NAMES)]
    correcting = row["corrects"] is not None
    for name in NAMES:
        size, kind = _SIZES[name]
        if name == "corrects" and not correcting:
            values.append(_NULL)
        elif name == "traits":
            values += [size, 0]
        else:
            value = row[name]
            values += [size, value.bytes if kind == "16s" else value.encode() if name == "period" else value]
    return (_CORRECTING_RECORD if correcting else _PLAIN_RECORD).pack(*values)


def _size(column: Column[Any]) -> tuple[int, str]:
    """The bytes of a column's value, and what `struct` calls it."""
    if isinstance(column.type, Id):
        return 16, "16s"
    if isinstance(column.type, Text):
        return _PERIOD_BYTES, f"{_PERIOD_BYTES}s"
    return (4, "i") if isinstance(column.type, Integer) else (8, "q")


_SIZES = {column.name: _size(column) for column in usage_fact.columns}
_PLAIN_RECORD = Struct(">h" + "".join("i" + ("" if name == "corrects" else _SIZES[name][1]) for name in NAMES))
_CORRECTING_RECORD = Struct(">h" + "".join("i" + _SIZES[name][1] for name in NAMES))
_KINDS = {"16s": "V16", f"{_PERIOD_BYTES}s": f"S{_PERIOD_BYTES}", "i": ">i4", "q": ">i8"}


def _shape(*, correcting: bool) -> np.dtype[Any]:
    """A record as numpy has it."""
    fields = [("columns", ">i2")]
    for name in NAMES:
        fields.append((f"size of {name}", ">i4"))
        if correcting or name != "corrects":
            fields.append((name, _KINDS[_SIZES[name][1]]))
    return np.dtype(fields)


def _empty(*, correcting: bool) -> bytes:
    """A record with the sizes of its columns, all else 0: most of every record is as here."""
    record = np.zeros(1, _SHAPES[correcting])
    record["columns"] = len(NAMES)
    for name in NAMES:
        record[f"size of {name}"] = _NULL if name == "corrects" and not correcting else _SIZES[name][0]
    return record.tobytes()


_SHAPES = (_shape(correcting=False), _shape(correcting=True))
_EMPTY = (_empty(correcting=False), _empty(correcting=True))


@lru_cache(64)
def _parts(names: tuple[str, ...], *, correcting: bool) -> list[slice]:
    """Where a record has these columns, with their sizes: as few slices as possible."""
    shape = _SHAPES[correcting]
    places = {name: (offset, offset + kind.itemsize) for name, (kind, offset, *_) in (shape.fields or {}).items()}
    parts: list[slice] = []
    for name in names:
        first, end = places[f"size of {name}"]
        end = places.get(name, (first, end))[1]
        if parts and parts[-1].stop == first:
            parts[-1] = slice(parts[-1].start, end)
        else:
            parts.append(slice(first, end))
    return parts
