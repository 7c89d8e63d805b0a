"""Hourly sums of events: written with them, read by reports, and checked against them."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter, itemgetter
from typing import Any
from uuid import UUID

import msgspec
import numpy as np
from sqlalchemy import ColumnElement, Label, Subquery, and_, case, func, or_, select, true
from sqlalchemy.ext.asyncio import AsyncSession

from billing.calendar import check_period, months, period_bounds, period_of
from billing.events.columns import EventColumns, Numbers, groups
from billing.tables.money import rollup_hour, usage_event, usage_fact, usage_traits
from billing.usage import DIMENSIONS, DRAFTS, METERS

HOUR = 3_600_000_000
LIMB = 10**9
"""A cost is summed as quotients and remainders by this, both with the sign of the cost."""
_LAST = 7_226_582_400_000_000  # 2199: later instants give no usage and no error

KEYS = tuple(column.name for column in rollup_hour.primary_key.columns)
SUMS = ("requests", *METERS, *DRAFTS, "cost_high", "cost_low")


class RollupDelta(msgspec.Struct, frozen=True):
    """What some events add to one row: its keys (`hour` is its first instant), and the sums in the order of SUMS."""

    tenant_id: UUID
    period: str
    hour: int
    project_id: UUID
    key_id: UUID
    model: str
    lane: str
    price_version: int
    context_from: int
    sums: list[int]

    @property
    def cost_pico(self) -> int:
        """What these events cost together."""
        return self.sums[_HIGH] * LIMB + self.sums[_LOW]


_AT = {name: at for at, name in enumerate(SUMS)}
_HIGH, _LOW = _AT["cost_high"], _AT["cost_low"]

# UUIDs by their numbers, which compare and hash at a fraction of the cost
_key = attrgetter(*(name + ".int" if name.endswith("_id") else name for name in KEYS))
_named = itemgetter(DIMENSIONS.index("model"), DIMENSIONS.index("lane"))


def event_groups(by: Sequence[str], *where: ColumnElement[bool], also: Sequence[Label[Any]] = ()) -> Subquery:
    """Events by the columns of `by`, with SUMS: to be summed again, since a group can be in several rows.

    `where` selects events (their tenant too), and `also` adds keys; both are of `usage_fact`. Events are grouped by the
    number of their dimensions, and joined with the words only then: there are few groups of millions of events.
    """
    of = usage_fact.c
    narrow = [of.traits, *(of[name] for name in by if name not in DIMENSIONS)]
    inner = select(*narrow, *also, *(total.label(name) for name, total in event_sums(of).items()))
    groups = inner.where(*where).group_by(*narrow, *also).subquery()
    joined = select(
        *(usage_traits.c[name] if name in DIMENSIONS else groups.c[name] for name in by),
        *(groups.c[name] for name in (*(label.name for label in also), *SUMS)),
    )
    return joined.join(usage_traits, usage_traits.c.id == groups.c.traits).subquery()


async def earliest(session: AsyncSession, tenant_id: UUID, period: str) -> int:
    """From when on the events of a tenant's period were admitted: from its start on, unless some came after their own
    period had closed. Raises InvalidPeriod."""
    of = rollup_hour.c
    first = select(func.min(of.hour)).where(of.tenant_id == tenant_id, of.period == check_period(period))
    start, _ = period_bounds(period)
    return min(start, await session.scalar(first) or start)


def event_sums(of: Any = usage_event.c) -> dict[str, ColumnElement[Any]]:
    """Each of SUMS as SQL over the columns of events; the caller selects tenants. An adjustment is no request."""
    return {
        "requests": func.count() - func.count(of.corrects),
        **{meter: func.sum(of[meter]) for meter in METERS},
        **{name: func.sum(of[f"count_{name}"]) for name in DRAFTS},
        "cost_high": func.sum(of.cost_pico.op("/")(LIMB)),
        "cost_low": func.sum(of.cost_pico.op("%")(LIMB)),
    }


def roll_up(columns: EventColumns) -> list[RollupDelta]:
    """What these events add to the rollups, in an order that is the same for all who write them."""
    if not columns.events:
        return []
    numbers = columns.numbers
    places = {name: place for place, name in enumerate(dict.fromkeys(map(_named, columns.kinds)))}
    named = np.array([places[_named(kind)] for kind in columns.kinds], np.int64)[columns.kind]
    hours = numbers["admitted_at"] // HOUR
    order, starts = groups([columns.owner, named, numbers["price_version"], numbers["context_from"], hours])
    sums = np.zeros((len(starts), len(SUMS)), np.int64)

    def add(name: str, values: Numbers) -> None:
        sums[:, _AT[name]] = np.add.reduceat(values[order], starts)

    add("requests", (~columns.correcting).astype(np.int64))
    for meter in columns.meters:
        add(meter, numbers[meter])
    for name in DRAFTS:
        add(name, numbers[f"count_{name}"])
    cost = numbers["cost_pico"]
    sign, size = np.sign(cost), np.abs(cost)
    add("cost_high", sign * (size // LIMB))
    add("cost_low", sign * (size % LIMB))
    firsts = [columns.events[place] for place in order[starts]]
    rolled = [
        RollupDelta(
            event.tenant_id,
            event.period,
            event.admitted_at - event.admitted_at % HOUR,
            event.project_id,
            event.key_id,
            event.model,
            event.lane,
            event.price_version,
            event.context_from,
            some,
        )
        for event, some in zip(firsts, sums.tolist(), strict=True)
    ]
    return sorted(rolled, key=_key)


def counted_within(period: ColumnElement[str], at: ColumnElement[int], low: int, high: int) -> ColumnElement[bool]:
    """The condition that something counts in the span from `low` (included) to `high` (excluded).

    It counts at its instant; if it was booked after its own month had closed, at the first instant of the month that it
    is booked in. So what a span of a closed month says does not change. Nothing is booked before its own month.
    """
    first, last = period_of(min(low, _LAST)), period_of(min(high - 1, _LAST))
    begins = at >= low if low > period_bounds(first)[0] else true()
    if first == last:
        return and_(period == first, begins, at < high)
    return or_(and_(period == first, begins), and_(period > first, period < last), and_(period == last, at < high))


def counted_at(period: ColumnElement[str], at: ColumnElement[int], low: int, high: int) -> ColumnElement[int]:
    """The instant at which something counts that is counted within a span of some months, as `counted_within` says."""
    starts = [(month, period_bounds(month)[0]) for month in months_of(low, high)]
    return case(*((and_(period == month, at < start), start) for month, start in starts), else_=at)


def months_of(low: int, high: int) -> list[str]:
    """The billing periods of a span, in order; of an empty span the one that it begins in."""
    first = period_of(min(low, _LAST))
    return list(months(first, max(first, period_of(min(high - 1, _LAST)))))
