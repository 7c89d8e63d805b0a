"""Usage as series for charts: buckets of time, the largest groups and the rest, from the hourly roll-ups alone.

One statement reads the roll-ups once, however many groups there are: it sums the cells of each bucket and group, orders
the groups by what is measured, keeps the first of them, and adds the others up as the rest.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import pairwise
from typing import Any, Literal, TypeAlias
from uuid import UUID

import msgspec
from sqlalchemy import CTE, BigInteger, ColumnElement, Select, and_, case, cast, func, literal, null, select, text

from billing.calendar import following_period, period_bounds, period_of
from billing.events.rollups import HOUR, LIMB, SUMS
from billing.tables.money import hold_batch, price_version, rollup_hour
from billing.usage import DRAFTS, METERS
from storage.database.database import Database
from storage.database.sql_arrays import one_of

SeriesGroup = Literal["tenant_id", "project_id", "key_id", "model", "lane", "price_version", "context_from"]
Bucket = Literal["hour", "day", "month"]
Measure = Literal["cost", "requests", "tokens"]
BUCKETS: tuple[Bucket, ...] = ("hour", "day", "month")
GroupKey: TypeAlias = tuple[Any, ...]

DAY = 24 * HOUR
MOST_POINTS = 10_000
"""Points of an answer: buckets times groups. Beyond, buckets are coarser."""
MOST_MONTHS = 120


class Selection(msgspec.Struct, frozen=True, kw_only=True):
    """Which usage: admitted from `start_at` (included) to `end_at` (excluded), the first instants of hours, or
    booked in `period`, whose bounds these are then. None: all, of `tenants` too.

    What was admitted before its period, which had closed when it came, counts as of the period's first hour.
    """

    start_at: int
    end_at: int
    period: str | None = None
    tenants: Collection[UUID] | None = None
    projects: Collection[UUID] | None = None
    keys: Collection[UUID] | None = None
    models: Collection[str] | None = None
    lanes: Collection[str] | None = None

    def conditions(self, database: Database) -> list[ColumnElement[bool]]:
        """Of `rollup_hour`; the caller's tenants are among them, unless they are all."""
        column = rollup_hour.c
        if self.period is not None:
            span = [column.period == self.period, column.hour < self.end_at]
        else:  # none is booked before its admission
            span = [column.period >= period_of(self.start_at), column.hour >= self.start_at, column.hour < self.end_at]
        only = (
            (column.tenant_id, self.tenants),
            (column.project_id, self.projects),
            (column.key_id, self.keys),
            (column.model, self.models),
            (column.lane, self.lanes),
        )
        return [*span, *(one_of(database, field, values) for field, values in only if values is not None)]

    @property
    def earlier(self) -> Selection:
        """The same usage in the span of the same length before it; of a period, in the one before, and of the beginning
        of one in as much of that."""
        length = self.end_at - self.start_at
        if self.period is None or self.start_at == 0:  # nothing was before the first period
            start_at = max(0, self.start_at - length)
            return msgspec.structs.replace(self, start_at=start_at, end_at=self.start_at, period=None)
        before = period_of(self.start_at - 1)
        start_at, end_at = period_bounds(before)
        if self.end_at < period_bounds(self.period)[1]:
            end_at = min(end_at, start_at + length)
        return msgspec.structs.replace(self, start_at=start_at, end_at=end_at, period=before)


class Sums(msgspec.Struct, kw_only=True):
    """What some usage adds up to: tokens by meter (those that are not 0), exact costs by currency in pico-units."""

    requests: int = 0
    tokens: dict[str, int] = {}
    cost_pico: dict[str, int] = {}

    def add(self, other: Sums) -> None:
        """Add another's sums to these."""
        self.requests += other.requests
        for sums, added in ((self.tokens, other.tokens), (self.cost_pico, other.cost_pico)):
            for name, number in added.items():
                sums[name] = sums.get(name, 0) + number


class SeriesLine(msgspec.Struct, kw_only=True):
    """One group's sums by the first instant of their buckets; `group` is None for the rest."""

    group: GroupKey | None
    cells: dict[int, Sums]
    total: Sums


