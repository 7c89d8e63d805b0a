"""What a period's rating gives back to the balance.

Usage is posted at list prices when it happens. Lines that lower it (discounts, tiers, what a commitment pays) are known
when the period is rated, so that by then more was taken than the invoice asks for. Finalizing the invoice gives that
back: first what was not paid yet is owed no more, then the grants that paid get it, the one that was used last first.
Each keeps its restrictions and its expiry: what goes back to a grant that has expired meanwhile expires at once, as it
would have if the lower price had applied to the request itself. What was given stays given: it can never be refunded.

A period gives back once. If its invoice is voided, the money stays where it is and the next invoice of the period says
the same. What lines that are no usage add, such as storage or a minimum, is set off first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from uuid import UUID, uuid5

import msgspec
from sqlalchemy.ext.asyncio import AsyncSession

from billing.invoices.errors import DraftOutdated
from billing.invoices.records import InvoiceRecord
from billing.ledger.entries import Entry, Transaction
from billing.ledger.wallet import OpenGrant, Wallet
from billing.transaction.opening import money_transaction_in
from storage.database.base import new_id
from storage.database.database import Database


class PeriodFunding(msgspec.Struct, frozen=True):
    """How a period's usage was paid for before anything of it is given back, in pico-units.

    `owed` is not paid yet, `prepaid` was paid in advance, and `by_grant` says what each grant paid.
    """

    owed: int
    prepaid: int
    by_grant: Mapping[UUID, int]


class Return(msgspec.Struct, frozen=True):
    """What goes back: to each grant that was given, and of what was paid or is owed. `posted`: it is there already."""

    given: Mapping[UUID, int] = {}
    money: int = 0
    paid: Mapping[UUID, int] = {}
    posted: bool = False

    @property
    def total(self) -> int:
        """All of it, in pico-units."""
        return self.money + sum(self.given.values())


def plan_return(due: int, funding: PeriodFunding, grants: Iterable[OpenGrant]) -> Return:
    """Where `due` pico-units go back to: the last means by which the period's usage was paid come first."""
    latest = sorted(grants, key=lambda grant: grant.order, reverse=True)
    bought = {grant.id: max(0, funding.by_grant.get(grant.id, 0)) for grant in latest if grant.account == "prepaid"}
    paid_later = max(0, funding.prepaid - sum(bought.values()))
    money = min(due, funding.owed + paid_later)
    left = due - money
    given: dict[UUID, int] = {}
    for grant in latest:
        part = min(left, max(0, funding.by_grant.get(grant.id, 0)))
        if not part:
            continue
        left -= part
        if grant.id in bought:
            money += part
        else:
            given[grant.id] = part
    return Return(given, money + left, bought)


def return_id(tenant_id: UUID, period: str) -> UUID:
    """The id of a period's return in the ledger: one for each tenant and period."""
    return uuid5(tenant_id, f"return:{period}")


def post_return(wallet: Wallet, back: Return) -> list[Entry]:
    """Move the money in the wallet; the entries."""
    return wallet.return_charges(back.given, back.money, back.paid)


async def give_back(database: Database, session: AsyncSession, record: InvoiceRecord, back: Return) -> None:
    """Give back what an invoice that is being finalized says, in its transaction.

    Raises DraftOutdated if the balance is not what the invoice was made of.
    """
    if back.posted or not back.total:
        return
    books = await money_transaction_in(database, session)
    found = (await books.lock([record.tenant_id]))[record.tenant_id]
    wallet = Wallet(found, await books.grants([record.tenant_id], spent=True))
    entries = post_return(wallet, back)
    if sum(entry.amount_pico for entry in entries) != back.total:
        raise DraftOutdated(f"the balance has changed since {record.name} was made: draft it again")
    identity = return_id(record.tenant_id, record.period)
    posted = [
        Transaction(identity, record.tenant_id, record.currency, "return", record.period, entries, record.name),
    ]
    if expired := wallet.expire(await books.now()):
        posted.append(Transaction(new_id(), record.tenant_id, record.currency, "expiry", "", expired, "expired"))
    await books.save([wallet.balance], posted, (), list(wallet.changed.values()))
