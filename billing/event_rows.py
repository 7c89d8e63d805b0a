"""A usage event as a row of its table: for one database as a mapping, for the other as the bytes of its binary COPY."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import repeat
from operator import attrgetter
from struct import Struct
from typing import Any

import msgspec
from sqlalchemy import Column, Integer, RowMapping, Text

from billing.tables.money import usage_fact
from billing.traits import Traits, traits_of
from billing.usage import CLASSES, COUNTS, METERS, UsageEvent
from storage.base import Id

NAMES = tuple(column.name for column in usage_fact.columns)
_PLAIN = [name for name in NAMES if name != "traits" and name not in METERS and not name.startswith("count_")]

_SIGNATURE = b"PGCOPY\n\xff\r\n\0" + bytes(8)
_TRAILER = b"\xff\xff"
_PERIOD_BYTES = len("2026-11")
_NULL = -1
_number = attrgetter("id.int")


class EventRows:
    """Events in the order of their ids, with the numbers of their traits.

    `records` are the rows of a binary COPY of all columns of `usage_fact`, in the order of NAMES. Every value has a
    fixed size, so that a row is one record; that of an event which corrects another is of another shape.
    """

    def __init__(self, events: Iterable[UsageEvent], traits: Mapping[Traits, int]) -> None:
        self.events = sorted(events, key=_number)
        self.traits = traits
        plain = [event for event in self.events if event.corrects is None]
        self.records = list(_records(plain, traits))
        if len(plain) < len(self.events):
            correcting = _records([event for event in self.events if event.corrects is not None], traits)
            rest = iter(self.records)
            self.records = [next(rest if event.corrects is None else correcting) for event in self.events]

    def binary(self) -> bytes:
        """All rows as one binary COPY."""
        return b"".join((_SIGNATURE, *self.records, _TRAILER))

    def mappings(self) -> list[dict[str, Any]]:
        """All rows by name."""
        return [self._mapping(event) for event in self.events]

    def _mapping(self, event: UsageEvent) -> dict[str, Any]:
        row = {name: getattr(event, name) for name in _PLAIN}
        row["traits"] = self.traits[traits_of(event)]
        row |= {f"count_{name}": tokens for name, tokens in msgspec.structs.asdict(event.counts).items()}
        return row | event.usage.meters()


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


def _records(events: Sequence[UsageEvent], traits: Mapping[Traits, int]) -> Iterator[bytes]:
    if not events:
        return iter(())
    columns = _columns(events, traits)
    correcting = "corrects" in columns
    values: list[Iterable[Any]] = [repeat(len(NAMES))]
    for name in NAMES:
        if name == "corrects" and not correcting:
            values.append(repeat(_NULL))
        else:
            values += [repeat(_SIZES[name][0]), columns[name]]
    return map((_CORRECTING_RECORD if correcting else _PLAIN_RECORD).pack, *values)


_NUMBERS = ("price_version", "context_from", "admitted_at", "finished_at", "sequence", "attempt", "cost_pico")
_numbers = attrgetter(*_NUMBERS, *(f"counts.{name}" for name in COUNTS), "usage.uncached", "usage.output")


def _columns(events: Sequence[UsageEvent], traits: Mapping[Traits, int]) -> dict[str, Iterable[Any]]:
    """The columns, each as long as there are events or for ever the same."""
    columns: dict[str, Iterable[Any]] = dict(
        zip(
            (*_NUMBERS, *(f"count_{name}" for name in COUNTS), "uncached", "output"),
            zip(*map(_numbers, events), strict=True),
            strict=True,
        )
    )
    for name, column in _SIZES.items():
        if column == (16, "16s") and not (name == "corrects" and events[0].corrects is None):
            columns[name] = map(attrgetter(f"{name}.bytes"), events)
    columns["traits"] = map(traits.__getitem__, map(traits_of, events))
    columns["period"] = [event.period.encode() for event in events]
    for kind, by_class in (("read", [e.usage.read for e in events]), ("write", [e.usage.write for e in events])):
        used = {name for tokens in by_class for name in tokens}
        for name in ("automatic", *CLASSES):
            meter = f"{kind}_{name}"
            columns[meter] = [tokens.get(name, 0) for tokens in by_class] if name in used else repeat(0)
    return columns
