"""The parameters of what we make at Stripe: customers, invoices as they are final here, credit notes, pages.

Nothing is left to Stripe's choice: no automatic tax, no inherited discount, no number of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from billing.invoices.parties.vat_ids import EU
from billing.payments.provider import CreditedPart, CustomerDetails, DocumentLine, InvoiceFact, PushedBill
from billing.payments.stripe_api.facts import to_stripe

_FIELD_TEXT, _LINE_TEXT, _FOOTER = 140, 500, 5000
_EU = EU | {"EL", "XI"}
_PERCENT = 100
"""Hundredths of a percent in one."""


def tax_id_type(vat_id: str) -> str:
    """Stripe's name for the kind of a VAT id; "" for one that it is not told."""
    country = vat_id[:2]
    return "eu_vat" if country in _EU else {"GB": "gb_vat", "CH": "ch_vat", "NO": "no_vat"}.get(country, "")


def customer(details: CustomerDetails) -> dict[str, Any]:
    """A customer."""
    lines = [*details.address, "", ""]
    first, second = lines[0], ", ".join(part for part in lines[1:] if part)
    address = {"line1": first, "line2": second, "postal_code": details.postal_code, "city": details.city}
    params: dict[str, Any] = {
        "name": details.name,
        "tax_exempt": "reverse" if details.reverse_charge else "none",
        "metadata": {"tenant": details.tenant},
    }
    if details.country:
        params["address"] = {**address, "country": details.country}
    if details.email:
        params["email"] = details.email
    return params


def draft(customer_id: str, bill: PushedBill) -> dict[str, Any]:
    """An invoice without lines."""
    params: dict[str, Any] = {
        "customer": customer_id,
        "currency": bill.currency.lower(),
        "auto_advance": False,
        "collection_method": "charge_automatically" if bill.charge else "send_invoice",
        "pending_invoice_items_behavior": "exclude",
        "number": bill.number,
        "effective_at": bill.issued_at,
        "automatic_tax": {"enabled": False},
        "discounts": "",
        "metadata": {"invoice_id": bill.document, "sha256": bill.sha256},
    }
    if not bill.charge:
        params["days_until_due"] = bill.days_until_due
    if bill.footer:
        params["footer"] = bill.footer[:_FOOTER]
    if bill.purchase_order:
        params["custom_fields"] = [{"name": "Purchase order", "value": bill.purchase_order[:_FIELD_TEXT]}]
    return params


def line(bill: PushedBill, one: DocumentLine) -> dict[str, Any]:
    """A line with its tax as we computed it. Stripe's periods include their end."""
    params: dict[str, Any] = {
        "amount": to_stripe(one.net, bill.currency),
        "description": one.text[:_LINE_TEXT],
        "discountable": False,
        "metadata": {"line": str(one.n)},
    }
    if one.starts_at and one.ends_at > one.starts_at:
        params["period"] = {"start": one.starts_at, "end": one.ends_at - 1}
    if one.rate:
        whole, rest = divmod(one.rate, _PERCENT)
        data = {"display_name": "VAT", "inclusive": False, "percentage": f"{whole}.{rest:02}", "country": bill.country}
        tax = {"amount": to_stripe(one.tax, bill.currency), "taxable_amount": to_stripe(one.net, bill.currency)}
        params["tax_amounts"] = [{**tax, "taxability_reason": "standard_rated", "tax_rate_data": data}]
    return params


def credit_note(
    invoice: InvoiceFact, parts: Sequence[CreditedPart], *, document: str, number: str, issued_at: int
) -> dict[str, Any]:
    """A credit note of ours for lines of an invoice. Of one that is paid, the money is settled outside Stripe: it goes
    to the tenant's balance here."""
    currency = invoice.currency
    total = sum(part.net + part.tax for part in parts)
    params: dict[str, Any] = {
        "invoice": invoice.id,
        "lines": [_credited(part, currency) for part in parts],
        "memo": f"Credit note {number}",
        "email_type": "none",
        "effective_at": issued_at,
        "metadata": {"invoice_id": document},
    }
    if invoice.status == "paid":
        params["out_of_band_amount"] = to_stripe(total, currency)
    return params


def _credited(part: CreditedPart, currency: str) -> dict[str, Any]:
    net = to_stripe(part.net, currency)
    params: dict[str, Any] = {"type": "invoice_line_item", "invoice_line_item": part.line.id, "amount": net}
    if part.line.taxes and part.tax:
        tax = {"amount": to_stripe(part.tax, currency), "taxable_amount": net}
        params["tax_amounts"] = [{**tax, "tax_rate": part.line.taxes[0].rate_id}]
    return params


def checkout(customer_id: str, top_up: str, amount: int, currency: str) -> dict[str, Any]:
    """A page on which a top-up is paid, and the card is left for later ones."""
    price = {"currency": currency.lower(), "unit_amount": amount, "product_data": {"name": "Prepaid credit"}}
    return {
        "mode": "payment",
        "ui_mode": "hosted_page",
        "customer": customer_id,
        "client_reference_id": top_up,
        "line_items": [{"quantity": 1, "price_data": price}],
        "payment_intent_data": {"setup_future_usage": "off_session", "metadata": {"top_up": top_up}},
        "allowed_payment_method_types": ["card"],
    }
