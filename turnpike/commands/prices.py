"""`turnpike prices …`: what a model's tokens cost."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from billing.calendar import format_instant
from billing.money import InvalidPrice
from billing.platform_settings import APPROVALS
from billing.prices import PriceMissing
from billing.prices.errors import UnknownBook
from billing.prices.grid import amount, in_order
from billing.prices.litellm import read_entry, read_file
from billing.prices.price_books import BASE, PriceBook
from billing.prices.sheets import PriceProposal, PriceSheet
from billing.prices.spreadsheet import read_csv, write_csv
from billing.prices.version import Cell, Rows
from turnpike.admin_services import AdminServices
from turnpike.commands.price_author import author, two_operators
from turnpike.commands.price_words import (
    difference_table,
    flag_of,
    folder_prices,
    instant,
    price_table,
    rows_asked_for,
    staying_table,
)
from turnpike.commands.running import CURRENCY, table, with_admin_services
from turnpike.failures import CommandError
from turnpike.settings.settings import Settings


def set_prices(settings: Settings, arguments: argparse.Namespace) -> int:
    """`turnpike prices set`."""
    return _propose(settings, arguments, draft=False)


def draft_prices(settings: Settings, arguments: argparse.Namespace) -> int:
    """`turnpike prices draft`."""
    return _propose(settings, arguments, draft=True)


def approve_prices(settings: Settings, arguments: argparse.Namespace) -> int:
    """`turnpike prices approve`."""

    async def work(admin: AdminServices) -> int:
        who = await author(admin, settings, arguments)
        _decided(
            await who.sheets.approve(arguments.sheet, who.name, arguments.reason, dry_run=arguments.dry_run), arguments
        )
        return 0

    return with_admin_services(settings, work)


def withdraw_prices(settings: Settings, arguments: argparse.Namespace) -> int:
    """`turnpike prices withdraw`."""

    async def work(admin: AdminServices) -> int:
        who = await author(admin, settings, arguments)
        _decided(
            await who.sheets.withdraw(arguments.sheet, who.name, arguments.reason, dry_run=arguments.dry_run), arguments
        )
        return 0

    return with_admin_services(settings, work)


def list_prices(settings: Settings, arguments: argparse.Namespace) -> int:
    """`turnpike prices list`."""

    async def work(admin: AdminServices) -> int:
        book = await _book(admin, arguments, writing=False)
        at = instant(arguments, "at")
        models = [arguments.served_model] if arguments.served_model else await admin.prices.models()
        found = []
        for model in models:
            try:
                found.append(await admin.prices.in_book(book, model, at))
            except PriceMissing:
                if arguments.served_model:
                    raise
        if arguments.format == "csv":
            sys.stdout.write(write_csv((each.model, each.currency, each.rows) for each in found))
        elif arguments.format == "json":
            print(
                json.dumps(
                    [_as_json(each.model, each.currency, each.rows, version=each.id) for each in found], indent=2
                )
            )
        else:
            for each in found:
                print(f"{each.model}: version {each.id}, from {format_instant(each.effective_at)}")
                price_table(each.rows, each.currency)
            if not found:
                print("no prices; set some: `turnpike prices set NAME --uncached … --read … --output …`")
        return 0

    return with_admin_services(settings, work)


def show_prices(settings: Settings, arguments: argparse.Namespace) -> int:
    """`turnpike prices show`."""

    async def work(admin: AdminServices) -> int:
        sheet = await admin.sheets.get(arguments.sheet)
        _tell(sheet)
        price_table(sheet.rows, sheet.book.currency)
        if sheet.forced:
            print(f"unusual, and meant: {sheet.forced}")
        for change in sheet.changes:
            why = f": {change.reason}" if change.reason else ""
            hashes = f"{change.before_sha256[:12] or 'nothing'} → {change.after_sha256[:12] or 'nothing'}"
            via = f" ({change.via})" if change.via not in ("", change.actor) else ""
            print(f"{format_instant(change.at)}  {change.action} by {change.actor}{via}{why} ({hashes})")
        return 0

    return with_admin_services(settings, work)


def diff_prices(settings: Settings, arguments: argparse.Namespace) -> int:
    """`turnpike prices diff`."""

    async def work(admin: AdminServices) -> int:
        sheet = await admin.sheets.get(arguments.sheet)
        if arguments.other is not None:
            other = await admin.sheets.get(arguments.other)
            difference_table(other.rows, sheet.rows, sheet.book.currency)
            return 0
        before, after, _ = await admin.sheets.effect(sheet)
        difference_table(before, after, sheet.book.currency)
        return 0

    return with_admin_services(settings, work)


def price_history(settings: Settings, arguments: argparse.Namespace) -> int:
    """`turnpike prices history`."""

    async def work(admin: AdminServices) -> int:
        sheets = await admin.sheets.history(arguments.served_model, arguments.book)
        if arguments.format == "json":
            print(json.dumps([_sheet_as_json(sheet) for sheet in sheets], indent=2))
            return 0
        rows = []
        for sheet in sheets:
            people = ", ".join(f"{change.action} {change.actor}" for change in sheet.changes)
            until = format_instant(sheet.effective_until) if sheet.effective_until is not None else ""
            starts = format_instant(sheet.effective_at) if sheet.effective_at is not None else "at approval"
            rows.append((sheet.id, sheet.book.name, sheet.model, sheet.state, starts, until, people, sheet.reason))
        table(("sheet", "book", "model", "state", "from", "until", "who", "why"), rows)
        return 0

    return with_admin_services(settings, work)


def list_books(settings: Settings, arguments: argparse.Namespace) -> int:
    """`turnpike prices books`."""

    async def work(admin: AdminServices) -> int:
        books = await admin.books.list()
        names = {book.id: book.name for book in books}
        tenants = {tenant.id: tenant.name for tenant in await admin.tenancy.list_tenants()}
        rows = [
            (
                book.name,
                book.currency,
                names[book.base] if book.base else "-",
                tenants.get(book.tenant_id, str(book.tenant_id)) if book.tenant_id else "-",
            )
            for book in books
        ]
        table(("book", "currency", "base", "tenant"), rows)
        return 0

    return with_admin_services(settings, work)


def make_book(settings: Settings, arguments: argparse.Namespace) -> int:
    """`turnpike prices book`."""
    if bool(arguments.tenant) == bool(arguments.currency):
        raise CommandError("say either --tenant NAME (its own book) or --currency CODE (a base book)")

    async def work(admin: AdminServices) -> int:
        if arguments.tenant:
            tenant = await admin.tenancy.tenant(arguments.tenant)
            if arguments.base != BASE and await admin.platform.value(APPROVALS) == "on":
                # other prices, with no sheet that somebody else could approve
                await two_operators(admin, settings, arguments)
            book = await admin.books.create_for(tenant.id, arguments.name, arguments.base)
        else:
            book = await admin.books.create(arguments.name, arguments.currency)
        print(f"made the price book {book.name} in {book.currency}")
        return 0

    return with_admin_services(settings, work)


def import_prices(settings: Settings, arguments: argparse.Namespace) -> int:
    """`turnpike prices import`: 1 if something was refused."""
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
        book = await _book(admin, arguments, writing=True)
        wrong = refused
        for model, currency, rows in chosen:
            print(f"{model}:")
            try:
                await _write(admin, settings, arguments, _proposal(arguments, book, model, rows, currency), draft=False)
            except (ValueError, LookupError) as error:
                print(f"refused: {error}")
                wrong += 1
        return 1 if wrong else 0

    return with_admin_services(settings, work)


def _from_litellm(text: str, arguments: argparse.Namespace) -> tuple[int, list[tuple[str, str, dict[Cell, int]]]]:
    """How many entries were refused, and (model, currency, rows) of the others."""
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
        found = read_entry(entries[name], arguments.ignore)
        for key in found.unknown:
            print(f"{name}: {key} has no meter here and is left out")
        for assumption in found.assumed:
            print(f"{name}: assumed: {assumption}")
        for reason in found.refused:
            print(f"{name}: refused: {reason}")
        if found.refused:
            refused += 1
        else:
            chosen.append((model, CURRENCY, found.rows))
    return refused, chosen


def _propose(settings: Settings, arguments: argparse.Namespace, *, draft: bool) -> int:
    from_folder = getattr(arguments, "from_model_folder", False)
    chosen: list[tuple[str, str | None, dict[Cell, int]]] = []
    if from_folder:
        for folder in settings.model_folders:
            found = folder_prices(folder)
            if found is None:
                raise CommandError(f"{folder / 'turnpike.toml'} has no [prices]")
            chosen.append(found)
    elif arguments.served_model and (rows := rows_asked_for(arguments)):
        chosen.append((arguments.served_model, arguments.currency, rows))
    else:
        hint = "" if draft else ", or --from-model-folder"
        raise CommandError(f"say NAME and its prices (--uncached, --read, --output, …){hint}")

    async def work(admin: AdminServices) -> int:
        book = await _book(admin, arguments, writing=True)
        for model, currency, rows in chosen:
            proposal = _proposal(arguments, book, model, rows, currency)
            try:
                await _write(admin, settings, arguments, proposal, draft=draft)
            except InvalidPrice as error:
                if from_folder:
                    raise
                raise CommandError(f"{flag_of(error.meter)}: {error}") from error
        return 0

    return with_admin_services(settings, work)


def _proposal(
    arguments: argparse.Namespace, book: PriceBook | None, model: str, rows: Rows, currency: str | None
) -> PriceProposal:
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


async def _write(
    admin: AdminServices, settings: Settings, arguments: argparse.Namespace, proposal: PriceProposal, *, draft: bool
) -> None:
    """Show what changes, then write it, unless this is a dry run."""
    before, after, currency = await admin.sheets.check(proposal, arguments.force)
    difference_table(before, after, currency)
    if proposal.kind == "overrides":
        staying_table(before, after, currency)
    if arguments.dry_run:
        print(f"{proposal.model}: checked, nothing written")
        return
    who = await author(admin, settings, arguments)
    write = who.sheets.draft if draft else who.sheets.put
    _tell(await write(proposal, who.name, arguments.reason, arguments.force))


async def _book(admin: AdminServices, arguments: argparse.Namespace, *, writing: bool) -> PriceBook | None:
    """The book that is meant; None for `base` before its first price. Raises UnknownBook, NotFound."""
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


def _decided(sheet: PriceSheet, arguments: argparse.Namespace) -> None:
    if arguments.dry_run:
        print(f"{sheet.model}: price sheet {sheet.id} would be {sheet.state}; nothing written")
    else:
        _tell(sheet)


def _tell(sheet: PriceSheet) -> None:
    book = "" if sheet.book.name == BASE else f" in the book {sheet.book.name}"
    when = "from its approval on" if sheet.effective_at is None else f"from {format_instant(sheet.effective_at)}"
    until = "" if sheet.effective_until is None else f" until {format_instant(sheet.effective_until)}"
    print(f"{sheet.model}{book}: price sheet {sheet.id}, {sheet.state}, {when}{until}")
    if sheet.state == "draft":
        print(
            f"somebody else brings it into force: `turnpike prices approve {sheet.id} --operator-key-file FILE` "
            f"(or --by NAME, while approvals are off)"
        )


def _as_json(model: str, currency: str, rows: Rows, **more: object) -> dict[str, object]:
    prices = [
        {"meter": meter, "lane": lane, "context_from": tier, "price": amount(micro), "price_micro": micro}
        for (meter, lane, tier), micro in in_order(rows)
    ]
    return {"model": model, "currency": currency, **more, "prices": prices}


def _sheet_as_json(sheet: PriceSheet) -> dict[str, object]:
    changes = [
        {
            "action": change.action,
            "actor": change.actor,
            "via": change.via,
            "reason": change.reason,
            "at": format_instant(change.at),
            "before_sha256": change.before_sha256,
            "after_sha256": change.after_sha256,
        }
        for change in sheet.changes
    ]
    return _as_json(
        sheet.model,
        sheet.book.currency,
        sheet.rows,
        sheet=sheet.id,
        book=sheet.book.name,
        kind=sheet.kind,
        state=sheet.state,
        effective_at=None if sheet.effective_at is None else format_instant(sheet.effective_at),
        effective_until=None if sheet.effective_until is None else format_instant(sheet.effective_until),
        author=sheet.author,
        reason=sheet.reason,
        forced=sheet.forced,
        sha256=sheet.sha256,
        changes=changes,
    )
