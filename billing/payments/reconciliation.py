"""The nightly comparison with the provider, in both directions, and the events that never arrived.

Theirs → ours: each payment that succeeded has a receipt of its amount; each invoice is one of ours, with its number and
total. Ours → theirs: each receipt, pushed invoice and top-up in flight is there, in the state that we think.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from contextlib import suppress
from uuid import UUID

import msgspec
import structlog
from sqlalchemy import func, insert, select

from billing.money import format_minor
from billing.payments.events import EventEffects
from billing.payments.inbox import PaymentInbox
from billing.payments.provider import InvoiceFact, PaymentFact, PaymentProvider, ProviderRefused, ProviderUnavailable
from billing.payments.pushing import DocumentPusher
from billing.payments.tasks import add_task
from billing.payments.top_ups import IN_FLIGHT, TopUps
from billing.tables.invoices import invoice
from billing.tables.payments import cash_receipt, payment_reconciliation, pushed_document, top_up
from storage.database.base import new_id
from storage.database.database import Database, DatabaseUnavailable

_SECOND = 1_000_000
_MARGIN_S = 900
"""What happened so lately may still be on its way."""
_DAY_S = 86_400
log = structlog.get_logger(__name__)


class Difference(msgspec.Struct, frozen=True):
    """Something that one side has otherwise than the other."""

    what: str
    object: str
    detail: str = ""


class PaymentReconciliation(msgspec.Struct, frozen=True):
    """A comparison. `missed`: events that came by no webhook, and were taken from the list."""

    id: UUID
    provider: str
    since: int
    until: int
    payments: int
    invoices: int
    missed: int
    differences: Sequence[Difference]


class Reconciler:
    """Compares. Methods raise DatabaseUnavailable and ProviderUnavailable, and ProviderRefused for a list."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._inbox, self._events = PaymentInbox(database), EventEffects(database)
        self._pusher, self._top_ups = DocumentPusher(database), TopUps(database)

    async def run_if_due(self, provider: PaymentProvider, every_s: int = _DAY_S) -> PaymentReconciliation | None:
        """Compare what happened since the last time, if that is long enough ago."""
        row = payment_reconciliation.c
        query = select(func.max(row.until)).where(row.provider == provider.name)
        async with self._database.reading() as session:
            last = await session.scalar(query)
        now = await self._database.now()
        if last is not None and now - last < every_s * _SECOND:
            return None
        since = now - 7 * _DAY_S * _SECOND if last is None else last - _DAY_S * _SECOND
        return await self.run(provider, since // _SECOND, now // _SECOND - _MARGIN_S)

    async def run(self, provider: PaymentProvider, since: int, until: int) -> PaymentReconciliation:
        """Take missed events, then compare what was made between two instants (seconds since the Unix epoch)."""
        missed, failed = 0, list[Difference]()
        for event in reversed(await provider.events_since(since, until)):
            if event.livemode == provider.livemode and await self._inbox.take(provider.name, event, "list"):
                missed += 1
                failed += await _attempt(event.id, self._events.follow(provider, event.id))
        payments = await provider.payments_since(since, until)
        invoices = await provider.invoices_since(since, until)
        differences = [
            *failed,
            *await self._payments(provider, payments),
            *await self._invoices(provider, invoices),
            *await self._receipts(provider, payments, since, until),
            *await self._pushed(provider, invoices, since, until),
        ]
        run = PaymentReconciliation(
            new_id(), provider.name, since * _SECOND, until * _SECOND, len(payments), len(invoices), missed, differences
        )
        await self._write(run)
        return run

    async def recent(self, limit: int) -> list[PaymentReconciliation]:
        """Comparisons, the newest first."""
        row = payment_reconciliation.c
        query = select(row.report).order_by(row.at.desc(), row.id.desc()).limit(limit)
        async with self._database.reading() as session:
            return [msgspec.json.decode(text, type=PaymentReconciliation) for text in await session.scalars(query)]

    async def _write(self, run: PaymentReconciliation) -> None:
        row = {"id": run.id, "provider": run.provider, "since": run.since, "until": run.until}
        row |= {"differences": len(run.differences), "report": msgspec.json.encode(run).decode()}
        async with self._database.transaction() as session:
            await session.execute(insert(payment_reconciliation).values(row | {"at": self._database.clock}))
            for one in run.differences:
                text = f"{one.object}: {one.what} {one.detail}".strip()
                await add_task(self._database, session, "unreconciled", one.object, text)

    async def _payments(self, provider: PaymentProvider, payments: Sequence[PaymentFact]) -> list[Difference]:
        """Theirs → ours: what came in there is booked here."""
        found = []
        for fact in payments:
            if fact.status != "succeeded":
                continue
            row = await self._booked(provider, fact.id)
            if row is None:
                found += await _attempt(fact.id, self._events.follow_payment(provider, fact.id))  # its event was lost
                row = await self._booked(provider, fact.id)
            if row is None:
                found.append(Difference("a payment that is not booked", fact.id, _shown(fact.received, fact.currency)))
            elif row != (fact.received, fact.currency):
                detail = f"{_shown(fact.received, fact.currency)} there, {_shown(*row)} here"
                found.append(Difference("a payment of another amount", fact.id, detail))
        return found

    async def _booked(self, provider: PaymentProvider, identity: str) -> tuple[int, str] | None:
        """The amount and currency of a payment's receipt."""
        receipt = cash_receipt.c
        # all tenants: the provider's account has all of them
        query = select(receipt.amount, receipt.currency)
        query = query.where(receipt.provider == provider.name, receipt.provider_id == identity)
        async with self._database.reading() as session:
            row = (await session.execute(query)).one_or_none()
        return None if row is None else (row.amount, row.currency)

    async def _invoices(self, provider: PaymentProvider, invoices: Sequence[InvoiceFact]) -> list[Difference]:
        """Theirs → ours: each invoice there is one of ours, as we have it."""
        found = []
        for fact in invoices:
            pushed = await self._pusher.of_provider_id(provider.name, fact.id)
            if pushed is None:
                if fact.status != "draft":
                    found.append(Difference("an invoice that is not ours", fact.id, fact.number))
                continue
            # tenant: the pushed document's
            query = select(invoice.c.number, invoice.c.payable, invoice.c.state, invoice.c.currency)
            async with self._database.reading() as session:
                row = (await session.execute(query.where(invoice.c.id == pushed.document_id))).one()
            if fact.status != "draft" and (row.number, row.payable) != (fact.number, fact.total):
                detail = f"{fact.number} of {_shown(fact.total, fact.currency)} there"
                found.append(Difference("an invoice that differs", fact.id, detail))
            if fact.status == "paid" and row.state not in ("paid", "credited"):
                found += await _attempt(fact.id, self._events.follow_invoice(provider, fact.id))  # its event was lost
                async with self._database.reading() as session:
                    row = (await session.execute(query.where(invoice.c.id == pushed.document_id))).one()
            if fact.status == "paid" and row.state not in ("paid", "credited"):
                found.append(Difference("an invoice that is paid there alone", fact.id, f"{row.number} is {row.state}"))
            if fact.status in ("void", "uncollectible") and row.state not in ("void", "uncollectible", "credited"):
                found.append(Difference(f"an invoice that is {fact.status} there alone", fact.id, row.number))
        return found

    async def _receipts(
        self, provider: PaymentProvider, payments: Sequence[PaymentFact], since: int, until: int
    ) -> list[Difference]:
        """Ours → theirs: what is booked here came in there, and no top-up was forgotten."""
        there = {fact.id: fact for fact in payments}
        receipt, of = cash_receipt.c, top_up.c
        span = (receipt.received_at >= since * _SECOND, receipt.received_at < until * _SECOND)
        found = []
        async with self._database.reading() as session:  # all tenants: the provider's account has all of them
            booked = select(receipt.provider_id, receipt.amount, receipt.currency)
            rows = (await session.execute(booked.where(receipt.provider == provider.name, *span))).all()
            waiting = select(of.id).where(of.provider == provider.name, of.created_at < (until - _DAY_S) * _SECOND)
            late = list(await session.scalars(waiting.where(of.state.in_(IN_FLIGHT))))
        for row in rows:
            fact = there.get(row.provider_id) or await self._ask(provider, row.provider_id)
            if fact is None or fact.status != "succeeded" or fact.received != row.amount:
                detail = _shown(row.amount, row.currency)
                found.append(Difference("a receipt without a payment", row.provider_id, detail))
        for identity in late:
            found += await _attempt(str(identity), self._top_ups.send(provider, identity, old=True))
            after = await self._top_ups.find(identity)
            if after is not None and after.state in ("created", "unknown"):
                found.append(Difference("a top-up that nobody finished", str(identity), after.state))
        return found

    async def _ask(self, provider: PaymentProvider, identity: str) -> PaymentFact | None:
        if not identity.startswith("pi_"):
            return None
        with suppress(ProviderRefused):
            return await provider.payment(identity)
        return None

    async def _pushed(
        self, provider: PaymentProvider, invoices: Sequence[InvoiceFact], since: int, until: int
    ) -> list[Difference]:
        """Ours → theirs: each document that we pushed is there."""
        there = {fact.id for fact in invoices}
        pushed = pushed_document.c
        query = select(pushed.provider_id, invoice.c.number).join(invoice, invoice.c.id == pushed.document_id)
        query = query.where(pushed.provider == provider.name, pushed.state == "pushed", invoice.c.kind == "invoice")
        span = (pushed.updated_at >= since * _SECOND, pushed.updated_at < until * _SECOND)
        async with self._database.reading() as session:  # all tenants: as above
            rows = (await session.execute(query.where(*span))).all()
        return [
            Difference("a pushed invoice with another number", row.provider_id, row.number)
            for row in rows
            if row.provider_id not in there and await self._number(provider, row.provider_id) != row.number
        ]

    async def _number(self, provider: PaymentProvider, identity: str) -> str | None:
        with suppress(ProviderRefused):
            return (await provider.invoice(identity)).number
        return None


async def _attempt(identity: str, work: Awaitable[object]) -> list[Difference]:
    """Do what was left out; what goes wrong with one object is a difference, and stops nothing of the others'."""
    try:
        await work
    except (DatabaseUnavailable, ProviderUnavailable):
        raise
    except Exception as error:
        log.exception("what was left out could not be done", object=identity)
        return [Difference("what was left out fails", identity, f"{type(error).__name__}: {error}"[:300])]
    return []


def _shown(amount: int, currency: str) -> str:
    return f"{format_minor(amount, currency)} {currency}"
