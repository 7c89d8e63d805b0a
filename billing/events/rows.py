"""A usage event as a row of its table: for one database as a mapping, for the other as the bytes of its binary COPY."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property, lru_cache
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Column, Integer, Text

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
    """New events as rows of `usage_fact`, with the ids of their dimensions.

    On PostgreSQL they are written by binary COPY. Every value has a fixed size, so that a row is one numpy record of
    all columns; that of an event which corrects another is of another shape. What is copied leaves out the columns in
    which none of the events has anything: each would cost the database as much as the others.
    """

    def __init__(self, columns: EventColumns, dimension_ids: Mapping[EventDimensions, int]) -> None:
        self.columns = columns
        self.dimension_ids: Numbers = np.array([dimension_ids[kind] for kind in columns.kinds], np.int64)[columns.kind]

    def fields(self, names: tuple[str, ...]) -> Iterator[tuple[Numbers, list[Bytes]]]:
        """These columns of all rows as binary COPY has them, each with its size before it.

        Yields the places of some events (k), and their bytes: arrays of k rows, to be put side by side. Those of one
        yield are of one shape.
        """
        for correcting in (False, True):
            parts = _parts(names, correcting=correcting)
            places = np.flatnonzero(self.columns.correcting == correcting)
            for at in range(0, len(places), _BLOCK):
                block = places[at : at + _BLOCK]
                records = self._records(block, correcting=correcting)
                yield block, [records[:, part] for part in parts]

    @cached_property
    def used_columns(self) -> tuple[str, ...]:
        """The columns in which any of the events has something, in the order of NAMES."""
        numbers = self.columns.numbers
        empty = {name for name in _ZERO_IF_LEFT_OUT if not (name in numbers and numbers[name].any())}
        if not self.columns.correcting.any():
            empty.add("corrects")
        return tuple(name for name in NAMES if name not in empty)

    def binary(self) -> Iterator[bytes]:
        """All rows as one binary COPY of `used_columns`, in pieces."""
        count = np.frombuffer(len(self.used_columns).to_bytes(2, "big"), np.uint8)
        yield _SIGNATURE
        for places, fields in self.fields(self.used_columns):
            counts = np.broadcast_to(count, (len(places), 2))
            yield np.concatenate((counts, *fields), axis=1).tobytes()
        yield _TRAILER

    def mappings(self) -> list[dict[str, Any]]:
        """All rows by name."""
        return [
            {name: getattr(event, name) for name in _PLAIN}
            | {"traits": number}
            | {f"count_{name}": tokens for name, tokens in msgspec.structs.asdict(event.counts).items()}
            | event.usage.meters()
            for event, number in zip(self.columns.events, self.dimension_ids.tolist(), strict=True)
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
        rows["traits"] = self.dimension_ids[places]
        rows["id"] = of.ids[places].view("V16")[:, 0]
        owners = self._owners[of.owner[places]]
        for name in _OWNER.names or ():
            rows[name] = owners[name]
        if correcting:
            corrected = [of.events[place].corrects for place in places.tolist()]
            rows["corrects"] = as_bytes([id for id in corrected if id is not None]).view("V16")[:, 0]
        return rows.view(np.uint8).reshape(len(places), shape.itemsize)


def _size(column: Column[Any]) -> tuple[int, str]:
    """The bytes of a column's value, and its type in numpy."""
    if isinstance(column.type, Id):
        return 16, "V16"
    if isinstance(column.type, Text):
        return _PERIOD_BYTES, f"S{_PERIOD_BYTES}"
    return (4, ">i4") if isinstance(column.type, Integer) else (8, ">i8")


_SIZES = {column.name: _size(column) for column in usage_fact.columns}


def _shape(*, correcting: bool) -> np.dtype[Any]:
    """A row as one numpy record: before each column its size."""
    fields = []
    for name in NAMES:
        fields.append((f"size of {name}", ">i4"))
        if correcting or name != "corrects":
            fields.append((name, _SIZES[name][1]))
    return np.dtype(fields)


def _empty(*, correcting: bool) -> bytes:
    """A record with the sizes of its columns, all else 0: most of every record is as here."""
    record = np.zeros(1, _SHAPES[correcting])
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
