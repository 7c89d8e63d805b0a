"""Contract terms in the database: all of a tenant's terms from a period on, never changed, only followed by others."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy import insert, select

from billing.calendar import check_period, period_of
from billing.integrity.row_seals import seal_rows
from billing.prices import PriceCatalog, PriceMissing
from billing.prices.grid import amount
from billing.rating.terms import ContractTerms, InvalidTerms
from billing.tables.rating import contract_terms
from storage.database.database import Database
from storage.free_text import NAME, REASON, check_text


class Contract(msgspec.Struct, frozen=True):
    """Terms as they were written down, by whom and why."""

    id: int
    tenant_id: UUID
    from_period: str
    terms: ContractTerms
    author: str
    reason: str
    created_at: int


class Contracts:
    """The terms of tenants."""

    def __init__(self, database: Database, catalog: PriceCatalog) -> None:
        self._database = database
        self._book = catalog

    async def check(self, tenant_id: UUID, terms: ContractTerms, from_period: str) -> None:
        """Raise InvalidTerms, InvalidPeriod if the terms cannot begin then; write nothing."""
        if check_period(from_period) < period_of(await self._database.now()):
            raise InvalidTerms("from", f"{from_period} has passed; terms begin in this period or a later one")
        for n, tiers in enumerate(terms.tiers):
            try:
                version = await self._book.current(tiers.model, tenant_id=tenant_id)
                listed = version.price(tiers.meter, tiers.lane, 0)
            except PriceMissing as error:
                raise InvalidTerms(f"tiers[{n}]", str(error)) from error
            if any(step.price_micro > listed for step in tiers.steps):
                problem = f"no step can cost more than the list price of {amount(listed)}, which requests are held at"
                raise InvalidTerms(f"tiers[{n}].steps", problem)

    async def put(self, tenant_id: UUID, terms: ContractTerms, from_period: str, by: str, reason: str = "") -> int:
        """Write down a tenant's terms from a period on; return their number. Raises as `check` does."""
        await self.check(tenant_id, terms, from_period)
        if not by.strip():
            raise InvalidTerms("by", "terms need the name of who sets them")
        check_text("by", by, NAME)
        check_text("reason", reason, REASON, empty=True)
        values = {
            "tenant_id": tenant_id,
            "from_period": from_period,
            "body": msgspec.json.encode(terms).decode(),
            "author": by,
            "reason": reason,
            "created_at": self._database.clock,
        }
        async with self._database.transaction() as session:
            made = await session.execute(insert(contract_terms).values(values).returning(contract_terms.c.id))
            number: int = made.scalar_one()
            await seal_rows(session, contract_terms, contract_terms.c.id == number)
        return number

    async def of(self, tenant_id: UUID, period: str) -> ContractTerms:
        """The terms of a tenant's period. Raises InvalidPeriod."""
        of = contract_terms.c
        query = (
            select(of.body)
            .where(of.tenant_id == tenant_id, of.from_period <= check_period(period))
            .order_by(of.from_period.desc(), of.id.desc())
            .limit(1)
        )
        async with self._database.reading() as session:
            body = (await session.execute(query)).scalar_one_or_none()
        return ContractTerms() if body is None else msgspec.json.decode(body, type=ContractTerms)

    async def list(self, tenant_id: UUID | None = None) -> list[Contract]:
        """Terms of one tenant or of all, in the order in which they begin."""
        of = contract_terms.c
        query = select(contract_terms).order_by(of.tenant_id, of.from_period, of.id)
        if tenant_id is not None:
            query = query.where(of.tenant_id == tenant_id)
        async with self._database.reading() as session:
            rows: Any = (await session.execute(query)).all()
        return [
            Contract(
                id=row.id,
                tenant_id=row.tenant_id,
                from_period=row.from_period,
                terms=msgspec.json.decode(row.body, type=ContractTerms),
                author=row.author,
                reason=row.reason,
                created_at=row.created_at,
            )
            for row in rows
        ]
