"""What was taken back of a closed period: by credit notes for its invoice, by what rating returned of its usage, and by
corrections of that usage.

They give the same money back, so together they give back what was charged at most. Beside credit notes only money
counts: what corrections return to promotional credit the invoice had not charged.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from uuid import UUID

import msgspec
from sqlalchemy import ColumnElement, case, func, select
from sqlalchemy.ext.asyncio import AsyncSession

from billing.events.rollups import LIMB
from billing.ledger.entries import Entry
from billing.money import minor_unit
from billing.tables.invoices import ISSUED, invoice
from billing.tables.money import ledger_entry, ledger_txn, rollup_hour, usage_fact

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
    corrected = await _corrected(session, tenant_id, period, _MONEY)
    return TakenBack(sent.id, sent.number, sent.currency, charged, credited, corrected)


async def read_returnable(session: AsyncSession, tenant_id: UUID, period: str) -> int | None:
    """What corrections can give back of a period's usage, of which rating has returned a part; None if it has not.

    While the tenant's balance is locked, nobody else takes anything back.
    """
    entry, txn, hour = ledger_entry.c, ledger_txn.c, rollup_hour.c
    returns = select(func.sum(entry.amount_pico)).join_from(ledger_txn, ledger_entry, entry.txn_id == txn.id)
    returns = returns.where(txn.tenant_id == tenant_id, txn.kind == "return", txn.period == period)
    returned = await session.scalar(returns)
    if not returned:
        return None
    costs = select(func.sum(hour.cost_high), func.sum(hour.cost_low))
    costs = costs.where(hour.tenant_id == tenant_id, hour.period == period)
    high, low = (await session.execute(costs)).one()
    used = int(high or 0) * LIMB + int(low or 0) - await _late_corrections(session, tenant_id, period)
    return max(0, used - int(returned) - await _corrected(session, tenant_id, period, _PAYING))


async def _corrected(session: AsyncSession, tenant_id: UUID, period: str, accounts: Collection[str]) -> int:
    """What later periods' corrections of this period's usage gave back to these accounts, in pico-units."""
    entry = ledger_entry.c
    amount = case((entry.credit.in_(accounts), entry.amount_pico), else_=-entry.amount_pico)
    query = (
        select(func.coalesce(func.sum(amount), 0))
        .select_from(_CORRECTION)
        .join(_CORRECTED, _CORRECTED.c.id == _CORRECTION.c.corrects)
        .join(ledger_entry, entry.txn_id == _CORRECTION.c.id)
        .where(*_of(tenant_id), _CORRECTION.c.period != period, _CORRECTED.c.period == period)
        .where(entry.credit.in_(accounts) | entry.debit.in_(accounts))
    )
    return int(await session.scalar(query) or 0)


async def _late_corrections(session: AsyncSession, tenant_id: UUID, period: str) -> int:
    """What corrections of other periods' usage cost that are booked in this one, in pico-units."""
    query = (
        select(_CORRECTION.c.cost_pico)
        .join(_CORRECTED, _CORRECTED.c.id == _CORRECTION.c.corrects)
        .where(*_of(tenant_id), _CORRECTION.c.period == period, _CORRECTED.c.period != period)
    )
    return sum([int(cost) for cost in await session.scalars(query)])


def _of(tenant_id: UUID) -> list[ColumnElement[bool]]:
    """The SQL conditions of a tenant's corrections, for which there is an index, and of what they correct."""
    of_tenant = [side.c.tenant_id == tenant_id for side in (_CORRECTION, _CORRECTED)]
    return [_CORRECTION.c.corrects.is_not(None), *of_tenant]
