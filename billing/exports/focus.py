"""FOCUS 1.4 (focus.finops.org): the datasets Cost and Usage, Invoice Detail and Billing Period.

A row of usage is one hour of a key's use of one meter at one price, and names the invoice line that bills it. What an
invoice says beyond usage (tax, minimums, credits, and what rounding a line came to) has rows of its own, so that the
rows of each invoice line add up to it exactly, and those of an invoice to what it asks to be paid. What was paid in
advance is a purchase when it is bought (`billing.exports.focus_credit`). Issuer and provider are one: with two, the
specification would want nothing billed here.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any, cast
from uuid import UUID

import msgspec
from sqlalchemy import select

from billing.events.rollups import HOUR
from billing.exports.columns import Column
from billing.exports.costs import rated_groups, taken_back
from billing.exports.datasets import Dataset, ExportQuery, ExportSnapshot
from billing.exports.focus_credit import RETURNED, Cover, CreditMoved, cover_of, covered, credit_moved, returned
from billing.exports.invoices import documents, in_pico, midnight
from billing.exports.writers import Row
from billing.invoices.funding import of_uninvoiced
from billing.tables.invoices import invoice, invoice_line
from billing.tables.periods import billing_period
from billing.usage import period_bounds
from storage.free_text import counted

_SERVICE = "LLM inference"
_CATEGORY, _SUBCATEGORY = "AI and Machine Learning", "Generative AI"
_UNIT, _PRICING_UNIT = "Tokens", "1000000 Tokens"
_CATEGORIES = {
    "usage": "Usage",
    "storage": "Usage",
    "minimum": "Purchase",
    "commitment": "Purchase",
    "credit": "Credit",
    "discount": "Credit",
}
"""The charge category of an invoice line's kind; what is left is an adjustment."""
_OF, _LINE = invoice.c, invoice_line.c


class _Bill(msgspec.Struct, frozen=True):
    """A tenant's invoice of the period, with its lines."""

    document: Any
    lines: Sequence[Any]

    def line_of(self, project_id: UUID, start: int, rated: Any) -> Any | None:
        """The line that bills this usage."""
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


async def _bills(reading: ExportSnapshot, asked: ExportQuery, tenant_id: UUID) -> list[_Bill]:
    """The tenant's documents of the period."""
    found = []
    query = documents(asked).where(_OF.tenant_id == tenant_id)
    for document in (await reading.session.execute(query)).all():
        lines = select(invoice_line).where(_LINE.tenant_id == tenant_id, _LINE.invoice_id == document.id)
        found.append(_Bill(document, (await reading.session.execute(lines.order_by(_LINE.n))).all()))
    return found


async def _invoice(reading: ExportSnapshot, asked: ExportQuery, tenant_id: UUID) -> _Bill | None:
    """The invoice that bills the tenant's usage of the period, if there is one."""
    for bill in await _bills(reading, asked, tenant_id):
        if bill.document.kind == "invoice" and bill.document.state != "void":
            return bill
    return None


def _detail_id(document: Any, n: int | str) -> str:
    return f"{document.number}/{n}"


# ---------------------------------------------------------------- Cost and Usage

