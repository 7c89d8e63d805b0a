"""`turnpike prices set`, `draft` and `import`: new prices, shown beside those that they replace."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from billing.money import InvalidPrice
from turnpike.api.actions import add_work
from turnpike.api.client import Api
from turnpike.command_context import CURRENCY, with_admin_services
from turnpike.command_line import CommandError, CommandParser
from turnpike.commands.prices.books import add_book, find_book
from turnpike.commands.prices.cells import add_cells, flag_of, folder_prices, instant, rows_of_arguments
from turnpike.operator_identity import add_author, find_author
from turnpike.settings.settings import Settings

if TYPE_CHECKING:
    from billing.prices.price_books import PriceBook
    from billing.prices.sheets import PriceProposal
    from billing.prices.version import Cell, Rows
    from turnpike.admin_services import AdminServices


def add_arguments(parser: CommandParser) -> None:
    """Declare these actions of `turnpike prices`."""
    put = parser.add_action("set", "prices of a model, from now on or from --at", set_prices)
    put.add_argument("--from-model-folder", action="store_true", help="take the prices of the folder's turnpike.toml")
    draft = add_work(parser, "draft", "prices of a model, for somebody else to approve", _draft, draft_prices)
    for action in (put, draft):
        action.add_argument("served_model", nargs="?", metavar="NAME", help="name of the served model")
        add_cells(action)
        action.add_argument("--whole", action="store_true", help="in a tenant's book: take nothing from its base")
        action.add_argument("--currency", metavar="CODE", help="refused if the book has another; default: the book's")
    take = parser.add_action(
        "import", "prices from a CSV as `turnpike prices list …` writes it, or from LiteLLM's price file", import_prices
    )
    take.add_argument("file", metavar="FILE", help="….csv or ….json")
    take.add_argument(
        "--model-map",
        action="append",
        default=[],
        metavar="ENTRY=NAME",
        help="for LiteLLM's file: the entry with the prices of a served model; once for each",
    )
    take.add_argument(
        "--ignore", action="append", default=[], metavar="KEY", help="for LiteLLM's file: a key to leave out"
    )
    for action in (put, draft, take):
        add_book(action)
        action.add_argument("--at", metavar="WHEN", help="from then on, such as 2027-01-01T00:00:00Z; default: now")
        action.add_argument("--until", metavar="WHEN", help="only until then; after it the earlier prices apply again")
        add_author(action)
        action.add_argument("--force", metavar="REASON", help="why unusual prices are meant")
        action.add_argument("--dry-run", action="store_true", help="check and show the difference, write nothing")


def set_prices(settings: Settings, arguments: argparse.Namespace) -> int:
    """`turnpike prices set`."""
    return _propose(settings, arguments, draft=False)


def draft_prices(settings: Settings, arguments: argparse.Namespace) -> int:
    """`turnpike prices draft`."""
    return _propose(settings, arguments, draft=True)


def _propose(settings: Settings, arguments: argparse.Namespace, *, draft: bool) -> int:
    from_folder = getattr(arguments, "from_model_folder", False)
    chosen: list[tuple[str, str | None, dict[Cell, int]]] = []
    if from_folder:
        for folder in settings.model_folders:
            prices = folder_prices(folder)
            if prices is None:
                raise CommandError(f"{folder / 'turnpike.toml'} has no [prices]")
            chosen.append(prices)
    elif arguments.served_model and (rows := rows_of_arguments(arguments)):
        chosen.append((arguments.served_model, arguments.currency, rows))
    else:
        hint = "" if draft else ", or --from-model-folder"
        raise CommandError(f"say NAME and its prices (--uncached, --read, --output, …){hint}")

    async def work(admin: AdminServices) -> None:
        book = await find_book(admin, arguments, writing=True)
        for model, currency, rows in chosen:
            proposal = _proposal(arguments, book, model, rows, currency)
            try:
                await _write(admin, arguments, proposal, draft=draft)
            except InvalidPrice as error:
                if from_folder:
                    raise
                raise CommandError(f"{flag_of(error.meter)}: {error}") from error

    return with_admin_services(settings, work)


async def _draft(api: Api, parsed: argparse.Namespace) -> None:
    """`turnpike prices draft` at a gateway elsewhere."""
    from billing.prices.grid import amount
    from turnpike.commands.prices.tables import print_difference, print_sheet, rows_of_difference

    rows = rows_of_arguments(parsed)
    if not (parsed.served_model and rows) or parsed.tenant:
        raise CommandError("say NAME and its prices (--uncached, --read, --output, …), and the book by --book")
    books = {book["name"]: book for book in await api.list("list_books")}
    own = books.get(parsed.book, {}).get("tenant_id") is not None and not parsed.whole
    sheet = await api.call(
        "propose_price_sheet",
        model=parsed.served_model,
        prices=[
            {"meter": meter, "lane": lane, "context_from": tier, "price": amount(micro)}
            for (meter, lane, tier), micro in rows.items()
        ],
        book=parsed.book,
        kind="overrides" if own else "whole",
        currency=parsed.currency,
        effective_at=parsed.at,
        effective_until=parsed.until,
        reason=parsed.reason or None,
        force=parsed.force,
        dry_run=parsed.dry_run or None,
    )
    print_difference(*rows_of_difference(sheet["difference"]), sheet["currency"])
    if not parsed.dry_run:
        print_sheet(sheet)


def _proposal(
    arguments: argparse.Namespace, book: PriceBook | None, model: str, rows: Rows, currency: str | None
) -> PriceProposal:
    from billing.prices.price_books import BASE
    from billing.prices.sheets import PriceProposal

    overrides = book is not None and book.tenant_id is not None and not getattr(arguments, "whole", False)
    return PriceProposal(
        model=model,
        rows=rows,
        book=book.name if book else BASE,
        kind="overrides" if overrides else "whole",
        effective_at=instant(arguments, "at"),
        effective_until=instant(arguments, "until"),
        currency=currency or (None if book else CURRENCY),
    )


async def _write(admin: AdminServices, arguments: argparse.Namespace, proposal: PriceProposal, *, draft: bool) -> None:
    """Show what changes, then write it, unless this is a dry run."""
    from turnpike.commands.prices.tables import print_difference, print_sheet, print_unchanged, sheet_fields

    before, after, currency = await admin.sheets.check(proposal, arguments.force)
    print_difference(before, after, currency)
    if proposal.kind == "overrides":
        print_unchanged(before, after, currency)
    if arguments.dry_run:
        print(f"{proposal.model}: checked, nothing written")
        return
    author = await find_author(admin, arguments)
    write = author.sheets.draft if draft else author.sheets.put
    print_sheet(sheet_fields(await write(proposal, author.name, arguments.reason, arguments.force)))


def import_prices(settings: Settings, arguments: argparse.Namespace) -> int:
    """`turnpike prices import`: 1 if something was refused."""
    from billing.prices.spreadsheet import read_csv

    path = Path(arguments.file)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(f"cannot read {path}: {error}") from error
    refused, chosen = (
        _from_litellm(text, arguments)
        if path.suffix == ".json"
        else (0, [(model, currency, rows) for model, (currency, rows) in read_csv(text).items()])
    )

    async def work(admin: AdminServices) -> int:
        book = await find_book(admin, arguments, writing=True)
        failed = refused
        for model, currency, rows in chosen:
            print(f"{model}:")
            try:
                await _write(admin, arguments, _proposal(arguments, book, model, rows, currency), draft=False)
            except (ValueError, LookupError) as error:
                print(f"refused: {error}")
                failed += 1
        return 1 if failed else 0

    return with_admin_services(settings, work)


def _from_litellm(text: str, arguments: argparse.Namespace) -> tuple[int, list[tuple[str, str, dict[Cell, int]]]]:
    """How many entries were refused, and (model, currency, rows) of the others."""
    from billing.prices.litellm import read_entry, read_file

    entries = read_file(text)
    if not arguments.model_map:
        raise CommandError("say which entry is which served model: --model-map ENTRY=NAME, once for each")
    refused = 0
    chosen = []
    for pair in arguments.model_map:
        name, equals, model = pair.rpartition("=")
        if not equals or not name or not model:
            raise CommandError(f"--model-map {pair}: write ENTRY=NAME")
        if name not in entries:
            raise CommandError(f"--model-map {pair}: the file has no entry {name!r}")
        entry = read_entry(entries[name], arguments.ignore)
        for key in entry.unknown:
            print(f"{name}: {key} has no meter here and is left out")
        for assumption in entry.assumed:
            print(f"{name}: assumed: {assumption}")
        for reason in entry.refused:
            print(f"{name}: refused: {reason}")
        if entry.refused:
            refused += 1
        else:
            chosen.append((model, CURRENCY, entry.rows))
    return refused, chosen
