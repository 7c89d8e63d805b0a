"""What others are told of documents: topics of the outbox, and what a notice says."""

from __future__ import annotations

from typing import Any

from billing.invoices.document import canonical
from billing.invoices.minor_units import format_minor
from billing.invoices.records import InvoiceRecord

DRAFTED = "invoice.drafted"
FINALIZED = "invoice.finalized"
PARTIALLY_PAID = "invoice.partially_paid"
PAID = "invoice.paid"
VOIDED = "invoice.voided"
UNCOLLECTIBLE = "invoice.uncollectible"
CREDITED = "credit_note.finalized"

_OF_STATE = {
    "finalized": FINALIZED,
    "partially_paid": PARTIALLY_PAID,
    "paid": PAID,
    "void": VOIDED,
    "uncollectible": UNCOLLECTIBLE,
}


def topic_of(state: str) -> str:
    """The topic of an invoice that came into a state. Raises KeyError for one that has none."""
    return _OF_STATE[state]


def notice(record: InvoiceRecord) -> str:
    """How a document stands, as JSON: amounts are decimal strings in its currency."""
    told: dict[str, Any] = {
        "id": str(record.id),
        "kind": record.kind,
        "number": record.number or "",
        "seller": record.seller,
        "period": record.period,
        "state": record.state,
        "currency": record.currency,
        "issued": record.issued or "",
        "due": record.due or "",
        "sha256": record.sha256 or "",
    }
    amounts = {name: getattr(record, name) for name in ("net", "tax", "gross", "prepaid", "payable", "paid", "left")}
    return canonical(told | {name: format_minor(amount, record.currency) for name, amount in amounts.items()})
