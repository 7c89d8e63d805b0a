"""`turnpike invoices pay`, `void`, `uncollectible`, `vat-relief` and `credit-note`: changes of issued invoices."""

from __future__ import annotations

import argparse
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING

from billing.money import minor_digits
from turnpike.command_context import admin_command, with_admin_services
from turnpike.command_line import CommandError, CommandParser
from turnpike.commands.invoices.records import (
    NOTHING_WRITTEN,
    add_number,
    find_record,
    parse_day,
    record_line,
    totals_line,
)
from turnpike.settings.settings import Settings

if TYPE_CHECKING:
    from billing.invoices.store import InvoiceRecord
    from turnpike.admin_services import AdminServices


def add_arguments(parser: CommandParser) -> None:
    """Declare these actions of `turnpike invoices`."""
    pay = parser.add_action("pay", "record a payment of an invoice", pay_invoice)
    text = "void an invoice of which nothing was paid; its period can be invoiced again"
    void = parser.add_action("void", text, void_invoice)
    text = "write off what is left of an invoice as bad debt; it can still be paid"
    uncollectible = parser.add_action("uncollectible", text, mark_uncollectible)
    text = "book that the VAT on what is left of a written-off invoice is claimed back as of today"
    relief = parser.add_action("vat-relief", text, relieve_vat)
    for action in (void, uncollectible, relief):
        action.add_argument("--reason", required=True, metavar="TEXT", help="why, for the audit log")
    note = parser.add_action("credit-note", "take an invoice back, whole or by line", credit_invoice)
    for action in (pay, void, uncollectible, relief, note):
        add_number(action)
        action.add_dry_run()
    pay.add_argument("--amount", help="such as 25.00; default: all that is left")
    pay.add_argument("--reference", required=True, help="the bank's; used again, the payment counts once")
    note.add_argument("--reason", required=True, help="what the credit note shall state")
    note.add_argument(
        "--line", action="append", metavar="N[=AMOUNT]", help="a line, and how much of it; default: all that is left"
    )
    note.add_argument("--issued", metavar="DATE", help="issue date; default: today (UTC)")
    note.add_argument("--request", metavar="NAME", help="an idempotency key: used again, one credit note is made")


@admin_command
async def pay_invoice(admin: AdminServices, arguments: argparse.Namespace) -> None:
    """`turnpike invoices pay NUMBER`."""
    from billing.invoices.collection import pay

    record = await find_record(admin, arguments)
    amount = None if arguments.amount is None else _minor(arguments.amount, record.currency)
    paid = await pay(admin.database, record, arguments.reference, amount, write=not arguments.dry_run)
    _print_changed(paid, arguments)


@admin_command
async def void_invoice(admin: AdminServices, arguments: argparse.Namespace) -> None:
    """`turnpike invoices void NUMBER`."""
    from billing.invoices.collection import void

    record = await find_record(admin, arguments)
    _print_changed(await void(admin.database, record, arguments.reason, write=not arguments.dry_run), arguments)


@admin_command
async def mark_uncollectible(admin: AdminServices, arguments: argparse.Namespace) -> None:
    """`turnpike invoices uncollectible NUMBER`."""
    from billing.invoices.collection import mark_uncollectible

    record = await find_record(admin, arguments)
    lost = await mark_uncollectible(admin.database, record, arguments.reason, write=not arguments.dry_run)
    _print_changed(lost, arguments)


@admin_command
async def relieve_vat(admin: AdminServices, arguments: argparse.Namespace) -> None:
    """`turnpike invoices vat-relief NUMBER`."""
    from billing.invoices.collection import relieve_vat

    record = await find_record(admin, arguments)
    relieved = await relieve_vat(admin.database, record, arguments.reason, write=not arguments.dry_run)
    _print_changed(relieved, arguments)


def _print_changed(record: InvoiceRecord, arguments: argparse.Namespace) -> None:
    print(record_line(record) + (f" ({NOTHING_WRITTEN})" if arguments.dry_run else ""))


def credit_invoice(settings: Settings, arguments: argparse.Namespace) -> int:
    """`turnpike invoices credit-note NUMBER`."""
    from billing.invoices.credit_notes import credit
    from billing.invoices.store import Invoices
    from storage.database.base import new_id

    issued = parse_day(arguments.issued, "--issued") if arguments.issued else None

    async def work(admin: AdminServices) -> None:
        record = await find_record(admin, arguments)
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
            print(record_line(await Invoices(admin.database).by_number(record.name, record.seller)))

    return with_admin_services(settings, work)


def _credited(text: str, currency: str) -> tuple[int, int | None]:
    """The number of a line, and the amount in minor units that is credited of it, if one is given."""
    number, equals, amount = text.partition("=")
    if not number.isdecimal():
        raise CommandError(f"--line: {text!r} is not N or N=AMOUNT")
    return int(number), _minor(amount, currency) if equals else None


def _minor(text: str, currency: str) -> int:
    """Minor units of a decimal amount. Raises CommandError."""
    digits = minor_digits(currency)
    try:
        scaled = Decimal(text).scaleb(digits)
    except InvalidOperation as error:
        raise CommandError(f"{text!r} is not an amount such as 25.00") from error
    if not scaled.is_finite() or scaled != scaled.to_integral_value() or abs(scaled) >= 10**15:
        raise CommandError(f"{text!r} is not an amount of {currency}, which has {digits} decimal places")
    return int(scaled)
