"""Everything that a tenant owes for a period: usage, storage, and what the contract's terms make of them."""

from __future__ import annotations

from uuid import UUID

import msgspec

from billing.prices import PriceBook
from billing.rating.applying import apply_terms, drawn, total
from billing.rating.lines import RatedLine
from billing.rating.storage import storage_lines
from billing.rating.term_store import Contracts
from billing.rating.terms import Commitment
from billing.rating.usage_lines import Source, usage_lines
from storage.database import Database


async def rated_lines(
    database: Database, book: PriceBook, tenant_id: UUID, period: str, *, source: Source = "rollups"
) -> list[RatedLine]:
    """The lines of one tenant's period, usage first, then storage, then terms. Raises as `usage_lines` does."""
    contracts = Contracts(database, book)
    terms = await contracts.of(tenant_id, period)
    lines = await usage_lines(database, book, tenant_id, period, source=source)
    lines += await storage_lines(database, book, tenant_id, period)
    before = 0
    if terms.commitment is not None:
        before = await _drawn_before(database, book, contracts, tenant_id, terms.commitment, period)
    return lines + apply_terms(lines, terms, period, before)


async def _drawn_before(
    database: Database, book: PriceBook, contracts: Contracts, tenant_id: UUID, commitment: Commitment, period: str
) -> int:
    """What earlier periods took of a commitment, rated again by the terms that each of them had."""
    before = 0
    month = commitment.first
    while month < period and month <= commitment.last:
        terms = msgspec.structs.replace(await contracts.of(tenant_id, month), commitment=None, minimum=None)
        lines = await usage_lines(database, book, tenant_id, month)
        lines += await storage_lines(database, book, tenant_id, month)
        net = total([*lines, *apply_terms(lines, terms, month)])
        before += drawn(commitment, net, month, before)
        month = _following(month)
    return before


def _following(period: str) -> str:
    year, month = map(int, period.split("-"))
    return f"{year + month // 12:04d}-{month % 12 + 1:02d}"
