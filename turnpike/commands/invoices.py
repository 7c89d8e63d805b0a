"""`turnpike invoices …`: from drafts to paid invoices."""

from __future__ import annotations

import argparse
import json
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from pathlib import Path

from billing.invoices import drill_down
from billing.invoices.advice import summary
from billing.invoices.collection import give_up, pay, void
from billing.invoices.credit_notes import credit
from billing.invoices.document import Document
from billing.invoices.minor_units import format_minor, minor_digits
from billing.invoices.parties import vat_warnings
from billing.invoices.pdf import to_pdf
from billing.invoices.presentation import carried_on
from billing.invoices.records import InvoiceRecord, Invoices
from billing.money import format_pico
from storage.database.base import from_instant, new_id, to_instant
from storage.free_text import counted
from turnpike.admin_services import AdminServices
from turnpike.commands.invoice_words import NOTHING_WRITTEN, parse_day, record_line, totals_line
from turnpike.commands.running import table, with_admin_services
from turnpike.failures import CommandError
from turnpike.settings.settings import Settings


def list_invoices(settings: Settings, arguments: argparse.Namespace) -> int:
    """`turnpike invoices list`."""

    async def work(admin: AdminServices) -> int:
        names = {tenant.id: tenant.name for tenant in await admin.tenancy.list_tenants()}
        tenant = (await admin.tenancy.tenant(arguments.tenant)).id if arguments.tenant else None
        found = await Invoices(admin.database).found(tenant, arguments.period, arguments.state)
        rows = [
            {
                "number": record.number or "",
                "kind": record.kind,
                "state": record.state,
                "tenant": names.get(record.tenant_id, str(record.tenant_id)),
                "period": record.period,
                "issued": record.issued or "",
                "due": record.due or "",
                "currency": record.currency,
                **{name: format_minor(amount, record.currency) for name, amount in record.counted.items()},
            }
            for record in found
        ]
        if arguments.format == "json":
            print(json.dumps(rows, indent=2))
        elif rows:
            totals = _sums(found)
            table(list(rows[0]), [list(row.values()) for row in (*rows, *totals)])
        else:
            print("no invoices")
        return 0

    return with_admin_services(settings, work)


def _sums(found: Sequence[InvoiceRecord]) -> list[dict[str, str]]:
    """What documents come to, by currency: credit notes less, what is void or a draft not at all."""
    rows = []
    for currency in sorted({record.currency for record in found}):
        counting = [one for one in found if one.currency == currency and one.state not in ("void", "draft")]
        sums = Counter[str]()
        for record in counting:
            sign = -1 if record.kind == "credit_note" else 1
            sums.update({name: sign * amount for name, amount in record.counted.items()})
        empty = dict.fromkeys(("number", "kind", "state", "tenant", "period", "issued", "due"), "")
        named = empty | {"number": "total", "kind": counted(len(counting), "document"), "currency": currency}
        names = ("net", "tax", "gross", "prepaid", "paid", "credited", "left")
        rows.append(named | {name: format_minor(sums[name], currency) for name in names})
    return rows


def show_invoice(settings: Settings, arguments: argparse.Namespace) -> int:
    """`turnpike invoices show`."""

    async def work(admin: AdminServices) -> int:
        record = await _chosen(admin, arguments)
        document = await Invoices(admin.database).document(record.id)
        if arguments.line is not None:
            await _drill_down(admin, record, document, arguments)
        elif arguments.format == "json":
            from billing.invoices.document import canonical  # noqa: PLC0415  # for this form alone

            print(canonical(document))
        else:
            _show(record, document)
            for payment in await Invoices(admin.database).payments(record.id):
                paid = f"{format_minor(payment.amount, record.currency)} {record.currency}"
                print(f"paid {paid} on {from_instant(payment.at).date()}: {payment.reference}")
            for note in await Invoices(admin.database).credit_notes(record.id):
                print(f"credited {format_minor(note.gross, note.currency)} {note.currency} by {note.number}")
        return 0

    return with_admin_services(settings, work)


