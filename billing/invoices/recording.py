"""What the audit log says of invoices and credit notes: their state and their sums, not what is in them.

A document that is final has its own hash, which is recorded with it.
"""

from __future__ import annotations

from sqlalchemy.ext.asyncio import AsyncSession

from audit_log.record import record_change
from billing.invoices.store import InvoiceRecord
from billing.money import format_minor


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
