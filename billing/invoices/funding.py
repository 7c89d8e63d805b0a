"""How a tenant's usage was paid for, as the ledger says it: what was given, what was paid before any invoice asked.

What is paid counts for the oldest usage first. So a payment in advance, or one that came before the invoice, lowers
what the invoice asks for; a payment for an invoice settles that invoice and no other.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy import ColumnElement, case, func, or_, select
from sqlalchemy.ext.asyncio import AsyncSession

from billing.events.rollups import LIMB
from billing.invoices.balance_returns import PeriodFunding, Return, plan_return, post_return
from billing.invoices.composing import Funding
from billing.invoices.minor_units import minor_unit
from billing.ledger.entries import OF_EVENTS, Balance
from billing.ledger.wallet import OpenGrant, Wallet
from billing.tables.invoices import invoice
from billing.tables.money import balance, grant, grant_balance, ledger_entry, ledger_txn, rollup_hour

_GIVEN = ("promo", "restricted")


class InvoiceFunding(Funding, frozen=True):
    """Funding, the currency of the tenant's balance (None if it never had money), and what the period gives back."""

    currency: str | None = None
    back: Return = Return()


class _Invoiced(msgspec.Struct, frozen=True):
    """What a tenant's finalized invoices come to, in pico-units.

    `unreturned` is what their lines took off the usage and nobody got back: invoices that are older than returns have
    it, in what was carried of what was paid in advance.
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
    """What the ledger says about usage, in pico-units by period: what was given for it, what was given back of it, what
    of that went to credit that was given, and what to what was owed; and what a correction did not give back, since
    rating had given it back before."""

    given: Mapping[str, int]
    returned: Mapping[str, int]
    returned_given: Mapping[str, int]
    returned_owed: Mapping[str, int]
    withheld: Mapping[str, int]

    @property
    def all_returned(self) -> int:
        """What usage cost less than it was posted at, in all periods."""
        return sum(self.returned.values()) - sum(self.withheld.values())

    @property
    def all_given(self) -> int:
        """What was given for all usage, less what of it came back."""
        return sum(self.given.values()) - sum(self.returned_given.values())


async def standing(session: AsyncSession, tenant_id: UUID, period: str, used: int, charges: int = 0) -> InvoiceFunding:
    """How usage of `used` pico-units in this period, and all that was invoiced before, was paid for until now; and what
    goes back since all other lines come to `charges`."""
    before = await _invoiced(session, tenant_id)
    row = (await session.execute(select(balance).where(balance.c.tenant_id == tenant_id))).one_or_none()
    if row is None:
        return InvoiceFunding(carry=before.carry, prepaid_carry=before.prepaid_carry)
    moved = await _movements(session, tenant_id)
    by_grant = await _by_grant(session, tenant_id, period)
    given, withheld = moved.given.get(period, 0), moved.withheld.get(period, 0)
    posted, posted_given, posted_owed = (
        of.get(period, 0) for of in (moved.returned, moved.returned_given, moved.returned_owed)
    )
    # as if nothing of this period had been given back, so that a later invoice of it says the same
    paid = _paid(row, moved, before.settled) + posted - posted_given - posted_owed
    until_here = before.usage - before.returned - before.promo + used + withheld - given
    prepaid = min(until_here, paid) - before.prepaid
    to_pay = used + withheld - given
    funding = PeriodFunding(max(0, to_pay - prepaid), min(prepaid, to_pay), by_grant)
    grants = await _grants(session, tenant_id)
    if posted:
        back = Return(money=posted, posted=True)
        returned_given, returned_owed = posted_given, posted_owed
    else:
        stranded = min(before.unreturned, before.prepaid_carry)
        due = max(0, withheld - charges) + (stranded if stranded >= minor_unit(row.currency) else 0)
        back = plan_return(due, funding, grants)
        entries = post_return(Wallet(Balance(*row), grants), back)
        posted = sum(entry.amount_pico for entry in entries)
        placed = {one.grant_id: one.amount_pico for one in entries if one.grant_id and one.credit in _GIVEN}
        returned_given = sum(placed.values())
        returned_owed = sum(entry.amount_pico for entry in entries if entry.credit == "receivable")
        back = msgspec.structs.replace(back, given=placed, money=posted - returned_given)
    money = posted - returned_given
    return InvoiceFunding(
        promo=given - returned_given,
        prepaid=min(until_here - money, paid - money + returned_owed) - before.prepaid,
        carry=before.carry,
        prepaid_carry=before.prepaid_carry,
        returned=posted - withheld,
        returned_credit=money - min(money, funding.owed),
        returned_promo=returned_given,
        currency=row.currency,
        back=back,
    )


async def of_uninvoiced(session: AsyncSession, tenant_id: UUID, period: str) -> tuple[int, int, int]:
    """Of a period's usage that no invoice has billed yet, in pico-units: what it costs, what of that was given and what
    was paid in advance; less than 0 where more of earlier usage is taken back than is used."""
    before = await _invoiced(session, tenant_id)
    row = (await session.execute(select(balance).where(balance.c.tenant_id == tenant_id))).one_or_none()
    if row is None:
        return 0, 0, 0
    of, moved = rollup_hour.c, await _movements(session, tenant_id)
    billed = select(invoice.c.period).where(*_counts(tenant_id))
    used = select(of.period, func.sum(of.cost_high), func.sum(of.cost_low)).group_by(of.period)
    used = used.where(of.tenant_id == tenant_id, of.period <= period, of.period.not_in(billed))
    to_pay = {
        month: int(high) * LIMB + int(low) - moved.given.get(month, 0)
        for month, high, low in await session.execute(used)
    }
    here = to_pay.pop(period, 0)
    left = _paid(row, moved, before.settled) - before.prepaid - sum(to_pay.values())
    given = moved.given.get(period, 0)
    return here + given, given, max(0, min(left, here)) if here > 0 else min(0, max(left, here))


def _paid(row: Any, moved: _Movements, settled: int) -> int:
    """What of all usage was paid, but not for an invoice."""
    return int(row.debit) - moved.all_returned - moved.all_given - int(row.receivable) - settled


def _counts(tenant_id: UUID) -> tuple[ColumnElement[bool], ...]:
    """Which documents have billed something."""
    of = invoice.c
    return of.tenant_id == tenant_id, of.kind == "invoice", of.state.not_in(("draft", "void"))


async def _invoiced(session: AsyncSession, tenant_id: UUID) -> _Invoiced:
    of = invoice.c
    unreturned = -of.charges_pico - of.returned_pico
    sums = [
        of.carry_out - of.carry_in,
        of.prepaid_carry_out - of.prepaid_carry_in,
        of.usage_pico,
        of.returned_pico,
        of.promo_pico,
        of.prepaid_pico,
        of.settled_pico,
        case((unreturned > 0, unreturned), else_=0),
    ]
    query = select(*(func.coalesce(func.sum(each), 0) for each in sums)).where(*_counts(tenant_id))
    return _Invoiced(*(int(value) for value in (await session.execute(query)).one()))


async def _movements(session: AsyncSession, tenant_id: UUID) -> _Movements:
    entry, txn = ledger_entry.c, ledger_txn.c
    query = (
        select(txn.kind, txn.period, entry.debit, entry.credit, func.sum(entry.amount_pico))
        .join(ledger_txn, txn.id == entry.txn_id)
        .where(entry.tenant_id == tenant_id, txn.kind.in_((*OF_EVENTS, "return")))
        .where(or_(*(side.in_((*_GIVEN, "charges")) for side in (entry.debit, entry.credit))))
        .group_by(txn.kind, txn.period, entry.debit, entry.credit)
    )
    given, returned, returned_given, returned_owed, withheld = (defaultdict[str, int](int) for _ in range(5))
    for kind, period, debit, credit, amount in await session.execute(query):
        pico = int(amount)
        if kind == "return":
            returned[period] += pico
            if credit in _GIVEN:
                returned_given[period] += pico
            elif credit == "receivable":
                returned_owed[period] += pico
        elif credit == "charges":
            withheld[period] += pico
        else:
            given[period] += pico if debit in _GIVEN else -pico
    return _Movements(given, returned, returned_given, returned_owed, withheld)


async def _by_grant(session: AsyncSession, tenant_id: UUID, period: str) -> dict[UUID, int]:
    """What each grant paid for the period's usage as it was posted."""
    entry, txn = ledger_entry.c, ledger_txn.c
    query = (
        select(entry.grant_id, entry.credit, func.sum(entry.amount_pico))
        .join(ledger_txn, txn.id == entry.txn_id)
        .where(entry.tenant_id == tenant_id, txn.kind.in_(OF_EVENTS), txn.period == period)
        .where(entry.grant_id.is_not(None))
        .group_by(entry.grant_id, entry.credit)
    )
    paid: dict[UUID, int] = defaultdict(int)
    for one, account, amount in await session.execute(query):
        paid[one] += int(amount) if account == "revenue" else -int(amount)
    return paid


async def _grants(session: AsyncSession, tenant_id: UUID) -> list[OpenGrant]:
    columns = (grant.c[name] for name in ("id", "tenant_id", "kind", "priority", "expires_at", "model", "project_id"))
    left = (grant_balance.c[name] for name in ("remaining", "used", "gone", "held"))
    query = select(*columns, *left).join(grant_balance, grant_balance.c.grant_id == grant.c.id)
    return [OpenGrant(*row) for row in await session.execute(query.where(grant.c.tenant_id == tenant_id))]