_COST_AND_USAGE = (
    Column("BilledCost", "money"),
    Column("BillingAccountId", "id"),
    Column("BillingAccountName", "text"),
    Column("BillingAccountType", "text"),
    Column("BillingCurrency", "text"),
    Column("BillingPeriodEnd", "second"),
    Column("BillingPeriodStart", "second"),
    Column("ChargeCategory", "text"),
    Column("ChargeClass", "text"),
    Column("ChargeDescription", "text"),
    Column("ChargeFrequency", "text"),
    Column("ChargePeriodEnd", "second"),
    Column("ChargePeriodStart", "second"),
    Column("ConsumedQuantity", "integer"),
    Column("ConsumedUnit", "text"),
    Column("ContractedCost", "money"),
    Column("ContractedUnitPrice", "price"),
    Column("EffectiveCost", "money"),
    Column("HostProviderName", "text"),
    Column("InvoiceDetailId", "text"),
    Column("InvoiceId", "text"),
    Column("InvoiceIssuerName", "text"),
    Column("ListCost", "money"),
    Column("ListUnitPrice", "price"),
    Column("PricingCategory", "text"),
    Column("PricingQuantity", "price"),
    Column("PricingUnit", "text"),
    Column("ServiceCategory", "text"),
    Column("ServiceName", "text"),
    Column("ServiceProviderName", "text"),
    Column("ServiceSubcategory", "text"),
    Column("SkuId", "text"),
    Column("SkuMeter", "text"),
    Column("SkuPriceDetails", "text"),
    Column("SkuPriceId", "text"),
    Column("SubAccountId", "id"),
    Column("SubAccountName", "text"),
    Column("SubAccountType", "text"),
    Column("x_ApiKeyId", "id"),
    Column("x_LaneName", "text"),
    Column("x_ContextFrom", "integer"),
    Column("x_PriceVersion", "integer"),
)
_NAMES = [column.name for column in _COST_AND_USAGE]


async def _cost_and_usage(reading: ExportSnapshot, asked: ExportQuery) -> AsyncIterator[Sequence[Row]]:
    first, _ = period_bounds(asked.period)
    tenant_id, bill, cover = None, cast("_Bill | None", None), Cover({})
    async for rated in rated_groups(reading, asked, HOUR):
        rows = []
        for row, currency, line in rated:
            if row.tenant_id != tenant_id:
                tenant_id = row.tenant_id
                bill = await _invoice(reading, asked, tenant_id)
                if bill:
                    cover = Cover.of_invoice(bill.document, bill.lines)
                else:
                    cost, given, paid = await of_uninvoiced(reading.session, tenant_id, asked.period)
                    cover = Cover.of_uninvoiced(cost, paid, await taken_back(reading, asked, tenant_id))
                    rows += [_given(asked, tenant_id, currency, given)] if given else []
            billed_by = bill.line_of(row.project_id, row.start, line) if bill else None
            lane = "" if line.lane == "standard" else f"/{line.lane}"
            cells = _common(asked, row.tenant_id, currency, row.start, row.start + HOUR) | {
                **_costs(line.exact_pico),
                "BilledCost": cover.billed(billed_by.n if billed_by else None, line.exact_pico),
                "ChargeCategory": "Usage",
                "ChargeClass": "Correction" if row.start < first else None,
                "ChargeDescription": line.description,
                "ChargeFrequency": "Usage-Based",
                "ConsumedQuantity": line.units,
                "ConsumedUnit": _UNIT,
                "ContractedUnitPrice": line.price_micro,
                "ListUnitPrice": line.price_micro,
                "InvoiceId": bill.document.number if bill and billed_by else None,
                "InvoiceDetailId": _detail_id(bill.document, billed_by.n) if bill and billed_by else None,
                "PricingCategory": "Standard",
                "PricingQuantity": line.units,
                "PricingUnit": _PRICING_UNIT,
                "SkuId": f"{line.model}/{line.meter}{lane}",
                "SkuMeter": line.meter,
                "SkuPriceDetails": msgspec.json.encode(
                    {"x_Lane": line.lane, "x_ContextFrom": str(line.context_from)}
                ).decode(),
                "SkuPriceId": f"{line.price_version}/{line.meter}/{line.lane}/{line.context_from}",
                "SubAccountId": row.project_id,
                "SubAccountName": asked.names.projects.get(row.project_id),
                "SubAccountType": "Project",
                "x_ApiKeyId": row.key_id,
                "x_LaneName": line.lane,
                "x_ContextFrom": line.context_from,
                "x_PriceVersion": line.price_version,
            }
            rows.append([cells.get(name) for name in _NAMES])
        yield rows
    async for portion in reading.portions(documents(asked)):
        for document in portion:
            yield [
                [cells.get(name) for name in _NAMES]
                for bill in await _bills(reading, asked, document.tenant_id)
                if bill.document.id == document.id
                for cells in await _beyond_usage(reading, asked, bill)
            ]
    async for moves in credit_moved(reading, asked):
        yield [[cells.get(name) for name in _NAMES] for cells in (_moved(asked, moved) for moved in moves)]


