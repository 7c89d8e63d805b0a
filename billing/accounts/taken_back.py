"""What was taken back of an issued invoice: by credit notes, and by corrections of its period's usage after it closed.

Both give the same money back, so together they give back what the invoice charged at most. What corrections return to
promotional credit is left out: the invoice had not charged it.
"""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

import msgspec
from sqlalchemy import case, func, select
from sqlalchemy.ext.asyncio import AsyncSession

from billing.ledger.entries import Entry
from billing.money import minor_unit
from billing.tables.invoices import invoice
from billing.tables.money import ledger_entry, usage_fact

_MONEY = ("prepaid", "receivable")
"""Accounts of money that was paid or is owed."""


class TakenBack(msgspec.Struct, frozen=True):
    """An issued invoice, and what was taken back of it: all in pico-units, without tax."""

    invoice_id: UUID
    number: str
    currency: str
    charged: int
    credited: int
    corrected: int

    def allows(self, *, credited: int = 0, corrected: int = 0) -> bool:
        """Whether so much more can be credited or corrected. Lines are rounded: less than a minor unit is let pass."""
        taken_back = self.credited + credited + max(0, self.corrected + corrected)
        return taken_back < self.charged + minor_unit(self.currency)


def money_back(entries: Iterable[Entry]) -> int:
    """What a correction gives back of money, in pico-units; below 0 for one that takes more."""
    entries = list(entries)
    back = sum(entry.amount_pico for entry in entries if entry.credit in _MONEY)
    return back - sum(entry.amount_pico for entry in entries if entry.debit in _MONEY)


async def read_taken_back(session: AsyncSession, tenant_id: UUID, period: str) -> TakenBack | None:
    """What was taken back of the tenant's invoice of a period, in this transaction; None while none is issued.

    While the tenant's balance is locked, nobody else takes anything back.
    """
    row = invoice.c
    issued = (row.tenant_id == tenant_id, row.period == period, row.kind == "invoice")
    query = select(row.id, row.number, row.currency, row.net, row.carry_in, row.carry_out)
    query = query.where(*issued, row.state.not_in(("draft", "void")))
    sent = (await session.execute(query)).one_or_none()
    if sent is None:
        return None
    notes = select(func.coalesce(func.sum(row.net), 0))
    notes = notes.where(row.tenant_id == tenant_id, row.corrects == sent.id, row.state != "draft")
    unit = minor_unit(sent.currency)
    credited = int(await session.scalar(notes) or 0) * unit
    charged = sent.net * unit + int(sent.carry_out) - int(sent.carry_in)
    corrected = await _corrected(session, tenant_id, period)
    return TakenBack(sent.id, sent.number, sent.currency, charged, credited, corrected)


async def _corrected(session: AsyncSession, tenant_id: UUID, period: str) -> int:
    """What later periods' corrections of this period's usage gave back of money, in pico-units."""
    correction, corrected, entry = usage_fact.alias("correction"), usage_fact.alias("corrected"), ledger_entry.c
    amount = case((entry.credit.in_(_MONEY), entry.amount_pico), else_=-entry.amount_pico)
    query = (
        select(func.coalesce(func.sum(amount), 0))
        .select_from(correction)
        .join(corrected, corrected.c.id == correction.c.corrects)
        .join(ledger_entry, entry.txn_id == correction.c.id)
        .where(correction.c.corrects.is_not(None), correction.c.tenant_id == tenant_id, correction.c.period != period)
        .where(corrected.c.tenant_id == tenant_id, corrected.c.period == period)
        .where(entry.credit.in_(_MONEY) | entry.debit.in_(_MONEY))
    )
    return int(await session.scalar(query) or 0)
