"""The usage report: exact sums by project and model for a month, and in buckets of time for the usage APIs.

Whole hours are read from the rollups, parts of hours from the events. Both add up to the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, get_args
from uuid import UUID

import msgspec
from sqlalchemy import ColumnElement, Select, Table, and_, func, literal, select

from billing.calendar import check_period, period_bounds
from billing.events.rollups import (
    HOUR,
    LIMB,
    SUMS,
    counted_at,
    counted_within,
    event_groups,
    event_sums,
    months_of,
)
from billing.money import format_pico
from billing.rating.hourly_meters import (
    CACHE_STORAGE,
    HOURLY_METERS,
    HourlyMeter,
    hourly_cost,
    hourly_sums,
    hourly_units,
)
from billing.rating.usage_lines import SumSource
from billing.tables.money import price_version, rollup_hour, usage_event, usage_fact
from billing.usage import METERS, UsageSum
from storage.database.base import Count
from storage.database.database import Database
from storage.database.sql_arrays import one_of

Width = Literal["1m", "1h", "1d"]
Group = Literal["project_id", "api_key_id", "model", "lane", "batch", "context_from", "long_context", "price_version"]

_MICROSECONDS = {"1m": 60_000_000, "1h": 3_600_000_000, "1d": 86_400_000_000}
LIMITS = {"1m": (60, 1440), "1h": (24, 168), "1d": (7, 31)}
"""Buckets on a page by width: the default, and the most."""
LONG_CONTEXT = 200_000
"""The lower bound, in tokens, of the context tiers that OpenAI and Anthropic call long."""
_BOOLEANS = ("batch", "long_context")
_GROUPS: tuple[str, ...] = get_args(Group)


class InvalidReport(ValueError):
    """A report cannot be made from these arguments; `parameter` is the one that is wrong."""

    def __init__(self, parameter: str, problem: str) -> None:
        super().__init__(f"{parameter}: {problem}")
        self.parameter = parameter
        self.problem = problem


class MonthRow(msgspec.Struct, frozen=True):
    """One project's use of one model in a month: tokens by meter (those that are not 0), token-seconds of cached
    prompts that were stored, thousandths of hours for which it was kept ready as an adapter, and the exact cost of all.
    `drafted` tokens were verified beside these, of which `accepted` ones are in the output: they cost nothing."""

    tenant_id: UUID
    project_id: UUID
    model: str
    currency: str
    requests: int
    meters: dict[str, int]
    cost_pico: int
    stored: int = 0
    resident: int = 0
    drafted: int = 0
    accepted: int = 0

    @property
    def cost(self) -> str:
        """The cost as a decimal string with 12 places."""
        return format_pico(self.cost_pico)


class Result(msgspec.Struct, frozen=True):
    """Usage of one group in a bucket. `group` has the fields that the report is grouped by; costs are by currency.
    `drafted` and `accepted`: tokens of drafts, which cost nothing."""

    group: dict[str, Any]
    requests: int
    usage: UsageSum
    costs_pico: dict[str, int]
    drafted: int = 0
    accepted: int = 0


class UsageBucket(msgspec.Struct, frozen=True):
    """Usage admitted from `start_at` (included) to `end_at` (excluded), in microseconds since the Unix epoch."""

    start_at: int
    end_at: int
    results: list[Result]


class UsagePage(msgspec.Struct, frozen=True):
    """Consecutive buckets, empty ones included; `next_page` is the cursor of the next page, None at the end."""

    buckets: list[UsageBucket]
    next_page: str | None


class _Table:
    """A source of sums: its columns, its instant, and how it is summed and grouped."""

    def __init__(self, table: Table, at: str, sums: dict[str, ColumnElement[Any]]) -> None:
        self.columns = columns = table.c
        self.at: ColumnElement[int] = columns[at]
        self.sums = [sums[name].label(name) for name in SUMS]
        self.groups: dict[str, ColumnElement[Any]] = {
            "project_id": columns.project_id,
            "api_key_id": columns.key_id,
            "model": columns.model,
            "lane": columns.lane,
            "batch": columns.lane == "batch",
            "context_from": columns.context_from,
            "long_context": columns.context_from >= LONG_CONTEXT,
            "price_version": columns.price_version,
        }


_TABLES: dict[SumSource, _Table] = {
    "events": _Table(usage_event, "admitted_at", event_sums()),
    "rollups": _Table(rollup_hour, "hour", {name: func.sum(rollup_hour.c[name]) for name in SUMS}),
}


def _cost(row: Any) -> int:
    return int(row.cost_high) * LIMB + int(row.cost_low)


async def usage_by_project_and_model(
    database: Database,
    period: str,
    tenant_id: UUID | None = None,
    project_id: UUID | None = None,
    *,
    source: SumSource = "rollups",
) -> list[MonthRow]:
    """A month's usage of one tenant or (None) of all, and of one project or all.

    Raises InvalidPeriod, DatabaseUnavailable.
    """
    inner = ("tenant_id", "project_id", "model", "price_version")
    wanted = {"period": check_period(period), "tenant_id": tenant_id, "project_id": project_id}
    table: Any = usage_fact if source == "events" else rollup_hour
    where = [table.c[name] == value for name, value in wanted.items() if value is not None]
    # Summed by version first, so that the join is of sums and not of events.
    if source == "events":
        by_version = event_groups(inner, *where)
    else:
        rollup = rollup_hour.c
        keys = [rollup[name] for name in inner]
        sums = [func.sum(rollup[name]).label(name) for name in SUMS]
        by_version = select(*keys, *sums).where(*where).group_by(*keys).subquery()
    part = by_version.c
    groups = (part.tenant_id, part.project_id, part.model, price_version.c.currency)
    query = (
        select(*groups, *(func.sum(part[name]).label(name) for name in SUMS))
        .join(price_version, price_version.c.id == part.price_version)
        .group_by(*groups)
        .order_by(*groups)
    )
    async with database.reading() as session:
        rows = (await session.execute(query)).all()
        by_hour = []
        for meter in HOURLY_METERS:
            of = [meter.events.c[name] == value for name, value in wanted.items() if value is not None]
            hours = hourly_sums(meter, ("tenant_id", "project_id", "model"), *of)
            by_hour += [(meter, row) for row in await session.execute(hours)]
    months = [
        MonthRow(
            tenant_id=row.tenant_id,
            project_id=row.project_id,
            model=row.model,
            currency=row.currency,
            requests=int(row.requests),
            meters={meter: int(tokens) for meter in METERS if (tokens := getattr(row, meter))},
            cost_pico=_cost(row),
            drafted=int(row.drafted),
            accepted=int(row.accepted),
        )
        for row in rows
    ]
    return _with_hours(months, by_hour)


def _with_hours(months: Sequence[MonthRow], by_hour: Sequence[tuple[HourlyMeter, Any]]) -> list[MonthRow]:
    """Add what hourly meters counted of the same model in the same project."""
    rows = {(row.tenant_id, row.project_id, row.model, row.currency): row for row in months}
    for meter, row in by_hour:
        key = (row.tenant_id, row.project_id, row.model, row.currency)
        units, cost = hourly_units(row), hourly_cost(row)
        used = rows.get(key) or MonthRow(*key, requests=0, meters={}, cost_pico=0)
        changed = {"stored": used.stored + units} if meter is CACHE_STORAGE else {"resident": used.resident + units}
        rows[key] = msgspec.structs.replace(used, cost_pico=used.cost_pico + cost, **changed)
    return [rows[key] for key in sorted(rows)]


async def usage_buckets(
    database: Database,
    tenant_id: UUID,
    *,
    start_at: int,
    end_at: int | None = None,
    width: Width = "1d",
    project_ids: Sequence[UUID] | None = None,
    key_ids: Sequence[UUID] | None = None,
    models: Sequence[str] | None = None,
    lanes: Sequence[str] | None = None,
    group_by: Sequence[Group] = (),
    batch: bool | None = None,
    limit: int | None = None,
    limits: tuple[int, int] | None = None,
    page: str | None = None,
) -> UsagePage:
    """One tenant's usage in buckets aligned to UTC, by the instant of admission; what was booked after its own month
    had closed, adjustments too, counts at the beginning of the month that it is booked in.

    - `start_at` (included) to `end_at` (excluded; None: now): microseconds since the Unix epoch.
    - `project_ids`, `key_ids`, `models`, `lanes`, `batch`: only this usage; None: all.
    - `limit`: buckets on a page. `limits`: the default and the most of them; None: LIMITS of the width.
    - `page`: the cursor of the page before.

    Raises InvalidReport naming the parameter, DatabaseUnavailable.
    """
    size = _width(width)
    count = _limit(limit, limits or LIMITS[width], width)
    for group in group_by:
        if group not in _GROUPS:
            raise InvalidReport("group_by", f"{group!r} is not one of {', '.join(_GROUPS)}")
    until = await database.now() if end_at is None else end_at
    first = _first_bucket(page, start_at, until, size)
    last = min(first + count * size, -(-until // size) * size)
    selection = _Selection(
        tenant_id,
        {"project_id": project_ids, "key_id": key_ids, "model": models, "lane": lanes},
        batch,
        tuple(group_by),
        size,
    )
    rows: list[Any] = []
    async with database.reading() as session:
        for source, low, high in _parts(max(first, start_at), min(last, until), width, open_ended=end_at is None):
            rows += await session.execute(selection.query(database, source, low, high))
            if source == "events":
                for period in months_of(low, high):
                    start, _ = period_bounds(period)
                    if low <= start < high:  # what came after its month had closed: whole hours, from the rollups
                        rows += await session.execute(selection.late(database, period, start))
    found: dict[int, dict[tuple[Any, ...], Result]] = {}
    for row in rows:
        key: dict[str, Any] = {name: getattr(row, f"group_{name}") for name in group_by}
        key |= {name: bool(key[name]) for name in _BOOLEANS if name in key}
        usage = UsageSum.from_meters({meter: int(getattr(row, meter)) for meter in METERS})
        costs = {row.currency: _cost(row)}
        result = Result(key, int(row.requests), usage, costs, int(row.drafted), int(row.accepted))
        results = found.setdefault(row.bucket, {})
        same = results.get(tuple(key.values()))
        results[tuple(key.values())] = result if same is None else _added(same, result)
    for results in found.values():
        results_in_order = sorted(results.items(), key=lambda item: [str(part) for part in item[0]])
        results.clear()
        results.update(results_in_order)
    buckets = [UsageBucket(at, at + size, list(found.get(at, {}).values())) for at in range(first, last, size)]
    return UsagePage(buckets, f"page_{last}" if last < until else None)


class _Selection(msgspec.Struct, frozen=True):
    """A tenant's usage, filtered and grouped."""

    tenant_id: UUID
    only: dict[str, Sequence[Any] | None]
    batch: bool | None
    group_by: tuple[Group, ...]
    size: int

    def query(self, database: Database, source: SumSource, low: int, high: int) -> Select[Any]:
        """The sums of one table from `low` (included) to `high` (excluded); of events without those that came after
        their month had closed."""
        columns, at = _TABLES[source].columns, _TABLES[source].at
        within = counted_within(columns.period, at, low, high)
        counted: ColumnElement[int] = counted_at(columns.period, at, low, high)
        if source == "events":  # which are found by tenant and instant
            within, counted = and_(within, at >= low, counted == at), at
        return self._sums(database, source, counted, within)

    def late(self, database: Database, period: str, start: int) -> Select[Any]:
        """The sums of what is booked in a period, and was admitted before its start: it counts then."""
        # all tenants: `_sums` names the selection's
        late = and_(rollup_hour.c.period == period, rollup_hour.c.hour < start)
        return self._sums(database, "rollups", literal(start, Count()), late)

    def _sums(
        self, database: Database, source: SumSource, counted: ColumnElement[int], within: ColumnElement[bool]
    ) -> Select[Any]:
        table, columns = _TABLES[source], _TABLES[source].columns
        in_bucket = (counted - counted % self.size).label("bucket")
        groups = [table.groups[group].label(f"group_{group}") for group in self.group_by]
        query = (
            select(in_bucket, price_version.c.currency, *groups, *table.sums)
            .join(price_version, price_version.c.id == columns.price_version)
            .where(columns.tenant_id == self.tenant_id, within)
        )
        for name, values in self.only.items():
            if values is not None:
                query = query.where(one_of(database, columns[name], values))
        if self.batch is not None:
            query = query.where((columns.lane == "batch") if self.batch else (columns.lane != "batch"))
        return query.group_by(in_bucket, price_version.c.currency, *groups)


