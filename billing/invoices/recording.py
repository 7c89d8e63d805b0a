"""What is said when a document changes: an entry in the audit log and, of some changes, a notice in the outbox.

Both have the document's state and sums, not what is in it. A document that is final has its own hash, which is
recorded with it.
"""

from __future__ import annotations

from sqlalchemy.ext.asyncio import AsyncSession

from audit_log.record import record_change
from billing.integrity.canonical_json import canonical
from billing.invoices.store import InvoiceRecord
from billing.money import format_minor
from storage.database.database import Database
from storage.database.outbox import write_to_outbox
from storage.database.public_ids import public_id


async def record_document(
    session: AsyncSession, action: str, before: InvoiceRecord | None, after: InvoiceRecord | None, reason: str = ""
) -> None:
    """Record, in this transaction, what became of an invoice or a credit note; one of the two is there."""
    record = after or before
    assert record is not None, "nothing became of no document"
    await record_change(
        session,
        action,
        target=record.kind,
        target_id=record.id,
        tenant_id=record.tenant_id,
        reason=reason,
        before=None if before is None else _said(before),
        after=None if after is None else _said(after),
    )


def _said(record: InvoiceRecord) -> dict[str, str]:
    sums = {name: getattr(record, name) for name in ("gross", "payable", "paid", "credited")}
    said = {name: getattr(record, name) for name in ("state", "period", "number", "currency", "sha256")}
    texts = {name: "" if value is None else str(value) for name, value in said.items()}
    return texts | {name: format_minor(minor, record.currency) for name, minor in sums.items()}


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
