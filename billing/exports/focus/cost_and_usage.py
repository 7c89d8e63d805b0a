"""FOCUS 1.4, dataset Cost and Usage: an hour of an API key's use of one meter at one price, and all other charges.

A row of usage names the invoice line that bills it. What else an invoice says (tax, minimums, credits, rounding of a
line) has rows of its own. So the rows of each invoice line add up to it exactly, and the rows of an invoice add up to
what it asks to be paid. Prepaid credit is a purchase when it is bought (`billing.exports.focus.prepaid_credit`).

Invoice issuer and provider are one: FOCUS wants no BilledCost from a provider whose issuer is another.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, cast
from uuid import UUID

import msgspec

from billing.calendar import period_bounds
from billing.events.rollups import HOUR
from billing.exports.costs import rated_groups, taken_back
from billing.exports.datasets import Column, Dataset, ExportQuery, ExportSnapshot, Row
from billing.exports.focus.bills import Bill, bills, invoice_of
from billing.exports.focus.commitments import LAPSED, Applied, lapses
from billing.exports.focus.list_prices import ListPrices
from billing.exports.focus.prepaid_credit import (
    DEDUCTED,
    DRAWN,
    RETURNED,
    Cover,
    CreditMoved,
    cover_of,
    covered,
    credit_moved,
    returned,
)
from billing.invoices.accounting.funding import uninvoiced_funding
from billing.money import minor_to_pico

_SERVICE = "LLM inference"
_CATEGORY, _SUBCATEGORY = "AI and Machine Learning", "Generative AI"
_UNIT, _PRICING_UNIT = "Tokens", "1000000 Tokens"
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
    Column("ContractApplied", "text", "what a commitment pays of the row"),
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
    Column("Tags", "text", "project and lane, as provider's tags"),
    Column("x_ApiKeyId", "id"),
    Column("x_LaneName", "text"),
    Column("x_ContextFrom", "integer"),
    Column("x_PriceVersion", "integer"),
)


def _row(cells: Mapping[str, Any]) -> list[Any]:
    """A row from its cells by column name; cells that are not given are empty."""
    return [cells.get(column.name) for column in _COST_AND_USAGE]


async def _cost_and_usage(snapshot: ExportSnapshot, wanted: ExportQuery) -> AsyncIterator[Sequence[Row]]:
    first, _ = period_bounds(wanted.period)
    tenant_id, invoice, cover = None, cast("Bill | None", None), Cover({})
    applied, listed = cast("Applied | None", None), await ListPrices.read(snapshot)
    async for rated in rated_groups(snapshot, wanted, HOUR):
        rows = []
        for row, currency, line in rated:
            if row.tenant_id != tenant_id:
                tenant_id = row.tenant_id
                invoice = await invoice_of(snapshot, wanted, tenant_id)
                applied = await Applied.of_invoice(snapshot, invoice)
                if invoice:
                    cover = Cover.of_invoice(invoice.document, invoice.lines)
                else:
                    cost, promo, paid = await uninvoiced_funding(snapshot.session, tenant_id, wanted.period)
                    cover = Cover.of_uninvoiced(cost, paid, await taken_back(snapshot, wanted, tenant_id))
                    rows += [_promo_row(wanted, tenant_id, currency, promo)] if promo else []
            billed_by = invoice.line_of(row.project_id, row.start, line) if invoice else None
            list_price = await listed.price(row.tenant_id, line, row.start)
            lane = "" if line.lane == "standard" else f"/{line.lane}"
            cells = _common(wanted, row.tenant_id, currency, row.start, row.start + HOUR) | {
                **_costs(line.exact_pico),
                "BilledCost": cover.billed(billed_by.n if billed_by else None, line.exact_pico),
                "ChargeCategory": "Usage",
                "ChargeClass": "Correction" if row.start < first else None,
                "ChargeDescription": line.description,
                "ChargeFrequency": "Usage-Based",
                "ConsumedQuantity": line.units,
                "ConsumedUnit": _UNIT,
                "ContractApplied": applied.take(line.exact_pico) if applied else None,
                "ContractedUnitPrice": line.price_micro,
                "ListCost": line.units * list_price,
                "ListUnitPrice": list_price,
                "InvoiceId": invoice.document.number if invoice and billed_by else None,
                "InvoiceDetailId": invoice.detail_id(billed_by.n) if invoice and billed_by else None,
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
                "SubAccountName": wanted.names.projects.get(row.project_id),
                "SubAccountType": "Project",
                "Tags": _tags(wanted.names.projects.get(row.project_id), line.lane),
                "x_ApiKeyId": row.key_id,
                "x_LaneName": line.lane,
                "x_ContextFrom": line.context_from,
                "x_PriceVersion": line.price_version,
            }
            rows.append(_row(cells))
        yield rows
    async for bill in bills(snapshot, wanted):
        yield [_row(cells) for cells in await _beyond_usage(snapshot, wanted, bill)]
    async for moves in credit_moved(snapshot, wanted):
        yield [_row(_moved(wanted, moved)) for moved in moves]
    yield [_row(_lapsed(wanted, lapse)) for lapse in await lapses(snapshot, wanted)]


def _tags(project: str | None, lane: str | None) -> str:
    """Tags of ours, whose keys have our prefix: requests' own tags bound budgets and are not kept with usage."""
    tags = {"turnpike:project": project, "turnpike:lane": lane}
    return msgspec.json.encode({name: tag for name, tag in tags.items() if tag}).decode()


