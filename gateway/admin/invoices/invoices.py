"""/admin/v1/invoices and /admin/v1/tenants/{tenant}/invoices: invoices and credit notes, listed and one by one."""

from __future__ import annotations

from typing import Any, Literal, get_args
from uuid import UUID

from litestar import Request, Response, get
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath
from msgspec import Struct

from billing.calendar import format_instant
from billing.invoices.document import DocumentKind
from billing.invoices.errors import UnknownInvoice
from billing.invoices.store import InvoiceRecord, Invoices, InvoiceState
from billing.money import format_minor
from gateway.admin.access import allowed_tenants, principal_of, visible_tenant
from gateway.admin.refusals import refusals
from gateway.dialects.query_parameters import Parameters
from gateway.errors import InvalidField, NotFound
from gateway.http.operations import describes, page, query
from gateway.http.policies import demands
from gateway.http.responses import json_response
from gateway.http.shapes import Page
from gateway.services import Gateway
from storage.database.public_ids import PREFIXES, prefixed_id, public_id
from tenancy.directory import tenant_public_id
from tenancy.rights.permissions import Permission
from tenancy.tables import Tenant

INVOICE_PREFIX = PREFIXES["invoice"]
AT = "/admin/v1/tenants/{tenant:str}/invoices/{invoice:str}"


class InvoiceObject(Struct, frozen=True, kw_only=True):
    """An invoice or credit note. Amounts are decimal strings in its currency; `left` is still to be paid. `corrects` is
    the id of the invoice that a credit note reduces, `sha256` that of its canonical JSON; a draft has no number."""

    object: Literal["invoice"] = "invoice"
    id: str
    kind: DocumentKind
    number: str | None
    state: InvoiceState
    tenant_id: str
    seller: str
    period: str
    issued: str | None
    due: str | None
    currency: str
    net: str
    tax: str
    gross: str
    prepaid: str
    payable: str
    paid: str
    credited: str
    left: str
    corrects: str | None
    sha256: str | None


class InvoiceList(Page[InvoiceObject], frozen=True):
    """Invoices and credit notes, newest first."""


class TaxObject(Struct, frozen=True, kw_only=True):
    """The tax on all lines of one category and rate, in percent."""

    category: str
    rate: str
    reason: str
    net: str
    tax: str


class PaymentObject(Struct, frozen=True, kw_only=True):
    """A payment of an invoice."""

    id: str
    amount: str
    reference: str
    at: str


class InvoiceDetails(InvoiceObject, frozen=True, kw_only=True):
    """An invoice with its parties, taxes, payments and credit notes. Its lines are a list of their own."""

    seller_name: str
    buyer_name: str
    service_from: str
    service_until: str
    reason: str
    line_count: int
    taxes: list[TaxObject]
    payments: list[PaymentObject]
    credit_notes: list[InvoiceObject]


