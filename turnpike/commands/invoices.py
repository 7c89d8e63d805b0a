"""`turnpike invoices …`: from drafts to paid invoices."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation
from pathlib import Path
from uuid import UUID

from billing.invoices import drill_down
from billing.invoices.advice import summary
from billing.invoices.crediting import credit
from billing.invoices.currencies import format_minor, minor_digits
from billing.invoices.document import Document
from billing.invoices.drafting import draft
from billing.invoices.failures import InvoiceRefused, NoProfile
from billing.invoices.finalizing import finalize
from billing.invoices.parties import InvalidParty
from billing.invoices.party_store import Parties
from billing.invoices.pdf import to_pdf
from billing.invoices.records import Invoices, Record
from billing.invoices.settling import give_up, pay, void
from billing.money import format_pico
from billing.reports import usage_by_project_and_model
from storage.base import from_instant, new_id, to_instant
from turnpike.commands.running import table, with_office
from turnpike.failures import CommandError
from turnpike.office import Office
from turnpike.settings import Settings

NOTHING_WRITTEN = "dry run, nothing written"


def draft_invoices(settings: Settings, arguments: argparse.Namespace) -> int:
    """`turnpike invoices draft`: 1 if one of the tenants could not be drafted."""

    async def work(office: Office) -> int:
        names = await _project_names(office)
        invoices = Invoices(office.database)

        async def one(tenant_id: UUID) -> str:
            there = await invoices.draft(tenant_id, arguments.period) if arguments.all else None
            if there is not None and there.state != "draft":
                return _line(there)
            record, document = await draft(
                office.database, office.prices, tenant_id, arguments.period, names, write=not arguments.dry_run
            )
            if document is None:
                return "nothing to bill"
            return _totals(document) + ("" if record else f" ({NOTHING_WRITTEN})")

        return await _for_each(office, arguments, one)

    return with_office(settings, work)


def finalize_invoices(settings: Settings, arguments: argparse.Namespace) -> int:
    """`turnpike invoices finalize`: 1 if one of the drafts could not be finalized."""
    issued = _day(arguments.issued, "--issued") if arguments.issued else None

    async def work(office: Office) -> int:
        invoices = Invoices(office.database)

        async def one(tenant_id: UUID) -> str:
            if arguments.all and await invoices.draft(tenant_id, arguments.period) is None:
                return "no draft"
            record = await finalize(
                office.database, office.prices, tenant_id, arguments.period, issued, write=not arguments.dry_run
            )
            free = "the number is whose turn comes first"
            return _line(record) + (f" ({NOTHING_WRITTEN}; {free})" if arguments.dry_run else "")

        return await _for_each(office, arguments, one)

    return with_office(settings, work)


def list_invoices(settings: Settings, arguments: argparse.Namespace) -> int:
    """`turnpike invoices list`."""

    async def work(office: Office) -> int:
        names = {tenant.id: tenant.name for tenant in await office.tenancy.list_tenants()}
        tenant = (await office.tenancy.tenant(arguments.tenant)).id if arguments.tenant else None
        found = await Invoices(office.database).found(tenant, arguments.period, arguments.state)
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
                **{
                    name: format_minor(getattr(record, name), record.currency)
                    for name in ("net", "tax", "gross", "prepaid", "paid", "credited")
                },
                "left": format_minor(0 if record.state == "void" else record.left, record.currency),
            }
            for record in found
        ]
        if arguments.format == "json":
            print(json.dumps(rows, indent=2))
        elif rows:
            table(list(rows[0]), [list(row.values()) for row in rows])
        else:
            print("no invoices")
        return 0

    return with_office(settings, work)


def show_invoice(settings: Settings, arguments: argparse.Namespace) -> int:
    """`turnpike invoices show`."""

    async def work(office: Office) -> int:
        record = await _chosen(office, arguments)
        document = await Invoices(office.database).document(record.id)
        if arguments.line is not None:
            await _drill_down(office, record, document, arguments)
        elif arguments.format == "json":
            from billing.invoices.canonical import canonical  # noqa: PLC0415  # for this form alone

            print(canonical(document))
        else:
            _show(record, document)
            for payment in await Invoices(office.database).payments(record.id):
                paid = f"{format_minor(payment.amount, record.currency)} {record.currency}"
                print(f"paid {paid} on {from_instant(payment.at).date()}: {payment.reference}")
            for note in await Invoices(office.database).credit_notes(record.id):
                print(f"credited {format_minor(note.gross, note.currency)} {note.currency} by {note.number}")
        return 0

    return with_office(settings, work)


def print_invoice(settings: Settings, arguments: argparse.Namespace) -> int:
    """`turnpike invoices pdf`."""
    fonts = Path(arguments.fonts) if arguments.fonts else None

    async def work(office: Office) -> int:
        invoices = Invoices(office.database)
        if arguments.all:
            if not arguments.period:
                raise CommandError("--all needs --period: which month's invoices?")
            records = await invoices.found(None, arguments.period)
        else:
            records = [await _chosen(office, arguments)]
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
                    to_pdf(document, record.state, record.sha256 or "", fonts=fonts),
                )
            )
        return 0

    return with_office(settings, work)


def pay_invoice(settings: Settings, arguments: argparse.Namespace) -> int:
    """`turnpike invoices pay NUMBER`."""

    async def change(office: Office, record: Record) -> Record:
        amount = None if arguments.amount is None else _minor(arguments.amount, record.currency)
        return await pay(office.database, record, arguments.reference, amount, write=not arguments.dry_run)

    return _change(settings, arguments, change)


def void_invoice(settings: Settings, arguments: argparse.Namespace) -> int:
    """`turnpike invoices void NUMBER`."""
    return _change(settings, arguments, lambda office, it: void(office.database, it, write=not arguments.dry_run))


def uncollectible_invoice(settings: Settings, arguments: argparse.Namespace) -> int:
    """`turnpike invoices uncollectible NUMBER`."""
    return _change(settings, arguments, lambda office, it: give_up(office.database, it, write=not arguments.dry_run))


def credit_invoice(settings: Settings, arguments: argparse.Namespace) -> int:
    """`turnpike invoices credit-note NUMBER`."""
    issued = _day(arguments.issued, "--issued") if arguments.issued else None

    async def work(office: Office) -> int:
        record = await _chosen(office, arguments)
        amounts = dict(_credited(text, record.currency) for text in arguments.line) if arguments.line else None
        note, document = await credit(
            office.database,
            record,
            arguments.reason,
            request=arguments.request or str(new_id()),
            amounts=amounts,
            issued=issued,
            write=not arguments.dry_run,
        )
        if note is None:
            print(f"a credit note of {_totals(document)} ({NOTHING_WRITTEN})")
        else:
            print(_line(note))
            print(_line(await Invoices(office.database).numbered(record.name, record.seller)))
        return 0

    return with_office(settings, work)


# ------------------------------------------------------------ what these are made of


def _change(
    settings: Settings, arguments: argparse.Namespace, change: Callable[[Office, Record], Awaitable[Record]]
) -> int:
    async def work(office: Office) -> int:
        after = await change(office, await _chosen(office, arguments))
        print(_line(after) + (f" ({NOTHING_WRITTEN})" if arguments.dry_run else ""))
        return 0

    return with_office(settings, work)


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


async def _chosen(office: Office, arguments: argparse.Namespace) -> Record:
    """The invoice that the command line names, by number, or by tenant and period."""
    invoices = Invoices(office.database)
    if arguments.number:
        return await invoices.numbered(arguments.number, arguments.seller)
    if not (getattr(arguments, "tenant", None) and getattr(arguments, "period", None)):
        raise CommandError("say which: its NUMBER, or --tenant and --period")
    tenant = await office.tenancy.tenant(arguments.tenant)
    record = await invoices.draft(tenant.id, arguments.period)
    if record is None:
        raise CommandError(f"{tenant.name} has no invoice of {arguments.period}: turnpike invoices draft")
    return record


async def _for_each(office: Office, arguments: argparse.Namespace, one: Callable[[UUID], Awaitable[str]]) -> int:
    """Do it for one tenant or for all that are concerned; who fails is said, and keeps nobody else from being done."""
    names = {tenant.id: tenant.name for tenant in await office.tenancy.list_tenants()}
    if arguments.tenant:
        tenant = await office.tenancy.tenant(arguments.tenant)
        try:
            print(f"{tenant.name}: {await one(tenant.id)}")
        except NoProfile as error:
            raise CommandError(f"{tenant.name}: {error}") from error
        return 0
    used = {row.tenant_id for row in await usage_by_project_and_model(office.database, arguments.period)}
    concerned = used | set(await Parties(office.database).buyers())
    failed = 0
    for n, tenant_id in enumerate(sorted(concerned, key=lambda each: names.get(each, str(each))), 1):
        name = names.get(tenant_id, str(tenant_id))
        _progress(f"{n} of {len(concerned)}: {name}")
        try:
            told = await one(tenant_id)
        except (InvoiceRefused, InvalidParty) as error:
            failed += 1
            _progress("")
            print(f"{name}: {error}", file=sys.stderr)
            continue
        _progress("")
        print(f"{name}: {told}")
    print(f"{len(concerned) - failed} tenants done, {failed} refused", file=sys.stderr)
    return 1 if failed else 0


def _progress(text: str) -> None:
    """Where somebody watches."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


