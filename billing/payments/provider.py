"""What a payment provider does for us, whoever it is, and what it says of payments.

We act through a `PaymentProvider`; today there is one, Stripe (`billing.payments.stripe_api`). Money that came in is a
`MoneyIn` for all: of a card, of a provider's invoice, of an entry in a bank statement (`billing.payments.bank`).
Amounts are minor units as ISO 4217 has them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, Protocol

import msgspec

from storage.reported_error import ReportedError

PaymentStatus = Literal["succeeded", "processing", "needs_customer", "declined", "open", "canceled"]
HARD_DECLINES = frozenset(
    (
        *("stolen_card", "lost_card", "pickup_card", "fraudulent", "restricted_card", "security_violation"),
        *("expired_card", "incorrect_number", "invalid_account", "closed_account", "merchant_blacklist"),
        *("transaction_not_allowed", "revocation_of_authorization", "revocation_of_all_authorizations"),
        *("stop_payment_order", "card_not_supported", "currency_not_supported", "no_payment_method"),
    )
)
"""Codes of declines that trying the same method again does not change."""


class ProviderUnavailable(ReportedError):
    """The provider did not answer, is busy, or failed: the same request may be repeated with the same key.

    `replayed`: the failure was kept under the key, which will answer the same for as long as it is known.
    """

    temporary = True

    def __init__(self, problem: str, *, retry_after: int = 0, replayed: bool = False) -> None:
        super().__init__(problem)
        self.retry_after = retry_after
        self.replayed = replayed


class ProviderRefused(ReportedError):
    """The provider refused a request: repeating it does not help."""

    def __init__(self, problem: str, code: str = "", parameter: str = "") -> None:
        super().__init__(problem)
        self.code = code
        self.parameter = parameter


class EventRefused(ReportedError):
    """A webhook that is not signed by our account's secrets, is old, or is none."""


class CustomerDetails(msgspec.Struct, frozen=True, kw_only=True):
    """What a provider knows of a tenant."""

    tenant: str
    name: str
    email: str = ""
    address: Sequence[str] = ()
    postal_code: str = ""
    city: str = ""
    country: str = ""
    vat_id: str = ""
    reverse_charge: bool = False


class SavedMethod(msgspec.Struct, frozen=True):
    """A card that may be charged again; `text` shows it, such as "visa 4242, 12/2031"."""

    id: str
    text: str


class PaymentFact(msgspec.Struct, frozen=True, kw_only=True):
    """A payment as the provider has it now. `top_up`: the id of ours that it points to; `code`: why it was declined."""

    id: str
    status: PaymentStatus
    amount: int
    received: int
    currency: str
    customer: str
    top_up: str = ""
    code: str = ""
    method: str = ""
    created: int = 0


class SessionFact(msgspec.Struct, frozen=True, kw_only=True):
    """A page on which a customer pays."""

    id: str
    url: str
    status: Literal["open", "complete", "expired"]
    payment: str = ""
    setup: str = ""
    top_up: str = ""


class LineTax(msgspec.Struct, frozen=True):
    """The tax on a line, and the provider's id of its rate, which it made."""

    amount: int
    rate_id: str = ""


class DocumentLine(msgspec.Struct, frozen=True, kw_only=True):
    """A line of an invoice at a provider. `id` is the provider's. `rate` is in hundredths of a percent. The period's
    end is excluded."""

    n: int
    text: str
    net: int
    tax: int = 0
    rate: int = 0
    reason: str = ""
    starts_at: int = 0
    ends_at: int = 0
    id: str = ""
    taxes: Sequence[LineTax] = ()


class PushedBill(msgspec.Struct, frozen=True, kw_only=True):
    """A finished invoice as it is pushed: the provider adds nothing to it."""

    document: str
    number: str
    sha256: str
    currency: str
    issued_at: int
    days_until_due: int
    charge: bool
    country: str
    purchase_order: str = ""
    footer: str = ""
    lines: Sequence[DocumentLine]
    net: int
    tax: int
    total: int


class InvoicePaymentFact(msgspec.Struct, frozen=True, kw_only=True):
    """A payment of an invoice at the provider. `id`: that of the payment itself where there is one."""

    id: str
    invoice: str
    amount: int
    currency: str
    paid: bool


class InvoiceFact(msgspec.Struct, frozen=True, kw_only=True):
    """An invoice as the provider has it now."""

    id: str
    status: Literal["draft", "open", "paid", "void", "uncollectible"]
    number: str
    document: str
    customer: str
    currency: str
    net: int
    tax: int
    total: int
    url: str
    lines: Sequence[DocumentLine] = ()


class CreditNoteFact(msgspec.Struct, frozen=True, kw_only=True):
    """A credit note at the provider."""

    id: str
    document: str
    total: int


class CreditedPart(msgspec.Struct, frozen=True, kw_only=True):
    """What a credit note takes back of a line at the provider."""

    line: DocumentLine
    net: int
    tax: int


class RefundFact(msgspec.Struct, frozen=True, kw_only=True):
    """Money that went back."""

    id: str
    payment: str
    amount: int
    currency: str
    status: Literal["pending", "succeeded", "failed"]
    refund: str = ""


class DisputeFact(msgspec.Struct, frozen=True, kw_only=True):
    """A cardholder's objection. `withdrawn`: the provider has taken the money from us."""

    id: str
    payment: str
    amount: int
    currency: str
    reason: str
    withdrawn: bool
    outcome: Literal["open", "won", "lost"]


