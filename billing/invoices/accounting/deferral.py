"""Deferred revenue of commitments: what an invoice asks for one is owed in service until it pays for usage.

| what happens | debit | credit |
|---|---|---|
| an invoice asks for the commitment | `charges` (which the invoice credits) | `deferred` |
| the commitment pays usage | `deferred` | `charges` (which the line lowers) |
| a credit note takes back what was asked | `deferred` | `credited` |
| a credit note takes back what was paid | `credited` | `deferred` |
| the commitment has ended | `deferred` | `breakage` |

Documents say what they defer less what they earn. It never earns more than was deferred: what was paid for in another
way than by an invoice is in no account of ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

import msgspec
from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncSession

from billing.calendar import months
from billing.invoices.document import Document, InvoiceLine
from billing.invoices.errors import NoProfile
from billing.invoices.parties.store import lock_documents
from billing.invoices.store import InvoiceRecord
from billing.ledger.entries import Entry, Transaction
from billing.rating.commitment_accounts import read_sent_periods
from billing.rating.hourly_meters import HOURLY_METERS
from billing.rating.lines import RatedLine
from billing.rating.schedules import Schedule, read_schedule
from billing.tables.books import billing_period
from billing.tables.invoices import invoice, invoice_line
from billing.tables.money import ledger_entry, ledger_txn, rollup_hour
from billing.tables.prices import contract_terms
from billing.transaction.opening import recorded_money_transaction
from storage.database.base import new_id
from storage.database.database import Database


def with_deferral(document: Document, pico: int) -> Document:
    """The document with what it defers."""
    return msgspec.structs.replace(document, deferred=str(pico) if pico else msgspec.UNSET)


async def deferred_by_invoice(
    session: AsyncSession, tenant_id: UUID, period: str, committed: Sequence[RatedLine]
) -> int:
    """What a period's invoice defers with these lines of its commitment, less what it earns, in pico-units."""
    if not committed:
        return 0
    schedule = await read_schedule(session, tenant_id)
    commitment = schedule.commitment_of(period)
    before = 0 if commitment is None else await read_deferred(session, tenant_id, schedule, commitment.first)
    asked = sum(line.exact_pico for line in committed if line.exact_pico > 0)
    drawn = -sum(line.exact_pico for line in committed if line.exact_pico < 0)
    return asked - min(drawn, max(0, before + asked))


async def deferred_by_note(session: AsyncSession, record: InvoiceRecord, lines: Sequence[InvoiceLine]) -> int:
    """What a credit note with these lines defers again, or below 0 takes back of what is deferred, in pico-units."""
    committed = sum(int(line.exact) for line in lines if line.kind == "commitment")
    if not committed:
        return 0
    schedule = await read_schedule(session, record.tenant_id)
    commitment = schedule.terms_of(record.period).commitment
    if commitment is None:
        return 0
    if committed > 0:
        return -min(committed, max(0, await read_deferred(session, record.tenant_id, schedule, commitment.first)))
    return min(-committed, await _earned(session, record))


async def _earned(session: AsyncSession, record: InvoiceRecord) -> int:
    """What an invoice earned of a commitment, less what its credit notes have taken back of that."""
    line, row = invoice_line.c, invoice.c
    asked = select(func.coalesce(func.sum(line.exact_pico), 0)).where(
        line.tenant_id == record.tenant_id,
        line.invoice_id == record.id,
        line.kind == "commitment",
        line.exact_pico > 0,
    )
    taken_back = select(func.coalesce(func.sum(row.deferred_pico), 0)).where(
        row.tenant_id == record.tenant_id, row.corrects == record.id, row.deferred_pico > 0, row.state != "draft"
    )
    sums = [int(await session.scalar(query) or 0) for query in (asked, taken_back)]
    return max(0, sums[0] - record.deferred_pico - sums[1])


async def read_deferred(session: AsyncSession, tenant_id: UUID, schedule: Schedule, first: str) -> int:
    """What is deferred of the commitment that begins in a period: by documents, less what lapsed, in pico-units."""
    row = invoice.c
    counts = row.state.not_in(("draft", "void"))
    query = select(row.period, func.sum(row.deferred_pico)).where(row.tenant_id == tenant_id, counts)
    deferred = 0
    for period, pico in await session.execute(query.group_by(row.period)):
        commitment = schedule.terms_of(period).commitment
        if commitment is not None and commitment.first == first:
            deferred += int(pico)
    return deferred - await _lapsed(session, tenant_id, first)


async def _lapsed(session: AsyncSession, tenant_id: UUID, first: str) -> int:
    entry, txn = ledger_entry.c, ledger_txn.c
    query = select(func.coalesce(func.sum(entry.amount_pico), 0)).join_from(
        ledger_txn, ledger_entry, entry.txn_id == txn.id
    )
    mine = (txn.tenant_id == tenant_id, txn.kind == "lapse", txn.memo == _memo(first))
    return int(await session.scalar(query.where(*mine)) or 0)


def _memo(first: str) -> str:
    return f"commitment of {first}"


async def earn_lapsed_commitments(database: Database) -> int:
    """Earn what commitments that have ended did not pay: the worker's. From how many something was earned.

    A commitment has ended when its last period is closed and invoiced, or has nothing to invoice.
    """
    async with database.reading() as session:
        tenants = list(await session.scalars(select(contract_terms.c.tenant_id).distinct()))
    earned = 0
    for tenant_id in tenants:
        async with database.reading() as session:
            ended = [first for first, pico in await _ended(session, tenant_id) if pico > 0]
        if not ended:
            continue
        async with recorded_money_transaction(database) as (session, money):
            try:
                await lock_documents(database, session, tenant_id)
            except NoProfile:
                continue
            (found,) = (await money.lock([tenant_id])).values()
            for first, pico in await _ended(session, tenant_id):
                if pico > 0:
                    entries = [Entry("deferred", "breakage", pico)]
                    posted = Transaction(new_id(), tenant_id, found.currency, "lapse", "", entries, _memo(first))
                    await money.save([found], [posted])
                    earned += 1
    return earned


async def _ended(session: AsyncSession, tenant_id: UUID) -> list[tuple[str, int]]:
    """The tenant's commitments that have ended, and what is deferred of each."""
    schedule = await read_schedule(session, tenant_id)
    commitments = {row.terms.commitment.first for row in schedule.rows if row.terms.commitment is not None}
    sent = await read_sent_periods(session, tenant_id) if commitments else set()
    ended = []
    for first in sorted(commitments):
        latest = schedule.latest(first)
        assert latest is not None, "it is in the schedule"
        closed = select(billing_period.c.state).where(billing_period.c.period == latest.last)
        if await session.scalar(closed) != "closed":
            continue
        own_months = months(first, latest.last)
        if all([one in sent or not await _is_billable(session, tenant_id, one) for one in own_months]):
            ended.append((first, await read_deferred(session, tenant_id, schedule, first)))
    return ended


async def _is_billable(session: AsyncSession, tenant_id: UUID, period: str) -> bool:
    for table in (rollup_hour, *(meter.events for meter in HOURLY_METERS)):
        row = table.c
        query = select(row.period).where(row.tenant_id == tenant_id, row.period == period).limit(1)
        if await session.scalar(query) is not None:
            return True
    return False
