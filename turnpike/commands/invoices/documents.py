"""`turnpike invoices list`, `show`, `pdf` and `xml`: invoices and credit notes, opened down to their requests."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING

from billing.invoices.document import warnings_of
from billing.money import format_minor, format_pico, minor_digits
from storage.free_text import counted
from turnpike.api.actions import Object, add_work, print_json, tenant_names
from turnpike.api.client import Api
from turnpike.command_context import admin_command, print_table
from turnpike.command_line import CommandError, CommandParser
from turnpike.commands.invoices import elsewhere
from turnpike.commands.invoices.records import (
    add_number,
    amount_text,
    find_record,
    parse_day,
    record_line,
    totals_line,
)

_SIGNS = {"invoice": 1, "credit_note": -1, "advance": 0}
_SUMS = ("net", "tax", "gross", "prepaid", "paid", "credited", "left")

if TYPE_CHECKING:
    from billing.invoices.document import Document
    from billing.invoices.drill_down import LineSlice
    from billing.invoices.store import InvoiceRecord
    from turnpike.admin_services import AdminServices


def add_arguments(parser: CommandParser) -> None:
    """Declare these actions of `turnpike invoices`."""
    listing = add_work(parser, "list", "invoices and credit notes", _list)
    listing.add_argument("--tenant", help="of one tenant alone")
    listing.add_argument("--period", help="of one period alone, such as 2026-11")
    states = ["draft", "finalized", "partially_paid", "paid", "credited", "void", "uncollectible"]
    listing.add_argument("--state", choices=states, help="in one state alone")
    listing.add_format("json")
    show = add_work(
        parser, "show", "what an invoice says, opened down to its requests", elsewhere.show_invoice, show_invoice
    )
    add_number(show, drafts=True)
    show.add_argument("--line", type=int, metavar="N", help="the days of this line")
    show.add_argument("--day", metavar="DATE", help="… the hours of this day, such as 2026-11-30")
    show.add_argument("--hour", type=int, metavar="H", help="… the requests of this hour, 0 to 23 (UTC)")
    show.add_format("json")
    pdf = add_work(parser, "pdf", "an invoice as PDF/A-3", elsewhere.print_invoice, print_invoice)
    add_number(pdf, drafts=True)
    pdf.add_argument("--all", action="store_true", help="instead of NUMBER: all invoices of --period")
    pdf.add_argument("-o", "--output", metavar="FILE", help="file or folder; default: NUMBER.pdf here")
    pdf.add_argument("--fonts", metavar="FOLDER", help="fonts for scripts that the built-in ones lack")
    xml = add_work(parser, "xml", "an invoice as XML by EN 16931", elsewhere.write_xml, write_xml)
    add_number(xml, drafts=True)
    xml.add_argument("--syntax", choices=["ubl", "cii"], default="ubl", help="default: ubl")
    xml.add_argument("--all", action="store_true", help="instead of NUMBER: all invoices of --period that have XML")
    xml.add_argument("-o", "--output", metavar="FILE", help="file or folder; default: NUMBER.SYNTAX.xml here")


async def _list(api: Api, parsed: argparse.Namespace) -> None:
    filters = {"period": parsed.period, "state": parsed.state}
    if parsed.tenant:
        invoices = await api.pages("list_invoices", tenant=parsed.tenant, **filters)
    else:
        invoices = await api.pages("list_all_invoices", **filters)
    if print_json(parsed, invoices):
        return
    names = await tenant_names(api)
    rows = [
        [one[name] or "" for name in ("number", "kind", "state")]
        + [names.get(one["tenant_id"], one["tenant_id"])]
        + [one[name] or "" for name in ("period", "issued", "due", "currency")]
        + [_amount(_counted(one, name), one["currency"]) for name in _SUMS]
        for one in invoices["data"]
    ]
    if rows:
        header = ("number", "kind", "state", "tenant", "period", "issued", "due", "currency", *_SUMS)
        print_table(header, [*rows, *_sums(invoices["data"])])
    else:
        print("no invoices")


def _sums(invoices: Sequence[Object]) -> Iterator[list[str]]:
    """What documents come to, a row a currency. Credit notes are subtracted, drafts, void invoices and
    advance payments with their credit notes left out: invoices say what was used of them."""
    advances = {one["id"] for one in invoices if one["kind"] == "advance"}
    for currency in sorted({one["currency"] for one in invoices}):
        issued = [one for one in invoices if one["currency"] == currency and one["state"] not in ("void", "draft")]
        issued = [one for one in issued if one["corrects"] not in advances]
        sums = {name: sum((_SIGNS[one["kind"]] * _counted(one, name) for one in issued), Decimal()) for name in _SUMS}
        amounts = (_amount(sums[name], currency) for name in _SUMS)
        yield ["total", counted(len(issued), "document"), *[""] * 5, currency, *amounts]


def _counted(invoice: Object, name: str) -> Decimal:
    """An amount; none of a void document counts."""
    return Decimal() if invoice["state"] == "void" else Decimal(invoice[name])


def _amount(amount: Decimal, currency: str) -> str:
    return f"{amount:.{minor_digits(currency)}f}"


@admin_command
async def show_invoice(admin: AdminServices, arguments: argparse.Namespace) -> None:
    """`turnpike invoices show`."""
    from billing.integrity.canonical_json import canonical
    from billing.invoices.store import Invoices
    from storage.database.base import from_instant

    record = await find_record(admin, arguments)
    document = await Invoices(admin.database).document(record)
    if arguments.line is not None:
        await _drill_down(admin, record, document, arguments)
    elif arguments.format == "json":
        print(canonical(document))
    else:
        _show(record, document)
        settled = await Invoices(admin.database).settlements(record)
        for payment in settled.payments:
            paid = amount_text(payment.amount, record.currency)
            print(f"paid {paid} on {from_instant(payment.at).date()}: {payment.reference}")
        for note in settled.credit_notes:
            print(f"credited {amount_text(note.gross, note.currency)} by {note.number}")


@admin_command
async def print_invoice(admin: AdminServices, arguments: argparse.Namespace) -> None:
    """`turnpike invoices pdf`."""
    from billing.invoices.electronic.store import EInvoices
    from billing.invoices.rendering.pdf import to_pdf
    from billing.invoices.store import Invoices

    fonts = Path(arguments.fonts) if arguments.fonts else None
    invoices, einvoices = Invoices(admin.database), EInvoices(admin.database)
    for record in await _records(admin, arguments):
        document, embedded = await invoices.document(record), (await einvoices.stored(record)).get("cii")
        settlements = await invoices.settlements(record)
        content = to_pdf(document, record.state, record.sha256 or "", settlements, embedded=embedded, fonts=fonts)
        _write(arguments, record, "pdf", content)


@admin_command
async def write_xml(admin: AdminServices, arguments: argparse.Namespace) -> None:
    """`turnpike invoices xml`."""
    from billing.invoices.electronic.store import EInvoices
    from billing.invoices.errors import NotExpressible

    for record in await _records(admin, arguments):
        try:
            einvoice = await EInvoices(admin.database).of(record, arguments.syntax)
        except NotExpressible as error:
            if not arguments.all:
                raise
            print(f"{record.name}: {error}", file=sys.stderr)
        else:
            _write(arguments, record, f"{einvoice.syntax}.xml", einvoice.content.encode())


async def _records(admin: AdminServices, arguments: argparse.Namespace) -> Sequence[InvoiceRecord]:
    """The invoices that the command line names: one, or with `--all` those of a period."""
    from billing.invoices.store import Invoices

    if not arguments.all:
        return [await find_record(admin, arguments)]
    if not arguments.period:
        raise CommandError("--all needs --period: which month's invoices?")
    return await Invoices(admin.database).list(None, arguments.period)


def _write(arguments: argparse.Namespace, record: InvoiceRecord, ending: str, content: bytes) -> None:
    """Write a file of an invoice where the command line says, and print where that is."""
    name = file_name_of(record.number or f"draft-{record.period}-{str(record.tenant_id)[-12:]}", ending)
    path = Path(arguments.output or ".", name) if arguments.all else Path(arguments.output or name)
    print(write_file(path / name if path.is_dir() else path, content))


def file_name_of(name: str, ending: str = "pdf") -> str:
    """The file of an invoice."""
    return f"{re.sub(r'[^A-Za-z0-9._-]', '_', name)}.{ending}"


def write_file(path: Path, content: bytes) -> Path:
    """Write a file where `-o` says. Raises CommandError."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    except OSError as error:
        raise CommandError(f"-o: cannot write {path}: {error.strerror}") from error
    return path


