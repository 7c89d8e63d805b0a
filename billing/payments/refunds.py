"""Refunds of top-ups: the credit is taken first, then the money goes back by the way it came.

A refund that the provider refuses, or that fails later, puts the credit back and leaves a task for finance.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any
from uuid import UUID, uuid5

import msgspec
from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncSession

from billing.integrity.recorded_tables import PAYMENT_REFUNDS
from billing.money import format_minor
from billing.payments.credit import grants_of, put_in, take_back
from billing.payments.errors import PaymentRefused, UnknownPayment
from billing.payments.jobs import queue_job
from billing.payments.provider import PaymentProvider, ProviderRefused, RefundFact
from billing.payments.recording import change_recorded, insert_recorded
from billing.payments.tasks import add_task
from billing.tables.payments import cash_receipt, payment_dispute, payment_refund
from storage.database.base import new_id
from storage.database.database import Database
from storage.free_text import REASON, check_text

_REFUND, _RECEIPT = payment_refund.c, cash_receipt.c
_OPEN = ("created", "sent")


class Refund(msgspec.Struct, frozen=True):
    """A refund. `amount` in minor units."""

    id: UUID
    tenant_id: UUID
    receipt_id: UUID
    amount: int
    currency: str
    state: str
    provider: str
    provider_id: str | None
    reason: str
    problem: str
    created_at: int


_COLUMNS = [_REFUND[name] for name in Refund.__struct_fields__]


class Refunds:
    """Makes refunds and follows them. Methods raise DatabaseUnavailable."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def get(self, tenant_id: UUID, refund_id: UUID) -> Refund:
        """One of a tenant's refunds. Raises UnknownPayment."""
        query = select(*_COLUMNS).where(_REFUND.tenant_id == tenant_id, _REFUND.id == refund_id)
        async with self._database.reading() as session:
            row = (await session.execute(query)).one_or_none()
        if row is None:
            raise UnknownPayment("there is no such refund")
        return Refund(*row)

    async def create(
        self, tenant_id: UUID, top_up_id: UUID, amount: int | None, reason: str, *, refund_id: UUID | None = None
    ) -> Refund:
        """Pay a top-up back, whole or in part; the same refund under the same id. Raises UnknownPayment,
        PaymentRefused, RefundRefused, InvalidText."""
        check_text("reason", reason, REASON)
        identity = refund_id or new_id()
        async with self._database.transaction() as session:
            query = select(cash_receipt).where(_RECEIPT.tenant_id == tenant_id, _RECEIPT.subject_id == top_up_id)
            query = query.where(_RECEIPT.purpose == "top_up", _RECEIPT.state == "applied")
            receipt = (await session.execute(self._database.locked(query))).one_or_none()
            if receipt is None:
                raise UnknownPayment("no money came for such a top-up")
            there = (await session.execute(select(*_COLUMNS).where(_REFUND.id == identity))).one_or_none()
            if there is not None:
                if there.receipt_id != receipt.id or amount not in (None, there.amount):
                    raise PaymentRefused("the id is another refund's")
                return Refund(*there)
            amount = await self._allowed(session, receipt, amount)
            grants = await grants_of(session, receipt.id, top_up_id)
            amount = await take_back(
                self._database, session, identity, tenant_id, grants, amount, receipt.currency, reason
            )
            row = {"id": identity, "tenant_id": tenant_id, "receipt_id": receipt.id, "amount": amount}
            row |= {"currency": receipt.currency, "provider": receipt.provider, "reason": reason, "state": "created"}
            now = self._database.clock
            row |= {"provider_id": None, "created_at": now, "updated_at": now}
            await insert_recorded(session, PAYMENT_REFUNDS, "payment_refund.created", row, reason)
            await queue_job(self._database, session, "refund", str(identity))
        return await self.get(tenant_id, identity)

    async def _allowed(self, session: AsyncSession, receipt: Any, amount: int | None) -> int:
        # tenant: the receipt is one tenant's
        back = select(func.coalesce(func.sum(_REFUND.amount), 0)).where(
            _REFUND.receipt_id == receipt.id, _REFUND.state != "failed"
        )
        left = receipt.amount - int(await session.scalar(back) or 0)
        disputed = select(payment_dispute.c.id).where(
            payment_dispute.c.receipt_id == receipt.id, payment_dispute.c.state != "won"
        )
        if await session.scalar(disputed.limit(1)) is not None:
            raise PaymentRefused("the payment is disputed: the bank decides what goes back")
        amount = left if amount is None else amount
        if not 0 < amount <= left:
            raise PaymentRefused(f"only {format_minor(left, receipt.currency)} {receipt.currency} of it can go back")
        return amount

    async def send(self, provider: PaymentProvider, refund_id: UUID, *, old: bool = False) -> None:
        """Let the money go back; may be repeated. Raises ProviderUnavailable."""
        async with self._database.reading() as session:
            # all tenants: the job has the row's id
            query = select(*_COLUMNS, _RECEIPT.provider_id.label("payment")).join(
                cash_receipt, _RECEIPT.id == _REFUND.receipt_id
            )
            found = (await session.execute(query.where(_REFUND.id == refund_id))).one_or_none()
        if found is None or found.state not in _OPEN:
            return
        row, payment = Refund(*found[:-1]), str(found.payment)
        try:
            if row.provider_id is not None:
                fact: RefundFact | None = await provider.read_refund(row.provider_id)
            else:
                fact = await provider.find_refund(payment, str(row.id)) if old else None
            if fact is None:
                fact = await provider.refund(
                    payment, refund=str(row.id), amount=row.amount, currency=row.currency, key=f"refund:{row.id}"
                )
        except ProviderRefused as error:
            await self._fail(row, None, str(error))
            return
        await self.follow(fact)

    async def follow(self, fact: RefundFact) -> bool:
        """Let a refund become what the provider says. False if it is none of ours."""
        async with self._database.reading() as session:
            # all tenants: the provider's id, or our own in its metadata, says whose it is
            named = _REFUND.provider_id == fact.id
            with suppress(ValueError):
                named |= _REFUND.id == UUID(fact.refund)
            row = (await session.execute(select(*_COLUMNS).where(named))).one_or_none()
        if row is None:
            return False
        if fact.status == "failed":
            await self._fail(Refund(*row), fact.id, "the provider says that it failed")
            return True
        state = "succeeded" if fact.status == "succeeded" else "sent"
        async with self._database.transaction() as session:
            if await self._state(session, row) in _OPEN:
                values = {"state": state, "provider_id": fact.id, "updated_at": self._database.clock}
                await change_recorded(session, PAYMENT_REFUNDS, f"payment_refund.{state}", row.id, values)
        return True

    async def _fail(self, row: Refund, provider_id: str | None, problem: str) -> None:
        """Put the credit back, once."""
        async with self._database.transaction() as session:
            if await self._state(session, row) == "failed":
                return
            values: dict[str, Any] = {"state": "failed", "problem": problem[:500], "updated_at": self._database.clock}
            if provider_id is not None:
                values["provider_id"] = provider_id
            await change_recorded(session, PAYMENT_REFUNDS, "payment_refund.failed", row.id, values)
            text = f"a refund of {format_minor(row.amount, row.currency)} {row.currency} failed: {problem}"
            # the task before the money, as disputes do: each locks a row of all tenants
            await add_task(self._database, session, "refund_failed", str(row.id), text, row.tenant_id)
            again, why = uuid5(row.id, "failed"), "a refund that failed"
            await put_in(self._database, session, again, row.tenant_id, row.amount, row.currency, why)

    async def _state(self, session: AsyncSession, row: Any) -> str:
        query = select(_REFUND.state).where(_REFUND.tenant_id == row.tenant_id, _REFUND.id == row.id)
        return str(await session.scalar(self._database.locked(query)))