def _promo_row(wanted: ExportQuery, tenant_id: UUID, currency: str, pico: int) -> list[Any]:
    """Promotional credit used for usage that no invoice has billed yet. On the invoice it will be a line."""
    cells = _common(wanted, tenant_id, currency, *period_bounds(wanted.period)) | {
        **_costs(-pico),
        "ChargeCategory": "Credit",
        "ChargeDescription": "Promotional credit",
        "ChargeFrequency": "One-Time",
    }
    return _row(cells)


async def _beyond_usage(snapshot: ExportSnapshot, wanted: ExportQuery, bill: Bill) -> list[dict[str, Any]]:
    """A document's rows that are not usage: other lines, rounding, tax. A void document has none."""
    document = bill.document
    if document.state == "void":
        return []
    note = document.kind == "credit_note"
    of_document = period_bounds(document.period)
    rows = []

    def add(n: int | str, category: str, text: str, pico: int, late: Any = None, **changed: int) -> None:
        of_line = (late.service_start, late.service_end) if late else of_document
        rows.append(
            _common(wanted, document.tenant_id, document.currency, *of_line)
            | {
                **(_costs(-pico if note else pico) | changed),
                "ChargeCategory": category,
                "ChargeClass": "Correction" if note or late else None,
                "ChargeDescription": text,
                "ChargeFrequency": "One-Time",
                "InvoiceId": document.number,
                "InvoiceDetailId": bill.detail_id(n),
            }
        )

    paid = covered(document, bill.lines)
    for line in bill.lines:
        if line.kind == "advance":  # a row of the credit itself
            continue
        net = minor_to_pico(line.net, document.currency)
        in_advance = minor_to_pico(paid.get(line.n, 0), document.currency)
        if line.kind != "usage" or note:
            late = line if line.corrects and not note else None  # storage that was recorded after its period had closed
            changed = {"BilledCost": net - in_advance} if in_advance else {}
            if line.kind == "commitment":  # effective where it is used, or ends unused
                changed["EffectiveCost"] = 0
            add(line.n, bill.category_of(line), line.text, net, late, **changed)
        elif net != line.exact_pico:
            rounding = net - line.exact_pico
            of_rounding = in_advance - cover_of(line, paid.get(line.n, 0), document.currency)
            # FOCUS wants one ChargeCategory for all rows of an invoice line.
            add(line.n, "Usage", "Rounded to the smallest coin", rounding, BilledCost=rounding - of_rounding)
    if document.tax:
        add("tax", "Tax", "Tax", minor_to_pico(document.tax, document.currency))
    if document.advance_tax:
        add("advances", "Tax", DEDUCTED, -minor_to_pico(document.advance_tax, document.currency))
    if document.drawn:
        add("credit", "Credit", DRAWN, 0, BilledCost=-minor_to_pico(document.drawn, document.currency))
    if note and (back := await returned(snapshot, document)):
        add("balance", "Purchase", RETURNED, 0, BilledCost=minor_to_pico(back, document.currency))
    return rows


def _moved(wanted: ExportQuery, moved: CreditMoved) -> dict[str, Any]:
    """The row of credit that was bought, refunded or expired. It belongs to no invoice."""
    hour = moved.at - moved.at % HOUR
    return _common(wanted, moved.tenant_id, moved.currency, hour, hour + HOUR) | {
        **_costs(moved.billed or moved.effective),
        "BilledCost": moved.billed,
        "EffectiveCost": moved.effective,
        "ChargeCategory": moved.category,
        "ChargeDescription": moved.text,
        "ChargeFrequency": "One-Time",
    }


def _lapsed(wanted: ExportQuery, lapse: Any) -> dict[str, Any]:
    """The row of what a commitment did not pay until its end. It belongs to no invoice."""
    first, after = period_bounds(wanted.period)
    instant = min(max(lapse.posted_at, first), after - HOUR)
    hour = instant - instant % HOUR
    return _common(wanted, lapse.tenant_id, lapse.currency, hour, hour + HOUR) | {
        **_costs(int(lapse.pico)),
        "BilledCost": 0,
        "ChargeCategory": "Adjustment",
        "ChargeDescription": LAPSED,
        "ChargeFrequency": "One-Time",
    }


def _costs(pico: int) -> dict[str, int]:
    return dict.fromkeys(("BilledCost", "ContractedCost", "EffectiveCost", "ListCost"), pico)


def _common(wanted: ExportQuery, tenant_id: UUID, currency: str, start: int, end: int) -> dict[str, Any]:
    first, after = period_bounds(wanted.period)
    providers = ("HostProviderName", "InvoiceIssuerName", "ServiceProviderName")
    return dict.fromkeys(providers, wanted.provider) | {
        "BillingAccountId": tenant_id,
        "BillingAccountName": wanted.names.tenants.get(tenant_id),
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


COST_AND_USAGE = Dataset(
    name="focus",
    title="FOCUS Cost and Usage",
    about="FOCUS 1.4, dataset Cost and Usage",
    columns=_COST_AND_USAGE,
    rows=_cost_and_usage,
    sums=("BilledCost",),
    currency="BillingCurrency",
)