async def _project_names(office: Office) -> dict[UUID, str]:
    tenants = await office.tenancy.list_tenants()
    return {project.id: project.name for each in tenants for project in await office.tenancy.list_projects(each.id)}


def _totals(document: Document) -> str:
    def money(amount: int) -> str:
        return f"{format_minor(amount, document.currency)} {document.currency}"

    parts = [f"{len(document.lines)} lines", f"net {money(document.net)}", f"VAT {money(document.tax)}"]
    if document.prepaid:
        parts.append(f"paid in advance {money(document.prepaid)}")
    asked = "credited" if document.kind == "credit_note" else "to pay"
    return ", ".join([*parts, f"{asked} {money(document.payable)}"])


def _line(record: Record) -> str:
    def money(amount: int) -> str:
        return f"{format_minor(amount, record.currency)} {record.currency}"

    parts = [f"{record.name}: {record.state.replace('_', ' ')}", f"total {money(record.gross)}"]
    if record.kind == "invoice" and record.state not in ("draft", "void"):
        parts.append(f"left to pay {money(record.left)}")
    return ", ".join(parts)


def _show(record: Record, document: Document) -> None:
    print(_line(record))
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
    print(_totals(document))
    if document.savings != "":
        for line in summary(document.savings, document.currency):
            print(line)
    if record.sha256:
        print(f"SHA-256 {record.sha256}")