def _given(asked: ExportQuery, tenant_id: UUID, currency: str, pico: int) -> list[Any]:
    """What was given for nothing of usage that no invoice has billed yet: there it will be a line of its own."""
    cells = _common(asked, tenant_id, currency, *period_bounds(asked.period)) | {
        **_costs(-pico),
        "ChargeCategory": "Credit",
        "ChargeDescription": "Promotional credit",
        "ChargeFrequency": "One-Time",
    }
    return [cells.get(name) for name in _NAMES]


async def _beyond_usage(reading: ExportSnapshot, asked: ExportQuery, bill: _Bill) -> list[dict[str, Any]]:
    """Rows of what a document says beyond usage; of a void one nothing, since nothing of it is billed."""
    document = bill.document
    if document.state == "void":
        return []
    note = document.kind == "credit_note"
    of_document = period_bounds(document.period)
    rows = []

    def add(n: int | str, category: str, text: str, pico: int, late: Any = None, **changed: int) -> None:
        of_line = (late.service_start, late.service_end) if late else of_document
        rows.append(
            _common(asked, document.tenant_id, document.currency, *of_line)
            | {
                **(_costs(-pico if note else pico) | changed),
                "ChargeCategory": category,
                "ChargeClass": "Correction" if note or late else None,
                "ChargeDescription": text,
                "ChargeFrequency": "One-Time",
                "InvoiceId": document.number,
                "InvoiceDetailId": _detail_id(document, n),
            }
        )

    paid = covered(document, bill.lines)
    for line in bill.lines:
        net = in_pico(line.net, document.currency)
        in_advance = in_pico(paid.get(line.n, 0), document.currency)
        if line.kind != "usage" or note:
            category = "Credit" if note else _CATEGORIES.get(line.kind, "Adjustment")
            late = line if line.corrects and not note else None  # storage that was recorded after its period had closed
            add(line.n, category, line.text, net, late, **({"BilledCost": net - in_advance} if in_advance else {}))
        elif net != line.exact_pico:
            rounding = net - line.exact_pico
            of_rounding = in_advance - cover_of(line, paid.get(line.n, 0), document.currency)
            # Of the line's own category, as the specification wants it of all that a line bills.
            add(line.n, "Usage", "Rounded to the smallest coin", rounding, BilledCost=rounding - of_rounding)
    if document.tax:
        add("tax", "Tax", "Tax", in_pico(document.tax, document.currency))
    if note and (back := await returned(reading, document)):
        add("balance", "Purchase", RETURNED, 0, BilledCost=in_pico(back, document.currency))
    return rows


def _moved(asked: ExportQuery, moved: CreditMoved) -> dict[str, Any]:
    """The row of credit that was bought, refunded or lost: nothing of an invoice."""
    hour = moved.at - moved.at % HOUR
    return _common(asked, moved.tenant_id, moved.currency, hour, hour + HOUR) | {
        **_costs(moved.billed or moved.effective),
        "BilledCost": moved.billed,
        "EffectiveCost": moved.effective,
        "ChargeCategory": moved.category,
        "ChargeDescription": moved.text,
        "ChargeFrequency": "One-Time",
    }


def _costs(pico: int) -> dict[str, int]:
    return dict.fromkeys(("BilledCost", "ContractedCost", "EffectiveCost", "ListCost"), pico)


def _common(asked: ExportQuery, tenant_id: UUID, currency: str, start: int, end: int) -> dict[str, Any]:
    first, after = period_bounds(asked.period)
    providers = ("HostProviderName", "InvoiceIssuerName", "ServiceProviderName")
    return dict.fromkeys(providers, asked.provider) | {
        "BillingAccountId": tenant_id,
        "BillingAccountName": asked.names.tenants.get(tenant_id),
        "BillingAccountType": "Tenant",
        "BillingCurrency": currency,
        "BillingPeriodStart": first,
        "BillingPeriodEnd": after,
        "ChargePeriodStart": start,
        "ChargePeriodEnd": end,
        "ServiceCategory": _CATEGORY,
        "ServiceName": _SERVICE,
        "ServiceSubcategory": _SUBCATEGORY,
    }