def print_invoice(settings: Settings, arguments: argparse.Namespace) -> int:
    """`turnpike invoices pdf`."""
    fonts = Path(arguments.fonts) if arguments.fonts else None

    async def work(admin: AdminServices) -> int:
        invoices = Invoices(admin.database)
        if arguments.all:
            if not arguments.period:
                raise CommandError("--all needs --period: which month's invoices?")
            records = await invoices.found(None, arguments.period)
        else:
            records = [await _chosen(admin, arguments)]
        for record in records:
            document = await invoices.document(record.id)
            name = record.number or f"draft-{record.period}-{str(record.tenant_id)[-12:]}"
            usual = f"{re.sub(r'[^A-Za-z0-9._-]', '_', name)}.pdf"
            output = Path(arguments.output or usual)
            folder = Path(arguments.output or ".") if arguments.all else None
            print(
                _written(
                    folder / usual if folder else output,
                    usual,
                    to_pdf(
                        document, record.state, record.sha256 or "", await invoices.settlements(record.id), fonts=fonts
                    ),
                )
            )
        return 0

    return with_admin_services(settings, work)


def pay_invoice(settings: Settings, arguments: argparse.Namespace) -> int:
    """`turnpike invoices pay NUMBER`."""

    async def change(admin: AdminServices, record: InvoiceRecord) -> InvoiceRecord:
        amount = None if arguments.amount is None else _minor(arguments.amount, record.currency)
        return await pay(admin.database, record, arguments.reference, amount, write=not arguments.dry_run)

    return _change(settings, arguments, change)


def void_invoice(settings: Settings, arguments: argparse.Namespace) -> int:
    """`turnpike invoices void NUMBER`."""
    return _change(settings, arguments, lambda admin, it: void(admin.database, it, write=not arguments.dry_run))


def uncollectible_invoice(settings: Settings, arguments: argparse.Namespace) -> int:
    """`turnpike invoices uncollectible NUMBER`."""
    return _change(settings, arguments, lambda admin, it: give_up(admin.database, it, write=not arguments.dry_run))


def credit_invoice(settings: Settings, arguments: argparse.Namespace) -> int:
    """`turnpike invoices credit-note NUMBER`."""
    issued = parse_day(arguments.issued, "--issued") if arguments.issued else None

    async def work(admin: AdminServices) -> int:
        record = await _chosen(admin, arguments)
        amounts = dict(_credited(text, record.currency) for text in arguments.line) if arguments.line else None
        note, document = await credit(
            admin.database,
            record,
            arguments.reason,
            request=arguments.request or str(new_id()),
            amounts=amounts,
            issued=issued,
            write=not arguments.dry_run,
        )
        if note is None:
            print(f"a credit note of {totals_line(document)} ({NOTHING_WRITTEN})")
        else:
            print(record_line(note))
            print(record_line(await Invoices(admin.database).numbered(record.name, record.seller)))
        return 0

    return with_admin_services(settings, work)


# ------------------------------------------------------------ what these are made of


def _change(
    settings: Settings,
    arguments: argparse.Namespace,
    change: Callable[[AdminServices, InvoiceRecord], Awaitable[InvoiceRecord]],
) -> int:
    async def work(admin: AdminServices) -> int:
        after = await change(admin, await _chosen(admin, arguments))
        print(record_line(after) + (f" ({NOTHING_WRITTEN})" if arguments.dry_run else ""))
        return 0

    return with_admin_services(settings, work)


def _written(path: Path, usual: str, content: bytes) -> Path:
    """Write a file, under its usual name where the path is a folder."""
    if path.is_dir():
        path /= usual
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    except OSError as error:
        raise CommandError(f"-o: cannot write {path}: {error.strerror}") from error
    return path


async def _chosen(admin: AdminServices, arguments: argparse.Namespace) -> InvoiceRecord:
    """The invoice that the command line names, by number, or by tenant and period."""
    invoices = Invoices(admin.database)
    if arguments.number:
        return await invoices.numbered(arguments.number, arguments.seller)
    if not (getattr(arguments, "tenant", None) and getattr(arguments, "period", None)):
        raise CommandError("say which: its NUMBER, or --tenant and --period")
    tenant = await admin.tenancy.tenant(arguments.tenant)
    record = await invoices.draft(tenant.id, arguments.period)
    if record is None:
        raise CommandError(
            f"{tenant.name} has no invoice of {arguments.period}: "
            f"`turnpike invoices draft --tenant {tenant.name} --period {arguments.period}`"
        )
    return record


