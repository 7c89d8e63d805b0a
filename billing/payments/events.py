"""What follows from a provider's event: the object is asked for as it is now, whatever order events come in."""

from __future__ import annotations

from uuid import UUID

from billing.payments.cash import CashBook
from billing.payments.customers import Customers
from billing.payments.disputes import Disputes
from billing.payments.inbox import PaymentInbox
from billing.payments.provider import InvoicePaymentFact, MoneyIn, PaymentProvider
from billing.payments.pushing import DocumentPusher, PushedDocument
from billing.payments.refunds import Refunds
from billing.payments.tasks import TaskKind, add_task
from billing.payments.top_ups import TopUps
from storage.database.database import Database

_TASKS: dict[str, tuple[TaskKind, str]] = {
    "invoice.finalization_failed": ("document_refused", "the provider could not make it final"),
    "invoice.payment_action_required": ("payment_failed", "the customer has to authenticate its payment"),
    "invoice.payment_failed": ("payment_failed", "its payment failed"),
    "invoice.overdue": ("invoice_overdue", "it is overdue"),
    "invoice.voided": ("changed_by_hand", "it was voided at the provider: ours is the book"),
    "invoice.marked_uncollectible": ("changed_by_hand", "it was written off at the provider: ours is the book"),
    "invoice.deleted": ("changed_by_hand", "it was deleted at the provider: ours is the book"),
    "credit_note.voided": ("changed_by_hand", "a credit note was voided at the provider: ours is the book"),
}


