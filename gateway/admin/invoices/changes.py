"""What happens to invoices: drafting, finalizing, payments, voiding, write-off and credit notes."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date
from typing import Any, Literal

from msgspec import Struct

from billing.invoices.collection import mark_uncollectible, pay, relieve_vat, void
from billing.invoices.credit_notes import credit
from billing.invoices.document import Document, warnings_of
from billing.invoices.drafting import draft
from billing.invoices.finalizing import finalize
from billing.invoices.store import InvoiceRecord
from billing.money import format_minor
from gateway.admin.invoices.invoices import AT, EXAMPLE, InvoiceObject, InvoiceOfTenant, invoice_object
from gateway.admin.operation import Handler, operation
from gateway.admin.refusals import minor_at
from gateway.errors import Conflict, InvalidField
from gateway.http.pending import PENDING_STATUS, ChangeObject
from gateway.http.policies import demands
from gateway.http.shapes import TenantId
from gateway.services import Gateway
from tenancy.directory import Directory
from tenancy.tables import Tenant

_REFUSED = {"wrong_state": 409, "invalid_amount": 400}
_PAYMENT_REFUSED = _REFUSED | {"idempotency_conflict": 409}


class NewDraft(Struct, frozen=True, forbid_unknown_fields=True):
    """The month to be drafted; an earlier draft of it is replaced. `dry_run`: only say what it would come to."""

    period: str
    dry_run: bool = False


class Finalization(Struct, frozen=True, forbid_unknown_fields=True):
    """`issued`: the issue date, today without it. `dry_run`: only check."""

    issued: str | None = None
    dry_run: bool = False


class NewInvoicePayment(Struct, frozen=True, forbid_unknown_fields=True):
    """A payment. `reference`: the bank's; used again, the payment counts once. `amount`: else all that is left."""

    reference: str
    amount: str | None = None
    dry_run: bool = False


class ReasonedChange(Struct, frozen=True, forbid_unknown_fields=True):
    """`reason`: for the audit log. `dry_run`: only check."""

    reason: str
    dry_run: bool = False


class CreditedLine(Struct, frozen=True, forbid_unknown_fields=True):
    """A line to be credited: `amount` of it, or all that is left."""

    line: int
    amount: str | None = None


class NewCreditNote(Struct, frozen=True, forbid_unknown_fields=True):
    """A credit note for an invoice. `request`: an id of your own; used again, one credit note is made. `lines`: without
    them all that is left of the invoice. `issued`: the issue date, today without it. `dry_run`: only compose it."""

    reason: str
    request: str
    lines: tuple[CreditedLine, ...] | None = None
    issued: str | None = None
    dry_run: bool = False


class DocumentCheck(Struct, frozen=True, kw_only=True):
    """The result of a dry run: what the document would come to, and warnings about its parties. None of the amounts if
    there is nothing to bill."""

    object: Literal["invoice.check"] = "invoice.check"
    tenant_id: TenantId
    period: str
    currency: str | None
    lines: int
    net: str | None
    tax: str | None
    gross: str | None
    prepaid: str | None
    payable: str | None
    warnings: list[str]


def _change(path: str, example: Struct, **described: Any) -> Callable[[Handler], Handler]:
    return operation("POST", f"{AT}/{path}", demands("invoices.write"), example=example, path=EXAMPLE, **described)


