"""Checking the events one by one: each must cost what its usage and its price version say."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from sqlalchemy import func, select

from billing.prices import PriceMissing, PriceVersion, UnknownPriceVersion
from billing.tables.money import refused_settlement, usage_event
from billing.usage import METERS, Usage
from billing.verification.findings import AuditContext

_CHUNK = 5000
_OF_EVENT = ("id", "lane", "price_version", "context_from", "cost_pico", "corrects")


async def check_refused(scope: AuditContext) -> None:
    """No record was refused."""
    rows = await scope.session.execute(select(refused_settlement.c.request_id, refused_settlement.c.cause))
    for request, cause in rows:
        scope.found("a record was refused", request, cause)


async def check_costs(scope: AuditContext) -> None:
    """Each event's cost and context tier recompute."""
    within = scope.within(usage_event.c.period)  # all tenants: an audit is of the whole house
    count = await scope.session.scalar(select(func.count()).select_from(usage_event).where(within)) or 0
    columns = [usage_event.c[name] for name in (*_OF_EVENT, *METERS)]
    rows = await scope.session.stream(select(*columns).where(within).execution_options(yield_per=_CHUNK))
    versions: dict[int, PriceVersion | None] = {}
    done = 0
    async for row in rows:
        done += 1
        if not done % _CHUNK:
            scope.progress("events", done, count)
        if row.price_version not in versions:
            versions[row.price_version] = await _version(scope, row.price_version)
        version = versions[row.price_version]
        try:
            tier, cost = (None, None) if version is None else _rated(row, version)
        except PriceMissing:
            tier = cost = None
        if (tier, cost) != (row.context_from, row.cost_pico):
            detail = (
                f"it says {row.cost_pico} in the context tier from {row.context_from}, "
                f"its usage and price version {row.price_version} say {cost} from {tier}"
            )
            scope.found("an event's cost does not recompute", row.id, detail)


def _rated(row: Any, version: PriceVersion) -> tuple[int, int]:
    """The tier and cost of an event; an adjustment is priced in the tier of what it corrects."""
    units = dict(zip(METERS, row[len(_OF_EVENT) :], strict=True))
    if row.corrects is None:
        return version.rate(Usage.from_meters(units), row.lane)
    tier = row.context_from
    return tier, sum(more * version.price(meter, row.lane, tier) for meter, more in units.items() if more)


async def _version(scope: AuditContext, version: int) -> PriceVersion | None:
    try:
        return await scope.book.version(version)
    except UnknownPriceVersion:
        return None


async def check_sequences(scope: AuditContext) -> None:
    """A journal's sequence belongs to one request, over all tenants: one that comes twice was counted twice."""
    event = usage_event.c
    query = (
        select(event.replica, event.sequence, func.count())
        .where(event.sequence > 0, scope.within(event.period))
        .group_by(event.replica, event.sequence)
        .having(func.count() > 1)
    )
    for replica, sequence, requests in await scope.session.execute(query):
        detail = f"{replica}, sequence {sequence}: {requests} requests"
        scope.found("a journal sequence belongs to several requests", UUID(int=0), detail)
