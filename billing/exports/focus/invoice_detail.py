"""FOCUS datasets about documents: Invoice Detail, a row for each invoice line, and Billing Period."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

import msgspec
from msgspec import Struct
from sqlalchemy import select

from billing.calendar import period_bounds
from billing.events.rollups import HOUR
from billing.exports.datasets import Column, Dataset, ExportQuery, ExportSnapshot, Row
from billing.exports.focus.bills import bills
from billing.exports.focus.prepaid_credit import DEDUCTED, DRAWN, RETURNED, covered, returned
from billing.exports.invoices import midnight
from billing.money import minor_to_pico
from billing.tables.books import billing_period
from storage.free_text import counted

_INVOICE_DETAIL = (
    Column("BilledCost", "money"),
    Column("BillingAccountId", "id"),
    Column("BillingCurrency", "text"),
    Column("BillingPeriodEnd", "second"),
    Column("BillingPeriodStart", "second"),
    Column("ChargeCategory", "text"),
    Column("InvoiceDetailCreated", "second"),
    Column("InvoiceDetailDescription", "text"),
    Column("InvoiceDetailGrain", "text"),
    Column("InvoiceDetailId", "text"),
    Column("InvoiceDetailLastUpdated", "second"),
    Column("InvoiceId", "text"),
    Column("InvoiceIssueDate", "second"),
    Column("InvoiceIssueStatus", "text"),
    Column("InvoiceIssuerName", "text"),
    Column("PaymentDueDate", "second"),
    Column("PaymentTerms", "text"),
    Column("PurchaseOrderNumber", "text"),
    Column("ReferenceInvoiceId", "text"),
    Column("x_ExactCost", "money", "the line before rounding; the effective costs of its usage add up to it"),
)


class _Buyer(Struct):
    purchase_order: str = ""


class _Ordered(Struct):
    """What of a document's content says by which order it was bought."""

    buyer: _Buyer


async def _invoice_detail(snapshot: ExportSnapshot, wanted: ExportQuery) -> AsyncIterator[Sequence[Row]]:
    first, after = period_bounds(wanted.period)
    async for bill in bills(snapshot, wanted):
        document, note = bill.document, bill.document.kind == "credit_note"
        issued, due = midnight(document.issued), midnight(document.due)
        days = 0 if issued is None or due is None else (due - issued) // (24 * HOUR)
        lines = [(line.n, bill.category_of(line), line.text, line.net, line.exact_pico) for line in bill.lines]
        if document.tax:
            lines.append(("tax", "Tax", "Tax", document.tax, minor_to_pico(document.tax, document.currency)))
        if document.advance_tax:
            taken = document.advance_tax
            lines.append(("advances", "Tax", DEDUCTED, -taken, -minor_to_pico(taken, document.currency)))
        if document.drawn:
            lines.append(
                ("credit", "Credit", DRAWN, -document.drawn, -minor_to_pico(document.drawn, document.currency))
            )
        if note and (back := await returned(snapshot, document)):
            lines.append(("balance", "Purchase", RETURNED, -back, -minor_to_pico(back, document.currency)))
        order = msgspec.json.decode(document.content, type=_Ordered).buyer.purchase_order or None
        sign, paid = -1 if note else 0 if document.state == "void" else 1, covered(document, bill.lines)
        yield [
            (
                sign * minor_to_pico(net - paid.get(n, 0), document.currency),
                document.tenant_id,
                document.currency,
                after,
                first,
                category,
                document.finalized_at,
                text,
                None,
                bill.detail_id(n),
                document.finalized_at,
                document.number,
                issued,
                "Voided" if document.state == "void" else "Issued",
                wanted.provider,
                due,
                f"Net {counted(days, 'day')}" if days else "Due on receipt",
                order,
                document.corrected or document.number,
                sign * exact,
            )
            for n, category, text, net, exact in lines
        ]


_BILLING_PERIOD = (
    Column("BillingPeriodCreated", "second"),
    Column("BillingPeriodEnd", "second"),
    Column("BillingPeriodLastUpdated", "second"),
    Column("BillingPeriodStart", "second"),
    Column("BillingPeriodStatus", "text"),
    Column("InvoiceIssuerName", "text"),
)


async def _billing_period(snapshot: ExportSnapshot, wanted: ExportQuery) -> AsyncIterator[Sequence[Row]]:
    first, after = period_bounds(wanted.period)
    query = select(billing_period.c.closed_at).where(billing_period.c.period == wanted.period)
    closed_at = await snapshot.session.scalar(query)
    yield [(first, after, closed_at or first, first, "Closed" if closed_at else "Open", wanted.provider)]


INVOICE_DETAIL = Dataset(
    name="focus-invoices",
    title="FOCUS Invoice Detail",
    about="FOCUS 1.4, dataset Invoice Detail",
    columns=_INVOICE_DETAIL,
    rows=_invoice_detail,
    sums=("BilledCost",),
    currency="BillingCurrency",
)

BILLING_PERIOD = Dataset(
    name="focus-periods",
    title="FOCUS Billing Period",
    about="FOCUS 1.4, dataset Billing Period",
    columns=_BILLING_PERIOD,
    rows=_billing_period,
    sums=(),
)
