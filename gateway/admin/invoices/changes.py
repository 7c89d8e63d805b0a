"""What happens to invoices: drafting, finalizing, payments, voiding, write-off and credit notes."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from datetime import date
from decimal import Decimal, InvalidOperation
from typing import Any, Literal

import msgspec
from litestar import Request, Response, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath
from msgspec import Struct

from billing.invoices.collection import mark_uncollectible, pay, relieve_vat, void
from billing.invoices.credit_notes import credit
from billing.invoices.document import Document, warnings_of
from billing.invoices.drafting import draft
from billing.invoices.finalizing import finalize
from billing.invoices.store import InvoiceRecord
from billing.money import format_minor, minor_digits
from gateway.admin.access import visible_tenant
from gateway.admin.invoices.invoices import AT, InvoiceFinder, InvoiceObject, invoice_object
from gateway.admin.refusals import refusals
from gateway.endpoints.request_body import read_management_body
from gateway.errors import Conflict, InvalidField
from gateway.http.operations import describes
from gateway.http.pending import PENDING_STATUS, ChangeObject
from gateway.http.policies import demands
from gateway.http.responses import json_response
from gateway.services import Gateway
from tenancy.directory import Directory, tenant_public_id

_MOST_MINOR = 10**15
_EXAMPLE = {"invoice": "INV-2026-000042"}
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
    tenant_id: str
    period: str
    currency: str | None
    lines: int
    net: str | None
    tax: str | None
    gross: str | None
    prepaid: str | None
    payable: str | None
    warnings: list[str]


_DRAFT, _FINALIZATION = msgspec.json.Decoder(NewDraft), msgspec.json.Decoder(Finalization)
_PAYMENT, _CHANGE = msgspec.json.Decoder(NewInvoicePayment), msgspec.json.Decoder(ReasonedChange)
_NOTE = msgspec.json.Decoder(NewCreditNote)
_VOID = "Void an invoice of which nothing was paid; its month can be invoiced again."
_WRITE_OFF = "Write off what is left of an invoice as bad debt; it can still be paid."
_RELIEVE = "Book that the VAT on what is left of a written-off invoice is claimed back as of today."
_REASONED_CHANGES = (
    ("void", "void_invoice", _VOID, "the wrong customer", void),
    ("uncollectible", "write_off_invoice", _WRITE_OFF, "insolvent", mark_uncollectible),
    ("vat-relief", "relieve_invoice_of_vat", _RELIEVE, "certificate of 5 December", relieve_vat),
)
"""Path, name, description, example of a reason, and the change."""


def invoice_change_routes(gateway: Gateway) -> list[HTTPRouteHandler]:
    """The routes, for one worker."""
    database, prices = gateway.services.database, gateway.services.prices
    client_timeout = gateway.services.options.client_timeout
    finder, directory = InvoiceFinder(gateway), Directory(gateway.services.database)

    @post(
        "/admin/v1/tenants/{tenant:str}/invoices",
        status_code=201,
        opt=demands("invoices.write")
        | describes(
            {201: InvoiceObject, 200: DocumentCheck},
            body=NewDraft(period="2026-11"),
            errors={"wrong_state": 409, "no_billing_profile": 409, "nothing_to_bill": 409},
        ),
    )
    async def draft_invoice(request: Request[Any, Any, Any], tenant: FromPath[str]) -> Response[bytes]:
        """Make the draft of a month, or make it again."""
        owner = await visible_tenant(gateway, request, tenant, "invoices.write")
        body = await read_management_body(request, client_timeout, _DRAFT)
        with refusals():
            names = await directory.all_project_names(owner.id)
            record, document = await draft(database, prices, owner.id, body.period, names, write=not body.dry_run)
        if body.dry_run:
            return json_response(_check(tenant_public_id(owner.id), body.period, document))
        if record is None:
            raise Conflict(f"There is nothing to bill in {body.period}.", code="nothing_to_bill")
        return json_response(invoice_object(record), 201)

    @post(
        f"{AT}/finalize",
        status_code=200,
        opt=demands("invoices.write")
        | describes(
            InvoiceObject,
            body=Finalization(),
            body_required=False,
            path=_EXAMPLE,
            errors={"period_open": 409, "draft_outdated": 409, "number_refused": 409},
        ),
    )
    async def finalize_invoice(
        request: Request[Any, Any, Any], tenant: FromPath[str], invoice: FromPath[str]
    ) -> Response[bytes]:
        """Number and seal the draft of a closed month. A dry run answers the invoice with the number it would get."""
        owner, record = await finder.find(request, tenant, invoice, "invoices.write")
        body = await read_management_body(request, client_timeout, _FINALIZATION, default=b"{}")
        issued = _date("$.issued", body.issued)
        if record.kind != "invoice" or record.state == "void":
            raise Conflict(f"{record.name} cannot be finalized.", code="wrong_state")
        with refusals():
            done = await finalize(database, prices, owner.id, record.period, issued, write=not body.dry_run)
        return json_response(invoice_object(done))

    @post(
        f"{AT}/payments",
        status_code=200,
        opt=demands("invoices.write")
        | describes(
            InvoiceObject, body=NewInvoicePayment(reference="transfer 7"), path=_EXAMPLE, errors=_PAYMENT_REFUSED
        ),
    )
    async def pay_invoice(
        request: Request[Any, Any, Any], tenant: FromPath[str], invoice: FromPath[str]
    ) -> Response[bytes]:
        """Record a payment of an invoice, and answer the invoice after it."""
        _, record = await finder.find(request, tenant, invoice, "invoices.write")
        body = await read_management_body(request, client_timeout, _PAYMENT)
        amount = None if body.amount is None else _minor("$.amount", body.amount, record.currency)
        with refusals():
            done = await pay(database, record, body.reference, amount, write=not body.dry_run)
        return json_response(invoice_object(done))

    def change_route(
        path: str, name: str, doc: str, reason: str, change: Callable[..., Coroutine[Any, Any, InvoiceRecord]]
    ) -> HTTPRouteHandler:
        """The route of a change of an invoice that takes a reason and nothing else."""

        async def change_invoice(
            request: Request[Any, Any, Any], tenant: FromPath[str], invoice: FromPath[str]
        ) -> Response[bytes]:
            _, record = await finder.find(request, tenant, invoice, "invoices.write")
            body = await read_management_body(request, client_timeout, _CHANGE)
            with refusals():
                done = await change(database, record, body.reason, write=not body.dry_run)
            return json_response(invoice_object(done))

        change_invoice.__name__, change_invoice.__doc__ = name, doc
        described = describes(InvoiceObject, body=ReasonedChange(reason), path=_EXAMPLE, errors=_REFUSED)
        return post(f"{AT}/{path}", status_code=200, opt=demands("invoices.write") | described)(change_invoice)

    @post(
        f"{AT}/credit-notes",
        status_code=201,
        opt=demands("invoices.write")
        | describes(
            {201: InvoiceObject, 200: DocumentCheck, PENDING_STATUS: ChangeObject},
            body=NewCreditNote(reason="outage on 3 November", request="ticket-7"),
            path=_EXAMPLE,
            errors=_REFUSED,
        ),
    )
    async def credit_invoice(
        request: Request[Any, Any, Any], tenant: FromPath[str], invoice: FromPath[str]
    ) -> Response[bytes]:
        """Take an invoice back, whole or by line."""
        owner, record = await finder.find(request, tenant, invoice, "invoices.write")
        body = await read_management_body(request, client_timeout, _NOTE)
        with refusals():
            note, document = await credit(
                database,
                record,
                body.reason,
                request=body.request,
                amounts=_amounts(body, record),
                issued=_date("$.issued", body.issued),
                write=not body.dry_run,
            )
        if note is None:
            return json_response(_check(tenant_public_id(owner.id), record.period, document))
        return json_response(invoice_object(note), 201)

    return [
        draft_invoice,
        finalize_invoice,
        pay_invoice,
        *(change_route(*route) for route in _REASONED_CHANGES),
        credit_invoice,
    ]


def _check(tenant: str, period: str, document: Document | None) -> DocumentCheck:
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
        else _minor(f"$.lines[{n}].amount", credited.amount, record.currency)
        for n, credited in enumerate(body.lines)
    }
    if len(amounts) < len(body.lines):
        raise InvalidField("$.lines", "a line is there twice")
    return amounts


def _minor(path: str, text: str, currency: str) -> int:
    """Minor units of a decimal amount. Raises InvalidField."""
    digits = minor_digits(currency)
    try:
        scaled = Decimal(text[:40]).scaleb(digits)
    except InvalidOperation as error:
        raise InvalidField(path, f"{text[:40]!r} is not an amount such as 25.00", code="invalid_amount") from error
    if not scaled.is_finite() or scaled != scaled.to_integral_value() or abs(scaled) >= _MOST_MINOR:
        problem = f"{text[:40]!r} is not an amount of {currency}, which has {digits} decimal places"
        raise InvalidField(path, problem, code="invalid_amount")
    return int(scaled)


def _date(path: str, text: str | None) -> date | None:
    try:
        day = None if text is None else date.fromisoformat(text)
        if day is not None and not 1970 <= day.year < 9999:
            raise ValueError(day)
        return day
    except ValueError as error:
        raise InvalidField(path, f"{text[:40] if text else ''!r} is not a day such as 2026-11-30") from error