def _show(record: InvoiceRecord, document: Document) -> None:
    print(record_line(record))
    print(f"from {document.seller.name}, for {document.buyer.name}, {document.period}")
    if document.reason:
        print(f"corrects {document.corrects}: {document.reason}")
    rows = [
        (n, line.text, line.project, line.corrects, line.units if line.unit else "", _rate(line.price, line.unit),
         format_minor(line.net, document.currency))
        for n, line in enumerate(document.lines, 1)
    ]  # fmt: skip
    if rows:
        table(("#", "line", "project", "corrects", "units", "per million", document.currency), rows)
    print(totals_line(document))
    for label, amount in carried_on(document):
        print(f"{label} {amount} {document.currency}")
    if record.state == "draft":
        for warning in vat_warnings(document.seller, document.buyer):
            print(warning)
    if document.savings != "":
        for line in summary(document.savings, document.currency):
            print(line)
    if record.sha256:
        print(f"SHA-256 {record.sha256}")


def _rate(micro: int, unit: str) -> str:
    return f"{Decimal(micro) / 1_000_000:f}" if unit else ""


async def _drill_down(
    admin: AdminServices, record: InvoiceRecord, document: Document, arguments: argparse.Namespace
) -> None:
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
        _parts("day", [from_instant(part.start).date().isoformat() for part in parts], parts, document.currency)
        return
    day = to_instant(datetime.combine(parse_day(arguments.day, "--day"), datetime.min.time(), UTC))
    if arguments.hour is None:
        parts = await drill_down.hours(admin.database, record, arguments.line, day)
        _parts("hour", [from_instant(part.start).strftime("%H") for part in parts], parts, document.currency)
        return
    if not 0 <= arguments.hour < 24:
        raise CommandError("--hour: 0 to 23")
    hour, after = day + arguments.hour * drill_down.HOUR, None
    while True:
        page = await drill_down.requests(admin.database, record, arguments.line, hour, after=after, limit=1000)
        rows_of = [
            (from_instant(r.admitted_at).isoformat(), r.id, r.corrects or "", r.project_id, r.units,
             format_pico(r.exact_pico))
            for r in page.requests
        ]  # fmt: skip
        table(("admitted", "request", "corrects", "project", *heading), rows_of)
        after = page.after
        if after is None:
            return


def _parts(name: str, labels: Sequence[str], parts: Sequence[drill_down.LineSlice], currency: str) -> None:
    """Days or hours with their sum, which is that of the level above."""
    rows = [
        (label, part.requests, part.adjustments, part.units, format_pico(part.exact_pico))
        for label, part in zip(labels, parts, strict=True)
    ]
    sums = [sum(getattr(part, column) for part in parts) for column in ("requests", "adjustments", "units")]
    rows.append(("all", *sums, format_pico(sum(part.exact_pico for part in parts))))
    table((name, "requests", "adjustments", "units", f"exact {currency}"), rows)


def _minor(text: str, currency: str) -> int:
    """Minor units of a decimal amount."""
    digits = minor_digits(currency)
    try:
        scaled = Decimal(text).scaleb(digits)
    except InvalidOperation as error:
        raise CommandError(f"{text!r} is not an amount such as 25.00") from error
    if not scaled.is_finite() or scaled != scaled.to_integral_value() or abs(scaled) >= 10**15:
        raise CommandError(f"{text!r} is not an amount of {currency}, which has {digits} decimal places")
    return int(scaled)


def _credited(text: str, currency: str) -> tuple[int, int | None]:
    number, equals, amount = text.partition("=")
    if not number.isdecimal():
        raise CommandError(f"--line: {text!r} is not N or N=AMOUNT")
    return int(number), _minor(amount, currency) if equals else None