def _show(record: InvoiceRecord, document: Document) -> None:
    from billing.invoices.rendering.presentation import carried_on, version_note
    from billing.invoices.savings import savings_summary

    print(record_line(record))
    print(f"from {document.seller.name}, for {document.buyer.name}, {document.period}")
    if document.reason:
        print(f"corrects {document.corrects}: {document.reason}")
    rows = [
        (n, ", ".join(filter(None, (line.text, version_note(document, line)))), line.project, line.corrects,
         line.units if line.unit else "", _rate(line.price, line.unit), format_minor(line.net, document.currency))
        for n, line in enumerate(document.lines, 1)
    ]  # fmt: skip
    if rows:
        print_table(("#", "line", "project", "corrects", "units", "per million", document.currency), rows)
    print(totals_line(document))
    for label, amount in carried_on(document):
        print(f"{label} {amount} {document.currency}")
    if record.state == "draft":
        for warning in warnings_of(document):
            print(warning)
    if document.savings != "":
        for line in savings_summary(document.savings, document.currency):
            print(line)
    if record.sha256:
        print(f"SHA-256 {record.sha256}")


def _rate(micro: int, unit: str) -> str:
    return f"{Decimal(micro) / 1_000_000:f}" if unit else ""


async def _drill_down(
    admin: AdminServices, record: InvoiceRecord, document: Document, arguments: argparse.Namespace
) -> None:
    """Print the days of a line, the hours of a day, or the requests of an hour."""
    from billing.invoices import drill_down
    from storage.database.base import from_instant, to_instant

    if not 1 <= arguments.line <= len(document.lines):
        raise CommandError(f"--line: {record.name} has the lines 1 to {len(document.lines)}")
    line = document.lines[arguments.line - 1]
    print(
        f"{record.name}, line {arguments.line}: {line.text}, {counted(int(line.units), 'unit')}, "
        f"{format_pico(int(line.exact))}"
    )
    if line.kind not in drill_down.OPENED or line.of:
        raise CommandError(f"--line: line {arguments.line} is no usage, so it has no days")
    heading = ("units", f"exact {document.currency}")
    if arguments.day is None:
        parts = await drill_down.days(admin.database, record, arguments.line)
        _print_slices("day", [from_instant(part.start).date().isoformat() for part in parts], parts, document.currency)
        return
    day = to_instant(datetime.combine(parse_day(arguments.day, "--day"), datetime.min.time(), UTC))
    if arguments.hour is None:
        parts = await drill_down.hours(admin.database, record, arguments.line, day)
        _print_slices("hour", [from_instant(part.start).strftime("%H") for part in parts], parts, document.currency)
        return
    if not 0 <= arguments.hour < 24:
        raise CommandError("--hour: 0 to 23")
    hour, after = day + arguments.hour * drill_down.HOUR, None
    while True:
        page = await drill_down.requests(admin.database, record, arguments.line, hour, after=after, limit=1000)
        rows = [
            (from_instant(r.admitted_at).isoformat(), r.id, r.corrects or "", r.project_id, r.units,
             format_pico(r.exact_pico))
            for r in page.requests
        ]  # fmt: skip
        print_table(("admitted", "request", "corrects", "project", *heading), rows)
        after = page.after
        if after is None:
            return


def _print_slices(name: str, labels: Sequence[str], slices: Sequence[LineSlice], currency: str) -> None:
    """Print days or hours with their sum, which is that of the level above."""
    rows = [
        (label, part.requests, part.adjustments, part.units, format_pico(part.exact_pico))
        for label, part in zip(labels, slices, strict=True)
    ]
    sums = [sum(getattr(part, column) for part in slices) for column in ("requests", "adjustments", "units")]
    rows.append(("all", *sums, format_pico(sum(part.exact_pico for part in slices))))
    print_table((name, "requests", "adjustments", "units", f"exact {currency}"), rows)
