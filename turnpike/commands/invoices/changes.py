"""`turnpike invoices pay`, `void`, `uncollectible`, `vat-relief` and `credit-note`: changes of issued invoices."""

from __future__ import annotations

import argparse
import uuid
from typing import Any

from storage.free_text import counted
from turnpike.api.actions import Flag, add_fields, add_work, field_values, print_json
from turnpike.api.client import Api
from turnpike.command_line import CommandError, CommandParser
from turnpike.commands.invoices.records import NOTHING_WRITTEN, add_number, find_invoice, invoice_line

_REASON = Flag("why, for the audit log", metavar="TEXT", required=True)


def add_arguments(parser: CommandParser) -> None:
    """Declare these actions of `turnpike invoices`."""
    reference = Flag("the bank's; used again, the payment counts once", required=True)
    amount = "such as 25.00; default: all that is left"
    text = "record a payment of an invoice"
    _add_change(parser, "pay", text, "pay_invoice", {"amount": amount, "reference": reference})
    text = "void an invoice of which nothing was paid; its period can be invoiced again"
    _add_change(parser, "void", text, "void_invoice", {"reason": _REASON})
    text = "write off what is left of an invoice as bad debt; it can still be paid"
    _add_change(parser, "uncollectible", text, "write_off_invoice", {"reason": _REASON})
    text = "book that the VAT on what is left of a written-off invoice is claimed back as of today"
    _add_change(parser, "vat-relief", text, "relieve_invoice_of_vat", {"reason": _REASON})
    note = add_work(parser, "credit-note", "take an invoice back, whole or by line", _credit)
    add_number(note)
    note.add_argument(
        "--line", action="append", metavar="N[=AMOUNT]", help="a line, and how much of it; default: all that is left"
    )
    request = "an idempotency key: used again, one credit note is made"
    fields: dict[str, str | Flag] = {
        "reason": Flag("what the credit note shall state", required=True),
        "issued": Flag("issue date; default: today (UTC)", metavar="DATE"),
        "request": Flag(request, metavar="NAME", default=""),
    }
    add_fields(note, "credit_invoice", (), fields)


def _add_change(parser: CommandParser, name: str, text: str, operation: str, fields: dict[str, str | Flag]) -> None:
    async def work(api: Api, parsed: argparse.Namespace) -> None:
        invoice = await find_invoice(api, parsed)
        values = field_values(parsed, operation)
        changed = await api.call(operation, tenant=invoice["tenant_id"], invoice=invoice["id"], **values)
        if not print_json(parsed, changed):
            print(invoice_line(changed) + (f" ({NOTHING_WRITTEN})" if parsed.api_dry_run else ""))

    action = add_work(parser, name, text, work)
    add_number(action)
    add_fields(action, operation, (), fields)


async def _credit(api: Api, parsed: argparse.Namespace) -> None:
    invoice = await find_invoice(api, parsed)
    values = field_values(parsed, "credit_invoice")
    values["request"] = parsed.api_request or str(uuid.uuid4())
    lines = [_credited(text) for text in parsed.line] if parsed.line else None
    where = {"tenant": invoice["tenant_id"], "invoice": invoice["id"]}
    note = await api.call("credit_invoice", **where, **values, lines=lines)
    if print_json(parsed, note):
        return
    if parsed.api_dry_run:
        sums = ", ".join(f"{name} {note[key]} {note['currency']}" for name, key in _SUMS)
        print(f"a credit note of {counted(note['lines'], 'line')}, {sums} ({NOTHING_WRITTEN})")
    else:
        print(invoice_line(note))
        print(invoice_line(await api.call("retrieve_invoice", **where)))


_SUMS = (("net", "net"), ("VAT", "tax"), ("credited", "payable"))


def _credited(text: str) -> dict[str, Any]:
    """A line, and how much is credited of it, if that is said."""
    number, equals, amount = text.partition("=")
    if not number.isdecimal():
        raise CommandError(f"--line: {text!r} is not N or N=AMOUNT")
    return {"line": int(number), "amount": amount} if equals else {"line": int(number)}
