"""An invoice on the command line: how it is named, and the lines that say how it stands."""

from __future__ import annotations

import argparse
from datetime import date
from typing import TYPE_CHECKING

import msgspec

from billing.money import format_minor, format_pico
from storage.free_text import counted
from turnpike.api.actions import Object
from turnpike.api.client import Api
from turnpike.command_line import CommandError, CommandParser

if TYPE_CHECKING:
    from billing.invoices.document import Document
    from billing.invoices.store import InvoiceRecord
    from turnpike.admin_services import AdminServices

NOTHING_WRITTEN = "dry run, nothing written"


def add_number(parser: CommandParser, *, drafts: bool = False) -> None:
    """Take the number of an invoice, and with `drafts` instead of it a tenant and a period."""
    parser.add_argument("number", nargs="?" if drafts else None, metavar="NUMBER", help="such as INV-2026-000042")
    parser.add_argument("--seller", help="whose number it is, where several sellers have it")
    if drafts:
        parser.add_argument("--tenant", help="instead of NUMBER: whose invoice, with --period")
        parser.add_argument("--period", help="such as 2026-11")


async def find_record(admin: AdminServices, arguments: argparse.Namespace) -> InvoiceRecord:
    """The invoice that the command line names, by number, or by tenant and period."""
    from billing.invoices.store import Invoices

    invoices = Invoices(admin.database)
    if arguments.number:
        return await invoices.by_number(arguments.number, arguments.seller)
    if not (getattr(arguments, "tenant", None) and getattr(arguments, "period", None)):
        raise CommandError("say which: its NUMBER, or --tenant and --period")
    tenant = await admin.tenancy.tenant(arguments.tenant)
    record = await invoices.of_period(tenant.id, arguments.period)
    if record is None:
        raise CommandError(
            f"{tenant.name} has no invoice of {arguments.period}: "
            f"`turnpike invoices draft --tenant {tenant.name} --period {arguments.period}`"
        )
    return record


async def find_invoice(api: Api, arguments: argparse.Namespace) -> Object:
    """The invoice that the command line names, as `find_record`. Raises CommandError."""
    tenant, period = getattr(arguments, "tenant", None), getattr(arguments, "period", None)
    if arguments.number:
        listed = await api.list("list_all_invoices")
        found = [
            one for one in listed if arguments.number == one["number"] and arguments.seller in (None, one["seller"])
        ]
        if not found:
            raise CommandError(f"there is no invoice {arguments.number}")
        if len(found) > 1:
            sellers = ", ".join(sorted(one["seller"] for one in found))
            raise CommandError(f"several sellers have {arguments.number}: say --seller, one of {sellers}")
        return found[0]
    if not (tenant and period):
        raise CommandError("say which: its NUMBER, or --tenant and --period")
    listed = await api.list("list_invoices", tenant=tenant, period=period, kind="invoice")
    for invoice in listed:
        if invoice["state"] != "void":
            return invoice
    raise CommandError(
        f"{tenant} has no invoice of {period}: `turnpike invoices draft --tenant {tenant} --period {period}`"
    )


def invoice_line(invoice: Object) -> str:
    """How an invoice or credit note stands, as `record_line`."""
    name, currency = invoice["number"] or f"the draft of {invoice['period']}", invoice["currency"]
    parts = [f"{name}: {invoice['state'].replace('_', ' ')}", f"total {invoice['gross']} {currency}"]
    if invoice["kind"] == "invoice" and invoice["state"] not in ("draft", "void"):
        parts.append(f"left to pay {invoice['left']} {currency}")
    return ", ".join(parts)


def amount_text(minor: int, currency: str) -> str:
    """An amount in minor units with its currency, such as 25.00 EUR."""
    return f"{format_minor(minor, currency)} {currency}"


def totals_line(document: Document) -> str:
    """What a document comes to."""
    from billing.invoices.document import advance_tax_of, drawn_of

    currency = document.currency
    parts = [
        counted(len(document.lines), "line"),
        f"net {amount_text(document.net, currency)}",
        f"VAT {amount_text(document.tax, currency)}",
    ]
    if document.prepaid:
        parts.append(f"paid in advance {amount_text(document.prepaid, currency)}")
    if tax := advance_tax_of(document):
        parts.append(f"VAT of advances {amount_text(tax, currency)}")
    if drawn := drawn_of(document):
        parts.append(f"paid from credit {amount_text(drawn, currency)}")
    if document.returned is not msgspec.UNSET:
        back = int(document.returned.credit) + int(document.returned.promo)
        if back:
            parts.append(f"back to the balance {format_pico(back)} {currency}")
    payable = "credited" if document.kind == "credit_note" else "to pay"
    return ", ".join([*parts, f"{payable} {amount_text(document.payable, currency)}"])


def record_line(record: InvoiceRecord) -> str:
    """How an invoice or credit note stands."""
    parts = [f"{record.name}: {record.state.replace('_', ' ')}", f"total {amount_text(record.gross, record.currency)}"]
    if record.kind == "invoice" and record.state not in ("draft", "void"):
        parts.append(f"left to pay {amount_text(record.left, record.currency)}")
    return ", ".join(parts)


def parse_day(text: str, name: str) -> date:
    """The day that the argument `name` says. Raises CommandError."""
    try:
        return date.fromisoformat(text)
    except ValueError as error:
        raise CommandError(f"{name}: {text!r} is not a day such as 2026-11-30") from error
