"""The cost report: usage and hourly meters by day, divided by meter, each part at the price at which it was billed.

The parts add up exactly to the cost of the events, which rating checks. An hour of these counts at its beginning, and
belongs to no key and no lane.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Literal, TypeAlias, get_args
from uuid import UUID

import msgspec

from billing.events.rollups import HOUR, counted_at, counted_within
from billing.prices import PriceCatalog
from billing.rating.hourly_meters import HOURLY_METERS, HourlyMeter, hourly_line, hourly_sums, hourly_units
from billing.rating.lines import RatedLine
from billing.rating.usage_lines import GROUPS, UsageGroup, lines_of
from billing.reports.usage_report import Group, InvalidReport, Result, UsageBucket, usage_buckets
from storage.database.database import Database
from storage.database.sql_arrays import one_of

CostGroup = Literal["project_id", "api_key_id", "model", "lane", "meter"]
LineItem: TypeAlias = tuple[str, str, str]
"""Model, lane ("" for what is counted by the hour) and meter."""
_GroupLine: TypeAlias = tuple[dict[str, Any], str, RatedLine]
"""What a line may be grouped by, its currency, and the line."""
LIMITS = (7, 180)
"""Days on a page: the default, and the most."""

_GROUPS: tuple[str, ...] = get_args(CostGroup)
_OF_NOBODY: dict[str, Any] = {"api_key_id": None, "lane": None}
"""The groups of what is counted by the hour."""


class CostLine(msgspec.Struct, frozen=True):
    """The cost of one group of line items; `units` are tokens, or those of an hourly meter. `group` has the fields that
    the report is grouped by."""

    group: dict[str, Any]
    currency: str
    units: int
    cost_pico: int


class CostBucket(msgspec.Struct, frozen=True):
    """Costs of usage admitted from `start_at` (included) to `end_at` (excluded), in microseconds since the epoch."""

    start_at: int
    end_at: int
    costs: list[CostLine]


class CostPage(msgspec.Struct, frozen=True):
    """Consecutive days, empty ones included; `next_page` is the cursor of the next page, None at the end."""

    buckets: list[CostBucket]
    next_page: str | None


async def cost_buckets(
    database: Database,
    prices: PriceCatalog,
    tenant_id: UUID,
    *,
    start_at: int,
    end_at: int | None = None,
    project_ids: Sequence[UUID] | None = None,
    key_ids: Sequence[UUID] | None = None,
    line_items: Collection[LineItem] | None = None,
    group_by: Sequence[CostGroup] = (),
    limit: int | None = None,
    limits: tuple[int, int] = LIMITS,
    page: str | None = None,
) -> CostPage:
    """One tenant's costs by day in UTC. Arguments are those of `usage_buckets`; `line_items` selects some.

    Raises InvalidReport, CostMismatch, DatabaseUnavailable.
    """
    for name in group_by:
        if name not in _GROUPS:
            raise InvalidReport("group_by", f"{name!r} is not one of {', '.join(_GROUPS)}")
    by: list[Group] = ["project_id", "model", "lane", "context_from", "price_version"]
    by += ["api_key_id"] if "api_key_id" in group_by else []
    found = await usage_buckets(
        database,
        tenant_id,
        start_at=start_at,
        end_at=end_at,
        project_ids=project_ids,
        key_ids=key_ids,
        group_by=by,
        limit=limit,
        limits=limits,
        page=page,
    )
    by_hour: dict[int, list[tuple[HourlyMeter, Any]]] = {}
    if found.buckets and key_ids is None:
        low, high = max(start_at, found.buckets[0].start_at), found.buckets[-1].end_at
        by_hour = await _by_hour(database, tenant_id, (low, high if end_at is None else min(high, end_at)), project_ids)
    buckets = []
    for bucket in found.buckets:
        sums: dict[tuple[Any, ...], CostLine] = {}
        lines = [line for result in bucket.results for line in await _usage_lines(prices, bucket, result)]
        lines += [await _hourly_line(prices, bucket, *one) for one in by_hour.get(bucket.start_at, ())]
        for of, currency, line in lines:
            if line_items is not None and (line.model, line.lane or "", line.meter) not in line_items:
                continue
            fields = of | {"meter": line.meter}
            group: dict[str, Any] = {name: fields[name] for name in group_by}
            key = (*map(str, group.values()), currency)
            before = sums.get(key) or CostLine(group, currency, 0, 0)
            sums[key] = CostLine(group, currency, before.units + line.units, before.cost_pico + line.exact_pico)
        buckets.append(CostBucket(bucket.start_at, bucket.end_at, [cost for _, cost in sorted(sums.items())]))
    return CostPage(buckets, found.next_page)


async def _by_hour(
    database: Database, tenant_id: UUID, span: tuple[int, int], project_ids: Sequence[UUID] | None
) -> dict[int, list[tuple[HourlyMeter, Any]]]:
    """Sums of the tenant's hourly meters by day, project, model and price version."""
    days: dict[int, list[tuple[HourlyMeter, Any]]] = {}
    async with database.reading() as session:
        for meter in HOURLY_METERS:
            event = meter.events.c
            where = [event.tenant_id == tenant_id, counted_within(event.period, event.hour, *span)]
            if project_ids is not None:
                where.append(one_of(database, event.project_id, project_ids))
            at = counted_at(event.period, event.hour, *span)
            day = (at - at % (24 * HOUR)).label("day")
            sums = hourly_sums(meter, ("project_id", "model", "price_version"), *where, also=[day])
            for row in await session.execute(sums):
                days.setdefault(row.day, []).append((meter, row))
    return days


async def _hourly_line(prices: PriceCatalog, bucket: UsageBucket, meter: HourlyMeter, row: Any) -> _GroupLine:
    """The line of a row of `_by_hour`."""
    span = (bucket.start_at, bucket.end_at)
    version = await prices.version(row.price_version)
    line = hourly_line(meter, version, row.project_id, row.model, hourly_units(row), span)
    return _OF_NOBODY | {"project_id": row.project_id, "model": row.model}, row.currency, line


async def _usage_lines(prices: PriceCatalog, bucket: UsageBucket, result: Result) -> list[_GroupLine]:
    """The lines of one result, which add up to its cost. Raises CostMismatch."""
    group = result.group
    version = await prices.version(group["price_version"])
    used = UsageGroup(
        **{name: group[name] for name in GROUPS},
        requests=result.requests,
        meters=dict(result.usage.used()),
        cost_pico=result.costs_pico.get(version.currency, 0),
    )
    lines = lines_of([used], {version.id: version}, bucket.start_at, bucket.end_at)
    return [(group, version.currency, line) for line in lines]
