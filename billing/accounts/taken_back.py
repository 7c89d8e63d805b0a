"""What was taken back of a closed period: by credit notes for its invoice, by what rating returned of its usage, and by
corrections of that usage.

They give the same money back, so together they give back what was charged at most. Beside credit notes only money
counts: what corrections return to promotional credit the invoice had not charged.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from uuid import UUID

import msgspec
from sqlalchemy import ColumnElement, case, func, select
from sqlalchemy.ext.asyncio import AsyncSession

from billing.ledger.entries import Entry
from billing.money import minor_unit
from billing.tables.invoices import ISSUED, invoice
from billing.tables.money import ledger_entry, ledger_txn, usage_fact

_MONEY = ("prepaid", "receivable")
"""Accounts of money that was paid or is owed."""
_PAYING = (*_MONEY, "promo", "restricted")
"""Accounts that usage is paid from."""
_CORRECTION, _CORRECTED = usage_fact.alias("correction"), usage_fact.alias("corrected")


class TakenBack(msgspec.Struct, frozen=True):
    """An issued invoice, and what was taken back of it: all in pico-units, without tax.

    `charged` is the sum of its lines, or what they were rounded up to: credit notes are of minor units.
    """

    invoice_id: UUID
    number: str
    currency: str
    charged: int
    credited: int
    corrected: int

    def allows(self, *, credited: int = 0, corrected: int = 0) -> bool:
        """Whether so much more can be credited or corrected."""
        return self.credited + credited + max(0, self.corrected + corrected) <= self.charged


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
    query = select(row.id, row.number, row.currency, row.net, row.carry_in, row.carry_out)
    query = query.where(row.tenant_id == tenant_id, row.period == period, ISSUED)
    sent = (await session.execute(query)).one_or_none()
    if sent is None:
        return None
    notes = select(func.coalesce(func.sum(row.net), 0))
    notes = notes.where(row.tenant_id == tenant_id, row.corrects == sent.id, row.state != "draft")
    unit = minor_unit(sent.currency)
    credited = int(await session.scalar(notes) or 0) * unit
    charged = sent.net * unit + max(0, int(sent.carry_out) - int(sent.carry_in))
    corrected = await _corrected(session, tenant_id, period)
    return TakenBack(sent.id, sent.number, sent.currency, charged, credited, corrected)


async def read_paid(session: AsyncSession, tenant_id: UUID, period: str) -> dict[UUID | None, int]:
    """What each grant has paid for the usage of a period with its corrections, less what it got back; None stands for
    what was owed. In pico-units.

    While the tenant's balance is locked, nobody else takes anything back.
    """
    entry, txn = ledger_entry.c, ledger_txn.c
    paying = entry.debit.in_(_PAYING)
    amount = func.sum(case((paying, entry.amount_pico), else_=-entry.amount_pico))
    moved = select(entry.grant_id, amount).where(entry.tenant_id == tenant_id, paying | entry.credit.in_(_PAYING))
    posted = moved.join_from(ledger_txn, ledger_entry, entry.txn_id == txn.id).where(
        txn.tenant_id == tenant_id, txn.period == period, txn.kind.in_(("usage", "return"))
    )
    corrections = (
        moved.select_from(_CORRECTION)
        .join(_CORRECTED, _CORRECTED.c.id == _CORRECTION.c.corrects)
        .join(ledger_entry, entry.txn_id == _CORRECTION.c.id)
        .where(*_of(tenant_id), _CORRECTED.c.period == period)
    )
    paid: dict[UUID | None, int] = defaultdict(int)
    for query in (posted, corrections):
        for grant_id, pico in await session.execute(query.group_by(entry.grant_id)):
            paid[grant_id] += int(pico)
    return paid


async def _corrected(session: AsyncSession, tenant_id: UUID, period: str) -> int:
    """What later periods' corrections of this period's usage gave back of money, in pico-units."""
    entry = ledger_entry.c
    amount = case((entry.credit.in_(_MONEY), entry.amount_pico), else_=-entry.amount_pico)
    query = (
        select(func.coalesce(func.sum(amount), 0))
        .select_from(_CORRECTION)
        .join(_CORRECTED, _CORRECTED.c.id == _CORRECTION.c.corrects)
        .join(ledger_entry, entry.txn_id == _CORRECTION.c.id)
        .where(*_of(tenant_id), _CORRECTION.c.period != period, _CORRECTED.c.period == period)
        .where(entry.credit.in_(_MONEY) | entry.debit.in_(_MONEY))
    )
    return int(await session.scalar(query) or 0)


def _of(tenant_id: UUID) -> list[ColumnElement[bool]]:
    """The SQL conditions of a tenant's corrections, for which there is an index, and of what they correct."""
    of_tenant = [side.c.tenant_id == tenant_id for side in (_CORRECTION, _CORRECTED)]
    return [_CORRECTION.c.corrects.is_not(None), *of_tenant]
