"""Notices of what happens to documents, for the outbox: their topics, their payload, and writing them."""

from __future__ import annotations

from sqlalchemy.ext.asyncio import AsyncSession

from billing.integrity.canonical_json import canonical
from billing.invoices.store import InvoiceRecord
from billing.money import format_minor
from storage.database.database import Database
from storage.database.outbox import write_to_outbox
from storage.database.public_ids import public_id

DRAFTED = "invoice.drafted"
FINALIZED = "invoice.finalized"
PARTIALLY_PAID = "invoice.partially_paid"
PAID = "invoice.paid"
VOIDED = "invoice.voided"
UNCOLLECTIBLE = "invoice.uncollectible"
CREDITED_WHOLE = "invoice.credited"
CREDITED = "credit_note.finalized"

TOPICS = {
    "finalized": FINALIZED,
    "partially_paid": PARTIALLY_PAID,
    "paid": PAID,
    "credited": CREDITED_WHOLE,
    "void": VOIDED,
    "uncollectible": UNCOLLECTIBLE,
}
"""State of an invoice → topic of the notice that it came into the state."""

_TEXTS = ("kind", "seller", "period", "state", "currency")
_OPTIONAL_TEXTS = ("number", "issued", "due", "sha256")
_AMOUNTS = ("net", "tax", "gross", "prepaid", "payable", "paid", "left")


async def send_notice(database: Database, session: AsyncSession, topic: str, record: InvoiceRecord) -> None:
    """Put a notice with the document's state into the outbox, in the transaction of the change."""
    await write_to_outbox(database, session, topic, record.tenant_id, payload(record))


def payload(record: InvoiceRecord) -> str:
    """A document's state as canonical JSON: amounts are decimal strings in its currency, missing texts are empty."""
    return canonical(
        {"id": public_id(record.kind, record.id)}
        | {name: getattr(record, name) for name in _TEXTS}
        | {name: getattr(record, name) or "" for name in _OPTIONAL_TEXTS}
        | {name: format_minor(getattr(record, name), record.currency) for name in _AMOUNTS}
    )