def _parts(low: int, high: int, width: Width, *, open_ended: bool) -> list[tuple[SumSource, int, int]]:
    """Divide a span: whole hours from the rollups, the rest from the events. An open end includes all of this hour."""
    if width == "1m":
        return [("events", low, high)]
    first, last = -(-low // HOUR) * HOUR, (-(-high // HOUR) if open_ended else high // HOUR) * HOUR
    if first >= last:
        return [("events", low, high)]
    parts: list[tuple[SumSource, int, int]] = [("events", low, first), ("rollups", first, last), ("events", last, high)]
    return [part for part in parts if part[1] < part[2]]


def _added(result: Result, added: Result) -> Result:
    """The same group's results from two tables or in two currencies."""
    meters = added.usage.meters()
    usage = UsageSum.from_meters({meter: tokens + meters[meter] for meter, tokens in result.usage.meters().items()})
    currencies = result.costs_pico.keys() | added.costs_pico.keys()
    costs = {name: result.costs_pico.get(name, 0) + added.costs_pico.get(name, 0) for name in sorted(currencies)}
    return Result(
        result.group,
        result.requests + added.requests,
        usage,
        costs,
        result.drafted + added.drafted,
        result.accepted + added.accepted,
    )


def _width(width: str) -> int:
    if width not in _MICROSECONDS:
        raise InvalidReport("bucket_width", f"{width!r} is not one of {', '.join(_MICROSECONDS)}")
    return _MICROSECONDS[width]


def _limit(limit: int | None, limits: tuple[int, int], width: str) -> int:
    usual, most = limits
    if limit is not None and not 1 <= limit <= most:
        raise InvalidReport("limit", f"{limit} is not between 1 and {most} for buckets of {width}")
    return usual if limit is None else limit


def _first_bucket(page: str | None, start_at: int, until: int, size: int) -> int:
    if not 0 <= start_at < until:
        raise InvalidReport("start_time", "it is not before the end")
    first = start_at - start_at % size
    if page is None:
        return first
    digits = page.removeprefix("page_")
    if page == digits or not (digits.isascii() and digits.isdigit() and len(digits) < 19):
        raise InvalidReport("page", "it is not one that was returned here")
    if int(digits) % size or not first <= int(digits) < until:
        raise InvalidReport("page", "it belongs to another query")
    return int(digits)
