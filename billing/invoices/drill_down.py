"""Drill-down of an invoice line: its days, the hours of a day, the requests of an hour.

Every level adds up exactly to the level above: all read one view, and the amount is units × price at each level. A line
of what is counted by the hour has days and hours.
"""

from __future__ import annotations

from typing import Any, Literal
from uuid import UUID

import msgspec
from sqlalchemy import Select, func, null, select

from billing.invoices.store import InvoiceRecord
from billing.rating.hourly_meters import HOURLY_METERS, HourlyMeter
from billing.tables.invoices import invoice_line, invoice_usage
from storage.database.database import Database

DAY, HOUR = 86_400_000_000, 3_600_000_000
OPENED = ("usage", *(meter.kind for meter in HOURLY_METERS))
"""Kinds of lines that have a drill-down."""


class LineSlice(msgspec.Struct, frozen=True):
    """A line's part of the day or hour that begins at `start` (microseconds since the Unix epoch).

    `adjustments` counts corrections of its requests; `units` and `exact_pico` include them, `requests` does not.
    """

    start: int
    requests: int
    adjustments: int
    units: int
    exact_pico: int


class BilledRequest(msgspec.Struct, frozen=True):
    """A line's part of one request, or of an adjustment of the request that it `corrects`."""

    id: UUID
    corrects: UUID | None
    project_id: UUID
    key_id: UUID
    admitted_at: int
    units: int
    exact_pico: int


class Page(msgspec.Struct, frozen=True):
    """Requests and adjustments in the order of admission; `after` is the cursor of the next page, None at the end."""

    requests: list[BilledRequest]
    after: tuple[int, UUID] | None


async def days(database: Database, record: InvoiceRecord, line: int) -> list[LineSlice]:
    """The days on which a line's usage was admitted or its storage recorded; none for other lines."""
    return await _slices(database, record, line, "day")


async def hours(database: Database, record: InvoiceRecord, line: int, day: int) -> list[LineSlice]:
    """The hours of the day that begins at this instant."""
    return await _slices(database, record, line, "hour", day)


async def day_slice(database: Database, record: InvoiceRecord, line: int, day: int) -> LineSlice | None:
    """The line's part of the day that begins at this instant; None if it has none."""
    found = await _slices(database, record, line, "day", day)
    return found[0] if found else None


async def hour_slice(database: Database, record: InvoiceRecord, line: int, hour: int) -> LineSlice | None:
    """The line's part of the hour that begins at this instant; None if it has none."""
    found = await _slices(database, record, line, "hour", hour - hour % DAY)
    return next((one for one in found if one.start == hour), None)


async def requests(
    database: Database,
    record: InvoiceRecord,
    line: int,
    hour: int,
    *,
    after: tuple[int, UUID] | None = None,
    limit: int = 100,
) -> Page:
    """At most `limit` requests of the hour that begins at this instant, from the cursor `after` on."""
    view = invoice_usage.c
    columns = (
        view.request_id,
        view.corrects,
        view.project_id,
        view.key_id,
        view.admitted_at,
        view.units,
        view.units * view.price_micro,
    )
    query: Select[Any] = select(*columns).where(
        *_of(record, line), view.admitted_at >= hour, view.admitted_at < hour + HOUR
    )
    if after is not None:
        same = (view.admitted_at == after[0]) & (view.request_id > after[1])
        query = query.where((view.admitted_at > after[0]) | same)
    async with database.reading() as session:
        rows = (await session.execute(query.order_by(view.admitted_at, view.request_id).limit(limit + 1))).all()
    found = [BilledRequest(*row) for row in rows[:limit]]
    return Page(found, (found[-1].admitted_at, found[-1].id) if len(rows) > limit else None)


def _of(record: InvoiceRecord, line: int) -> tuple[Any, ...]:
    view = invoice_usage.c
    return view.tenant_id == record.tenant_id, view.invoice_id == record.id, view.n == line


def _by_hour(record: InvoiceRecord, line: int, meter: HourlyMeter) -> Select[Any]:
    """The hours of a line of an hourly meter."""
    billed, stored = invoice_line.c, meter.events.c
    same_hours = (
        (stored.tenant_id == billed.tenant_id)
        & (stored.period == billed.period)
        & (billed.project_id.is_(None) | (stored.project_id == billed.project_id))
        & (stored.model == billed.model)
        & (stored.price_version == billed.price_version)
        & (stored.hour >= billed.service_start)
        & (stored.hour < billed.service_end)
    )
    return (
        select(
            (stored.hour - stored.hour % DAY).label("day"),
            stored.hour,
            *(null().label(name) for name in ("request_id", "corrects")),
            meter.units.label("units"),
            billed.price_micro,
        )
        .join_from(invoice_line, meter.events, same_hours)
        .where(billed.tenant_id == record.tenant_id, billed.invoice_id == record.id, billed.n == line)
        .where(billed.kind == meter.kind, billed.of == 0)
    )


async def _slices(
    database: Database, record: InvoiceRecord, line: int, width: Literal["day", "hour"], day: int | None = None
) -> list[LineSlice]:
    names = ("day", "hour", "request_id", "corrects", "units", "price_micro")
    used = select(*(invoice_usage.c[name] for name in names)).where(*_of(record, line))
    if day is not None:  # so that the index by admission is used
        used = used.where(invoice_usage.c.admitted_at >= day, invoice_usage.c.admitted_at < day + DAY)
    view = used.union_all(*(_by_hour(record, line, meter) for meter in HOURLY_METERS)).subquery().c
    query = (
        select(
            view[width], func.count(view.request_id), func.count(view.corrects), func.sum(view.units), view.price_micro
        )
        .where(*([] if day is None else [view.day == day]))
        .group_by(view[width], view.price_micro)
        .order_by(view[width])
    )
    async with database.reading() as session:
        rows = (await session.execute(query)).all()
    return [
        LineSlice(start, count - corrections, corrections, int(units), int(units) * price)
        for start, count, corrections, units, price in rows
    ]
