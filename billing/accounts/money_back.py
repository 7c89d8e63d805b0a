"""Paid money that leaves a balance, in the transaction that writes down why: a refund, or what a payer took back."""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

from msgspec import Struct
from sqlalchemy.ext.asyncio import AsyncSession

from billing.ledger.entries import Transaction
from billing.ledger.wallet import RefundRefused, Wallet
from billing.transaction.opening import money_transaction_in
from storage.database.database import Database


class ChargedBack(Struct, frozen=True):
    """What a payer's bank took of a grant, in pico-units: of what was left of it, and of what was used, which is owed
    again."""

    left: int = 0
    used: int = 0


async def charge_back(
    database: Database,
    session: AsyncSession,
    tenant_id: UUID,
    grant_id: UUID,
    pico: int,
    *,
    identity: UUID,
    memo: str,
    unit: int = 1,
) -> ChargedBack:
    """Take back what was paid and what the payer's bank has taken from us, in the transaction that writes down that it
    did; once under `identity`. What was used of it is owed again; of what was left only whole units go."""
    money = await money_transaction_in(database, session)
    found = (await money.lock([tenant_id])).get(tenant_id)
    grants = await money.grants([tenant_id], spent=True)
    if found is None or grant_id not in {one.id for one in grants} or await money.is_posted(identity):
        return ChargedBack()
    wallet = Wallet(found, grants)
    entries = wallet.charge_back(grant_id, pico, unit)
    if entries:
        await money.save(
            [wallet.balance],
            [Transaction(identity, tenant_id, found.currency, "refund", "", entries, memo)],
            (),
            list(wallet.changed.values()),
        )
    used = sum(entry.amount_pico for entry in entries if entry.debit == "receivable")
    return ChargedBack(sum(entry.amount_pico for entry in entries) - used, used)


async def refund_in(
    database: Database,
    session: AsyncSession,
    tenant_id: UUID,
    grant_id: UUID,
    pico: int,
    *,
    units: Mapping[UUID, int],
    identity: UUID,
    memo: str,
) -> None:
    """Take credit of a grant that is paid back, in the transaction that writes down that it is: of a grant in `units`
    only whole units. Raises RefundRefused, and has written nothing then."""
    money = await money_transaction_in(database, session)
    found = (await money.lock([tenant_id]))[tenant_id]
    wallet, now = Wallet(found, await money.grants([tenant_id])), await money.now()
    refundable = wallet.refundable(now, units, grant_id)
    entries = wallet.refund(pico, now, units, grant_id) if pico <= refundable else []
    if sum(entry.amount_pico for entry in entries) != pico:
        raise RefundRefused(refundable, found.currency)
    await money.save(
        [wallet.balance],
        [Transaction(identity, tenant_id, found.currency, "refund", "", entries, memo)],
        (),
        list(wallet.changed.values()),
    )