class EventEffects:
    """Looks at what events are about. Methods raise DatabaseUnavailable and ProviderUnavailable."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._inbox, self._cash, self._customers = PaymentInbox(database), CashBook(database), Customers(database)
        self._top_ups, self._pusher = TopUps(database), DocumentPusher(database)
        self._refunds, self._disputes = Refunds(database), Disputes(database)

    async def follow(self, provider: PaymentProvider, event_id: str) -> None:
        """Do what follows from an event of the inbox; may be repeated. Raises ProviderRefused for an object that is not
        there."""
        found = await self._inbox.find(provider.name, event_id)
        if found is None:
            return
        type_, identity = found
        if type_ in _TASKS:
            await self._add_task(provider, type_, identity)
        group = type_.rpartition(".")[0]
        if group == "payment_intent":
            await self.follow_payment(provider, identity)
        elif group == "checkout.session":
            await self._follow_session(provider, identity)
        elif group == "setup_intent":
            await self._keep_card(provider, identity)
        elif type_ == "invoice_payment.paid":
            await self._follow_invoice_payment(provider, identity)
        elif type_ in ("invoice.paid", "invoice.overpaid"):
            await self.follow_invoice(provider, identity)
        elif group == "charge.dispute":
            await self.follow_dispute(provider, identity)
        elif group == "refund":
            await self._follow_refund(provider, identity)
        elif type_ in ("customer.updated", "customer.deleted"):
            await self._refresh_card(provider, identity)

    async def follow_payment(self, provider: PaymentProvider, identity: str) -> None:
        """Book a payment that succeeded: of a top-up, of an invoice, or of nothing that we know."""
        fact = await provider.payment(identity)
        if await self._top_ups.follow(provider, fact) or fact.status != "succeeded":
            return
        paid = await provider.invoice_of_payment(identity)
        if paid is not None and paid.paid:
            await self._book_invoice_payment(provider, paid)
        elif paid is None:
            money = await self._money(provider, fact.id, fact.received, fact.currency)
            tenant = await self._customers.of_provider_id(provider.name, fact.customer)
            problem = "it pays neither a top-up nor an invoice of ours"
            await self._cash.suspend(money, problem, None if tenant is None else tenant.tenant_id)

    async def follow_dispute(self, provider: PaymentProvider, identity: str) -> None:
        """Let a dispute become what it is at the provider."""
        await self._disputes.follow(provider.name, await provider.dispute(identity))

    async def _follow_session(self, provider: PaymentProvider, identity: str) -> None:
        session = await provider.session(identity)
        if session.setup:
            await self._keep_card(provider, session.setup)
        if session.payment:
            await self.follow_payment(provider, session.payment)
        if session.top_up and (top_up := _uuid(session.top_up)) is not None:
            await self._top_ups.send(provider, top_up)

    async def _keep_card(self, provider: PaymentProvider, setup: str) -> None:
        customer, method = await provider.method_of_setup(setup)
        tenant = await self._customers.of_provider_id(provider.name, customer)
        if tenant is not None and method:
            await provider.keep_method(customer, method, f"card:{setup}")
            await self._customers.refresh_method(provider, tenant)

    async def _refresh_card(self, provider: PaymentProvider, customer: str) -> None:
        tenant = await self._customers.of_provider_id(provider.name, customer)
        if tenant is not None:
            await self._customers.refresh_method(provider, tenant)

    async def _follow_invoice_payment(self, provider: PaymentProvider, identity: str) -> None:
        """An invoice's payment is named by an id of its own, and booked by that of its payment."""
        invoice = await provider.invoice_of_invoice_payment(identity)
        await self.follow_invoice(provider, invoice)

    async def follow_invoice(self, provider: PaymentProvider, identity: str) -> None:
        """Book all payments of an invoice."""
        for paid in await provider.invoice_payments(identity):
            if paid.paid:
                await self._book_invoice_payment(provider, paid)

    async def _book_invoice_payment(self, provider: PaymentProvider, paid: InvoicePaymentFact) -> None:
        money = await self._money(provider, paid.id, paid.amount, paid.currency)
        pushed = await self._pusher.of_provider_id(provider.name, paid.invoice)
        if pushed is None:
            pushed = await self._of_document(provider, paid.invoice)
        if pushed is None:
            await self._cash.suspend(money, f"it pays {paid.invoice}, which is no invoice of ours")
        else:
            await self._cash.take_invoice_payment(money, pushed.tenant_id, pushed.document_id)

    async def _of_document(self, provider: PaymentProvider, identity: str) -> PushedDocument | None:
        """Our document that an invoice points to, and whose draft it is; None if it is not at the provider by us."""
        fact = await provider.invoice(identity)
        document = _uuid(fact.document)
        pushed = None if document is None else await self._pusher.find(document)
        if pushed is None or pushed.provider_id is not None:
            return None
        tenant = await self._customers.of_provider_id(provider.name, fact.customer)
        return pushed if tenant is not None and tenant.tenant_id == pushed.tenant_id else None

    async def _follow_refund(self, provider: PaymentProvider, identity: str) -> None:
        fact = await provider.read_refund(identity)
        if not await self._refunds.follow(fact):
            text = f"refund {fact.id} of {fact.payment} was made at the provider by hand: our books do not have it"
            await self._task("changed_by_hand", fact.id, text, None)

    async def _add_task(self, provider: PaymentProvider, type_: str, identity: str) -> None:
        kind, text = _TASKS[type_]
        pushed = await self._pusher.of_provider_id(provider.name, identity)
        if pushed is None and type_ == "invoice.deleted":
            return  # a draft of ours that differed
        if pushed is not None and pushed.state in ("differs", "refused"):
            return
        name = identity if pushed is None else f"invoice {pushed.document_id}"
        await self._task(kind, identity, f"{name}: {text}", None if pushed is None else pushed.tenant_id)

    async def _task(self, kind: TaskKind, subject: str, text: str, tenant_id: UUID | None) -> None:
        async with self._database.transaction() as session:
            await add_task(self._database, session, kind, subject, text, tenant_id)

    async def _money(self, provider: PaymentProvider, identity: str, amount: int, currency: str) -> MoneyIn:
        at = await self._database.now()
        return MoneyIn(provider=provider.name, id=identity, amount=amount, currency=currency, at=at)


def _uuid(text: str) -> UUID | None:
    try:
        return UUID(text)
    except ValueError:
        return None
