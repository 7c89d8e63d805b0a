"""The arguments of `turnpike invoices …`."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, TypeAlias

from turnpike.settings.settings import ADMIN

Command: TypeAlias = Callable[[str, str], Any]


def declare(tree: Any, command: Command) -> None:
    """Add the group to the tree of commands."""
    invoices = tree.group("invoices", "invoices, credit notes, and who they are from and for")
    _add_invoice_runs(tree, invoices, command)
    _add_invoice_views(tree, invoices, command)
    _add_invoice_changes(tree, invoices, command)
    _add_parties(tree, invoices, command)


def _number(parser: argparse.ArgumentParser, *, drafts: bool = False) -> None:
    parser.add_argument("number", nargs="?" if drafts else None, metavar="NUMBER", help="such as INV-2026-000042")
    parser.add_argument("--seller", help="whose number it is, where several sellers have it")
    if drafts:
        parser.add_argument("--tenant", help="instead of NUMBER: whose invoice, with --period")
        parser.add_argument("--period", help="such as 2026-11")


def _last_month() -> str:
    """The month before this one, in UTC."""
    return (datetime.now(UTC).replace(day=1) - timedelta(days=1)).strftime("%Y-%m")


def _dry_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dry-run", action="store_true", help="do and check all, and write nothing")


def _add_invoice_runs(tree: Any, invoices: Any, command: Command) -> None:
    for name, text in (
        ("draft", "make the drafts of a period, or make them again"),
        ("finalize", "number and seal the drafts of a closed period"),
    ):
        parser = tree.leaf(invoices, name, text, ADMIN, command("invoice_runs", f"{name}_invoices"))
        who = parser.add_mutually_exclusive_group(required=True)
        who.add_argument("--tenant", help="one tenant")
        who.add_argument("--all", action="store_true", help="everybody who has something to be billed")
        parser.add_argument(
            "--month", "--period", dest="period", default=_last_month(),
            help="month, such as 2026-11; default: last month (UTC)",
        )  # fmt: skip
        _dry_run(parser)
    parser.add_argument("--issued", metavar="DATE", help="issue date such as 2026-12-01; default: today (UTC)")


def _add_invoice_views(tree: Any, invoices: Any, command: Command) -> None:
    listing = tree.leaf(invoices, "list", "invoices and credit notes", ADMIN, command("invoices", "list_invoices"))
    listing.add_argument("--tenant", help="of one tenant alone")
    listing.add_argument("--period", help="of one period alone, such as 2026-11")
    states = ["draft", "finalized", "partially_paid", "paid", "void", "uncollectible"]
    listing.add_argument("--state", choices=states, help="in one state alone")
    listing.add_argument("--format", choices=["table", "json"], default="table")
    text = "what an invoice says, opened down to its requests"
    show = tree.leaf(invoices, "show", text, ADMIN, command("invoices", "show_invoice"))
    _number(show, drafts=True)
    show.add_argument("--line", type=int, metavar="N", help="the days of this line")
    show.add_argument("--day", metavar="DATE", help="… the hours of this day, such as 2026-11-30")
    show.add_argument("--hour", type=int, metavar="H", help="… the requests of this hour, 0 to 23 (UTC)")
    show.add_argument("--format", choices=["table", "json"], default="table", help="json is the document itself")
    pdf = tree.leaf(invoices, "pdf", "an invoice as PDF/A-3", ADMIN, command("invoices", "print_invoice"))
    _number(pdf, drafts=True)
    pdf.add_argument("--all", action="store_true", help="instead of NUMBER: all invoices of --period")
    pdf.add_argument("-o", "--output", metavar="FILE", help="file or folder; default: NUMBER.pdf here")
    pdf.add_argument("--fonts", metavar="FOLDER", help="fonts for scripts that the built-in ones lack")


def _add_invoice_changes(tree: Any, invoices: Any, command: Command) -> None:
    text = "money came in for an invoice"
    pay = tree.leaf(invoices, "pay", text, ADMIN, command("invoices", "pay_invoice"))
    _number(pay)
    pay.add_argument("--amount", help="such as 25.00; default: all that is left")
    pay.add_argument("--reference", required=True, help="the bank's; told again, a payment counts once")
    _dry_run(pay)
    for name, text in (
        ("void", "void an invoice of which nothing was paid; its period can be invoiced again"),
        ("uncollectible", "give an invoice up; it can still be paid"),
    ):
        parser = tree.leaf(invoices, name, text, ADMIN, command("invoices", f"{name}_invoice"))
        _number(parser)
        _dry_run(parser)
    text = "take an invoice back, whole or by line"
    note = tree.leaf(invoices, "credit-note", text, ADMIN, command("invoices", "credit_invoice"))
    _number(note)
    note.add_argument("--reason", required=True, help="what the credit note shall state")
    note.add_argument(
        "--line", action="append", metavar="N[=AMOUNT]", help="a line, and how much of it; default: all that is left"
    )
    note.add_argument("--issued", metavar="DATE", help="issue date; default: today (UTC)")
    note.add_argument("--request", metavar="NAME", help="a name for this wish: told again, it is done once")
    _dry_run(note)


def _add_parties(tree: Any, invoices: Any, command: Command) -> None:
    def party(name: str, text: str) -> Any:
        parser = invoices.add_parser(name, help=text, description=text)
        return parser.add_subparsers(metavar="ACTION", required=True)

    def address(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--name", help="full legal name")
        parser.add_argument("--address", action="append", metavar="LINE", help="a line above the town; may be repeated")
        for field, text in (
            ("postal-code", "before the town"),
            ("city", "town"),
            ("country", "by ISO 3166, such as DE"),
            ("vat-id", "with its country in front, such as DE136695976"),
            ("email", "for invoices"),
        ):
            parser.add_argument(f"--{field}", help=text)

    sellers = party("seller", "legal entities that sell")
    put = tree.leaf(
        sellers, "set", "make a legal entity, or change what is given", ADMIN, command("parties", "set_seller")
    )
    put.add_argument("id", metavar="ID", help="a short name, such as acme-eu")
    address(put)
    put.add_argument("--registration", help="register and number")
    put.add_argument("--payment", action="append", metavar="LINE", help="how to pay; may be repeated")
    put.add_argument("--currency", help="where a tenant has no balance yet; default USD")
    put.add_argument("--series", help="series of invoices; default INV")
    put.add_argument("--credit-series", help="series of credit notes; default CN")
    put.add_argument("--number-format", help="default {series}-{year}-{n:06}")
    put.add_argument(
        "--rate",
        action="append",
        metavar="COUNTRY=PERCENT",
        help="VAT charged there, such as DE=19; may be repeated; other countries' rates stay",
    )
    put.add_argument(
        "--remove-rate", action="append", metavar="COUNTRY", help="charge no VAT there any more; may be repeated"
    )
    tree.leaf(sellers, "show", "the legal entities", ADMIN, command("parties", "show_sellers")).add_argument(
        "id", nargs="?", metavar="ID", help="one alone"
    )
    buyers = party("buyer", "billing profiles of tenants")
    text = "make a tenant's billing profile, or change what is given"
    put = tree.leaf(buyers, "set", text, ADMIN, command("parties", "set_buyer"))
    put.add_tenant_first()
    put.add_argument("--seller", help="who sells to it; may be left out while there is one seller")
    address(put)
    put.add_argument("--purchase-order", help="the customer's number of its order")
    put.add_argument("--payment-days", type=int, metavar="DAYS", help="until an invoice is due; default 30")
    treatments = ["auto", "standard", "zero", "exempt", "reverse_charge", "intra_community", "export", "outside"]
    put.add_argument("--treatment", choices=treatments, help="of tax; default auto: by countries and VAT ids")
    put.add_argument("--exemption", metavar="TEXT", help="the reason that invoices shall state")
    put.add_argument("--detail", choices=["model", "project"], help="what has lines of its own; default model")
    show = tree.leaf(buyers, "show", "billing profiles", ADMIN, command("parties", "show_buyers"))
    show.add_tenant_first(optional=True)
