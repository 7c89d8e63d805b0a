"""Checks of cache storage: each hour's cost, and the storage lines of invoices."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from sqlalchemy import func, select

from billing.calendar import period_of
from billing.events.rollups import HOUR, LIMB
from billing.prices import EVERY_LANE, PriceMissing, UnknownPriceVersion
from billing.prices.version import STORAGE
from billing.rating.storage_hours import SECONDS_PER_HOUR
from billing.tables.invoices import ISSUED, invoice, invoice_line
from billing.tables.prices import storage_event
from billing.verification.findings import AuditContext

_CHUNK = 5000


async def check_storage(audit: AuditContext) -> None:
    """Each hour's cost follows from its token-seconds and price version; a period's invoice bills all its hours."""
    hour = storage_event.c
    # all tenants: an audit checks the whole installation
    query = select(storage_event).where(audit.within(hour.period))
    async for row in await audit.session.stream(query.execution_options(yield_per=_CHUNK)):
        cost = await _cost(audit, row)
        if row.hour % HOUR or row.period < period_of(row.hour) or row.cost_pico != cost:
            detail = f"{row.model}, hour {row.hour} of {row.period}: it says {row.cost_pico}, it comes to {cost}"
            audit.report("storage does not recompute", row.tenant_id, detail)
    await _check_invoiced(audit)


async def _cost(audit: AuditContext, row: Any) -> int | None:
    try:
        version = await audit.prices.version(row.price_version)
        return int(row.token_seconds) * (version.price(STORAGE, EVERY_LANE, 0) // SECONDS_PER_HOUR)
    except (PriceMissing, UnknownPriceVersion):
        return None


async def _check_invoiced(audit: AuditContext) -> None:
    hour, line, document = storage_event.c, invoice_line.c, invoice.c
    high, low = func.sum(hour.token_seconds.op("/")(LIMB)), func.sum(hour.token_seconds.op("%")(LIMB))
    sums = (
        select(hour.tenant_id, hour.period, high, low)
        .where(audit.within(hour.period))
        .group_by(hour.tenant_id, hour.period)
    )
    stored: dict[tuple[UUID, str], int] = {
        (tenant, period): int(quotients) * LIMB + int(rest)
        for tenant, period, quotients, rest in await audit.session.execute(sums)
    }
    lines = select(line.invoice_id, func.sum(line.units)).where(line.kind == "storage").group_by(line.invoice_id)
    billed = {row[0]: int(row[1]) for row in await audit.session.execute(lines)}
    heads = select(document.id, document.number, document.tenant_id, document.period).where(
        ISSUED, audit.within(document.period)
    )
    for row in await audit.session.execute(heads.where(ISSUED, audit.within(document.period))):
        seconds = stored.get((row.tenant_id, row.period), 0)
        if billed.get(row.id, 0) != seconds:
            detail = f"{row.number}: {billed.get(row.id, 0)} token-seconds are billed, {seconds} were stored"
            audit.report("an invoice is not the sum of its events", row.id, detail)