class Series(msgspec.Struct, kw_only=True):
    """Lines, the largest first and the rest last. `starts` are those of all buckets, empty ones too; `groups` is how
    many groups there are, those of the rest among them."""

    bucket: Bucket
    starts: list[int]
    end_at: int
    lines: list[SeriesLine]
    groups: int
    total: Sums


def starts_of(bucket: Bucket, start_at: int, end_at: int) -> list[int]:
    """The first instants of the buckets of a span, in UTC; the first may begin before it."""
    if bucket != "month":
        size = HOUR if bucket == "hour" else DAY
        return list(range(start_at - start_at % size, end_at, size))
    starts, period = [], period_of(start_at)
    while (start := period_bounds(period)[0]) < end_at:
        starts.append(start)
        period = following_period(period)
    return starts


def fitting_bucket(wanted: Bucket, start_at: int, end_at: int, groups: int) -> Bucket:
    """The finest bucket, from the one that is wanted on, with which so many groups have at most MOST_POINTS."""
    for bucket in BUCKETS[BUCKETS.index(wanted) :]:
        size = HOUR if bucket == "hour" else DAY
        if bucket == "month" or -(-(end_at - start_at) // size) * max(1, groups) <= MOST_POINTS:
            return bucket
    raise AssertionError("months always fit")


async def usage_series(
    database: Database,
    selection: Selection,
    *,
    bucket: Bucket,
    group_by: Sequence[SeriesGroup] = (),
    top: int = 10,
    measure: Measure = "cost",
) -> Series:
    """The series of the `top` groups with most of what is measured, and of the rest. Costs of several currencies are
    compared by their numbers. Raises DatabaseUnavailable."""
    cells = _cells(database, selection, bucket, group_by)
    rows = await _read(database, _top_and_rest(cells, group_by, top, measure))
    starts = starts_of(bucket, selection.start_at, selection.end_at)
    first = starts[0] if starts else selection.start_at
    lines: dict[GroupKey | None, SeriesLine] = {}
    whole, groups = Sums(), 0
    for row in rows:
        key = tuple(getattr(row, f"group_{name}") for name in group_by) if row.place is not None else None
        line = lines.setdefault(key, SeriesLine(group=key, cells={}, total=Sums()))
        sums = _sums(row)
        line.cells.setdefault(max(int(row.bucket), first), Sums()).add(sums)
        line.total.add(sums)
        whole.add(sums)
        groups = int(row.groups)
    ordered = sorted(lines.values(), key=lambda line: (line.group is None, -_measured(line.total, measure), line.group))
    return Series(bucket=bucket, starts=starts, end_at=selection.end_at, lines=ordered, groups=groups, total=whole)


async def usage_totals(
    database: Database,
    selection: Selection,
    group_by: Sequence[SeriesGroup] = (),
    *,
    most: int = 1000,
    measure: Measure = "cost",
) -> dict[GroupKey, Sums]:
    """The sums of the whole selection by group, of the `most` largest. Raises DatabaseUnavailable."""
    cells = _cells(database, selection, None, group_by)
    rows = await _read(database, _top_and_rest(cells, group_by, most, measure))
    found: dict[GroupKey, Sums] = {}
    for row in rows:
        if row.place is not None:
            found.setdefault(tuple(getattr(row, f"group_{name}") for name in group_by), Sums()).add(_sums(row))
    return found


async def complete_until(database: Database, tenants: Collection[UUID] | None, now: int) -> int:
    """Until when everything that these tenants (None: all) were admitted for is in the roll-ups: `now`, or the start
    of the oldest request that still runs or whose usage is not settled. Adjustments may come later all the same.
    Raises DatabaseUnavailable."""
    query = select(func.min(hold_batch.c.admitted_at))
    if tenants is not None:
        query = query.where(one_of(database, hold_batch.c.tenant_id, tenants))
    async with database.reading() as session:
        oldest = await session.scalar(query)
    return now if oldest is None else min(now, int(oldest))


async def _read(database: Database, query: Select[tuple[Any, ...]]) -> Sequence[Any]:
    async with database.reading() as session:
        if database.dialect == "postgresql":
            # It expects many more groups than there are, and would sort all rows on disk rather than hash them.
            await session.execute(text("SET LOCAL work_mem = '64MB'"))
        return list((await session.execute(query)).all())


def _cells(database: Database, selection: Selection, bucket: Bucket | None, group_by: Sequence[SeriesGroup]) -> CTE:
    """Sums by bucket, group and currency. They are summed by version first, so that the join is of sums."""
    # all tenants: unless the selection names some
    column = rollup_hour.c
    place = _bucket(selection, bucket).label("bucket")
    names = [name for name in group_by if name != "price_version"]
    keys = [place, *(column[name] for name in names), column.price_version]
    sums = [func.sum(column[name]).label(name) for name in SUMS]
    parts = select(*keys, *sums).where(*selection.conditions(database)).group_by(*keys).subquery().c
    groups = [parts.bucket, price_version.c.currency, *(parts[name] for name in group_by)]
    query = select(*groups, *(func.sum(parts[name]).label(name) for name in SUMS))
    return query.join(price_version, price_version.c.id == parts.price_version).group_by(*groups).cte("cells")


def _bucket(selection: Selection, bucket: Bucket | None) -> ColumnElement[Any]:
    # all tenants: an expression of the hour alone
    hour: ColumnElement[Any] = rollup_hour.c.hour
    if bucket is None:
        return literal(0)
    if bucket != "month":
        return hour - hour % (HOUR if bucket == "hour" else DAY)
    starts = starts_of("month", selection.start_at, selection.end_at)
    if len(starts) < 2:
        return literal(starts[0] if starts else 0)
    return case(*((hour < after, start) for start, after in pairwise(starts)), else_=starts[-1])


def _top_and_rest(cells: CTE, group_by: Sequence[SeriesGroup], top: int, measure: Measure) -> Select[tuple[Any, ...]]:
    """The cells of the first groups, those of all others added up (`place` is null), and how many groups there are."""
    column = cells.c
    totals = _totals(column)
    if not group_by:
        return select(
            column.bucket, column.currency, literal(1).label("place"), literal(1).label("groups"), *totals
        ).group_by(column.bucket, column.currency)
    keys = [column[name] for name in group_by]
    ranked = select(*keys, func.row_number().over(order_by=[*_order(column, measure), *keys]).label("place"))
    ranks = ranked.group_by(*keys).cte("ranks")
    same = and_(*(column[name] == ranks.c[name] for name in group_by))
    place = case((ranks.c.place <= top, ranks.c.place), else_=null()).label("place")
    named = [case((ranks.c.place <= top, column[name]), else_=null()).label(f"group_{name}") for name in group_by]
    groups = select(func.count()).select_from(ranks).scalar_subquery().label("groups")
    folded = (
        select(column.bucket, column.currency, place, *named, *(column[name] for name in SUMS))
        .join(ranks, same)
        .subquery()
        .c
    )
    by = [folded.bucket, folded.currency, folded.place, *(folded[f"group_{name}"] for name in group_by)]
    return select(*by, groups, *_totals(folded)).group_by(*by)


def _totals(column: Any) -> list[ColumnElement[Any]]:
    """SUMS as whole numbers, the last columns of a query: the driver makes decimals of PostgreSQL's NUMERIC."""
    return [cast(func.sum(column[name]), BigInteger).label(name) for name in SUMS]


def _order(column: Any, measure: Measure) -> list[ColumnElement[Any]]:
    if measure == "requests":
        return [func.sum(column.requests).desc()]
    if measure == "tokens":
        return [sum((func.sum(column[meter]) for meter in METERS[1:]), func.sum(column[METERS[0]])).desc()]
    return [func.sum(column.cost_high).desc(), func.sum(column.cost_low).desc()]


def _measured(sums: Sums, measure: Measure) -> int:
    if measure == "requests":
        return sums.requests
    return sum((sums.tokens if measure == "tokens" else sums.cost_pico).values())


def _sums(row: Any) -> Sums:
    requests, *counts, high, low = row[-len(SUMS) :]
    tokens = {meter: number for meter, number in zip(METERS, counts[: -len(DRAFTS)], strict=True) if number}
    return Sums(requests=requests, tokens=tokens, cost_pico={row.currency: high * LIMB + low})
