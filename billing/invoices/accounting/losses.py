"""Losses: what an invoice that is not collected does in the ledger.

A write-off books what is left of the invoice, with its VAT: it debits `bad_debt` and credits `written_off`. That stands
against `receivable` and `invoiced`. These two stay as they are, so that the tenant still owes the money and its credit
line stays used. VAT that nobody paid can be claimed back (article 90 of Directive 2006/112/EC), by an act of its own on
its own day: it debits `tax_relief`, which stands against `tax`, and credits `bad_debt`. What is paid or credited later
takes both back in proportion. So they follow from what is left of the invoice, and the audit computes them again.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from billing.invoices.accounting.posting import balanced_entries, post, step_id
from billing.invoices.store import InvoiceRecord
from billing.ledger.entries import Entry
from billing.money import minor_unit, round_half_up
from billing.tables.money import ledger_txn
from storage.database.database import Database

WRITE_OFF, VAT_RELIEF = "uncollectible", "vat_relief"
"""The steps of a document that book these."""


async def is_posted(session: AsyncSession, record: InvoiceRecord, step: str) -> bool:
    """Whether this step of the document was booked."""
    query = select(ledger_txn.c.id).where(
        ledger_txn.c.tenant_id == record.tenant_id, ledger_txn.c.id == step_id(record.id, step)
    )
    return await session.scalar(query) is not None


def write_off_entries(record: InvoiceRecord) -> list[Entry]:
    """The entries of writing off what is left."""
    return balanced_entries(("bad_debt", "written_off", record.left * minor_unit(record.currency)))


def vat_relief_entries(record: InvoiceRecord) -> list[Entry]:
    """The entries of claiming back the VAT on what is left."""
    vat = round_half_up(record.tax * record.left, record.gross) if record.gross else 0
    return balanced_entries(("tax_relief", "bad_debt", vat * minor_unit(record.currency)))


async def loss_entries(session: AsyncSession, record: InvoiceRecord) -> list[Entry]:
    """What the ledger has of an invoice's loss: nothing unless it is uncollectible and was written off."""
    if record.state != "uncollectible" or not await is_posted(session, record, WRITE_OFF):
        return []
    relieved = await is_posted(session, record, VAT_RELIEF)
    return write_off_entries(record) + (vat_relief_entries(record) if relieved else [])


async def post_recovery(
    database: Database, session: AsyncSession, before: InvoiceRecord, after: InvoiceRecord, step: str
) -> None:
    """Take back the part of a loss that a payment or a credit note covers. Call it before the state is written."""
    lost = await loss_entries(session, before)
    remaining = write_off_entries(after) + vat_relief_entries(after)
    await post(database, session, before, step, _taken_back(lost, remaining), memo=f"{before.name}: no loss any more")


def _taken_back(before: Sequence[Entry], remaining: Sequence[Entry]) -> list[Entry]:
    """Entries that take back what was lost before, but for what remains."""
    kept = {(entry.debit, entry.credit): entry.amount_pico for entry in remaining}
    return balanced_entries(
        *((loss.credit, loss.debit, loss.amount_pico - kept.get((loss.debit, loss.credit), 0)) for loss in before)
    )