class EventFact(msgspec.Struct, frozen=True, kw_only=True):
    """That something happened to an object; what, the object says."""

    id: str
    type: str
    object: str
    created: int
    livemode: bool
    account: str = ""


class MoneyIn(msgspec.Struct, frozen=True, kw_only=True):
    """Money that came in, once under its id. `at`: microseconds since the Unix epoch."""

    provider: str
    id: str
    amount: int
    currency: str
    at: int
    payer: str = ""
    reference: str = ""


class PaymentProvider(Protocol):
    """What we ask of a provider. Every method raises ProviderUnavailable and ProviderRefused. `key`: an idempotency
    key, with which the same request has one effect however often it is sent."""

    @property
    def name(self) -> str:
        """What our rows call it."""

    @property
    def livemode(self) -> bool:
        """Whether it moves real money."""

    @property
    def stand_in(self) -> bool:
        """Whether a stand-in on this machine answers in its place, as in the demonstration."""

    @property
    def account(self) -> str:
        """The account whose credentials we have."""

    @property
    def fingerprint(self) -> str:
        """The key as it may be shown."""

    def read_event(self, body: bytes, headers: Mapping[str, str]) -> EventFact:
        """The event of a webhook. Raises EventRefused unless it is signed for us, and of our account and mode."""

    async def check(self) -> str:
        """Whose account the credentials are of."""

    async def create_customer(self, details: CustomerDetails, key: str) -> str:
        """Make a customer; returns its id."""

    async def update_customer(self, customer: str, details: CustomerDetails) -> None:
        """Tell the provider what changed."""

    async def find_customer(self, tenant: str, since: int) -> str | None:
        """The customer that was made for a tenant since then; None if there is none."""

    async def saved_method(self, customer: str) -> SavedMethod | None:
        """The method that is charged; None without one."""

    async def method_of_setup(self, setup: str) -> tuple[str, str]:
        """The customer of a setup, and the method that it left."""

    async def keep_method(self, customer: str, method: str, key: str) -> None:
        """Charge this method from now on."""

    async def create_checkout(
        self, customer: str, *, top_up: str, amount: int, currency: str, expires_at: int, key: str
    ) -> SessionFact:
        """A page on which the customer pays a top-up and leaves the card."""

    async def create_setup(self, customer: str, currency: str, key: str) -> SessionFact:
        """A page on which the customer leaves a card and pays nothing."""

    async def find_checkout(self, customer: str, top_up: str, since: int) -> SessionFact | None:
        """The page that was made for a top-up; None if there is none."""

    async def session(self, session: str) -> SessionFact:
        """A page as it is now."""

    async def expire_session(self, session: str) -> None:
        """Close a page that nobody used; nothing if it is closed."""

    async def create_portal(self, customer: str) -> str:
        """The address of the page on which the customer changes card, address and VAT id."""

    async def charge(
        self, customer: str, *, method: str, top_up: str, amount: int, currency: str, key: str
    ) -> PaymentFact:
        """Charge a saved method while the customer is away."""

    async def payment(self, payment: str) -> PaymentFact:
        """A payment as it is now."""

    async def find_payment(self, customer: str, top_up: str, since: int) -> PaymentFact | None:
        """The payment of a top-up; None if there is none."""

    async def cancel_payment(self, payment: str) -> PaymentFact:
        """Give a payment up; returns it as it is then, since it may have succeeded meanwhile."""

    async def create_draft(self, customer: str, bill: PushedBill, key: str) -> str:
        """A draft without lines; returns its id."""

    async def find_draft(self, customer: str, document: str, since: int) -> str | None:
        """The draft or invoice that was made for a document; None if there is none."""

    async def add_lines(self, invoice: str, bill: PushedBill, lines: Sequence[DocumentLine], key: str) -> None:
        """Add lines to a draft."""

    async def invoice(self, invoice: str) -> InvoiceFact:
        """An invoice as it is now, with all lines."""

    async def delete_draft(self, invoice: str) -> None:
        """Delete a draft; nothing if it is gone."""

    async def finalize(self, invoice: str, *, charge: bool, key: str) -> InvoiceFact:
        """Make a draft final, and charge the saved method if `charge`."""

    async def invoice_payments(self, invoice: str) -> Sequence[InvoicePaymentFact]:
        """The payments of an invoice."""

    async def invoice_of_invoice_payment(self, invoice_payment: str) -> str:
        """Which invoice a payment of an invoice is of."""

    async def invoice_of_payment(self, payment: str) -> InvoicePaymentFact | None:
        """What a payment paid, if that is an invoice."""

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
        """Credit lines of an invoice."""

    async def credit_notes(self, invoice: str) -> Sequence[CreditNoteFact]:
        """The credit notes of an invoice."""

    async def refund(self, payment: str, *, refund: str, amount: int, currency: str, key: str) -> RefundFact:
        """Pay a payment back, whole or in part."""

    async def find_refund(self, payment: str, refund: str) -> RefundFact | None:
        """The refund that was made for one of ours; None if there is none."""

    async def read_refund(self, refund: str) -> RefundFact:
        """A refund as it is now."""

    async def dispute(self, dispute: str) -> DisputeFact:
        """A dispute as it is now."""

    async def payments_since(self, since: int, until: int) -> Sequence[PaymentFact]:
        """All payments that were made between two instants (seconds since the Unix epoch)."""

    async def invoices_since(self, since: int, until: int) -> Sequence[InvoiceFact]:
        """All invoices that were made between two instants, without their lines."""

    async def events_since(self, since: int, until: int) -> Sequence[EventFact]:
        """All events between two instants."""

    async def close(self) -> None:
        """Close the connections."""
