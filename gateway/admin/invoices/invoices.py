"""/admin/v1/invoices and /admin/v1/tenants/{tenant}/invoices: invoices and credit notes, listed and one by one."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias
from urllib.parse import unquote
from uuid import UUID

from msgspec import Struct

from billing.invoices.document import DocumentKind
from billing.invoices.errors import UnknownInvoice
from billing.invoices.store import InvoiceRecord, Invoices, InvoiceState
from billing.money import format_minor
from gateway.admin.access import allowed_tenants, visible_tenant
from gateway.admin.operation import Call, InPath, Query, operation
from gateway.errors import InvalidField, NotFound
from gateway.http.policies import demands
from gateway.http.shapes import Instant, InvoiceId, Page, PageQuery, TenantId, show
from gateway.services import Gateway
from storage.database.public_ids import PREFIXES, prefixed_id
from tenancy.rights.permissions import Permission
from tenancy.tables import Tenant

INVOICE_PREFIX = PREFIXES["invoice"]
AT = "/admin/v1/tenants/{tenant:str}/invoices/{invoice:str}"
EXAMPLE = {"invoice": "INV-2026-000042"}


class InvoiceObject(Struct, frozen=True, kw_only=True):
    """An invoice or credit note. Amounts are decimal strings in its currency; `left` is still to be paid. `corrects` is
    the id of the invoice that a credit note reduces, `sha256` that of its canonical JSON; a draft has no number."""

    object: Literal["invoice"] = "invoice"
    id: InvoiceId
    kind: DocumentKind
    number: str | None
    state: InvoiceState
    tenant_id: TenantId
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
    corrects: InvoiceId | None
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
    at: Instant


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


async def find_invoice(call: Call, reference: str, permission: Permission) -> tuple[Tenant, InvoiceRecord]:
    """The tenant of a path and its document of this id or number; drafts only for the platform. Since a `/` ends a part
    of a path however it is encoded, a number's is written `%2F`, and that is encoded. Raises NotFound, NotAllowed,
    DatabaseUnavailable."""
    owner = await visible_tenant(call.gateway, call.request, call.request.path_params["tenant"], permission)
    identity, invoices = prefixed_id(reference, INVOICE_PREFIX), Invoices(call.gateway.services.database)
    try:
        record = await invoices.of_tenant(owner.id, unquote(reference) if identity is None else identity)
    except UnknownInvoice as error:
        raise NotFound(f"There is no invoice {reference[:80]!r}.") from error
    if record.state == "draft" and not sees_drafts(call):
        raise NotFound(f"There is no invoice {reference[:80]!r}.")
    return owner, record


InvoiceOfTenant: TypeAlias = Annotated[tuple[Tenant, InvoiceRecord], InPath(find_invoice)]
Period: TypeAlias = Annotated[str | None, Query("Only of this month.", example="2026-11")]
State: TypeAlias = Annotated[InvoiceState | None, Query("Only in this state.")]
Kind: TypeAlias = Annotated[DocumentKind | None, Query("Only invoices, credit notes, or advance-payment invoices.")]


def sees_drafts(call: Call) -> bool:
    """Whether drafts are shown to who asks: to the platform alone, since they may still change."""
    return call.principal.may("invoices.read")


class InvoiceOperations:
    """Lists and shows invoices and credit notes."""

    def __init__(self, gateway: Gateway) -> None:
        self._invoices = Invoices(gateway.services.database)

    @operation("GET", "/admin/v1/invoices", demands("invoices.read"))
    async def list_all_invoices(
        self, call: Call, page: PageQuery, *, period: Period = None, state: State = None, kind: Kind = None
    ) -> InvoiceList:
        """Invoices and credit notes of the tenants that you may see, newest first."""
        return await self._list(
            call, allowed_tenants(call.principal, "invoices.read"), page, period=period, state=state, kind=kind
        )

    @operation("GET", "/admin/v1/tenants/{tenant:str}/invoices", demands("invoices.read"))
    async def list_invoices(
        self,
        call: Call,
        tenant: Tenant,
        page: PageQuery,
        *,
        period: Period = None,
        state: State = None,
        kind: Kind = None,
    ) -> InvoiceList:
        """A tenant's invoices and credit notes, newest first."""
        return await self._list(call, frozenset({tenant.id}), page, period=period, state=state, kind=kind)

    @operation("GET", AT, demands("invoices.read"), path=EXAMPLE)
    async def retrieve_invoice(self, invoice: InvoiceOfTenant) -> InvoiceDetails:
        """One invoice or credit note, by its number or id."""
        _, record = invoice
        document = await self._invoices.document(record)
        settled = await self._invoices.settlements(record)
        currency = record.currency
        return show(
            InvoiceDetails,
            record,
            **_amounts(record),
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
                    at=Instant(payment.at),
                )
                for payment in settled.payments
            ],
            credit_notes=[invoice_object(note) for note in settled.credit_notes],
        )

    async def _list(self, call: Call, tenants: frozenset[UUID] | None, page: PageQuery, **filters: Any) -> InvoiceList:
        last = None if page.after is None else prefixed_id(page.after, INVOICE_PREFIX)
        if page.after is not None and last is None:
            raise InvalidField("after", "it is not the id of an invoice")
        records = await self._invoices.page(
            tenants, limit=page.limit + 1, after=last, drafts=sees_drafts(call), **filters
        )
        return InvoiceList.of([invoice_object(record) for record in records], page.limit)


def invoice_object(record: InvoiceRecord) -> InvoiceObject:
    """An invoice or credit note as answers have it."""
    return show(InvoiceObject, record, **_amounts(record))


def _amounts(record: InvoiceRecord) -> dict[str, str]:
    names = ("net", "tax", "gross", "prepaid", "payable", "paid", "credited", "left")
    return {name: format_minor(getattr(record, name), record.currency) for name in names}
