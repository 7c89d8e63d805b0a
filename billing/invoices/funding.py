"""How a tenant's usage was paid for, as the ledger says it: what was given, what was paid before any invoice asked.

What is paid counts for the oldest usage first. So a payment in advance, or one that came before the invoice, lowers
what the invoice asks for; a payment for an invoice settles that invoice and no other.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncSession

from billing.invoices.composing import Funding
from billing.ledger import OF_EVENTS
from billing.tables.invoices import invoice
from billing.tables.money import balance, ledger_entry, ledger_txn

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
    given, given_here = await _promo(session, tenant_id, period)
    paid = int(row.debit) - given - int(row.receivable) - settled
    until_here = usage + used - promo - given_here
    return Standing(given_here, min(until_here, paid) - prepaid, carry, prepaid_carry, row.currency)


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
    query = select(*(func.coalesce(func.sum(each), 0) for each in sums)).where(
        of.tenant_id == tenant_id, of.kind == "invoice", of.state.not_in(("draft", "void"))
    )
    return tuple(int(value) for value in (await session.execute(query)).one())


async def _promo(session: AsyncSession, tenant_id: UUID, period: str) -> tuple[int, int]:
    """What of all usage, and of this period's, was given for nothing."""
    entry, txn = ledger_entry.c, ledger_txn.c
    query = (
        select(txn.period, entry.debit, func.sum(entry.amount_pico))
        .join(ledger_txn, txn.id == entry.txn_id)
        .where(entry.tenant_id == tenant_id, txn.kind.in_(OF_EVENTS))
        .where(entry.debit.in_(_GIVEN) | entry.credit.in_(_GIVEN))
        .group_by(txn.period, entry.debit)
    )
    rows: list[Any] = list(await session.execute(query))
    signed = [(row[0], int(row[2]) if row[1] in _GIVEN else -int(row[2])) for row in rows]
    return sum(amount for _, amount in signed), sum(amount for of, amount in signed if of == period)
