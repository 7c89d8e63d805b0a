"""The costs export: one row for each day, project, key, model, lane, context tier, price version and meter."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy import func, select

from billing.calendar import period_bounds
from billing.events.rollups import HOUR, SUMS
from billing.exports.datasets import Column, Dataset, ExportQuery, ExportSnapshot, Row
from billing.rating.hourly_meters import HOURLY_METERS, HourlyMeter, hourly_line, hourly_sums, hourly_units
from billing.rating.lines import RatedLine
from billing.rating.usage_lines import lines_of, usage_group
from billing.tables.money import rollup_hour

DAY = 24 * HOUR
_OF = rollup_hour.c


async def rated_groups(
    snapshot: ExportSnapshot, wanted: ExportQuery, width: int, before: int | None = None
) -> AsyncIterator[list[tuple[Any, str, RatedLine]]]:
    """Yields portions of (group, currency, line): the lines of each group of rollups, at their prices.

    A group is a key's use of a model in a span of `width` microseconds, at one lane, tier and price version. With
    `before`, only hours before that instant count. Groups are ordered by tenant, time, project, key, model, lane, tier
    and version. Raises CostMismatch.
    """
    start = (_OF.hour - _OF.hour % width).label("start")
    groups = [
        _OF.tenant_id,
        start,
        _OF.project_id,
        _OF.key_id,
        snapshot.in_order(_OF.model),
        snapshot.in_order(_OF.lane),
        _OF.context_from,
        _OF.price_version,
    ]
    shown = (_OF.tenant_id, start, _OF.project_id, _OF.key_id, _OF.model, _OF.lane, _OF.context_from, _OF.price_version)
    query = (
        select(*shown, *(func.sum(_OF[name]).label(name) for name in SUMS))
        .where(_OF.period == wanted.period)
        .group_by(*shown)
        .order_by(*groups)
    )
    if before is not None:
        query = query.where(_OF.hour < before)
    if wanted.tenant_id is not None:  # else all tenants: an export of the whole installation
        query = query.where(_OF.tenant_id == wanted.tenant_id)
    async for portion in snapshot.portions(query):
        rated = []
        for row in portion:
            version = await snapshot.prices.version(row.price_version)
            lines = lines_of([usage_group(row)], {version.id: version}, row.start, row.start + width)
            rated += [(row, version.currency, line) for line in lines]
        yield rated


async def taken_back(snapshot: ExportSnapshot, wanted: ExportQuery, tenant_id: UUID) -> int:
    """What the period's corrections take off the tenant's earlier usage, in pico-units: 0 or less.

    Raises CostMismatch.
    """
    first, _ = period_bounds(wanted.period)
    of_tenant = msgspec.structs.replace(wanted, tenant_id=tenant_id)
    back = 0
    async for rated in rated_groups(snapshot, of_tenant, HOUR, before=first):
        back += sum(min(0, line.exact_pico) for _, _, line in rated)
    return back


async def _rated_hours(
    snapshot: ExportSnapshot, wanted: ExportQuery, meter: HourlyMeter
) -> AsyncIterator[list[tuple[Any, str, RatedLine]]]:
    """Yields portions of (group, currency, line) of an hourly meter: a project's of a model in a day, at one price
    version, ordered by tenant, day, project, model and version."""
    event = meter.events.c
    where = [event.period == wanted.period]
    if wanted.tenant_id is not None:  # else all tenants: an export of the whole installation
        where.append(event.tenant_id == wanted.tenant_id)
    start = (event.hour - event.hour % DAY).label("start")
    by = ("tenant_id", "project_id", "model", "price_version")
    order = (event.tenant_id, start, event.project_id, snapshot.in_order(event.model), event.price_version)
    query = hourly_sums(meter, by, *where, also=[start]).order_by(None).order_by(*order)
    async for portion in snapshot.portions(query):
        rated = []
        for row in portion:
            version = await snapshot.prices.version(row.price_version)
            span = (row.start, row.start + DAY)
            line = hourly_line(meter, version, row.project_id, row.model, hourly_units(row), span)
            rated.append((row, version.currency, line))
        yield rated


async def _rows(snapshot: ExportSnapshot, wanted: ExportQuery) -> AsyncIterator[Sequence[Row]]:
    async for rated in rated_groups(snapshot, wanted, DAY):
        yield _cells(wanted, rated)
    for meter in HOURLY_METERS:
        async for rated in _rated_hours(snapshot, wanted, meter):
            yield _cells(wanted, rated)


def _cells(wanted: ExportQuery, rated: Sequence[tuple[Any, str, RatedLine]]) -> list[Row]:
    names = wanted.names
    return [
        (
            row.start,
            wanted.period,
            row.tenant_id,
            names.tenants.get(row.tenant_id),
            row.project_id,
            names.projects.get(row.project_id),
            getattr(row, "key_id", None),
            line.model,
            line.lane,
            line.context_from,
            line.price_version,
            line.meter,
            line.units,
            line.price_micro,
            currency,
            line.exact_pico,
        )
        for row, currency, line in rated
    ]


COSTS = Dataset(
    name="costs",
    title="Costs",
    about="one row for each day, project, key, model, lane, context tier, price version and meter; hourly meters too",
    columns=(
        Column("date", "date", "day in UTC"),
        Column("period", "text", "billing period"),
        Column("tenant_id", "id"),
        Column("tenant", "text"),
        Column("project_id", "id"),
        Column("project", "text"),
        Column("key_id", "id", "API key that asked; empty for what is counted by the hour"),
        Column("model", "text", "served model"),
        Column("lane", "text", "interactive, standard or batch; empty for what is counted by the hour"),
        Column("context_from", "integer", "where the context tier begins, in tokens"),
        Column("price_version", "integer"),
        Column("meter", "text", "what was used"),
        Column("units", "integer", "tokens; of cache storage token-seconds, of ready adapters thousandths of an hour"),
        Column("price_per_million", "price", "price of 1,000,000 units"),
        Column("currency", "text"),
        Column("cost", "money", "units × price, exactly"),
    ),
    rows=_rows,
    sums=("cost",),
)
