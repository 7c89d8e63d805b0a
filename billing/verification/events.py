"""Single usage events: checks of cost, context tier and journal sequence, and what they say of leases."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncSession

from billing.prices import PriceMissing, PriceVersion, UnknownPriceVersion
from billing.tables.money import refused_settlement, usage_event
from billing.usage import LEASE_CLASSES, METERS, Usage
from billing.verification.findings import AuditContext
from storage.database.database import Database
from storage.database.sql_arrays import one_of

_CHUNK = 5000
_OF_EVENT = ("id", "lane", "price_version", "context_from", "cost_pico", "corrects")


async def check_refused(audit: AuditContext) -> None:
    """No settlement was refused."""
    rows = await audit.session.execute(select(refused_settlement.c.request_id, refused_settlement.c.cause))
    for request, cause in rows:
        audit.report("a record was refused", request, cause)


async def check_costs(audit: AuditContext) -> None:
    """Each event's cost and context tier follow from its usage and its price version."""
    within = audit.within(usage_event.c.period)  # all tenants: an audit checks the whole installation
    count = await audit.session.scalar(select(func.count()).select_from(usage_event).where(within)) or 0
    columns = [usage_event.c[name] for name in (*_OF_EVENT, *METERS)]
    rows = await audit.session.stream(select(*columns).where(within).execution_options(yield_per=_CHUNK))
    versions: dict[int, PriceVersion | None] = {}
    done = 0
    async for row in rows:
        done += 1
        if not done % _CHUNK:
            audit.progress("events", done, count)
        if row.price_version not in versions:
            versions[row.price_version] = await _version(audit, row.price_version)
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
            audit.report("an event's cost does not recompute", row.id, detail)


def _rated(row: Any, version: PriceVersion) -> tuple[int, int]:
    """The context tier and the cost of an event. An adjustment is priced in the tier of the event that it corrects."""
    units = dict(zip(METERS, row[len(_OF_EVENT) :], strict=True))
    if row.corrects is None:
        return version.rate(Usage.from_meters(units), row.lane)
    tier = row.context_from
    return tier, sum(more * version.price(meter, row.lane, tier) for meter, more in units.items() if more)


async def _version(audit: AuditContext, version: int) -> PriceVersion | None:
    try:
        return await audit.prices.version(version)
    except UnknownPriceVersion:
        return None


async def check_sequences(audit: AuditContext) -> None:
    """A journal's sequence number belongs to one request, over all tenants: otherwise usage was counted twice."""
    event = usage_event.c
    query = (
        select(event.replica, event.sequence, func.count())
        .where(event.sequence > 0, audit.within(event.period))
        .group_by(event.replica, event.sequence)
        .having(func.count() > 1)
    )
    for replica, sequence, requests in await audit.session.execute(query):
        detail = f"{replica}, sequence {sequence}: {requests} requests"
        audit.report("a journal sequence belongs to several requests", UUID(int=0), detail)


_OWNER = ("tenant_id", "project_id", "model", "admitted_at")


class PaidPrompt(msgspec.Struct, frozen=True):
    """What a request paid for its prompt. Its first tokens were `read`, by whatever lease. `written` are those after
    them by class, the longest-lived class first."""

    tenant_id: UUID
    project_id: UUID
    model: str
    admitted_at: int
    read: int
    written: dict[str, int]

    def paid_class(self, tokens: int) -> str | None:
        """The class by which the last of the prompt's first `tokens` tokens was written; None if it was not."""
        end = self.read
        for name, written in self.written.items() if tokens > end else ():
            end += written
            if tokens <= end:
                return name
        return None


async def read_paid_prompts(
    database: Database, session: AsyncSession, requests: Collection[UUID]
) -> dict[UUID, PaidPrompt]:
    """What those of these requests paid that have a usage event."""
    fact = usage_event.c
    reads, writes = ([fact[f"{kind}_{name}"] for name in LEASE_CLASSES] for kind in ("read", "write"))
    # all tenants: an audit checks the whole installation
    query = select(fact.id, *(fact[name] for name in _OWNER), *reads, *writes)
    prompts = {}
    for row in await session.execute(query.where(one_of(database, fact.id, requests))):
        said = row._mapping
        written = {name: int(said[f"write_{name}"]) for name in reversed(LEASE_CLASSES)}
        read = sum(int(said[f"read_{name}"]) for name in LEASE_CLASSES)
        prompts[row.id] = PaidPrompt(row.tenant_id, row.project_id, row.model, row.admitted_at, read, written)
    return prompts
