"""Stripe as a PaymentProvider: which call does what, with which parameters."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from billing.payments.provider import (
    CreditedPart,
    CreditNoteFact,
    CustomerDetails,
    DisputeFact,
    DocumentLine,
    EventFact,
    InvoiceFact,
    InvoicePaymentFact,
    PaymentFact,
    ProviderRefused,
    PushedBill,
    RefundFact,
    SavedMethod,
    SessionFact,
)
from billing.payments.stripe_api import documents
from billing.payments.stripe_api.calls import CardDeclined, StripeCalls
from billing.payments.stripe_api.credentials import StripeCredentials
from billing.payments.stripe_api.facts import (
    credit_note_fact,
    dispute_fact,
    event_fact,
    invoice_fact,
    invoice_payment_fact,
    method_fact,
    payment_fact,
    refund_fact,
    session_fact,
    to_stripe,
)
from billing.payments.stripe_api.signatures import read_event

NAME = "stripe"
SIGNATURE = "stripe-signature"
"""The header of webhooks."""
_PAGE = 100
_PAGES = 1000
"""The most pages of a list that are read."""
_CARD = ["card"]


class StripeProvider:
    """An account at Stripe (`billing.payments.provider.PaymentProvider`)."""

    name = NAME

    def __init__(self, credentials: StripeCredentials, calls: StripeCalls | None = None) -> None:
        self.credentials = credentials
        self._calls = calls or StripeCalls(credentials)

    @property
    def livemode(self) -> bool:
        return self.credentials.livemode

    @property
    def stand_in(self) -> bool:
        return self.credentials.stand_in

    @property
    def account(self) -> str:
        return self.credentials.account

    @property
    def fingerprint(self) -> str:
        return self.credentials.fingerprint

    def read_event(self, body: bytes, headers: Mapping[str, str]) -> EventFact:
        return read_event(body, headers.get(SIGNATURE, ""), self.credentials)

    @property
    def _v1(self) -> Any:
        return self._calls.client.v1

    async def close(self) -> None:
        await self._calls.close()

    async def check(self) -> str:
        found = await self._calls.call(self._v1.accounts.retrieve_current_async)
        return str(found["id"])

    async def _list(self, method: Any, **query: Any) -> AsyncIterator[Any]:
        """All objects of a list, the newest first. Raises ProviderRefused for one that does not end."""
        params: dict[str, Any] = {"limit": _PAGE, **query}
        for _ in range(_PAGES):
            page = await self._calls.call(method, params=params)
            for one in page["data"]:
                yield one
            if not page["has_more"]:
                return
            params["starting_after"] = page["data"][-1]["id"]
        raise ProviderRefused("a list of Stripe's does not end", "too_many")

    # ------------------------------------------------------------ customers and their cards

    async def create_customer(self, details: CustomerDetails, key: str) -> str:
        async def create(key: str) -> Any:
            params = documents.customer(details)
            if details.vat_id and (kind := documents.tax_id_type(details.vat_id)):
                params["tax_id_data"] = [{"type": kind, "value": details.vat_id}]
            return await self._calls.call(self._v1.customers.create_async, params=params, key=key)

        async def find() -> Any:
            return None  # a second customer without payments does no harm, and is never charged

        return str((await self._calls.create_once(key, create, find))["id"])

    async def update_customer(self, customer: str, details: CustomerDetails) -> None:
        await self._calls.call(self._v1.customers.update_async, customer, params=documents.customer(details))

    async def find_customer(self, tenant: str, since: int) -> str | None:
        async for one in self._list(self._v1.customers.list_async, created={"gte": since}):
            if (one.get("metadata") or {}).get("tenant") == tenant:
                return str(one["id"])
        return None

    async def saved_method(self, customer: str) -> SavedMethod | None:
        found = await self._calls.call(self._v1.customers.retrieve_async, customer)
        method = None if found.get("deleted") else found["invoice_settings"].get("default_payment_method")
        if not method:
            return None
        return method_fact(await self._calls.call(self._v1.payment_methods.retrieve_async, str(method)))

    async def method_of_setup(self, setup: str) -> tuple[str, str]:
        found = await self._calls.call(self._v1.setup_intents.retrieve_async, setup)
        done = found["status"] == "succeeded"
        return str(found.get("customer") or ""), str(found.get("payment_method") or "") if done else ""

    async def keep_method(self, customer: str, method: str, key: str) -> None:
        params = {"invoice_settings": {"default_payment_method": method}}
        await self._calls.call(self._v1.customers.update_async, customer, params=params, key=key)

    # ------------------------------------------------------------ top-ups

    async def create_checkout(
        self, customer: str, *, top_up: str, amount: int, currency: str, expires_at: int, key: str
    ) -> SessionFact:
        params = documents.checkout(customer, top_up, to_stripe(amount, currency), currency)
        params |= {**self._urls("top-up"), "expires_at": expires_at}

        async def create(key: str) -> SessionFact:
            return session_fact(await self._calls.call(self._v1.checkout.sessions.create_async, params=params, key=key))

        async def find() -> SessionFact | None:
            return await self.find_checkout(customer, top_up, expires_at - 2 * 86_400)

        return await self._calls.create_once(key, create, find)

    async def create_setup(self, customer: str, currency: str, key: str) -> SessionFact:
        params: dict[str, Any] = {
            "mode": "setup",
            "customer": customer,
            "currency": currency.lower(),
            "ui_mode": "hosted_page",
        }
        params |= {"allowed_payment_method_types": _CARD, **self._urls("card")}
        made = await self._calls.call(self._v1.checkout.sessions.create_async, params=params, key=key)
        return session_fact(made)

    def _urls(self, what: str) -> dict[str, str]:
        back = self.credentials.return_url
        joined = "&" if "?" in back else "?"
        return {"success_url": f"{back}{joined}{what}=done", "cancel_url": f"{back}{joined}{what}=canceled"}

    async def find_checkout(self, customer: str, top_up: str, since: int) -> SessionFact | None:
        query = {"customer": customer, "created": {"gte": since}}
        async for one in self._list(self._v1.checkout.sessions.list_async, **query):
            if one.get("client_reference_id") == top_up:
                return session_fact(one)
        return None

    async def session(self, session: str) -> SessionFact:
        return session_fact(await self._calls.call(self._v1.checkout.sessions.retrieve_async, session))

    async def expire_session(self, session: str) -> None:
        try:
            await self._calls.call(self._v1.checkout.sessions.expire_async, session)
        except ProviderRefused:
            if (await self.session(session)).status == "open":
                raise

    async def create_portal(self, customer: str) -> str:
        params = {"customer": customer, "return_url": self.credentials.return_url}
        made = await self._calls.call(self._v1.billing_portal.sessions.create_async, params=params)
        return str(made["url"])

    async def charge(
        self, customer: str, *, method: str, top_up: str, amount: int, currency: str, key: str
    ) -> PaymentFact:
        params = {"amount": to_stripe(amount, currency), "currency": currency.lower(), "customer": customer}
        params |= {"payment_method": method, "confirm": True, "off_session": True, "metadata": {"top_up": top_up}}
        params |= {"allowed_payment_method_types": _CARD}

        async def create(key: str) -> PaymentFact:
            try:
                made = await self._calls.call(self._v1.payment_intents.create_async, params=params, key=key)
            except CardDeclined as declined:
                if not declined.payment:
                    raise
                return await self.payment(declined.payment)
            return payment_fact(made)

        async def find() -> PaymentFact | None:
            return await self.find_payment(customer, top_up, 0)

        return await self._calls.create_once(key, create, find)

    async def payment(self, payment: str) -> PaymentFact:
        return payment_fact(await self._calls.call(self._v1.payment_intents.retrieve_async, payment))

    async def find_payment(self, customer: str, top_up: str, since: int) -> PaymentFact | None:
        query = {"customer": customer, "created": {"gte": since}}
        async for one in self._list(self._v1.payment_intents.list_async, **query):
            if (one.get("metadata") or {}).get("top_up") == top_up:
                return payment_fact(one)
        return None

    async def cancel_payment(self, payment: str) -> PaymentFact:
        try:
            params = {"cancellation_reason": "abandoned"}
            found = await self._calls.call(self._v1.payment_intents.cancel_async, payment, params=params)
        except ProviderRefused:
            return await self.payment(payment)
        return payment_fact(found)

    # ------------------------------------------------------------ invoices and credit notes

    async def create_draft(self, customer: str, bill: PushedBill, key: str) -> str:
        params = documents.draft(customer, bill)

        async def create(key: str) -> str:
            made = await self._calls.call(self._v1.invoices.create_async, params=params, key=key)
            return str(made["id"])

        async def find() -> str | None:
            return await self.find_draft(customer, bill.document, 0)

        return await self._calls.create_once(key, create, find)

    async def find_draft(self, customer: str, document: str, since: int) -> str | None:
        query = {"customer": customer, "created": {"gte": since}}
        async for one in self._list(self._v1.invoices.list_async, **query):
            if (one.get("metadata") or {}).get("invoice_id") == document:
                return str(one["id"])
        return None

    async def add_lines(self, invoice: str, bill: PushedBill, lines: Sequence[DocumentLine], key: str) -> None:
        params = {"lines": [documents.line(bill, one) for one in lines]}

        async def create(key: str) -> bool:
            await self._calls.call(self._v1.invoices.add_lines_async, invoice, params=params, key=key)
            return True

        async def find() -> bool | None:
            there = {one.n for one in (await self.invoice(invoice)).lines}
            return True if lines[0].n in there else None

        await self._calls.create_once(key, create, find)

    async def invoice(self, invoice: str) -> InvoiceFact:
        found = await self._calls.call(self._v1.invoices.retrieve_async, invoice)
        lines = list(found["lines"]["data"])
        if found["lines"]["has_more"]:
            lines = [one async for one in self._lines(invoice)]
        return invoice_fact(found, lines)

    async def _lines(self, invoice: str) -> AsyncIterator[Any]:
        async def page(params: Mapping[str, Any], options: Any) -> Any:
            return await self._v1.invoices.line_items.list_async(invoice, params, options)

        async for one in self._list(page):
            yield one

    async def delete_draft(self, invoice: str) -> None:
        try:
            await self._calls.call(self._v1.invoices.delete_async, invoice)
        except ProviderRefused as error:
            if error.code != "resource_missing":
                raise

    async def finalize(self, invoice: str, *, charge: bool, key: str) -> InvoiceFact:
        async def create(key: str) -> Any:
            params = {"auto_advance": charge}
            return await self._calls.call(self._v1.invoices.finalize_invoice_async, invoice, params=params, key=key)

        async def find() -> Any:
            return True if (await self.invoice(invoice)).status != "draft" else None

        await self._calls.create_once(key, create, find)
        return await self.invoice(invoice)

    async def invoice_payments(self, invoice: str) -> Sequence[InvoicePaymentFact]:
        found = self._list(self._v1.invoice_payments.list_async, invoice=invoice)
        return [invoice_payment_fact(one) async for one in found]

    async def invoice_of_invoice_payment(self, invoice_payment: str) -> str:
        found = await self._calls.call(self._v1.invoice_payments.retrieve_async, invoice_payment)
        return invoice_payment_fact(found).invoice

    async def invoice_of_payment(self, payment: str) -> InvoicePaymentFact | None:
        query = {"payment": {"type": "payment_intent", "payment_intent": payment}}
        async for one in self._list(self._v1.invoice_payments.list_async, **query):
            return invoice_payment_fact(one)
        return None

    async def create_credit_note(
        self,
        invoice: InvoiceFact,
        parts: Sequence[CreditedPart],
        *,
        document: str,
        number: str,
        issued_at: int,
        key: str,
    ) -> CreditNoteFact:
        params = documents.credit_note(invoice, parts, document=document, number=number, issued_at=issued_at)

        async def create(key: str) -> CreditNoteFact:
            made = await self._calls.call(self._v1.credit_notes.create_async, params=params, key=key)
            return credit_note_fact(made)

        async def find() -> CreditNoteFact | None:
            notes = await self.credit_notes(invoice.id)
            return next((note for note in notes if note.document == document), None)

        return await self._calls.create_once(key, create, find)

    async def credit_notes(self, invoice: str) -> Sequence[CreditNoteFact]:
        found = self._list(self._v1.credit_notes.list_async, invoice=invoice)
        return [credit_note_fact(one) async for one in found]

    # ------------------------------------------------------------ money that goes back

    async def refund(self, payment: str, *, refund: str, amount: int, currency: str, key: str) -> RefundFact:
        params = {"payment_intent": payment, "amount": to_stripe(amount, currency)}
        params |= {"reason": "requested_by_customer", "metadata": {"refund": refund}}

        async def create(key: str) -> RefundFact:
            return refund_fact(await self._calls.call(self._v1.refunds.create_async, params=params, key=key))

        async def find() -> RefundFact | None:
            return await self.find_refund(payment, refund)

        return await self._calls.create_once(key, create, find)

    async def find_refund(self, payment: str, refund: str) -> RefundFact | None:
        async for one in self._list(self._v1.refunds.list_async, payment_intent=payment):
            if (one.get("metadata") or {}).get("refund") == refund:
                return refund_fact(one)
        return None

    async def read_refund(self, refund: str) -> RefundFact:
        return refund_fact(await self._calls.call(self._v1.refunds.retrieve_async, refund))

    async def dispute(self, dispute: str) -> DisputeFact:
        return dispute_fact(await self._calls.call(self._v1.disputes.retrieve_async, dispute))

    # ------------------------------------------------------------ what there is

    async def payments_since(self, since: int, until: int) -> Sequence[PaymentFact]:
        created = {"gte": since, "lt": until}
        found = self._list(self._v1.payment_intents.list_async, created=created)
        return [payment_fact(one) async for one in found]

    async def invoices_since(self, since: int, until: int) -> Sequence[InvoiceFact]:
        created = {"gte": since, "lt": until}
        return [invoice_fact(one, []) async for one in self._list(self._v1.invoices.list_async, created=created)]

    async def events_since(self, since: int, until: int) -> Sequence[EventFact]:
        created = {"gte": since, "lt": until}
        return [event_fact(one) async for one in self._list(self._v1.events.list_async, created=created)]
