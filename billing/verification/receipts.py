"""Checks of receipts: each closed day is its events, no day is missing, and invoices have the roots of their days."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from uuid import UUID

import msgspec
from sqlalchemy import select

from billing.calendar import period_bounds
from billing.invoices.document import DayRoot
from billing.receipts.day_files import DAY, ClosedDay, EventMissing, closed_days, day_name, file_of, filed_events
from billing.tables.invoices import ISSUED, invoice
from billing.tables.receipts import receipt_day
from billing.verification.findings import AuditContext

_DAYS = "a day of receipts is not its events"


class _Roots(msgspec.Struct):
    """The part of an invoice's content that is compared."""

    receipts: list[DayRoot] = []


async def check_receipts(audit: AuditContext) -> None:
    """The files of all closed days come out as they were closed; invoices have their roots."""
    invoiced = await _roots_on_invoices(audit)
    # all tenants: an audit checks the whole installation
    of_periods = select(receipt_day.c.tenant_id, receipt_day.c.period).where(audit.within(receipt_day.c.period))
    periods = (await audit.session.execute(of_periods.distinct())).all()
    for tenant, period in sorted((row.tenant_id, row.period) for row in periods):
        days = await closed_days(audit.session, tenant, period)
        await _check_days(audit, days)
        for number, roots in invoiced.pop((tenant, period), []):
            if roots != [(day.day, day.events, str(day.cost_pico), day.root.hex()) for day in days]:
                audit.report("an invoice has other receipts", tenant, f"{number}: its days of {period} are others")
    for (tenant, period), invoices in sorted(invoiced.items()):
        for number, _ in invoices:
            audit.report("an invoice has other receipts", tenant, f"{number}: no day of {period} is there")


async def _roots_on_invoices(
    audit: AuditContext,
) -> dict[tuple[UUID, str], list[tuple[str, list[tuple[str, int, str, str]]]]]:
    roots: dict[tuple[UUID, str], list[tuple[str, list[tuple[str, int, str, str]]]]] = defaultdict(list)
    row = invoice.c
    query = select(row.tenant_id, row.period, row.number, row.content).where(ISSUED, audit.within(row.period))
    for found in await audit.session.execute(query):
        days = msgspec.json.decode(found.content, type=_Roots).receipts
        if days:
            said = [(day.day, day.events, day.cost, day.root) for day in days]
            roots[found.tenant_id, found.period].append((found.number, said))
    return roots


async def _check_days(audit: AuditContext, days: Sequence[ClosedDay]) -> None:
    """The days of a tenant's period follow each other from its first on, and each has the events of its file."""
    first = period_bounds(days[0].period)[0] // DAY
    before: ClosedDay | None = None
    for place, closed in enumerate(days):
        if closed.day != day_name(first + place):
            detail = f"{closed.day} stands where {day_name(first + place)} should"
            audit.report("a day of receipts is missing", closed.tenant_id, detail)
            return
        try:
            file = await file_of(filed_events(audit.database, audit.session, closed, before))
        except EventMissing as error:
            audit.report(_DAYS, closed.tenant_id, f"{closed.day}: {error}")
        else:
            if file != (closed.events, closed.late, closed.cost_pico, closed.root):
                detail = (
                    f"{closed.day}: it had {closed.events} events of {closed.cost_pico}, and has {file[0]} of {file[2]}"
                )
                audit.report(_DAYS, closed.tenant_id, f"{detail}, or they say other things")
        before = closed
