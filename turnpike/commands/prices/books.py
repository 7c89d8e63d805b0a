"""`turnpike prices list`, `books` and `book`: the prices in force, by price book, and the books themselves."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING

from turnpike.api.actions import add_work, print_json, print_objects, tenant_names
from turnpike.api.client import Api
from turnpike.command_context import admin_command, with_admin_services
from turnpike.command_line import CommandError, CommandParser
from turnpike.commands.prices.cells import instant
from turnpike.operator_identity import add_second_operator, approvals_are_on, check_operators
from turnpike.settings.settings import Settings

if TYPE_CHECKING:
    from billing.prices.price_books import PriceBook
    from turnpike.admin_services import AdminServices


def add_arguments(parser: CommandParser) -> None:
    """Declare these actions of `turnpike prices`."""
    listing = add_work(parser, "list", "the prices in force", _list, list_prices)
    listing.add_argument("served_model", nargs="?", metavar="NAME", help="one served model alone")
    add_book(listing)
    listing.add_argument("--at", metavar="WHEN", help="in force then, such as 2027-01-01T00:00:00Z; default: now")
    listing.add_format("csv", "json")
    add_work(parser, "books", "the price books", _list_books)
    book = parser.add_action("book", "make a price book: a tenant's own over a base book, or a base book", make_book)
    book.add_argument("name", metavar="BOOK")
    book.add_argument("--tenant", help="whose it is; prices that it does not have are those of its base book")
    book.add_argument("--base", metavar="BOOK", default="base", help="the base of a tenant's book")
    book.add_argument("--currency", metavar="CODE", help="of a base book, such as EUR")
    add_second_operator(book)


def add_book(parser: CommandParser) -> None:
    """Take the price book: by name, or by the tenant to whom it applies."""
    book = parser.add_mutually_exclusive_group()
    book.add_argument("--book", metavar="BOOK", help="the price book; default: base")
    book.add_argument("--tenant", help="the book that applies to this tenant")


async def find_book(admin: AdminServices, arguments: argparse.Namespace, *, writing: bool) -> PriceBook | None:
    """The book that `--book` or `--tenant` names; None for `base` before its first price.

    For reading, a tenant without a book of its own has the base book. Raises UnknownBook, NoSuchRecord, CommandError.
    """
    from billing.prices.errors import UnknownBook
    from billing.prices.price_books import BASE

    books = {book.name: book for book in await admin.books.list()}
    if arguments.tenant:
        tenant = await admin.tenancy.tenant(arguments.tenant)
        own = [book for book in books.values() if book.tenant_id == tenant.id]
        if not own and writing:
            raise CommandError(
                f"{tenant.name} has no price book of its own; make one: "
                f"`turnpike prices book BOOK --tenant {tenant.name}`"
            )
        return own[0] if own else books.get(BASE)
    name = arguments.book or BASE
    if name not in books and name != BASE:
        raise UnknownBook(name)
    return books.get(name)


async def _list(api: Api, parsed: argparse.Namespace) -> None:
    """`turnpike prices list` at a gateway elsewhere."""
    from turnpike.commands.prices.tables import print_prices, rows_of_cells

    if parsed.tenant or parsed.format == "csv":
        raise CommandError("--tenant and --format csv work on the data folder, not at --url")
    at = None if parsed.at == "now" else parsed.at
    prices = await api.call("list_prices", model=parsed.served_model, book=parsed.book, at=at)
    if print_json(parsed, prices):
        return
    for version in prices["data"]:
        print(f"{version['model']}: version {version['version']}, from {version['effective_at']}")
        print_prices(rows_of_cells(version["prices"]), version["currency"])


@admin_command
async def list_prices(admin: AdminServices, arguments: argparse.Namespace) -> None:
    """`turnpike prices list`."""
    from billing.calendar import format_instant
    from billing.prices import PriceMissing
    from billing.prices.spreadsheet import write_csv
    from turnpike.commands.prices.tables import print_prices, rows_as_json

    book = await find_book(admin, arguments, writing=False)
    at = instant(arguments, "at")
    versions = []
    for model in [arguments.served_model] if arguments.served_model else await admin.prices.models():
        try:
            versions.append(await admin.prices.in_book(book, model, at))
        except PriceMissing:
            if arguments.served_model:
                raise
    if arguments.format == "csv":
        sys.stdout.write(write_csv((version.model, version.currency, version.rows) for version in versions))
    elif arguments.format == "json":
        rows = [rows_as_json(version.model, version.currency, version.rows, version=version.id) for version in versions]
        print(json.dumps(rows, indent=2))
    elif versions:
        for version in versions:
            print(f"{version.model}: version {version.id}, from {format_instant(version.effective_at)}")
            print_prices(version.rows, version.currency)
    else:
        print("no prices; set some: `turnpike prices set NAME --uncached … --read … --output …`")


async def _list_books(api: Api, parsed: argparse.Namespace) -> None:
    books = await api.pages("list_books")
    if print_json(parsed, books):
        return
    tenants = await tenant_names(api)
    print_objects(
        books["data"],
        {
            **{"book": "name", "currency": "currency", "base": "base"},
            "tenant": lambda book: tenants.get(book["tenant_id"], book["tenant_id"] or "-"),
        },
    )


def make_book(settings: Settings, arguments: argparse.Namespace) -> int:
    """`turnpike prices book`."""
    from billing.prices.price_books import BASE

    if bool(arguments.tenant) == bool(arguments.currency):
        raise CommandError("say either --tenant NAME (its own book) or --currency CODE (a base book)")

    async def work(admin: AdminServices) -> None:
        if arguments.tenant:
            tenant = await admin.tenancy.tenant(arguments.tenant)
            if arguments.base != BASE and await approvals_are_on(admin):
                # The tenant gets other prices without a sheet that somebody else could approve.
                await check_operators(admin, arguments)
            book = await admin.books.create_for(tenant.id, arguments.name, arguments.base)
        else:
            book = await admin.books.create(arguments.name, arguments.currency)
        print(f"made the price book {book.name} in {book.currency}")

    return with_admin_services(settings, work)