class InvoiceChangeOperations:
    """Changes invoices."""

    def __init__(self, gateway: Gateway) -> None:
        self._database, self._prices = gateway.services.database, gateway.services.prices
        self._directory = Directory(gateway.services.database)

    @operation(
        "POST",
        "/admin/v1/tenants/{tenant:str}/invoices",
        demands("invoices.write"),
        status={InvoiceObject: 201, DocumentCheck: 200},
        example=NewDraft(period="2026-11"),
        errors={"wrong_state": 409, "no_billing_profile": 409, "nothing_to_bill": 409},
    )
    async def draft_invoice(self, tenant: Tenant, body: NewDraft) -> InvoiceObject | DocumentCheck:
        """Make the draft of a month, or make it again."""
        names = await self._directory.all_project_names(tenant.id)
        record, document = await draft(
            self._database, self._prices, tenant.id, body.period, names, write=not body.dry_run
        )
        if body.dry_run:
            return _check(TenantId.of(tenant.id), body.period, document)
        if record is None:
            raise Conflict(f"There is nothing to bill in {body.period}.", code="nothing_to_bill")
        return invoice_object(record)

    @_change(
        "finalize",
        Finalization(),
        body_required=False,
        errors={"period_open": 409, "draft_outdated": 409, "number_refused": 409},
    )
    async def finalize_invoice(self, invoice: InvoiceOfTenant, body: Finalization) -> InvoiceObject:
        """Number and seal the draft of a closed month. A dry run answers the invoice with the number it would get."""
        owner, record = invoice
        issued = _date("$.issued", body.issued)
        if record.kind != "invoice" or record.state == "void":
            raise Conflict(f"{record.name} cannot be finalized.", code="wrong_state")
        return invoice_object(
            await finalize(self._database, self._prices, owner.id, record.period, issued, write=not body.dry_run)
        )

    @_change("payments", NewInvoicePayment(reference="transfer 7"), errors=_PAYMENT_REFUSED)
    async def pay_invoice(self, invoice: InvoiceOfTenant, body: NewInvoicePayment) -> InvoiceObject:
        """Record a payment of an invoice, and answer the invoice after it."""
        _, record = invoice
        amount = None if body.amount is None else minor_at("$.amount", body.amount, record.currency)
        return invoice_object(await pay(self._database, record, body.reference, amount, write=not body.dry_run))

    @_change("void", ReasonedChange("the wrong customer"), errors=_REFUSED)
    async def void_invoice(self, invoice: InvoiceOfTenant, body: ReasonedChange) -> InvoiceObject:
        """Void an invoice of which nothing was paid; its month can be invoiced again."""
        return invoice_object(await void(self._database, invoice[1], body.reason, write=not body.dry_run))

    @_change("uncollectible", ReasonedChange("insolvent"), errors=_REFUSED)
    async def write_off_invoice(self, invoice: InvoiceOfTenant, body: ReasonedChange) -> InvoiceObject:
        """Write off what is left of an invoice as bad debt; it can still be paid."""
        return invoice_object(await mark_uncollectible(self._database, invoice[1], body.reason, write=not body.dry_run))

    @_change("vat-relief", ReasonedChange("certificate of 5 December"), errors=_REFUSED)
    async def relieve_invoice_of_vat(self, invoice: InvoiceOfTenant, body: ReasonedChange) -> InvoiceObject:
        """Book that the VAT on what is left of a written-off invoice is claimed back as of today."""
        return invoice_object(await relieve_vat(self._database, invoice[1], body.reason, write=not body.dry_run))

    @_change(
        "credit-notes",
        NewCreditNote(reason="outage on 3 November", request="ticket-7"),
        status={InvoiceObject: 201, DocumentCheck: 200, ChangeObject: PENDING_STATUS},
        errors=_REFUSED,
    )
    async def credit_invoice(
        self, invoice: InvoiceOfTenant, body: NewCreditNote
    ) -> InvoiceObject | DocumentCheck | ChangeObject:
        """Take an invoice back, whole or by line."""
        owner, record = invoice
        note, document = await credit(
            self._database,
            record,
            body.reason,
            request=body.request,
            amounts=_amounts(body, record),
            issued=_date("$.issued", body.issued),
            write=not body.dry_run,
        )
        return _check(TenantId.of(owner.id), record.period, document) if note is None else invoice_object(note)


def _check(tenant: TenantId, period: str, document: Document | None) -> DocumentCheck:
    def amount(name: str) -> str | None:
        return None if document is None else format_minor(getattr(document, name), document.currency)

    return DocumentCheck(
        tenant_id=tenant,
        period=period,
        currency=None if document is None else document.currency,
        lines=0 if document is None else len(document.lines),
        net=amount("net"),
        tax=amount("tax"),
        gross=amount("gross"),
        prepaid=amount("prepaid"),
        payable=amount("payable"),
        warnings=[] if document is None else warnings_of(document),
    )


def _amounts(body: NewCreditNote, record: InvoiceRecord) -> dict[int, int | None] | None:
    """Minor units by line, None for all that is left of the line. Raises InvalidField."""
    if body.lines is None:
        return None
    amounts = {
        credited.line: None
        if credited.amount is None
        else minor_at(f"$.lines[{n}].amount", credited.amount, record.currency)
        for n, credited in enumerate(body.lines)
    }
    if len(amounts) < len(body.lines):
        raise InvalidField("$.lines", "a line is there twice")
    return amounts


def _date(path: str, text: str | None) -> date | None:
    try:
        day = None if text is None else date.fromisoformat(text)
        if day is not None and not 1970 <= day.year < 9999:
            raise ValueError(day)
        return day
    except ValueError as error:
        raise InvalidField(path, f"{text[:40] if text else ''!r} is not a day such as 2026-11-30") from error
