"""Disputes: a cardholder objects, and the bank may take the money from us before it decides.

While one is open the tenant's card is charged no more. When the money is withdrawn it leaves the tenant's balance: what
is left of the grant goes, and what was used of it is owed again. A dispute that is won puts it back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID, uuid5

import msgspec
from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncSession

from billing.accounts.balances import settle_payment
from billing.integrity.canonical_json import canonical
from billing.integrity.recorded_tables import DISPUTES
from billing.invoices.collection import payment_id_of
from billing.invoices.store import lock_invoice
from billing.money import format_minor, minor_to_pico, minor_unit
from billing.payments.auto_top_ups import AutoTopUps
from billing.payments.cash import payment_reference, receipt_id
from billing.payments.credit import grants_of, put_in, take_for_bank
from billing.payments.notices import DISPUTED
from billing.payments.provider import DisputeFact, MoneyIn
from billing.payments.recording import change_recorded, insert_recorded
from billing.payments.tasks import add_task
from billing.tables.money import ledger_entry, ledger_txn
from billing.tables.payments import cash_receipt, payment_dispute
from billing.transaction.money_transaction import Grant
from storage.database.base import new_id
from storage.database.database import Database
from storage.database.outbox import write_to_outbox

_DISPUTE, _RECEIPT = payment_dispute.c, cash_receipt.c


class Dispute(msgspec.Struct, frozen=True):
    """A dispute. `amount` and `moved` in minor units."""

    id: UUID
    provider: str
    provider_id: str
    receipt_id: UUID | None
    tenant_id: UUID | None
    amount: int
    currency: str
    state: str
    reason: str
    moved: int
    created_at: int


_COLUMNS = [_DISPUTE[name] for name in Dispute.__struct_fields__]


class Disputes:
    """Follows disputes. Methods raise DatabaseUnavailable."""

    def __init__(self, database: Database) -> None:
        self._database, self._auto = database, AutoTopUps(database)

    async def list(self, *, limit: int, tenant_id: UUID | None = None, after: UUID | None = None) -> list[Dispute]:
        """Disputes of a tenant or (None) of all, the newest first."""
        query = select(*_COLUMNS)
        if tenant_id is not None:
            query = query.where(_DISPUTE.tenant_id == tenant_id)
        if after is not None:
            query = query.where(_DISPUTE.id < after)
        async with self._database.reading() as session:
            return [Dispute(*row) for row in await session.execute(query.order_by(_DISPUTE.id.desc()).limit(limit))]

    async def follow(self, provider: str, fact: DisputeFact) -> None:
        """Let a dispute become what the provider says; may be repeated, and skip states."""
        async with self._database.transaction() as session:
            row = await self._lock(session, provider, fact)
            if row.state == "won" or (row.state == "lost" and row.moved):
                return
            moved = row.moved
            if fact.withdrawn and fact.outcome != "won" and not moved:
                moved = await self._withdraw(session, row, fact)
            if fact.outcome == "won" and moved:
                await self._put_back(session, row)
            state = fact.outcome if fact.outcome != "open" else "withdrawn" if fact.withdrawn else "open"
            if (state, moved) != (row.state, row.moved):
                values = {"state": state, "moved": moved, "updated_at": self._database.clock}
                await change_recorded(session, DISPUTES, f"dispute.{state}", row.id, values)

    async def _lock(self, session: AsyncSession, provider: str, fact: DisputeFact) -> Any:
        """The dispute's row, which may be new."""
        identity = receipt_id(provider, fact.id)
        await self._database.lock_rows_of(session, payment_dispute, identity)
        # all tenants: the provider's id says whose it is
        query = select(payment_dispute).where(_DISPUTE.provider == provider, _DISPUTE.provider_id == fact.id)
        row = (await session.execute(self._database.locked(query))).one_or_none()
        receipt = await self._receipt_of(session, provider, fact)
        tenant_id = None if receipt is None else receipt.tenant_id
        now = self._database.clock
        belongs = {"receipt_id": None if receipt is None else receipt.id, "tenant_id": tenant_id}
        if row is None:
            new = {"id": new_id(), "provider": provider, "provider_id": fact.id, "amount": fact.amount, "moved": 0}
            new |= {"currency": fact.currency, "state": "open", "reason": fact.reason, **belongs}
            await insert_recorded(
                session, DISPUTES, "dispute.opened", new | {"created_at": now, "updated_at": now}, fact.reason
            )
            text = f"{_shown(fact)} are disputed: {fact.reason}"
            await add_task(self._database, session, "dispute", fact.id, text, tenant_id)
        elif row.tenant_id is None and (row.receipt_id, row.tenant_id) != tuple(belongs.values()):
            await change_recorded(session, DISPUTES, "dispute.attached", row.id, belongs | {"updated_at": now})
        else:
            return row
        if tenant_id is not None and fact.outcome != "won":
            await self._auto.pause(session, tenant_id, "a payment is disputed")
            said = {"amount": format_minor(fact.amount, fact.currency), "currency": fact.currency}
            await write_to_outbox(self._database, session, DISPUTED, tenant_id, canonical(said))
        return (await session.execute(query)).one()

    async def _receipt_of(self, session: AsyncSession, provider: str, fact: DisputeFact) -> Any:
        """The receipt of the payment, which may come later than the dispute: whoever books it waits for us."""
        identity = receipt_id(provider, fact.payment)
        await self._database.lock_rows_of(session, cash_receipt, identity)
        # all tenants: the provider's id says whose it is
        query = select(_RECEIPT.id, _RECEIPT.tenant_id).where(_RECEIPT.id == identity)
        return (await session.execute(query)).one_or_none()

    async def _withdraw(self, session: AsyncSession, row: Any, fact: DisputeFact) -> int:
        """Take from the tenant's balance what the bank took from us; returns how much, in minor units."""
        if row.tenant_id is None:
            return 0
        left, unit, identity, memo = fact.amount, minor_unit(fact.currency), uuid5(row.id, "withdrawn"), _memo(fact)
        for place, grant in enumerate(await self._grants_of(session, row)):
            one = uuid5(identity, str(grant)) if place else identity
            taken = await take_for_bank(self._database, session, one, row.tenant_id, grant, left, fact.currency, memo)
            left -= (taken.left + taken.used) // unit + taken.vat
        return fact.amount - left

    async def _grants_of(self, session: AsyncSession, row: Any) -> Sequence[UUID]:
        """The grants of the money that is disputed: of a top-up, or of the usage that an invoice was paid for."""
        # tenant: the dispute is one tenant's
        query = select(cash_receipt).where(_RECEIPT.id == row.receipt_id)
        receipt = (await session.execute(query)).one_or_none()
        if receipt is None or receipt.state != "applied" or receipt.tenant_id is None:
            return []
        if receipt.purpose == "top_up":
            return await grants_of(session, receipt.id, receipt.subject_id)
        record = await lock_invoice(self._database, session, receipt.tenant_id, receipt.subject_id)
        money = MoneyIn(provider=receipt.provider, id=receipt.provider_id, amount=1, currency=receipt.currency, at=0)
        return [payment_id_of(record, payment_reference(money))]

    async def _put_back(self, session: AsyncSession, row: Any) -> None:
        """Put back what left the balance: what was used pays what is owed again, the rest is credit, with its VAT."""
        entry, txn = ledger_entry.c, ledger_txn.c
        identity, unit = uuid5(row.id, "withdrawn"), minor_unit(row.currency)
        steps = [identity, *(uuid5(identity, str(one)) for one in (await self._grants_of(session, row))[1:])]
        query = select(func.sum(entry.amount_pico)).join_from(ledger_entry, ledger_txn, entry.txn_id == txn.id)
        query = query.where(txn.tenant_id == row.tenant_id, txn.id.in_(steps), entry.debit == "receivable")
        used = int(await session.scalar(query) or 0) // unit
        memo = "a dispute that was won"
        if rest := row.moved - used:
            await put_in(self._database, session, uuid5(row.id, "won"), row.tenant_id, rest, row.currency, memo)
        if used:
            pico = minor_to_pico(used, row.currency)
            won = Grant(uuid5(row.id, "won:used"), row.tenant_id, pico, row.currency, "paid", memo)
            await settle_payment(self._database, session, won)


def _memo(fact: DisputeFact) -> str:
    return f"dispute {fact.id}"


def _shown(fact: DisputeFact) -> str:
    return f"{format_minor(fact.amount, fact.currency)} {fact.currency}"
