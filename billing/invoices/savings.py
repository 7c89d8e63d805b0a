"""The cache savings statement: what the same tokens would have cost without a cache, what was written for nothing, and
what to do about it. All of it follows from the period's own lines and from its hours in the rollups.

Usage events do not say which prefix they wrote or read. What is said of writes that were never read is therefore what
is certain all the same: a lease lasts as long as its class says, so what was written in an hour after which nothing of
the class was read until then was never read, and no more written tokens were read than there were tokens read. There
may be more.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy import func, or_, select

from billing.events.rollups import HOUR
from billing.invoices.document import ClassSavings, ModelSavings, Savings
from billing.prices import PriceMissing, PriceVersion
from billing.rating.lines import RatedLine
from billing.tables.money import rollup_hour
from billing.usage import CLASSES, period_bounds
from storage.database.database import Database

_METERS = tuple(f"{kind}_{name}" for kind in ("read", "write") for name in CLASSES)


class CacheHour(msgspec.Struct, frozen=True):
    """Tokens that one project's requests of one hour to one model read and wrote, by class, at one set of prices."""

    project_id: UUID
    model: str
    lane: str
    context_from: int
    price_version: int
    hour: int
    read: dict[str, int]
    written: dict[str, int]


async def cache_use(database: Database, tenant_id: UUID, period: str) -> list[CacheHour]:
    """The period's own hours in which anything was read or written by a lease. Raises InvalidPeriod,
    DatabaseUnavailable."""
    of = rollup_hour.c
    start, end = period_bounds(period)
    keys = (of.project_id, of.model, of.lane, of.context_from, of.price_version, of.hour)
    query = (
        select(*keys, *(func.sum(of[meter]).label(meter) for meter in _METERS))
        .where(of.tenant_id == tenant_id, of.period == period, of.hour >= start, of.hour < end)
        .where(or_(*(of[meter] != 0 for meter in _METERS)))
        .group_by(*keys)
        .order_by(*keys)
    )
    async with database.reading() as session:
        return [_hour(row, start) for row in await session.execute(query)]


def _hour(row: Any, start: int) -> CacheHour:
    def tokens(kind: str) -> dict[str, int]:
        return {name: int(value) for name in CLASSES if (value := getattr(row, f"{kind}_{name}"))}

    hour = (row.hour - start) // HOUR  # of the period
    keys = (row.project_id, row.model, row.lane, row.context_from, row.price_version, hour)
    return CacheHour(*keys, tokens("read"), tokens("write"))


SHORTEST = CLASSES[0]
_REACH = {"5m": 2, "30m": 2, "1h": 2, "12h": 13, "24h": 25}
"""For how many hours after the one in which a request began what it wrote may be read first: as long as its class, for
a request that runs for an hour at most."""


def savings(
    lines: Iterable[RatedLine],
    versions: Mapping[int, PriceVersion],
    hours: Sequence[CacheHour] = (),
    last_hour: int = 0,
    projects: Mapping[UUID, str] | None = None,
) -> Savings:
    """By model, from lines of usage: each prompt token at the uncached price of its version, lane and context tier; and
    by project, model and class what was read and written in the hours up to `last_hour` of the period.

    Corrections are left out: they are usage of another period.
    """
    sums: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for line in lines:
        if line.kind != "usage" or line.corrects_period or not (line.model and line.meter and line.price_version):
            continue
        of_model = sums[line.model]
        of_model["cost"] += line.exact_pico
        if line.meter == "output":
            of_model["uncached"] += line.exact_pico
            continue
        version = versions[line.price_version]
        of_model["uncached"] += line.units * version.price("uncached", line.lane or "standard", line.context_from)
        of_model["prompt"] += line.units
        for kind, name in (("read_", "read"), ("write_", "written")):
            if line.meter.startswith(kind):
                of_model[name] += line.units
    names = ("prompt", "read", "written", "cost", "uncached")
    return Savings(
        models=[
            ModelSavings(model=model, **{name: str(of_model[name]) for name in names})
            for model, of_model in sorted(sums.items())
        ],
        classes=_classes(hours, versions, last_hour, projects or {}),
    )


class _Class:
    """What is known of one class of one project and model."""

    def __init__(self) -> None:
        self.read: dict[int, int] = defaultdict(int)
        self.written: dict[int, int] = defaultdict(int)
        self.sums: dict[str, int] = defaultdict(int)

    def add(self, name: str, hour: CacheHour, version: PriceVersion) -> None:
        read, written = hour.read.get(name, 0), hour.written.get(name, 0)
        self.read[hour.hour] += read
        self.written[hour.hour] += written

        def price(meter: str) -> int | None:
            try:
                return version.price(meter, hour.lane, hour.context_from)
            except PriceMissing:
                return None

        uncached, reading, writing = (price(meter) or 0 for meter in ("uncached", f"read_{name}", f"write_{name}"))
        self.sums["read_saved"] += read * (uncached - reading)
        self.sums["write_cost"] += written * writing
        self.sums["write_extra"] += written * (writing - uncached)
        self.sums["once_read"] += written * (uncached - reading)
        shorter = price(f"write_{SHORTEST}")
        self.sums["shorter_cost"] += written * (writing if shorter is None else shorter)
        self.sums["again"] += written * ((writing if shorter is None else shorter) - reading)

    def unread(self, name: str, last_hour: int) -> int:
        """Written tokens that were certainly never read."""
        never = perhaps = 0
        for hour, tokens in self.written.items():
            until = hour + _REACH[name]
            if until > last_hour:
                continue  # may be read in the next period
            if any(self.read.get(later, 0) > 0 for later in range(hour, until + 1)):
                perhaps += tokens
            else:
                never += tokens
        return max(0, never) + max(0, perhaps - sum(self.read.values()))


def _classes(
    hours: Sequence[CacheHour], versions: Mapping[int, PriceVersion], last_hour: int, projects: Mapping[UUID, str]
) -> list[ClassSavings]:
    found: dict[tuple[UUID, str, str], _Class] = defaultdict(_Class)
    for hour in hours:
        for name in CLASSES:
            if (name in hour.read or name in hour.written) and hour.price_version in versions:
                found[hour.project_id, hour.model, name].add(name, hour, versions[hour.price_version])
    made = []
    order = sorted(found.items(), key=lambda each: (each[0][0].int, each[0][1], CLASSES.index(each[0][2])))
    for (project, model, name), of_class in order:
        written = sum(of_class.written.values())
        unread = min(max(written, 0), of_class.unread(name, last_hour))
        sums = of_class.sums
        figures = {
            "read": sum(of_class.read.values()),
            "written": written,
            "unread": unread,
            "unread_cost": unread * sums["write_cost"] // written if unread else 0,
            "unread_extra": unread * sums["write_extra"] // written if unread else 0,
        } | {field: sums[field] for field in _SUMS}
        texts = {field: str(value) for field, value in figures.items()}
        known = projects.get(project, str(project))
        made.append(ClassSavings(project_id=str(project), project=known, model=model, name=name, **texts))
    return made


_SUMS = ("read_saved", "write_cost", "write_extra", "once_read", "shorter_cost", "again")
