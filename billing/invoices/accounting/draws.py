"""Draws: what a finalized invoice takes from paid credit for what it asks beyond usage, and gives back if void."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from uuid import UUID

from sqlalchemy import case, func, select
from sqlalchemy.ext.asyncio import AsyncSession

from billing.invoices.accounting.posting import step_id
from billing.invoices.errors import DraftOutdated
from billing.invoices.store import InvoiceRecord
from billing.ledger.entries import Transaction
from billing.ledger.wallet import Wallet
from billing.tables.money import ledger_entry, ledger_txn
from billing.transaction.opening import money_transaction_in
from storage.database.base import new_id
from storage.database.database import Database

_DRAW, _UNDRAW = "draw", "draw:void"


async def write_draws(
    database: Database, session: AsyncSession, record: InvoiceRecord, draws: Mapping[UUID, int]
) -> None:
    """Take from each grant what the invoice says, in the transaction that finalizes it.

    Raises DraftOutdated if it is not there any more.
    """
    if not draws:
        return
    money = await money_transaction_in(database, session)
    wallet = Wallet((await money.lock([record.tenant_id]))[record.tenant_id], await money.grants([record.tenant_id]))
    try:
        entries = wallet.draw(draws)
    except ValueError as error:
        raise DraftOutdated(f"the credit has changed since {record.name} was drafted; draft it again") from error
    identity = step_id(record.id, _DRAW)
    posted = Transaction(identity, record.tenant_id, record.currency, "draw", record.period, entries, record.name)
    await money.save([wallet.balance], [posted], (), list(wallet.changed.values()))


async def return_draws(database: Database, session: AsyncSession, record: InvoiceRecord) -> None:
    """Put back what a void invoice took from credit. What belongs to a grant that has expired meanwhile expires."""
    draws = await read_draws(session, record.tenant_id, step_id(record.id, _DRAW))
    if not draws:
        return
    tenant_id, currency = record.tenant_id, record.currency
    money = await money_transaction_in(database, session)
    balance = (await money.lock([tenant_id]))[tenant_id]
    wallet = Wallet(balance, await money.grants([tenant_id], spent=True))
    entries, memo = wallet.undraw(draws), f"{record.name} void"
    posted = [Transaction(step_id(record.id, _UNDRAW), tenant_id, currency, "draw", "", entries, memo)]
    if expired := wallet.expire(await money.now(), await money.holds.reserved(tenant_id)):
        posted.append(Transaction(new_id(), tenant_id, currency, "expiry", "", expired, "expired"))
    await money.save([wallet.balance], posted, (), list(wallet.changed.values()))


async def read_draws(session: AsyncSession, tenant_id: UUID, transaction: UUID | None = None) -> dict[UUID, int]:
    """What was drawn from each grant less what was put back, in pico-units: by one transaction, or (None) by all."""
    entry, txn = ledger_entry.c, ledger_txn.c
    signed = case((entry.credit == "invoiced", entry.amount_pico), else_=-entry.amount_pico)
    query = (
        select(entry.grant_id, func.sum(signed))
        .join(ledger_txn, txn.id == entry.txn_id)
        .where(entry.tenant_id == tenant_id, txn.kind == "draw")
        .group_by(entry.grant_id)
    )
    if transaction is not None:
        query = query.where(txn.id == transaction)
    draws: dict[UUID, int] = defaultdict(int)
    for grant_id, pico in await session.execute(query):
        draws[grant_id] = int(pico)
    return draws