class InvoiceFinder:
    """Finds the invoice of a path, if the principal may see it."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self.invoices = Invoices(gateway.services.database)

    async def find(
        self, request: Request[Any, Any, Any], tenant: str, reference: str, permission: Permission = "invoices.read"
    ) -> tuple[Tenant, InvoiceRecord]:
        """The tenant and its document of this id or number; drafts only for the platform. Raises NotFound, NotAllowed,
        DatabaseUnavailable."""
        owner = await visible_tenant(self._gateway, request, tenant, permission)
        identity = prefixed_id(reference, INVOICE_PREFIX)
        try:
            record = await self.invoices.of_tenant(owner.id, reference if identity is None else identity)
        except UnknownInvoice as error:
            raise NotFound(f"There is no invoice {reference[:80]!r}.") from error
        if record.state == "draft" and not sees_drafts(request):
            raise NotFound(f"There is no invoice {reference[:80]!r}.")
        return owner, record


def sees_drafts(request: Request[Any, Any, Any]) -> bool:
    """Whether drafts are shown to who asks: to the platform alone, since they may still change."""
    return principal_of(request).may("invoices.read")


def invoice_routes(gateway: Gateway) -> list[HTTPRouteHandler]:
    """The routes, for one worker."""
    finder = InvoiceFinder(gateway)
    invoices = finder.invoices

    async def listed(request: Request[Any, Any, Any], tenant_ids: frozenset[UUID] | None) -> Response[bytes]:
        parameters = Parameters.of(request)
        limit, after = parameters.page_size(), parameters.text("after")
        period, state = parameters.text("period"), parameters.choice("state", get_args(InvoiceState))
        kind = parameters.choice("kind", get_args(DocumentKind))
        parameters.reject_unknown()
        last = None if after is None else prefixed_id(after, INVOICE_PREFIX)
        if after is not None and last is None:
            raise InvalidField("after", "it is not the id of an invoice")
        with refusals():
            found = await invoices.page(
                tenant_ids,
                limit=limit + 1,
                after=last,
                period=period,
                state=state,
                kind=kind,
                drafts=sees_drafts(request),
            )
        return json_response(
            InvoiceList(data=[invoice_object(record) for record in found[:limit]], has_more=len(found) > limit)
        )

    filters = (
        *page(),
        query("period", str, "Only of this month.", example="2026-11"),
        query("state", InvoiceState, "Only in this state."),
        query("kind", DocumentKind, "Only invoices, or credit notes."),
    )

    @get("/admin/v1/invoices", opt=demands("invoices.read") | describes(InvoiceList, query=filters))
    async def list_all_invoices(request: Request[Any, Any, Any]) -> Response[bytes]:
        """Invoices and credit notes of the tenants that you may see, newest first."""
        return await listed(request, allowed_tenants(principal_of(request), "invoices.read"))

    @get(
        "/admin/v1/tenants/{tenant:str}/invoices",
        opt=demands("invoices.read") | describes(InvoiceList, query=filters),
    )
    async def list_invoices(request: Request[Any, Any, Any], tenant: FromPath[str]) -> Response[bytes]:
        """A tenant's invoices and credit notes, newest first."""
        owner = await visible_tenant(gateway, request, tenant, "invoices.read")
        return await listed(request, frozenset({owner.id}))

    @get(AT, opt=demands("invoices.read") | describes(InvoiceDetails, path={"invoice": "INV-2026-000042"}))
    async def retrieve_invoice(
        request: Request[Any, Any, Any], tenant: FromPath[str], invoice: FromPath[str]
    ) -> Response[bytes]:
        """One invoice or credit note, by its number or id."""
        _, record = await finder.find(request, tenant, invoice)
        with refusals():
            document = await invoices.document(record)
            settled = await invoices.settlements(record)
        currency = record.currency
        return json_response(
            InvoiceDetails(
                **_fields(record),
                seller_name=document.seller.name,
                buyer_name=document.buyer.name,
                service_from=document.service_from,
                service_until=document.service_until,
                reason=document.reason,
                line_count=len(document.lines),
                taxes=[
                    TaxObject(
                        category=tax.category,
                        rate=f"{tax.rate // 100}.{tax.rate % 100:02d}",
                        reason=tax.reason,
                        net=format_minor(tax.net, currency),
                        tax=format_minor(tax.tax, currency),
                    )
                    for tax in document.taxes
                ],
                payments=[
                    PaymentObject(
                        id=str(payment.id),
                        amount=format_minor(payment.amount, currency),
                        reference=payment.reference,
                        at=format_instant(payment.at),
                    )
                    for payment in settled.payments
                ],
                credit_notes=[invoice_object(note) for note in settled.credit_notes],
            )
        )

    return [list_all_invoices, list_invoices, retrieve_invoice]


def invoice_object(record: InvoiceRecord) -> InvoiceObject:
    """An invoice or credit note as answers have it."""
    return InvoiceObject(**_fields(record))


def _fields(record: InvoiceRecord) -> dict[str, Any]:
    names = ("net", "tax", "gross", "prepaid", "payable", "paid", "credited", "left")
    same = ("kind", "number", "state", "seller", "period", "issued", "due", "currency", "sha256")
    return {
        "id": public_id("invoice", record.id),
        "tenant_id": tenant_public_id(record.tenant_id),
        "corrects": None if record.corrects is None else public_id("invoice", record.corrects),
        **{name: getattr(record, name) for name in same},
        **{name: format_minor(getattr(record, name), record.currency) for name in names},
    }
