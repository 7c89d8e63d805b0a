"""The inbox of a provider's events: each is taken once, in one transaction with the job to look at what it is about."""

from __future__ import annotations

from typing import Any, Literal

from sqlalchemy import select

from billing.payments.jobs import queue_job
from billing.payments.provider import EventFact
from billing.tables.payments import payment_inbox
from storage.database.database import Database
from storage.database.sql_arrays import one_of

_INBOX = payment_inbox.c
TAKEN = (
    *("payment_intent.succeeded", "payment_intent.processing", "payment_intent.payment_failed"),
    *("payment_intent.canceled", "payment_intent.requires_action"),
    *("checkout.session.completed", "checkout.session.expired", "checkout.session.async_payment_succeeded"),
    *("checkout.session.async_payment_failed", "setup_intent.succeeded"),
    *("invoice_payment.paid", "invoice.paid", "invoice.overpaid", "invoice.payment_failed", "invoice.overdue"),
    *("invoice.finalization_failed", "invoice.payment_action_required", "invoice.voided"),
    *("invoice.marked_uncollectible", "invoice.deleted"),
    *("charge.dispute.created", "charge.dispute.updated", "charge.dispute.funds_withdrawn"),
    *("charge.dispute.funds_reinstated", "charge.dispute.closed"),
    *("refund.created", "refund.updated", "refund.failed", "credit_note.created", "credit_note.voided"),
    *("customer.updated", "customer.deleted", "payment_method.detached", "payment_method.automatically_updated"),
)
"""The events that something follows from; all others are left out of the inbox."""


class PaymentInbox:
    """Takes events. Methods raise DatabaseUnavailable."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def take(self, provider: str, event: EventFact, via: Literal["webhook", "list"] = "webhook") -> bool:
        """Keep an event, and queue the job of what it is about; False if it was there, or nothing follows from it."""
        if event.type not in TAKEN or not event.object:
            return False
        async with self._database.transaction() as session:
            row: dict[str, Any] = {
                "provider": provider,
                "event_id": event.id,
                "type": event.type,
                "object_id": event.object,
            }
            row |= {"created": event.created, "received_at": self._database.clock, "via": via}
            new = self._database.insert(payment_inbox).values(row).on_conflict_do_nothing()
            if (await session.execute(new.returning(_INBOX.event_id))).one_or_none() is None:
                return False
            await queue_job(self._database, session, "event", f"{provider} {event.id}")
            return True

    async def find(self, provider: str, event_id: str) -> tuple[str, str] | None:
        """What an event is about: its type, and the object's id."""
        query = select(_INBOX.type, _INBOX.object_id).where(_INBOX.provider == provider, _INBOX.event_id == event_id)
        async with self._database.reading() as session:
            row = (await session.execute(query)).one_or_none()
        return None if row is None else (row.type, row.object_id)

    async def forget(self, keep_s: int) -> int:
        """Delete a batch of events that came longer ago. Provider's lists have 30 days: keep more."""
        async with self._database.transaction() as session:
            before = await self._database.now_in(session) - keep_s * 1_000_000
            old = select(_INBOX.event_id).where(_INBOX.received_at < before).limit(1000)
            ids = list(await session.scalars(old))
            if ids:
                await session.execute(payment_inbox.delete().where(one_of(self._database, _INBOX.event_id, ids)))
            return len(ids)
