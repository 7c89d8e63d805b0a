"""Checking money against itself: what the balances say, what grants, events and holds add up to."""

from __future__ import annotations

from collections import defaultdict
from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy import func, select

from billing.audit_ledger import Finding, check_books
from billing.prices import PriceBook, PriceMissing, PriceVersion, UnknownPriceVersion
from billing.tables import balance, ended_hold, grant, hold, refused_settlement, usage_event
from billing.usage import COUNTS, METERS, Usage
from storage.database import Database

_CHUNK = 5000
_OF_EVENT = ("id", "tenant_id", "lane", "price_version", "context_from", "cost_pico")


async def check(database: Database) -> list[Finding]:
    """Everything that is wrong, in one snapshot. Running requests are not. Raises DatabaseUnavailable."""
    book = PriceBook(database)
    versions: dict[int, PriceVersion | None] = {}
    async with database.reading() as session:
        for version in await session.scalars(select(usage_event.c.price_version).distinct()):
            versions[version] = await _version(book, version)
        findings = await _refused(session)
        debits = await _events(session, versions, findings)
        credits_, held = await _grants(session), await _open_holds(session)
        await _balances(session, findings, credits_, debits, held)
        await check_books(session, findings)
        await _ended(session, findings)
    return findings


async def _version(book: PriceBook, version: int) -> PriceVersion | None:
    try:
        return await book.version(version)
    except UnknownPriceVersion:
        return None


async def _refused(session: Any) -> list[Finding]:
    rows = await session.execute(select(refused_settlement.c.request_id, refused_settlement.c.cause))
    return [Finding("a record was refused", request, cause) for request, cause in rows]


async def _events(session: Any, versions: dict[int, PriceVersion | None], findings: list[Finding]) -> dict[UUID, int]:
    """Check that each event's cost recomputes; return what each tenant's events cost."""
    debits: dict[UUID, int] = defaultdict(int)
    columns = [usage_event.c[name] for name in (*_OF_EVENT, *METERS)]
    rows = await session.stream(select(*columns).execution_options(yield_per=_CHUNK))
    async for row in rows:
        debits[row.tenant_id] += row.cost_pico
        usage = Usage.from_meters(dict(zip(METERS, row[len(_OF_EVENT) :], strict=True)))
        version = versions.get(row.price_version)
        try:
            tier = None if version is None else version.context_from(usage.prompt, row.lane)
            cost = None if version is None else version.cost(usage, row.lane)
        except PriceMissing:
            tier = cost = None
        if (tier, cost) != (row.context_from, row.cost_pico):
            detail = (
                f"it says {row.cost_pico} in the context tier from {row.context_from}, "
                f"its usage and price version {row.price_version} say {cost} from {tier}"
            )
            findings.append(Finding("an event's cost does not recompute", row.id, detail))
    return debits


async def _grants(session: Any) -> dict[UUID, int]:
    sums: dict[UUID, int] = defaultdict(int)
    async for tenant, amount in await session.stream(select(grant.c.tenant_id, grant.c.amount_pico)):
        sums[tenant] += amount
    return sums


async def _open_holds(session: Any) -> dict[UUID, int]:
    sums: dict[UUID, int] = defaultdict(int)
    query = select(hold.c.tenant_id, hold.c.amount_pico)
    async for tenant, amount in await session.stream(query):
        sums[tenant] += amount
    return sums


async def _balances(
    session: Any,
    findings: list[Finding],
    credits_: dict[UUID, int],
    debits: dict[UUID, int],
    held: dict[UUID, int],
) -> None:
    rows = {row.tenant_id: row for row in await session.execute(select(balance))}
    for tenant in sorted(rows.keys() | credits_.keys() | debits.keys() | held.keys()):
        row = rows.get(tenant)
        sides = (("credit", "grants", credits_), ("debit", "usage events", debits), ("held", "open holds", held))
        for side, name, sums in sides:
            found = 0 if row is None else getattr(row, side)
            if found != sums.get(tenant, 0):
                detail = f"{side} is {found}, the {name} add up to {sums.get(tenant, 0)}"
                findings.append(Finding("a balance is not the sum of its entries", tenant, detail))
        if row is not None and row.overdraft != max(0, row.debit + row.held - row.credit - row.credit_line):
            findings.append(Finding("a balance's overdraft is wrong", tenant, f"it is {row.overdraft}"))


async def _ended(session: Any, findings: list[Finding]) -> None:
    """Each hold there ever was is open, or ended once: by usage, released or expired."""
    for table, detail in ((usage_event.c.id, "it has usage"), (ended_hold.c.request_id, "it was released or expired")):
        both = await session.scalars(select(hold.c.request_id).where(hold.c.request_id == table))
        findings += [Finding("a hold that ended is still open", request, detail) for request in both]
    late = select(ended_hold.c.request_id).where(ended_hold.c.request_id == usage_event.c.id)
    sources = (hold.c.tenant_id, ended_hold.c.tenant_id, usage_event.c.tenant_id)
    found: dict[UUID, int] = defaultdict(int)
    for tenant in sources:
        counts = select(tenant, func.count()).group_by(tenant)
        if tenant is usage_event.c.tenant_id:
            counts = counts.where(~late.exists())
        for owner, count in await session.execute(counts):
            found[owner] += count
    for tenant, holds in await session.execute(select(balance.c.tenant_id, balance.c.holds)):
        if found[tenant] != holds:
            detail = f"{holds} were taken; {found[tenant]} are open, were settled, released or expired"
            findings.append(Finding("a tenant's holds did not each end once", tenant, detail))


class ReplicaCounts(msgspec.Struct, frozen=True):
    """What the events of one replica's requests add up to."""

    replica: str
    requests: int
    counts: dict[str, int]


async def counts_by_replica(database: Database) -> list[ReplicaCounts]:
    """For each replica, the sum of its events' counts, over all tenants: what its journal must say too."""
    of = usage_event.c
    sums = [func.sum(of[f"count_{name}"]).label(name) for name in COUNTS]
    query = select(of.replica, func.count().label("requests"), *sums).where(of.sequence > 0).group_by(of.replica)
    async with database.reading() as session:
        rows = (await session.execute(query.order_by(of.replica))).all()
    return [
        ReplicaCounts(row.replica, row.requests, {name: int(getattr(row, name)) for name in COUNTS}) for row in rows
    ]
