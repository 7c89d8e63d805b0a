"""How a tenant's usage was paid for until now, by the ledger: promotional credit, prepaid credit, and what is owed.

Payments in advance pay for the oldest usage first. So a payment before the invoice lowers what the invoice asks for; a
payment of an invoice settles that invoice alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy import case, func, or_, select
from sqlalchemy.ext.asyncio import AsyncSession

from billing.events.rollups import LIMB
from billing.invoices.accounting.advance_store import read_advances
from billing.invoices.accounting.balance_returns import BalanceReturn, PeriodFunding, plan_return, return_to_wallet
from billing.invoices.accounting.prepayments import Advance, CreditSource
from billing.invoices.composing import Funding
from billing.ledger.entries import OF_EVENTS, Balance
from billing.ledger.wallet import OpenGrant, Wallet
from billing.money import minor_unit
from billing.tables.invoices import ISSUED, invoice
from billing.tables.money import balance, grant, grant_balance, ledger_entry, ledger_txn, rollup_hour

_PROMO = ("promo", "restricted")
"""Accounts of promotional credit."""


class InvoiceFunding(Funding, frozen=True):
    """Funding, the currency of the tenant's balance (None if it never had money), and the period's return.

    `advances` are the tenant's, `sources` is the paid credit that there is after the return; `free` pico-units of it
    are reserved by no hold.
    """

    currency: str | None = None
    balance_return: BalanceReturn = BalanceReturn()
    advances: Sequence[Advance] = ()
    sources: Sequence[CreditSource] = ()
    free: int = 0


class _Invoiced(msgspec.Struct, frozen=True):
    """Sums over a tenant's finalized invoices, in pico-units.

    `unreturned` is what their lines took off the usage without a return. Only invoices from before balance returns have
    it; it is in their `prepaid_carry`.
    """

    carry: int
    prepaid_carry: int
    usage: int
    returned: int
    promo: int
    prepaid: int
    settled: int
    unreturned: int


class _Movements(msgspec.Struct, frozen=True):
    """What the ledger says about usage, in pico-units by period.

    `promo` was paid by promotional credit. `returned` was returned by rating; of it, `returned_promo` went to
    promotional credit and `returned_owed` lowered what was owed. `withheld` is what corrections did not return, since
    rating had returned it before.
    """

    promo: Mapping[str, int]
    returned: Mapping[str, int]
    returned_promo: Mapping[str, int]
    returned_owed: Mapping[str, int]
    withheld: Mapping[str, int]

    @property
    def all_returned(self) -> int:
        """What usage cost less than it was posted at, in all periods."""
        return sum(self.returned.values()) - sum(self.withheld.values())

    @property
    def all_promo(self) -> int:
        """What promotional credit paid of all usage, less what was returned to it."""
        return sum(self.promo.values()) - sum(self.returned_promo.values())


async def invoice_funding(
    session: AsyncSession, tenant_id: UUID, period: str, used: int, charges: int = 0, *, now: int
) -> InvoiceFunding:
    """How a period's usage was paid for until now, and what its invoice returns to the balance.

    `used` is the period's usage at list prices, `charges` the sum of all its other lines, both in pico-units. `now` is
    the database's clock.
    """
    before = await _invoiced(session, tenant_id)
    row = (await session.execute(select(balance).where(balance.c.tenant_id == tenant_id))).one_or_none()
    if row is None:
        return InvoiceFunding(carry=before.carry, prepaid_carry=before.prepaid_carry)
    moved = await _movements(session, tenant_id)
    by_grant = await _by_grant(session, tenant_id, period)
    promo, withheld = moved.promo.get(period, 0), moved.withheld.get(period, 0)
    posted, posted_promo, posted_owed = (
        by_period.get(period, 0) for by_period in (moved.returned, moved.returned_promo, moved.returned_owed)
    )
    # Computed as if the period had returned nothing yet, so that a later invoice of it states the same return.
    paid = _paid(row, moved, before.settled) + posted - posted_promo - posted_owed
    usage_until_now = before.usage - before.returned - before.promo + used + withheld - promo
    prepaid = min(usage_until_now, paid) - before.prepaid
    to_pay = used + withheld - promo
    funding = PeriodFunding(max(0, to_pay - prepaid), min(prepaid, to_pay), by_grant)
    grants = await _grants(session, tenant_id)
    wallet = Wallet(Balance(*row), grants)
    if posted:
        balance_return = BalanceReturn(money=posted, posted=True)
        returned_promo, returned_owed = posted_promo, posted_owed
    else:
        stranded = min(before.unreturned, before.prepaid_carry)
        due = max(0, withheld - charges) + (stranded if stranded >= minor_unit(row.currency) else 0)
        balance_return = plan_return(due, funding, grants)
        entries = return_to_wallet(wallet, balance_return)
        posted = sum(entry.amount_pico for entry in entries)
        to_promo = {entry.grant_id: entry.amount_pico for entry in entries if entry.grant_id and entry.credit in _PROMO}
        returned_promo = sum(to_promo.values())
        returned_owed = sum(entry.amount_pico for entry in entries if entry.credit == "receivable")
        balance_return = msgspec.structs.replace(balance_return, promo=to_promo, money=posted - returned_promo)
    money = posted - returned_promo
    advances = await read_advances(session, tenant_id, wallet)
    sources = [CreditSource(one.id, one.remaining, advances.get(one.id)) for one in wallet.free_credit(now)]
    return InvoiceFunding(
        promo=promo - returned_promo,
        prepaid=min(usage_until_now - money, paid - money + returned_owed) - before.prepaid,
        carry=before.carry,
        prepaid_carry=before.prepaid_carry,
        returned=posted - withheld,
        returned_credit=money - min(money, funding.owed),
        returned_promo=returned_promo,
        currency=row.currency,
        balance_return=balance_return,
        advances=list(advances.values()),
        sources=sources,
        free=wallet.refundable(now),
    )


async def uninvoiced_funding(session: AsyncSession, tenant_id: UUID, period: str) -> tuple[int, int, int]:
    """A period's usage that no invoice has billed yet: its cost, and of that the promotional and the prepaid part.

    All are in pico-units, and below 0 where more of earlier usage is taken back than is used.
    """
    before = await _invoiced(session, tenant_id)
    row = (await session.execute(select(balance).where(balance.c.tenant_id == tenant_id))).one_or_none()
    if row is None:
        return 0, 0, 0
    rollup, moved = rollup_hour.c, await _movements(session, tenant_id)
    billed = select(invoice.c.period).where(invoice.c.tenant_id == tenant_id, ISSUED)
    used = select(rollup.period, func.sum(rollup.cost_high), func.sum(rollup.cost_low)).group_by(rollup.period)
    used = used.where(rollup.tenant_id == tenant_id, rollup.period <= period, rollup.period.not_in(billed))
    to_pay = {
        month: int(high) * LIMB + int(low) - moved.promo.get(month, 0)
        for month, high, low in await session.execute(used)
    }
    this_period = to_pay.pop(period, 0)
    left = _paid(row, moved, before.settled) - before.prepaid - sum(to_pay.values())
    promo = moved.promo.get(period, 0)
    prepaid = max(0, min(left, this_period)) if this_period > 0 else min(0, max(left, this_period))
    return this_period + promo, promo, prepaid


def _paid(row: Any, moved: _Movements, settled: int) -> int:
    """What was paid of all usage, without payments of invoices, in pico-units. `row` is the balance."""
    return int(row.debit) - moved.all_returned - moved.all_promo - int(row.receivable) - settled


async def _invoiced(session: AsyncSession, tenant_id: UUID) -> _Invoiced:
    row = invoice.c
    unreturned = -row.charges_pico - row.returned_pico
    columns = [
        row.carry_out - row.carry_in,
        row.prepaid_carry_out - row.prepaid_carry_in,
        row.usage_pico,
        row.returned_pico,
        row.promo_pico,
        row.prepaid_pico,
        row.settled_pico,
        case((unreturned > 0, unreturned), else_=0),
    ]
    query = select(*(func.coalesce(func.sum(column), 0) for column in columns)).where(
        invoice.c.tenant_id == tenant_id, ISSUED
    )
    return _Invoiced(*(int(value) for value in (await session.execute(query)).one()))


async def _movements(session: AsyncSession, tenant_id: UUID) -> _Movements:
    entry, txn = ledger_entry.c, ledger_txn.c
    query = (
        select(txn.kind, txn.period, entry.debit, entry.credit, func.sum(entry.amount_pico))
        .join(ledger_txn, txn.id == entry.txn_id)
        .where(entry.tenant_id == tenant_id, txn.kind.in_((*OF_EVENTS, "return")))
        .where(or_(*(side.in_((*_PROMO, "charges")) for side in (entry.debit, entry.credit))))
        .group_by(txn.kind, txn.period, entry.debit, entry.credit)
    )
    promo, returned, returned_promo, returned_owed, withheld = (defaultdict[str, int](int) for _ in range(5))
    for kind, period, debit, credit, amount in await session.execute(query):
        pico = int(amount)
        if kind == "return":
            returned[period] += pico
            if credit in _PROMO:
                returned_promo[period] += pico
            elif credit == "receivable":
                returned_owed[period] += pico
        elif credit == "charges":
            withheld[period] += pico
        else:
            promo[period] += pico if debit in _PROMO else -pico
    return _Movements(promo, returned, returned_promo, returned_owed, withheld)


async def _by_grant(session: AsyncSession, tenant_id: UUID, period: str) -> dict[UUID, int]:
    """What each grant paid for the period's usage when it was posted, in pico-units."""
    entry, txn = ledger_entry.c, ledger_txn.c
    query = (
        select(entry.grant_id, entry.credit, func.sum(entry.amount_pico))
        .join(ledger_txn, txn.id == entry.txn_id)
        .where(entry.tenant_id == tenant_id, txn.kind.in_(OF_EVENTS), txn.period == period)
        .where(entry.grant_id.is_not(None))
        .group_by(entry.grant_id, entry.credit)
    )
    paid: dict[UUID, int] = defaultdict(int)
    for grant_id, account, amount in await session.execute(query):
        paid[grant_id] += int(amount) if account == "revenue" else -int(amount)
    return paid


async def _grants(session: AsyncSession, tenant_id: UUID) -> list[OpenGrant]:
    columns = (grant.c[name] for name in ("id", "tenant_id", "kind", "priority", "expires_at", "model", "project_id"))
    left = (grant_balance.c[name] for name in ("remaining", "used", "gone", "held"))
    query = select(*columns, *left).join(grant_balance, grant_balance.c.grant_id == grant.c.id)
    return [OpenGrant(*row) for row in await session.execute(query.where(grant.c.tenant_id == tenant_id))]