# ---------------------------------------------------------------- Invoice Detail

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
    Column("ReferenceInvoiceId", "text"),
    Column("x_ExactCost", "money", "the line before rounding; the effective costs of its usage add up to it"),
)


async def _invoice_detail(reading: ExportSnapshot, asked: ExportQuery) -> AsyncIterator[Sequence[Row]]:
    first, after = period_bounds(asked.period)
    async for portion in reading.portions(documents(asked)):
        for found in portion:
            bills = await _bills(reading, asked, found.tenant_id)
            (bill,) = (bill for bill in bills if bill.document.id == found.id)
            document, note = bill.document, bill.document.kind == "credit_note"
            issued, due = midnight(document.issued), midnight(document.due)
            days = 0 if issued is None or due is None else (due - issued) // (24 * HOUR)
            lines = [
                (line.n, "Credit" if note else _CATEGORIES.get(line.kind, "Adjustment"), line.text, line.net,
                 line.exact_pico)
                for line in bill.lines
            ]  # fmt: skip
            if document.tax:
                lines.append(("tax", "Tax", "Tax", document.tax, in_pico(document.tax, document.currency)))
            if note and (back := await returned(reading, document)):
                lines.append(("balance", "Purchase", RETURNED, -back, -in_pico(back, document.currency)))
            sign, paid = -1 if note else 0 if document.state == "void" else 1, covered(document, bill.lines)
            yield [
                (
                    sign * in_pico(net - paid.get(n, 0), document.currency),
                    document.tenant_id,
                    document.currency,
                    after,
                    first,
                    category,
                    document.finalized_at,
                    text,
                    None,
                    _detail_id(document, n),
                    document.finalized_at,
                    document.number,
                    issued,
                    "Voided" if document.state == "void" else "Issued",
                    asked.provider,
                    due,
                    f"Net {counted(days, 'day')}" if days else "Due on receipt",
                    document.corrected or document.number,
                    sign * exact,
                )
                for n, category, text, net, exact in lines
            ]


# ---------------------------------------------------------------- Billing Period

_BILLING_PERIOD = (
    Column("BillingPeriodCreated", "second"),
    Column("BillingPeriodEnd", "second"),
    Column("BillingPeriodLastUpdated", "second"),
    Column("BillingPeriodStart", "second"),
    Column("BillingPeriodStatus", "text"),
    Column("InvoiceIssuerName", "text"),
)


async def _billing_period(reading: ExportSnapshot, asked: ExportQuery) -> AsyncIterator[Sequence[Row]]:
    first, after = period_bounds(asked.period)
    query = select(billing_period.c.closed_at).where(billing_period.c.period == asked.period)
    closed_at = await reading.session.scalar(query)
    yield [(first, after, closed_at or first, first, "Closed" if closed_at else "Open", asked.provider)]


FOCUS = (
    Dataset(
        name="focus",
        title="FOCUS Cost and Usage",
        about="FOCUS 1.4, dataset Cost and Usage",
        columns=_COST_AND_USAGE,
        rows=_cost_and_usage,
        sums=("BilledCost",),
        currency="BillingCurrency",
    ),
    Dataset(
        name="focus-invoices",
        title="FOCUS Invoice Detail",
        about="FOCUS 1.4, dataset Invoice Detail",
        columns=_INVOICE_DETAIL,
        rows=_invoice_detail,
        sums=("BilledCost",),
        currency="BillingCurrency",
    ),
    Dataset(
        name="focus-periods",
        title="FOCUS Billing Period",
        about="FOCUS 1.4, dataset Billing Period",
        columns=_BILLING_PERIOD,
        rows=_billing_period,
        sums=(),
    ),
)
