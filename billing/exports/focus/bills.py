"""Invoices as FOCUS refers to them: the document, its lines, and which line bills which usage."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy import select

from billing.exports.datasets import ExportQuery, ExportSnapshot
from billing.exports.invoices import documents
from billing.tables.invoices import invoice, invoice_line

CHARGE_CATEGORIES = {
    "usage": "Usage",
    "storage": "Usage",
    "minimum": "Purchase",
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


async def bills(snapshot: ExportSnapshot, wanted: ExportQuery, tenant_id: UUID) -> list[Bill]:
    """The tenant's documents of the period."""
    found = []
    line = invoice_line.c
    query = documents(wanted).where(invoice.c.tenant_id == tenant_id)
    for document in (await snapshot.session.execute(query)).all():
        lines = select(invoice_line).where(line.tenant_id == tenant_id, line.invoice_id == document.id)
        found.append(Bill(document, (await snapshot.session.execute(lines.order_by(line.n))).all()))
    return found


async def invoice_of(snapshot: ExportSnapshot, wanted: ExportQuery, tenant_id: UUID) -> Bill | None:
    """The invoice that bills the tenant's usage of the period; None if there is none."""
    for bill in await bills(snapshot, wanted, tenant_id):
        if bill.document.kind == "invoice" and bill.document.state != "void":
            return bill
    return None


def detail_id(document: Any, n: int | str) -> str:
    return f"{document.number}/{n}"
