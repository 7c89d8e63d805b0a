"""Rating a tenant's period: lines of usage and storage, and the lines that the contract's terms add."""

from __future__ import annotations

from uuid import UUID

import msgspec

from billing.calendar import following_period
from billing.prices import PriceCatalog
from billing.rating.applying import apply_terms, drawn, total
from billing.rating.contract_store import Contracts
from billing.rating.lines import RatedLine
from billing.rating.storage_hours import storage_lines
from billing.rating.usage_lines import SumSource, usage_lines
from storage.database.database import Database


async def rated_lines(
    database: Database, catalog: PriceCatalog, tenant_id: UUID, period: str, *, source: SumSource = "rollups"
) -> list[RatedLine]:
    """The lines of one tenant's period: usage, then storage, then terms. Raises as `usage_lines` does."""
    terms = await Contracts(database, catalog).terms_of(tenant_id, period)
    lines = await usage_lines(database, catalog, tenant_id, period, source=source)
    lines += await storage_lines(database, catalog, tenant_id, period)
    before = 0
    if terms.commitment is not None:
        month = terms.commitment.first
        while month < period and month <= terms.commitment.last:
            net = await _net(database, catalog, tenant_id, month)
            before += drawn(terms.commitment, net, month, before)
            month = following_period(month)
    return lines + apply_terms(lines, terms, period, before)


async def _net(database: Database, catalog: PriceCatalog, tenant_id: UUID, period: str) -> int:
    """The sum of an earlier period by its own terms, before its minimum and any commitment, in pico-units."""
    terms = msgspec.structs.replace(
        await Contracts(database, catalog).terms_of(tenant_id, period), commitment=None, minimum=None
    )
    lines = await usage_lines(database, catalog, tenant_id, period)
    lines += await storage_lines(database, catalog, tenant_id, period)
    return total([*lines, *apply_terms(lines, terms, period)])
