"""Stored contract terms: each row is all of a tenant's terms from a period on. Rows never change; later ones follow."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy import insert, select
from sqlalchemy.ext.asyncio import AsyncSession

from audit_log.record import record_change
from billing.calendar import check_period, period_of
from billing.integrity.row_seals import seal_rows
from billing.pending_changes import propose_if_needed
from billing.prices import PriceCatalog, PriceMissing
from billing.prices.grid import amount
from billing.rating.commitment_accounts import read_commitment_lines, read_sent_periods
from billing.rating.commitments import preview
from billing.rating.lines import money_text
from billing.rating.schedules import read_schedule
from billing.rating.terms import ContractTerms, InvalidTerms, check_terms
from billing.tables.prices import contract_terms
from storage.database.base import from_instant
from storage.database.database import Database
from storage.free_text import NAME, REASON, check_text


class Contract(msgspec.Struct, frozen=True):
    """Terms as they were set: from which period on, by whom, and why."""

    id: int
    tenant_id: UUID
    from_period: str
    terms: ContractTerms
    author: str
    reason: str
    created_at: int


class TermsArguments(msgspec.Struct, frozen=True):
    """A change of terms, as it is kept until another person approves it."""

    tenant_id: UUID
    from_period: str
    terms: ContractTerms


class Contracts:
    """Reads and writes contract terms. Methods raise DatabaseUnavailable."""

    def __init__(self, database: Database, catalog: PriceCatalog) -> None:
        self._database = database
        self._catalog = catalog

    async def check(self, tenant_id: UUID, terms: ContractTerms, from_period: str) -> None:
        """Raise InvalidTerms or InvalidPeriod if the terms cannot begin then. Nothing is written."""
        _check_begins(from_period, await self._database.now())
        check_terms(terms)
        for n, tiers in enumerate(terms.tiers):
            try:
                version = await self._catalog.current(tiers.model, tenant_id=tenant_id)
                listed = version.price(tiers.meter, tiers.lane, 0)
            except PriceMissing as error:
                raise InvalidTerms(f"tiers[{n}]", str(error)) from error
            if any(step.price_micro > listed for step in tiers.steps):
                problem = f"no step can cost more than the list price of {amount(listed)}, at which requests are held"
                raise InvalidTerms(f"tiers[{n}].steps", problem)
        async with self._database.reading() as session:
            await _check_schedule(session, tenant_id, terms, from_period)

    async def put(self, tenant_id: UUID, terms: ContractTerms, from_period: str, by: str, reason: str = "") -> int:
        """Set a tenant's terms from a period on; return their number. A first minimum that is set within its month
        begins on that day, unless it says another. Raises as `check` does; ChangePending while it takes two people."""
        await self.check(tenant_id, terms, from_period)
        terms = await self._with_first_day(tenant_id, terms, from_period)
        arguments = TermsArguments(tenant_id, from_period, terms)
        summary = f"contract terms from {from_period} on{_commitment_in_words(terms)}"
        await propose_if_needed(self._database, "terms.set", arguments, summary, tenant_id=tenant_id, reason=reason)
        async with self._database.transaction() as session:
            return await self.put_in(session, arguments, by, reason)

    async def _with_first_day(self, tenant_id: UUID, terms: ContractTerms, from_period: str) -> ContractTerms:
        today, minimum = from_instant(await self._database.now()).date(), terms.minimum
        if minimum is None or minimum.first or today.day == 1 or from_period != today.isoformat()[:7]:
            return terms
        before = (await self.terms_of(tenant_id, from_period)).minimum
        first = today.isoformat() if before is None else before.first
        return msgspec.structs.replace(terms, minimum=msgspec.structs.replace(minimum, first=first))

    async def put_in(self, session: AsyncSession, arguments: TermsArguments, by: str, reason: str) -> int:
        """As `put`, in this transaction and without another person's approval. The caller has called `check` before the
        transaction: what it reads of prices is from other connections."""
        tenant_id, from_period, terms = arguments.tenant_id, arguments.from_period, arguments.terms
        _check_begins(from_period, await self._database.now_in(session))
        check_terms(terms)
        if not by.strip():
            raise InvalidTerms("by", "terms need the name of who sets them")
        check_text("by", by, NAME)
        check_text("reason", reason, REASON, empty=True)
        await _check_schedule(session, tenant_id, terms, from_period)
        values = {
            "tenant_id": tenant_id,
            "from_period": from_period,
            "body": msgspec.json.encode(terms).decode(),
            "author": by,
            "reason": reason,
            "created_at": self._database.clock,
        }
        made = await session.execute(insert(contract_terms).values(values).returning(contract_terms.c.id))
        number: int = made.scalar_one()
        await seal_rows(session, contract_terms, contract_terms.c.id == number)
        said = {"from": from_period, "terms": terms}
        await record_change(session, "terms.set", target="contract_terms", target_id=str(number),
                            tenant_id=tenant_id, reason=reason, after=said)  # fmt: skip
        return number

    async def terms_of(self, tenant_id: UUID, period: str) -> ContractTerms:
        """The terms that apply to a tenant's period. Raises InvalidPeriod."""
        check_period(period)
        async with self._database.reading() as session:
            return (await read_schedule(session, tenant_id)).terms_of(period)

    async def list(self, tenant_id: UUID | None = None) -> list[Contract]:
        """All terms of one tenant, or (None) of all tenants, in the order in which they begin."""
        columns = contract_terms.c
        query = select(contract_terms).order_by(columns.tenant_id, columns.from_period, columns.id)
        if tenant_id is not None:
            query = query.where(columns.tenant_id == tenant_id)
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


def _check_begins(from_period: str, now: int) -> None:
    """Raise InvalidTerms or InvalidPeriod unless terms can begin then."""
    if check_period(from_period) < period_of(now):
        raise InvalidTerms("from", f"{from_period} has passed; terms can begin in this period or a later one")


def _commitment_in_words(terms: ContractTerms) -> str:
    """What whoever approves terms is to see of their commitment: its amount, and what they record as paid."""
    commitment = terms.commitment
    if commitment is None:
        return ""
    of = f"{money_text(commitment.amount_pico)} for {commitment.first} to {commitment.last}"
    paid = ", ".join(f"{money_text(one.amount_pico)} paid by {one.reference}" for one in commitment.payments)
    return f", with a commitment of {of}{paid and f', {paid}'}"


async def _check_schedule(session: AsyncSession, tenant_id: UUID, terms: ContractTerms, from_period: str) -> None:
    """Raise InvalidTerms unless a tenant's schedule is sound with these terms, and no commitment is paid twice."""
    schedule = (await read_schedule(session, tenant_id)).with_terms(from_period, terms)
    schedule.check(from_period)
    if terms.commitment is None or not terms.commitment.payments:
        return
    lines, sent = await read_commitment_lines(session, tenant_id), await read_sent_periods(session, tenant_id)
    for month in preview(schedule, terms.commitment.first, lines, sent, {}):
        in_force = schedule.commitment_of(month.period)
        if in_force is not None and month.period >= from_period and month.funded > in_force.amount_pico:
            asked = money_text(month.funded - in_force.paid_pico)
            problem = f"they are more than is left: {asked} of {money_text(in_force.amount_pico)} is invoiced"
            raise InvalidTerms("commitment.payments", problem)
