"""Checking cache storage: each hour must cost what its token-seconds and its price version say, and be billed whole."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from sqlalchemy import func, select

from billing.events.rollups import HOUR, LIMB
from billing.prices import EVERY_LANE, PriceMissing, UnknownPriceVersion
from billing.prices.version import STORAGE
from billing.rating.storage_hours import SECONDS_PER_HOUR
from billing.tables.invoices import invoice, invoice_line
from billing.tables.rating import storage_event
from billing.usage import period_of
from billing.verification.findings import AuditContext

_CHUNK = 5000


async def check_storage(scope: AuditContext) -> None:
    """Each hour of storage recomputes, and the storage lines of a period's invoice are its hours."""
    of = storage_event.c
    query = select(storage_event).where(scope.within(of.period))  # all tenants: an audit is of the whole house
    async for row in await scope.session.stream(query.execution_options(yield_per=_CHUNK)):
        cost = await _cost(scope, row)
        if row.hour % HOUR or row.period < period_of(row.hour) or row.cost_pico != cost:
            detail = f"{row.model}, hour {row.hour} of {row.period}: it says {row.cost_pico}, it comes to {cost}"
            scope.found("storage does not recompute", row.tenant_id, detail)
    await _check_invoiced(scope)


async def _cost(scope: AuditContext, row: Any) -> int | None:
    try:
        version = await scope.book.version(row.price_version)
        return int(row.token_seconds) * (version.price(STORAGE, EVERY_LANE, 0) // SECONDS_PER_HOUR)
    except (PriceMissing, UnknownPriceVersion):
        return None


async def _check_invoiced(scope: AuditContext) -> None:
    of, line, document = storage_event.c, invoice_line.c, invoice.c
    high, low = func.sum(of.token_seconds.op("/")(LIMB)), func.sum(of.token_seconds.op("%")(LIMB))
    sums = select(of.tenant_id, of.period, high, low).where(scope.within(of.period)).group_by(of.tenant_id, of.period)
    stored: dict[tuple[UUID, str], int] = {
        (tenant, period): int(quotients) * LIMB + int(rest)
        for tenant, period, quotients, rest in await scope.session.execute(sums)
    }
    standing = (document.kind == "invoice") & document.state.not_in(("draft", "void")) & scope.within(document.period)
    lines = select(line.invoice_id, func.sum(line.units)).where(line.kind == "storage").group_by(line.invoice_id)
    billed = {row[0]: int(row[1]) for row in await scope.session.execute(lines)}
    heads = select(document.id, document.number, document.tenant_id, document.period).where(standing)
    for row in await scope.session.execute(heads):
        seconds = stored.get((row.tenant_id, row.period), 0)
        if billed.get(row.id, 0) != seconds:
            detail = f"{row.number}: {billed.get(row.id, 0)} token-seconds are billed, {seconds} were stored"
            scope.found("an invoice is not the sum of its events", row.id, detail)
