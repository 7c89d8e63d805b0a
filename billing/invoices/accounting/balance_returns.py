"""Balance returns: what a period's rating gives back to the tenant's balance.

Usage is posted at list prices when it happens. Lines that lower it (discounts, tiers, what a commitment pays) are known
when the period is rated. By then more was taken than the invoice asks for. Finalizing the invoice returns the excess,
once for each period: usage that is not paid yet is owed no more, then the grants that paid get it back, the one used
last first. Lines that are not usage, such as storage or a minimum, are set off first.

A grant keeps its restrictions and its expiry. What goes back to a grant that has expired meanwhile expires at once, as
it would have if the lower price had applied to the request itself. Promotional credit stays promotional: it is never
refunded. Voiding the invoice moves nothing, and the next invoice of the period states the same return.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from uuid import UUID, uuid5

import msgspec
from sqlalchemy.ext.asyncio import AsyncSession

from billing.invoices.errors import DraftOutdated
from billing.invoices.store import InvoiceRecord
from billing.ledger.entries import Entry, Transaction
from billing.ledger.wallet import OpenGrant, Wallet
from billing.transaction.opening import money_transaction_in
from storage.database.base import new_id
from storage.database.database import Database


class PeriodFunding(msgspec.Struct, frozen=True):
    """How a period's usage was paid for before anything is returned, in pico-units.

    `owed` is not paid yet, `prepaid` was paid in advance, `by_grant` is what each grant paid.
    """

    owed: int
    prepaid: int
    by_grant: Mapping[UUID, int]


class BalanceReturn(msgspec.Struct, frozen=True):
    """A period's return, in pico-units: to promotional grants, and to what was paid or is owed.

    `prepaid` is what each prepaid grant paid of the period. `posted`: the ledger has this return already.
    """

    promo: Mapping[UUID, int] = {}
    money: int = 0
    prepaid: Mapping[UUID, int] = {}
    posted: bool = False

    @property
    def total(self) -> int:
        """The whole return, in pico-units."""
        return self.money + sum(self.promo.values())


def plan_return(due: int, funding: PeriodFunding, grants: Iterable[OpenGrant]) -> BalanceReturn:
    """Divide `due` pico-units: what is owed or was paid later first, then the grants, the last used first."""
    latest = sorted(grants, key=lambda grant: grant.order, reverse=True)
    prepaid = {grant.id: max(0, funding.by_grant.get(grant.id, 0)) for grant in latest if grant.account == "prepaid"}
    paid_later = max(0, funding.prepaid - sum(prepaid.values()))
    money = min(due, funding.owed + paid_later)
    left = due - money
    promo: dict[UUID, int] = {}
    for grant in latest:
        share = min(left, max(0, funding.by_grant.get(grant.id, 0)))
        if not share:
            continue
        left -= share
        if grant.id in prepaid:
            money += share
        else:
            promo[grant.id] = share
    return BalanceReturn(promo, money + left, prepaid)


def return_id(tenant_id: UUID, period: str) -> UUID:
    """The ledger transaction's id of a period's return: one for each tenant and period."""
    return uuid5(tenant_id, f"return:{period}")


def return_to_wallet(wallet: Wallet, balance_return: BalanceReturn) -> list[Entry]:
    """Move the return in a wallet; the ledger entries of that."""
    return wallet.return_charges(balance_return.promo, balance_return.money, balance_return.prepaid)


async def write_return(
    database: Database, session: AsyncSession, record: InvoiceRecord, balance_return: BalanceReturn
) -> None:
    """Return to the balance what an invoice says, in the transaction that finalizes it.

    Raises DraftOutdated if the balance has changed since the draft.
    """
    if balance_return.posted or not balance_return.total:
        return
    tenant_id, currency = record.tenant_id, record.currency
    money = await money_transaction_in(database, session)
    balance = (await money.lock([tenant_id]))[tenant_id]
    wallet = Wallet(balance, await money.grants([tenant_id], spent=True))
    entries = return_to_wallet(wallet, balance_return)
    if sum(entry.amount_pico for entry in entries) != balance_return.total:
        raise DraftOutdated(f"the balance has changed since {record.name} was drafted; draft it again")
    identity = return_id(tenant_id, record.period)
    posted = [Transaction(identity, tenant_id, currency, "return", record.period, entries, record.name)]
    if expired := wallet.expire(await money.now(), await money.holds.reserved(tenant_id)):
        posted.append(Transaction(new_id(), tenant_id, currency, "expiry", "", expired, "expired"))
    await money.save([wallet.balance], posted, (), list(wallet.changed.values()))
