"""What a period read from the prompt cache and wrote to it, hour by hour, from the rollups."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy import func, or_, select

from billing.rollups import HOUR
from billing.tables.money import rollup_hour
from billing.usage import CLASSES, period_bounds
from storage.database import Database

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
