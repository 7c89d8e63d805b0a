"""Invoices as FOCUS refers to them: the document, its lines, and which line bills which usage."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy import select

from billing.exports.datasets import ExportQuery, ExportSnapshot
from billing.exports.invoices import documents
from billing.tables.invoices import ISSUED, invoice, invoice_line

_CATEGORIES = {
    "usage": "Usage",
    "storage": "Usage",
    "residency": "Usage",
    "minimum": "Purchase",
    "advance": "Purchase",
    "commitment": "Purchase",
    "credit": "Credit",
    "discount": "Credit",
}
"""Kind of an invoice line → its ChargeCategory. Every other kind is an Adjustment."""


class Bill(msgspec.Struct, frozen=True):
    """A document (a row of `invoice`), with its lines (rows of `invoice_line`)."""

    document: Any
    lines: Sequence[Any]

    def line_of(self, project_id: UUID, start: int, rated: Any) -> Any | None:
        """The line that bills usage of a project at an instant; None if no line does. `rated` is a RatedLine."""
        for line in self.lines:
            if (
                line.kind == "usage"
                and line.project_id in (None, project_id)
                and (line.model, line.meter, line.lane) == (rated.model, rated.meter, rated.lane)
                and (line.context_from, line.price_version) == (rated.context_from, rated.price_version)
                and line.service_start <= start < line.service_end
            ):
                return line
        return None

    def category_of(self, line: Any) -> str:
        """The ChargeCategory of a line."""
        return "Credit" if self.document.kind == "credit_note" else _CATEGORIES.get(line.kind, "Adjustment")

    def detail_id(self, n: int | str) -> str:
        """The InvoiceDetailId of a line, or of another part of the document."""
        return f"{self.document.number}/{n}"


async def bills(snapshot: ExportSnapshot, wanted: ExportQuery) -> AsyncIterator[Bill]:
    """The issued documents of the period, ordered by tenant and id."""
    async for portion in snapshot.portions(documents(wanted)):
        for document in portion:
            yield await _bill(snapshot, document)


async def invoice_of(snapshot: ExportSnapshot, wanted: ExportQuery, tenant_id: UUID) -> Bill | None:
    """The invoice that bills the tenant's usage of the period; None if there is none."""
    query = documents(wanted).where(ISSUED, invoice.c.tenant_id == tenant_id)
    document = (await snapshot.session.execute(query)).one_or_none()
    return None if document is None else await _bill(snapshot, document)


async def _bill(snapshot: ExportSnapshot, document: Any) -> Bill:
    line = invoice_line.c
    lines = select(invoice_line).where(line.tenant_id == document.tenant_id, line.invoice_id == document.id)
    return Bill(document, (await snapshot.session.execute(lines.order_by(line.n))).all())
