"""Usage lines of a period: one for each project, model, lane, context tier, price version and meter.

Usage recorded after its own period had closed is booked in a later one. It has lines of its own there, a group for each
period that it corrects.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal
from uuid import UUID

import msgspec
from sqlalchemy import Select, case, func, literal, select, union_all

from billing.calendar import check_period, period_bounds, period_of
from billing.events.rollups import HOUR, LIMB, SUMS, earliest, event_groups
from billing.prices import PriceCatalog, PriceVersion
from billing.rating.lines import RatedLine
from billing.tables.money import rollup_hour, usage_fact
from billing.usage import METERS
from storage.database.base import Count
from storage.database.database import Database
from storage.reported_error import ReportedError

SumSource = Literal["rollups", "events"]
"""Where sums of usage are read from: the hourly rollups, or the events themselves."""

GROUPS = ("project_id", "model", "lane", "context_from", "price_version")


class CostMismatch(ReportedError, ValueError):
    """Recorded cost that is not units × prices: `turnpike audit money` says which request has it."""


class UsageGroup(msgspec.Struct, frozen=True):
    """Sums of one group: units by meter, and the cost of its requests in pico-units."""

    project_id: UUID
    model: str
    lane: str
    context_from: int
    price_version: int
    requests: int
    meters: dict[str, int]
    cost_pico: int


async def usage_lines(
    database: Database, catalog: PriceCatalog, tenant_id: UUID, period: str, *, source: SumSource = "rollups"
) -> list[RatedLine]:
    """The lines of one tenant's period, the same from both sources. Corrections come last.

    Raises InvalidPeriod, CostMismatch, PriceMissing, UnknownPriceVersion, DatabaseUnavailable.
    """
    async with database.reading() as session:
        if source == "rollups":
            query = _of_rollups(tenant_id, check_period(period))
        else:
            query = _of_events(tenant_id, period, await earliest(session, tenant_id, period))
        rows = (await session.execute(query)).all()
    by_period: dict[str, dict[tuple[Any, ...], UsageGroup]] = {}
    for row in rows:
        used = usage_group(row)
        groups = by_period.setdefault(period_of(row.began), {})
        key = tuple(getattr(used, name) for name in GROUPS)
        groups[key] = _added(groups[key], used) if key in groups else used
    numbers = {used.price_version for groups in by_period.values() for used in groups.values()}
    versions = {number: await catalog.version(number) for number in numbers}
    lines = lines_of(by_period.pop(period, {}).values(), versions, *period_bounds(period))
    for late in sorted(by_period):
        for line in lines_of(by_period[late].values(), versions, *period_bounds(late)):
            lines.append(msgspec.structs.replace(line, corrects_period=late))
    return lines


def lines_of(
    used: Iterable[UsageGroup], versions: dict[int, PriceVersion], service_start: int, service_end: int
) -> list[RatedLine]:
    """The lines of groups: units × price is the amount of each, and a group's lines add up to its cost.

    Raises CostMismatch.
    """
    lines = []
    for group in sorted(used, key=lambda group: (group.project_id.int, *msgspec.structs.astuple(group)[1:5])):
        version = versions[group.price_version]
        of_group = [
            RatedLine(
                kind="usage",
                description=description(group.model, meter, group.lane, group.context_from),
                project_id=group.project_id,
                model=group.model,
                meter=meter,
                lane=group.lane,
                context_from=group.context_from,
                price_version=group.price_version,
                price_micro=(price := version.price(meter, group.lane, group.context_from)),
                units=group.meters[meter],
                exact_pico=group.meters[meter] * price,
                service_start=service_start,
                service_end=service_end,
            )
            for meter in METERS
            if group.meters.get(meter)
        ]
        exact = sum(line.exact_pico for line in of_group)
        if exact != group.cost_pico:
            raise CostMismatch(
                f"{group.model}, lane {group.lane}, price version {group.price_version}, project {group.project_id}: "
                f"the requests cost {group.cost_pico} pico-units, their units at their prices {exact}"
            )
        lines += of_group
    return lines


def description(model: str, meter: str, lane: str, context_from: int) -> str:
    """A line's text: "qwen: output tokens, batch lane, prompts of 200,000 tokens and more"."""
    kind, _, name = meter.partition("_")
    words = {
        "uncached": "input tokens",
        "read": f"cached input tokens ({name})",
        "write": f"cache write tokens ({name})",
        "output": "output tokens",
    }[kind]
    in_lane = "" if lane == "standard" else f", {lane} lane"
    in_tier = f", prompts of {context_from:,} tokens and more" if context_from else ""
    return f"{model}: {words}{in_lane}{in_tier}"


def _of_rollups(tenant_id: UUID, period: str) -> Select[Any]:
    """Sums by GROUPS and `began`: the period's start, or the hour of late usage."""
    row = rollup_hour.c
    start, _ = period_bounds(period)
    began = case((row.hour >= start, start), else_=row.hour).label("began")
    groups = [row[name] for name in GROUPS]
    query = select(*groups, began, *(func.sum(row[name]).label(name) for name in SUMS))
    return query.where(row.tenant_id == tenant_id, row.period == period).group_by(*groups, began)


def _of_events(tenant_id: UUID, period: str, since: int) -> Select[Any]:
    """The same sums from events, none of which was admitted before `since`."""
    row = usage_fact.c
    start, _ = period_bounds(period)
    where = (row.tenant_id == tenant_id, row.period == period)
    # Two queries: millions of events are in time and few are late, and only the late ones are grouped by hour.
    hour = (row.admitted_at - row.admitted_at % HOUR).label("began")
    timely = event_groups(GROUPS, *where, row.admitted_at >= start)
    late = event_groups(GROUPS, *where, row.admitted_at >= since, row.admitted_at < start, also=[hour])
    names = (*GROUPS, "began", *SUMS)
    columns = {"began": literal(start, Count()).label("began")}
    both = union_all(
        select(*(columns[name] if name in columns else timely.c[name] for name in names)),
        select(*(late.c[name] for name in names)),
    ).subquery()
    by = [both.c[name] for name in (*GROUPS, "began")]
    return select(*by, *(func.sum(both.c[name]).label(name) for name in SUMS)).group_by(*by)


def _added(group: UsageGroup, added: UsageGroup) -> UsageGroup:
    meters = {meter: group.meters.get(meter, 0) + added.meters.get(meter, 0) for meter in group.meters | added.meters}
    return msgspec.structs.replace(
        group, requests=group.requests + added.requests, meters=meters, cost_pico=group.cost_pico + added.cost_pico
    )


def usage_group(row: Any) -> UsageGroup:
    """A group from a row of sums: its GROUPS, and the columns of SUMS."""
    return UsageGroup(
        **{name: getattr(row, name) for name in GROUPS},
        requests=int(row.requests),
        meters={meter: int(units) for meter in METERS if (units := getattr(row, meter))},
        cost_pico=int(row.cost_high) * LIMB + int(row.cost_low),
    )
