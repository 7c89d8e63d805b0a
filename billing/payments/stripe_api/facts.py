"""What Stripe's objects say, as our facts; and amounts in the units that Stripe counts in."""

from __future__ import annotations

from typing import Any

from billing.money import minor_digits
from billing.payments.provider import (
    CreditNoteFact,
    DisputeFact,
    DocumentLine,
    EventFact,
    InvoiceFact,
    InvoicePaymentFact,
    LineTax,
    PaymentFact,
    PaymentStatus,
    ProviderRefused,
    RefundFact,
    SavedMethod,
    SessionFact,
)

_AS_TWO = frozenset({"ISK", "UGX"})
"""Without minor units by ISO 4217; Stripe counts them in hundredths, of which there are no fractions."""
_AS_NONE = frozenset({"MGA"})
"""With two digits by ISO 4217; Stripe counts whole units."""
LEAST = {
    "USD": 50,
    "EUR": 50,
    "GBP": 30,
    "CHF": 50,
    "CAD": 50,
    "AUD": 50,
    "JPY": 50,
    "SEK": 300,
    "NOK": 300,
    "DKK": 250,
}
"""The least charge in minor units."""
_STATUS: dict[str, PaymentStatus] = {
    "succeeded": "succeeded",
    "processing": "processing",
    "requires_action": "needs_customer",
    "canceled": "canceled",
}


def to_stripe(amount: int, currency: str) -> int:
    """Minor units as Stripe counts them. Raises ProviderRefused for an amount that Stripe has not."""
    if currency in _AS_TWO:
        return amount * 100
    if currency in _AS_NONE:
        amount, rest = divmod(amount, 100)
        if rest:
            raise ProviderRefused(f"Stripe takes whole {currency} alone", "amount")
    if minor_digits(currency) > 3:
        raise ProviderRefused(f"Stripe does not take {currency}", "currency")
    if minor_digits(currency) == 3 and amount % 10:
        raise ProviderRefused(f"Stripe takes {currency} of two decimals alone", "amount")
    return amount


def from_stripe(amount: int, currency: str) -> int:
    """What Stripe counts, as minor units. Raises ProviderRefused for a fraction of one."""
    if currency in _AS_TWO:
        amount, rest = divmod(amount, 100)
        if rest:
            raise ProviderRefused(f"Stripe says {rest} hundredths of {currency}", "amount")
        return amount
    return amount * 100 if currency in _AS_NONE else amount


def currency_of(found: Any) -> str:
    """The currency of an object, as we write it."""
    return str(found["currency"]).upper()


def payment_fact(intent: Any) -> PaymentFact:
    """A PaymentIntent. One that needs a method was declined if it says why, else it is open."""
    currency, error = currency_of(intent), intent.get("last_payment_error")
    status = _STATUS.get(intent["status"]) or ("declined" if error else "open")
    code = "" if not error else str(error.get("decline_code") or error.get("code") or "")
    if error and error.get("code") == "authentication_required":
        code = "authentication_required"
        status = "needs_customer" if status == "declined" else status
    return PaymentFact(
        id=intent["id"],
        status=status,
        amount=from_stripe(intent["amount"], currency),
        received=from_stripe(intent.get("amount_received") or 0, currency),
        currency=currency,
        customer=_id(intent.get("customer")),
        top_up=_pointer(intent, "top_up"),
        code=code,
        method=_id(intent.get("payment_method")),
        created=intent["created"],
    )


def session_fact(session: Any) -> SessionFact:
    """A Checkout session."""
    return SessionFact(
        id=session["id"],
        url=session.get("url") or "",
        status=session["status"],
        payment=_id(session.get("payment_intent")),
        setup=_id(session.get("setup_intent")),
        top_up=session.get("client_reference_id") or "",
    )


def method_fact(method: Any) -> SavedMethod:
    """A payment method, with what may be shown of it."""
    card = method.get("card")
    text = method["type"] if not card else f"{card['brand']} {card['last4']}, {card['exp_month']}/{card['exp_year']}"
    return SavedMethod(method["id"], text)