def _rate(micro: int, unit: str) -> str:
    return f"{Decimal(micro) / 1_000_000:f}" if unit else ""


async def _drill_down(office: Office, record: Record, document: Document, arguments: argparse.Namespace) -> None:
    if not 1 <= arguments.line <= len(document.lines):
        raise CommandError(f"--line: {record.name} has the lines 1 to {len(document.lines)}")
    line = document.lines[arguments.line - 1]
    print(f"{record.name}, line {arguments.line}: {line.text}, {line.units} units, {format_pico(int(line.exact))}")
    if line.kind not in drill_down.OPENED or line.of:
        raise CommandError(f"--line: line {arguments.line} is no usage, so it has no days")
    heading = ("units", f"exact {document.currency}")
    if arguments.day is None:
        parts = await drill_down.days(office.database, record, arguments.line)
        _parts("day", [from_instant(part.start).date().isoformat() for part in parts], parts, document.currency)
        return
    day = to_instant(datetime.combine(_day(arguments.day, "--day"), datetime.min.time(), UTC))
    if arguments.hour is None:
        parts = await drill_down.hours(office.database, record, arguments.line, day)
        _parts("hour", [from_instant(part.start).strftime("%H") for part in parts], parts, document.currency)
        return
    if not 0 <= arguments.hour < 24:
        raise CommandError("--hour: 0 to 23")
    hour, after = day + arguments.hour * drill_down.HOUR, None
    while True:
        page = await drill_down.requests(office.database, record, arguments.line, hour, after=after, limit=1000)
        rows_of = [
            (from_instant(r.admitted_at).isoformat(), r.id, r.corrects or "", r.project_id, r.units,
             format_pico(r.exact_pico))
            for r in page.requests
        ]  # fmt: skip
        table(("admitted", "request", "corrects", "project", *heading), rows_of)
        after = page.after
        if after is None:
            return


def _parts(name: str, labels: Sequence[str], parts: Sequence[drill_down.Part], currency: str) -> None:
    """Days or hours with their sum, which is that of the level above."""
    rows = [
        (label, part.requests, part.adjustments, part.units, format_pico(part.exact_pico))
        for label, part in zip(labels, parts, strict=True)
    ]
    sums = [sum(getattr(part, column) for part in parts) for column in ("requests", "adjustments", "units")]
    rows.append(("all", *sums, format_pico(sum(part.exact_pico for part in parts))))
    table((name, "requests", "adjustments", "units", f"exact {currency}"), rows)


def _day(text: str, name: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError as error:
        raise CommandError(f"{name}: {text!r} is not a day such as 2026-11-30") from error


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
