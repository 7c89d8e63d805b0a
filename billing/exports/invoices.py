"""The invoices export: one row for each line of a period's invoices, and of the credit notes issued in its month.

Drafts are left out. A credit note belongs to the month in which it was issued, so that a month that was reported does
not change.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Select, select

from billing.exports.datasets import Column, Dataset, ExportQuery, ExportSnapshot, Row
from billing.money import minor_to_pico
from billing.tables.invoices import invoice, invoice_line
from storage.database.base import to_instant

_OF, _LINE = invoice.c, invoice_line.c
_CORRECTED = invoice.alias("corrected_invoice")


def documents(wanted: ExportQuery) -> Select[Any]:
    """The period's issued documents, ordered by tenant and id.

    Credit notes and advance-payment invoices are those issued in it. The columns `corrected` and `corrected_kind` are
    the number and the kind of the document that a credit note corrects.
    """
    invoices = (_OF.kind == "invoice") & (_OF.period == wanted.period)
    notes = (_OF.kind != "invoice") & (_OF.issued >= f"{wanted.period}-01") & (_OF.issued <= f"{wanted.period}-31")
    query = select(invoice, _CORRECTED.c.number.label("corrected"), _CORRECTED.c.kind.label("corrected_kind")).where(
        invoices | notes, _OF.state != "draft"
    )
    query = query.outerjoin(_CORRECTED, _CORRECTED.c.id == _OF.corrects).order_by(_OF.tenant_id, _OF.id)
    # all tenants: without a tenant this exports the whole installation
    return query if wanted.tenant_id is None else query.where(_OF.tenant_id == wanted.tenant_id)


def midnight(day: str | None) -> int | None:
    """The first instant of an ISO date in UTC; None of None."""
    return None if day is None else to_instant(datetime.fromisoformat(day).replace(tzinfo=UTC))


async def _rows(snapshot: ExportSnapshot, wanted: ExportQuery) -> AsyncIterator[Sequence[Row]]:
    async for portion in snapshot.portions(documents(wanted)):
        for document in portion:
            query = (
                select(invoice_line)
                .where(_LINE.tenant_id == document.tenant_id, _LINE.invoice_id == document.id)
                .order_by(_LINE.n)
            )
            tenant = wanted.names.tenants.get(document.tenant_id)
            sign = 0 if document.state == "void" else -1 if document.kind == "credit_note" else 1
            async for lines in snapshot.portions(query):
                yield [
                    (
                        document.number,
                        document.kind,
                        document.state,
                        document.tenant_id,
                        tenant,
                        document.period,
                        document.corrected,
                        midnight(document.issued),
                        midnight(document.due),
                        line.n,
                        line.kind,
                        line.text,
                        line.corrects,
                        line.project_id,
                        wanted.names.projects.get(line.project_id),
                        line.model,
                        line.meter,
                        line.lane,
                        line.price_version,
                        line.units,
                        line.price_micro,
                        document.currency,
                        sign * int(line.exact_pico),
                        sign * minor_to_pico(line.net, document.currency),
                        line.category,
                        line.rate * 10_000,
                        document.sha256,
                    )
                    for line in lines
                ]


INVOICES = Dataset(
    name="invoices",
    title="Invoices",
    about="one row for each line of the period's invoices, and of the credit notes issued in its month",
    columns=(
        Column("number", "text", "number of the document"),
        Column("kind", "text", "invoice or credit_note"),
        Column("state", "text", "as it is now; finalized, paid, void, …"),
        Column("tenant_id", "id"),
        Column("tenant", "text"),
        Column("period", "text", "billing period; of a credit note, that of the invoice that it corrects"),
        Column("corrects", "text", "the invoice that a credit note corrects"),
        Column("issued", "date"),
        Column("due", "date"),
        Column("line", "integer"),
        Column("line_kind", "text"),
        Column("text", "text"),
        Column("late_of", "text", "the closed period that the line's usage or storage belongs to, where it came late"),
        Column("project_id", "id"),
        Column("project", "text"),
        Column("model", "text"),
        Column("meter", "text"),
        Column("lane", "text"),
        Column("price_version", "integer"),
        Column("units", "integer"),
        Column("price_per_million", "price"),
        Column("currency", "text"),
        Column("exact", "money", "before rounding; less than 0 on a credit note, 0 on a void document"),
        Column(
            "net",
            "money",
            "rounded to the currency's smallest coin; less than 0 on a credit note, 0 on a void document",
        ),
        Column("tax_category", "text", "UNCL 5305"),
        Column("tax_percent", "price"),
        Column("sha256", "text", "of the document"),
    ),
    rows=_rows,
    sums=("net",),
)
