"""A usage event as a row of its table: for one database as a mapping, for the other as the bytes of its binary COPY."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import repeat
from operator import attrgetter
from struct import Struct
from typing import Any

import msgspec
from sqlalchemy import Column, Integer, Text

from billing.tables import usage_fact
from billing.traits import Traits, traits_of
from billing.usage import CLASSES, COUNTS, METERS, UsageEvent
from storage.base import Id

NAMES = tuple(column.name for column in usage_fact.columns)
_PLAIN = [name for name in NAMES if name != "traits" and name not in METERS and not name.startswith("count_")]

_SIGNATURE = b"PGCOPY\n\xff\r\n\0" + bytes(8)
_TRAILER = b"\xff\xff"
_PERIOD_BYTES = len("2026-11")
_NULL = -1


def event_row(event: UsageEvent, traits: Mapping[Traits, int]) -> dict[str, Any]:
    """The event as a row of `usage_fact`."""
    row = {name: getattr(event, name) for name in _PLAIN}
    row["traits"] = traits[traits_of(event)]
    row |= {f"count_{name}": tokens for name, tokens in msgspec.structs.asdict(event.counts).items()}
    return row | event.usage.meters()


def binary_rows(events: Sequence[UsageEvent], traits: Mapping[Traits, int]) -> bytes:
    """The events as a binary COPY of all columns of `usage_fact`, in the order of NAMES.

    Every value has a fixed size, so that a row is one record; those that correct another are of another shape.
    """
    plain = [event for event in events if event.corrects is None]
    correcting = [event for event in events if event.corrects is not None] if len(plain) < len(events) else []
    return b"".join((_SIGNATURE, *_records(plain, traits), *_records(correcting, traits), _TRAILER))


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
