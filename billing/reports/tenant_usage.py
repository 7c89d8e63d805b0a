"""Usage of several tenants in a span of whole hours, from the roll-ups alone."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Literal
from uuid import UUID

import msgspec
from sqlalchemy import func, select

from billing.calendar import period_of
from billing.events.rollups import LIMB, SUMS
from billing.tables.money import price_version, rollup_hour
from billing.usage import METERS
from storage.database.database import Database
from storage.database.sql_arrays import one_of

TenantGroup = Literal["project_id", "model", "lane"]


class TenantUsage(msgspec.Struct, frozen=True):
    """One tenant's usage, of one group: tokens by meter (those that are not 0) and the exact cost in pico-units.
    `drafted` and `accepted`: tokens of drafts, which cost nothing."""

    tenant_id: UUID
    group: dict[str, Any]
    currency: str
    requests: int
    meters: dict[str, int]
    cost_pico: int
    drafted: int = 0
    accepted: int = 0


async def usage_of_tenants(
    database: Database,
    tenant_ids: Collection[UUID],
    *,
    start_at: int,
    end_at: int,
    group_by: Sequence[TenantGroup] = (),
) -> list[TenantUsage]:
    """The usage of these tenants admitted from `start_at` (included) to `end_at` (excluded), both the first instants of
    hours in microseconds since the Unix epoch. Raises DatabaseUnavailable."""
    column = rollup_hour.c
    keys = [column.tenant_id, *(column[name] for name in group_by), column.price_version]
    sums = [func.sum(column[name]).label(name) for name in SUMS]
    where = (
        one_of(database, column.tenant_id, list(tenant_ids)),
        column.period >= period_of(start_at),  # none is booked before its admission
        column.hour >= start_at,
        column.hour < end_at,
    )
    parts = select(*keys, *sums).where(*where).group_by(*keys).subquery().c
    groups = (parts.tenant_id, *(parts[name] for name in group_by), price_version.c.currency)
    query = (
        select(*groups, *(func.sum(parts[name]).label(name) for name in SUMS))
        .join(price_version, price_version.c.id == parts.price_version)
        .group_by(*groups)
        .order_by(*groups)
    )
    async with database.reading() as session:
        rows = (await session.execute(query)).all()
    return [
        TenantUsage(
            tenant_id=row.tenant_id,
            group={name: getattr(row, name) for name in group_by},
            currency=row.currency,
            requests=int(row.requests),
            meters={meter: int(tokens) for meter in METERS if (tokens := getattr(row, meter))},
            cost_pico=int(row.cost_high) * LIMB + int(row.cost_low),
            drafted=int(row.drafted),
            accepted=int(row.accepted),
        )
        for row in rows
    ]
