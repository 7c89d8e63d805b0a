"""What was used, summed exactly: by project and model for a month, and in buckets of time for the usage APIs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal
from uuid import UUID

import msgspec
from sqlalchemy import ColumnElement, Label, func, select

from billing.money import format_pico
from billing.tables import price_version, usage_event
from billing.usage import METERS, Usage, check_period
from storage.bulk import one_of
from storage.database import Database

Width = Literal["1m", "1h", "1d"]
Group = Literal["project_id", "api_key_id", "model", "lane", "batch"]

_MICROSECONDS = {"1m": 60_000_000, "1h": 3_600_000_000, "1d": 86_400_000_000}
LIMITS = {"1m": (60, 1440), "1h": (24, 168), "1d": (7, 31)}
"""Buckets on a page by width: when nothing is said, and at most."""
_LIMB = 10**9

_columns = usage_event.c
_GROUPS: dict[str, ColumnElement[Any]] = {
    "project_id": _columns.project_id,
    "api_key_id": _columns.key_id,
    "model": _columns.model,
    "lane": _columns.lane,
    "batch": _columns.lane == "batch",
}


class InvalidReport(ValueError):
    """A report cannot be asked for like this; `parameter` says which of the arguments is wrong."""

    def __init__(self, parameter: str, problem: str) -> None:
        super().__init__(f"{parameter}: {problem}")
        self.parameter = parameter


class MonthRow(msgspec.Struct, frozen=True):
    """What one project used of one model in a month, in tokens by meter (those that are not 0), and its exact cost."""

    tenant_id: UUID
    project_id: UUID
    model: str
    currency: str
    requests: int
    meters: dict[str, int]
    cost_pico: int

    @property
    def cost(self) -> str:
        """The cost as a decimal string with all its places."""
        return format_pico(self.cost_pico)


class Result(msgspec.Struct, frozen=True):
    """Usage of one group in a bucket. `group` has the fields that were grouped by; costs are by currency."""

    group: dict[str, Any]
    requests: int
    usage: Usage
    costs_pico: dict[str, int]


class Bucket(msgspec.Struct, frozen=True):
    """Usage admitted from `start_at` (included) to `end_at` (excluded), in microseconds since the Unix epoch."""

    start_at: int
    end_at: int
    results: list[Result]


class Page(msgspec.Struct, frozen=True):
    """Consecutive buckets, empty ones too; `next_page` asks for those after them, if there are any."""

    buckets: list[Bucket]
    next_page: str | None


def _sums() -> list[Label[Any]]:
    """Counts, tokens and cost. The cost is summed in two limbs, which no sum of 64-bit costs can overflow."""
    return [
        func.count().label("requests"),
        *(func.sum(_columns[meter]).label(meter) for meter in METERS),
        func.sum(_columns.cost_pico.op("/")(_LIMB)).label("cost_high"),
        func.sum(_columns.cost_pico.op("%")(_LIMB)).label("cost_low"),
    ]


def _cost(row: Any) -> int:
    return int(row.cost_high) * _LIMB + int(row.cost_low)


_EVENTS = usage_event.join(price_version, price_version.c.id == _columns.price_version)


async def usage_by_project_and_model(
    database: Database, period: str, tenant_id: UUID | None = None, project_id: UUID | None = None
) -> list[MonthRow]:
    """A month's usage of one tenant (and project), or of all. Raises InvalidPeriod, DatabaseUnavailable."""
    groups = (_columns.tenant_id, _columns.project_id, _columns.model, price_version.c.currency)
    query = select(*groups, *_sums()).select_from(_EVENTS).where(_columns.period == check_period(period))
    if tenant_id is not None:
        query = query.where(_columns.tenant_id == tenant_id)
    if project_id is not None:
        query = query.where(_columns.project_id == project_id)
    async with database.reading() as session:
        rows = (await session.execute(query.group_by(*groups).order_by(*groups))).all()
    return [
        MonthRow(
            tenant_id=row.tenant_id,
            project_id=row.project_id,
            model=row.model,
            currency=row.currency,
            requests=row.requests,
            meters={meter: int(tokens) for meter in METERS if (tokens := getattr(row, meter))},
            cost_pico=_cost(row),
        )
        for row in rows
    ]


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
    group_by: Sequence[Group] = (),
    batch: bool | None = None,
    limit: int | None = None,
    page: str | None = None,
) -> Page:
    """One tenant's usage in buckets aligned to UTC, by the instant of admission.

    From `start_at` (included) to `end_at` (excluded; the database's clock if absent). Raises InvalidReport naming the
    parameter, DatabaseUnavailable.
    """
    size = _width(width)
    count = _limit(limit, width)
    for group in group_by:
        if group not in _GROUPS:
            raise InvalidReport("group_by", f"{group!r} is not one of {', '.join(_GROUPS)}")
    until = await database.now() if end_at is None else end_at
    first = _first_bucket(page, start_at, until, size)
    last = min(first + count * size, -(-until // size) * size)
    in_bucket = (_columns.admitted_at - _columns.admitted_at % size).label("bucket")
    groups = [_GROUPS[group].label(f"group_{group}") for group in group_by]
    query = (
        select(in_bucket, price_version.c.currency, *groups, *_sums())
        .select_from(_EVENTS)
        .where(
            _columns.tenant_id == tenant_id,
            _columns.admitted_at >= max(first, start_at),
            _columns.admitted_at < min(last, until),
        )
    )
    for column, values in ((_columns.project_id, project_ids), (_columns.key_id, key_ids), (_columns.model, models)):
        if values is not None:
            query = query.where(one_of(database, column, values))
    if batch is not None:
        query = query.where((_columns.lane == "batch") if batch else (_columns.lane != "batch"))
    query = query.group_by(in_bucket, price_version.c.currency, *groups)
    async with database.reading() as session:
        rows = (await session.execute(query.order_by(in_bucket, *groups, price_version.c.currency))).all()
    found: dict[int, dict[tuple[Any, ...], Result]] = {}
    for row in rows:
        key: dict[str, Any] = {name: getattr(row, f"group_{name}") for name in group_by}
        if "batch" in key:
            key["batch"] = bool(key["batch"])
        usage = Usage.from_meters({meter: int(getattr(row, meter)) for meter in METERS})
        result = Result(key, row.requests, usage, {row.currency: _cost(row)})
        results = found.setdefault(row.bucket, {})
        same = results.get(tuple(key.values()))
        results[tuple(key.values())] = result if same is None else _added(same, result)
    buckets = [Bucket(at, at + size, list(found.get(at, {}).values())) for at in range(first, last, size)]
    return Page(buckets, f"page_{last}" if last < until else None)


def _added(one: Result, other: Result) -> Result:
    """The same group's results in two currencies."""
    meters = other.usage.meters()
    usage = Usage.from_meters({meter: tokens + meters[meter] for meter, tokens in one.usage.meters().items()})
    return Result(one.group, one.requests + other.requests, usage, one.costs_pico | other.costs_pico)


def _width(width: str) -> int:
    if width not in _MICROSECONDS:
        raise InvalidReport("bucket_width", f"{width!r} is not one of {', '.join(_MICROSECONDS)}")
    return _MICROSECONDS[width]


def _limit(limit: int | None, width: str) -> int:
    usual, most = LIMITS[width]
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
