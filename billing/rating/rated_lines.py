"""Rating a tenant's period: lines of usage and of hourly meters, and the lines that the contract's terms add.

What a commitment asks for and pays is not among them: that follows from the invoices that were issued until now
(`billing.rating.commitments`), and is added where an invoice is composed.
"""

from __future__ import annotations

from uuid import UUID

from billing.calendar import months, period_of
from billing.prices import PriceCatalog
from billing.rating.applying import apply_terms, total_before_minimum
from billing.rating.commitment_accounts import read_commitment_lines, read_sent_periods
from billing.rating.commitments import CommitmentMonth, preview
from billing.rating.contract_store import Contracts
from billing.rating.hourly_meters import HOURLY_METERS, hourly_lines
from billing.rating.lines import RatedLine
from billing.rating.schedules import Schedule, read_schedule
from billing.rating.terms import ContractTerms
from billing.rating.usage_lines import SumSource, usage_lines
from storage.database.database import Database


async def rated_lines(
    database: Database, catalog: PriceCatalog, tenant_id: UUID, period: str, *, source: SumSource = "rollups"
) -> list[RatedLine]:
    """The lines of one tenant's period: usage, then hourly meters, then terms. Raises as `usage_lines` does."""
    terms = await Contracts(database, catalog).terms_of(tenant_id, period)
    lines = await _used(database, catalog, tenant_id, period, source)
    return lines + apply_terms(lines, terms, period)


async def preview_commitment(
    database: Database, catalog: PriceCatalog, tenant_id: UUID, terms: ContractTerms, from_period: str
) -> list[CommitmentMonth]:
    """What a commitment's months ask for and draw once these terms are set; empty for terms without one.

    Raises as `Contracts.check` does, before which nobody should look at it.
    """
    if terms.commitment is None:
        return []
    async with database.reading() as session:
        now = period_of(await database.now_in(session))
        schedule = (await read_schedule(session, tenant_id)).with_terms(from_period, terms)
        lines, sent = await read_commitment_lines(session, tenant_id), await read_sent_periods(session, tenant_id)
    first = terms.commitment.first
    nets = {
        month: await _net(database, catalog, tenant_id, month, schedule)
        for month in months(first, min(now, terms.commitment.last))
        if month not in sent
    }
    return preview(schedule, first, lines, sent, nets)


async def _net(database: Database, catalog: PriceCatalog, tenant_id: UUID, period: str, schedule: Schedule) -> int:
    """What a commitment can pay of a period: its sum before the minimum, in pico-units."""
    lines = await _used(database, catalog, tenant_id, period, "rollups")
    return total_before_minimum(lines + apply_terms(lines, schedule.terms_of(period), period))


async def _used(
    database: Database, catalog: PriceCatalog, tenant_id: UUID, period: str, source: SumSource
) -> list[RatedLine]:
    lines = await usage_lines(database, catalog, tenant_id, period, source=source)
    for meter in HOURLY_METERS:
        lines += await hourly_lines(database, catalog, tenant_id, period, meter)
    return lines
