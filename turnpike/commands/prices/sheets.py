"""`turnpike prices approve`, `withdraw`, `show`, `diff` and `history`: price sheets, and who decided on them."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

from turnpike.command_context import admin_command, print_table
from turnpike.command_line import CommandParser
from turnpike.operator_identity import add_author, find_author

if TYPE_CHECKING:
    from billing.prices.sheets import PriceSheet
    from turnpike.admin_services import AdminServices


def add_arguments(parser: CommandParser) -> None:
    """Declare these actions of `turnpike prices`."""
    approve = parser.add_action("approve", "bring a draft into force; its author cannot", approve_sheet)
    withdraw = parser.add_action("withdraw", "take back a draft, or prices that have not begun", withdraw_sheet)
    show = parser.add_action("show", "one price sheet: prices, state, who did what", show_sheet)
    diff = parser.add_action("diff", "what a price sheet changes", diff_sheet)
    for action in (approve, withdraw, show, diff):
        action.add_argument("sheet", type=int, metavar="SHEET", help="number of the price sheet")
    for action in (approve, withdraw):
        add_author(action)
        action.add_dry_run()
    diff.add_argument("other", type=int, nargs="?", metavar="OTHER", help="compare with this one instead")
    history = parser.add_action("history", "every price sheet, the newest first", list_sheets)
    history.add_argument("served_model", nargs="?", metavar="NAME", help="one served model alone")
    history.add_argument("--book", metavar="BOOK", help="one price book alone")
    history.add_format("json")


@admin_command
async def approve_sheet(admin: AdminServices, arguments: argparse.Namespace) -> None:
    """`turnpike prices approve`."""
    author = await find_author(admin, arguments, "prices.approve")
    _print_decided(
        await author.sheets.approve(arguments.sheet, author.name, arguments.reason, dry_run=arguments.dry_run),
        arguments,
    )


@admin_command
async def withdraw_sheet(admin: AdminServices, arguments: argparse.Namespace) -> None:
    """`turnpike prices withdraw`."""
    author = await find_author(admin, arguments)
    if author.operator is None:  # nobody's approval is needed, and nothing proves who this is
        decided = await author.sheets.withdraw(
            arguments.sheet, author.name, arguments.reason, dry_run=arguments.dry_run
        )
    else:
        from billing.approvals.approvals import Approvals

        decided = await Approvals(admin.database, admin.prices).withdraw_sheet(
            arguments.sheet, author.operator.may, arguments.reason, dry_run=arguments.dry_run
        )
    _print_decided(decided, arguments)


def _print_decided(sheet: PriceSheet, arguments: argparse.Namespace) -> None:
    from turnpike.commands.prices.tables import print_sheet

    if arguments.dry_run:
        print(f"{sheet.model}: price sheet {sheet.id} would be {sheet.state}; nothing written")
    else:
        print_sheet(sheet)


@admin_command
async def show_sheet(admin: AdminServices, arguments: argparse.Namespace) -> None:
    """`turnpike prices show`."""
    from billing.calendar import format_instant
    from turnpike.commands.prices.tables import print_prices, print_sheet

    sheet = await admin.sheets.get(arguments.sheet)
    print_sheet(sheet)
    print_prices(sheet.rows, sheet.book.currency)
    if sheet.forced:
        print(f"unusual, and meant: {sheet.forced}")
    for change in sheet.changes:
        why = f": {change.reason}" if change.reason else ""
        hashes = f"{change.before_sha256[:12] or 'nothing'} → {change.after_sha256[:12] or 'nothing'}"
        via = f" ({change.via})" if change.via not in ("", change.actor) else ""
        print(f"{format_instant(change.at)}  {change.action} by {change.actor}{via}{why} ({hashes})")


@admin_command
async def diff_sheet(admin: AdminServices, arguments: argparse.Namespace) -> None:
    """`turnpike prices diff`."""
    from turnpike.commands.prices.tables import print_difference

    sheet = await admin.sheets.get(arguments.sheet)
    if arguments.other is not None:
        other = await admin.sheets.get(arguments.other)
        print_difference(other.rows, sheet.rows, sheet.book.currency)
        return
    before, after, _ = await admin.sheets.effect(sheet)
    print_difference(before, after, sheet.book.currency)


@admin_command
async def list_sheets(admin: AdminServices, arguments: argparse.Namespace) -> None:
    """`turnpike prices history`."""
    from billing.calendar import format_instant
    from turnpike.commands.prices.tables import sheet_as_json

    sheets = await admin.sheets.history(arguments.served_model, arguments.book)
    if arguments.format == "json":
        print(json.dumps([sheet_as_json(sheet) for sheet in sheets], indent=2))
        return
    rows = []
    for sheet in sheets:
        people = ", ".join(f"{change.action} {change.actor}" for change in sheet.changes)
        until = format_instant(sheet.effective_until) if sheet.effective_until is not None else ""
        starts = format_instant(sheet.effective_at) if sheet.effective_at is not None else "at approval"
        rows.append((sheet.id, sheet.book.name, sheet.model, sheet.state, starts, until, people, sheet.reason))
    print_table(("sheet", "book", "model", "state", "from", "until", "who", "why"), rows)
