"""Checks of what is counted by the hour: each hour's cost, and the lines of invoices."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from sqlalchemy import func, select

from billing.calendar import period_of
from billing.events.rollups import HOUR, LIMB
from billing.prices import PriceMissing, UnknownPriceVersion
from billing.rating.hourly_meters import HOURLY_METERS, HourlyMeter
from billing.tables.invoices import ISSUED, invoice, invoice_line
from billing.verification.findings import AuditContext

_CHUNK = 5000


async def check_hourly_meters(audit: AuditContext) -> None:
    """Each hour's cost follows from its units and price version; a period's invoice bills all its hours."""
    for meter in HOURLY_METERS:
        hour = meter.events.c
        # all tenants: an audit checks the whole installation
        query = select(meter.events).where(audit.within(hour.period))
        async for row in await audit.session.stream(query.execution_options(yield_per=_CHUNK)):
            cost = await _cost(audit, meter, row)
            if row.hour % HOUR or row.period < period_of(row.hour) or row.cost_pico != cost:
                detail = f"{row.model}, hour {row.hour} of {row.period}: it says {row.cost_pico}, it comes to {cost}"
                audit.report(f"{meter.kind} does not recompute", row.tenant_id, detail)
        await _check_invoiced(audit, meter)


async def _cost(audit: AuditContext, meter: HourlyMeter, row: Any) -> int | None:
    try:
        version = await audit.prices.version(row.price_version)
        return int(getattr(row, meter.counted)) * meter.price_of(version)
    except (PriceMissing, UnknownPriceVersion):
        return None


async def _check_invoiced(audit: AuditContext, meter: HourlyMeter) -> None:
    hour, line, document = meter.events.c, invoice_line.c, invoice.c
    high, low = func.sum(meter.units.op("/")(LIMB)), func.sum(meter.units.op("%")(LIMB))
    sums = (
        select(hour.tenant_id, hour.period, high, low)
        .where(audit.within(hour.period))
        .group_by(hour.tenant_id, hour.period)
    )
    counted: dict[tuple[UUID, str], int] = {
        (tenant, period): int(quotients) * LIMB + int(rest)
        for tenant, period, quotients, rest in await audit.session.execute(sums)
    }
    lines = select(line.invoice_id, func.sum(line.units)).where(line.kind == meter.kind).group_by(line.invoice_id)
    billed = {row[0]: int(row[1]) for row in await audit.session.execute(lines)}
    heads = select(document.id, document.number, document.tenant_id, document.period).where(
        ISSUED, audit.within(document.period)
    )
    for row in await audit.session.execute(heads):
        units = counted.get((row.tenant_id, row.period), 0)
        if billed.get(row.id, 0) != units:
            unit = meter.counted.replace("_", "-")
            detail = f"{row.number}: {billed.get(row.id, 0)} {unit} are billed, {units} were counted"
            audit.report("an invoice is not the sum of its events", row.id, detail)
