"""How a tenant's usage was paid for, as the ledger says it: what was given, what was paid before any invoice asked.

What is paid counts for the oldest usage first. So a payment in advance, or one that came before the invoice, lowers
what the invoice asks for; a payment for an invoice settles that invoice and no other.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any
from uuid import UUID

from sqlalchemy import ColumnElement, func, select
from sqlalchemy.ext.asyncio import AsyncSession

from billing.invoices.composing import Funding
from billing.ledger import OF_EVENTS
from billing.rollups import LIMB
from billing.tables.invoices import invoice
from billing.tables.money import balance, ledger_entry, ledger_txn, rollup_hour

_GIVEN = ("promo", "restricted")


class Standing(Funding, frozen=True):
    """Funding, and the currency of the tenant's balance; None if it never had money."""

    currency: str | None = None


async def standing(session: AsyncSession, tenant_id: UUID, period: str, used: int) -> Standing:
    """How usage of `used` pico-units in this period, and all that was invoiced before, was paid for until now."""
    carry, prepaid_carry, usage, promo, prepaid, settled = await _invoiced(session, tenant_id)
    row = (await session.execute(select(balance).where(balance.c.tenant_id == tenant_id))).one_or_none()
    if row is None:
        return Standing(0, 0, carry, prepaid_carry, None)
    by_period = await _given(session, tenant_id)
    given_here = by_period.get(period, 0)
    paid = _paid(row, by_period, settled)
    until_here = usage + used - promo - given_here
    return Standing(given_here, min(until_here, paid) - prepaid, carry, prepaid_carry, row.currency)


async def of_uninvoiced(session: AsyncSession, tenant_id: UUID, period: str) -> tuple[int, int, int]:
    """Of a period's usage that no invoice has billed yet, in pico-units: what it costs, what of that was given and what
    was paid in advance; less than 0 where more of earlier usage is taken back than is used."""
    _, _, _, _, prepaid, settled = await _invoiced(session, tenant_id)
    row = (await session.execute(select(balance).where(balance.c.tenant_id == tenant_id))).one_or_none()
    if row is None:
        return 0, 0, 0
    of, by_period = rollup_hour.c, await _given(session, tenant_id)
    billed = select(invoice.c.period).where(*_counts(tenant_id))
    used = select(of.period, func.sum(of.cost_high), func.sum(of.cost_low)).group_by(of.period)
    used = used.where(of.tenant_id == tenant_id, of.period <= period, of.period.not_in(billed))
    to_pay = {
        month: int(high) * LIMB + int(low) - by_period.get(month, 0) for month, high, low in await session.execute(used)
    }
    here = to_pay.pop(period, 0)
    left = _paid(row, by_period, settled) - prepaid - sum(to_pay.values())
    given = by_period.get(period, 0)
    return here + given, given, max(0, min(left, here)) if here > 0 else min(0, max(left, here))


def _paid(row: Any, given: dict[str, int], settled: int) -> int:
    """What of all usage was paid, but not for an invoice."""
    return int(row.debit) - sum(given.values()) - int(row.receivable) - settled


def _counts(tenant_id: UUID) -> tuple[ColumnElement[bool], ...]:
    """Which documents have billed something."""
    of = invoice.c
    return of.tenant_id == tenant_id, of.kind == "invoice", of.state.not_in(("draft", "void"))


async def _invoiced(session: AsyncSession, tenant_id: UUID) -> tuple[int, ...]:
    """What the tenant's finalized invoices come to: both carries, usage, what was given, paid in advance, settled."""
    of = invoice.c
    sums = [
        of.carry_out - of.carry_in,
        of.prepaid_carry_out - of.prepaid_carry_in,
        of.usage_pico,
        of.promo_pico,
        of.prepaid_pico,
        of.settled_pico,
    ]
    query = select(*(func.coalesce(func.sum(each), 0) for each in sums)).where(*_counts(tenant_id))
    return tuple(int(value) for value in (await session.execute(query)).one())


async def _given(session: AsyncSession, tenant_id: UUID) -> dict[str, int]:
    """What of each period's usage was given for nothing."""
    entry, txn = ledger_entry.c, ledger_txn.c
    query = (
        select(txn.period, entry.debit, func.sum(entry.amount_pico))
        .join(ledger_txn, txn.id == entry.txn_id)
        .where(entry.tenant_id == tenant_id, txn.kind.in_(OF_EVENTS))
        .where(entry.debit.in_(_GIVEN) | entry.credit.in_(_GIVEN))
        .group_by(txn.period, entry.debit)
    )
    given: dict[str, int] = defaultdict(int)
    for period, debit, amount in await session.execute(query):
        given[period] += int(amount) if debit in _GIVEN else -int(amount)
    return given