def invoice_fact(invoice: Any, lines: list[Any]) -> InvoiceFact:
    """An invoice with these lines."""
    currency = currency_of(invoice)
    taxes = sum(tax["amount"] for tax in invoice.get("total_taxes") or [])
    return InvoiceFact(
        id=invoice["id"],
        status=invoice["status"],
        number=invoice.get("number") or "",
        document=_pointer(invoice, "invoice_id"),
        customer=_id(invoice.get("customer")),
        currency=currency,
        net=from_stripe(invoice["subtotal"], currency),
        tax=from_stripe(taxes, currency),
        total=from_stripe(invoice["total"], currency),
        url=invoice.get("hosted_invoice_url") or "",
        lines=[_line_fact(line, currency) for line in lines],
    )


def _line_fact(line: Any, currency: str) -> DocumentLine:
    taxes = [
        LineTax(from_stripe(tax["amount"], currency), (tax.get("tax_rate_details") or {}).get("tax_rate") or "")
        for tax in line.get("taxes") or []
    ]
    number = _pointer(line, "line")
    return DocumentLine(
        n=int(number) if number.isascii() and number.isdigit() else 0,
        text=line.get("description") or "",
        net=from_stripe(line["amount"], currency),
        tax=sum(tax.amount for tax in taxes),
        id=line["id"],
        taxes=taxes,
    )


def invoice_payment_fact(payment: Any) -> InvoicePaymentFact:
    """A payment of an invoice, by the id of the PaymentIntent if there is one."""
    currency, how = currency_of(payment), payment["payment"]
    return InvoicePaymentFact(
        id=_id(how.get("payment_intent")) or payment["id"],
        invoice=_id(payment["invoice"]),
        amount=from_stripe(payment.get("amount_paid") or 0, currency),
        currency=currency,
        paid=payment["status"] == "paid",
    )


def credit_note_fact(note: Any) -> CreditNoteFact:
    """A credit note."""
    total = from_stripe(note["total"], currency_of(note))
    return CreditNoteFact(id=note["id"], document=_pointer(note, "invoice_id"), total=total)


def refund_fact(refund: Any) -> RefundFact:
    """A refund; one that was canceled has failed."""
    known = {"succeeded": "succeeded", "failed": "failed", "canceled": "failed"}
    currency = currency_of(refund)
    return RefundFact(
        id=refund["id"],
        payment=_id(refund.get("payment_intent")),
        amount=from_stripe(refund["amount"], currency),
        currency=currency,
        status=known.get(refund.get("status") or "", "pending"),  # type: ignore[arg-type]  # of these three
        refund=_pointer(refund, "refund"),
    )


def dispute_fact(dispute: Any) -> DisputeFact:
    """A dispute. The money is withdrawn as long as its transactions take more than they give."""
    currency = currency_of(dispute)
    moved = sum(one["amount"] for one in dispute.get("balance_transactions") or [])
    status = dispute["status"]
    outcome = "won" if status in ("won", "warning_closed", "prevented") else "lost" if status == "lost" else "open"
    return DisputeFact(
        id=dispute["id"],
        payment=_id(dispute.get("payment_intent")),
        amount=from_stripe(dispute["amount"], currency),
        currency=currency,
        reason=str(dispute.get("reason") or "")[:100],
        withdrawn=moved < 0 or status == "lost",
        outcome=outcome,  # type: ignore[arg-type]  # of these three
    )


def event_fact(event: Any) -> EventFact:
    """An event, with the id of what it is about."""
    return EventFact(
        id=event["id"],
        type=event["type"],
        object=str(event["data"]["object"].get("id") or ""),
        created=event["created"],
        livemode=event["livemode"],
        account=event.get("account") or "",
    )


def _id(reference: Any) -> str:
    """The id of an object that may be expanded; "" for none."""
    return "" if not reference else reference if isinstance(reference, str) else str(reference["id"])


def _pointer(found: Any, name: str) -> str:
    return str((found.get("metadata") or {}).get(name) or "")
