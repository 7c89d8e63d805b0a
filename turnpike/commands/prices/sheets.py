"""`turnpike prices approve`, `withdraw`, `show`, `diff` and `history`: price sheets, and who decided on them."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from turnpike.api.actions import Flag, Object, add_action, add_work, print_json
from turnpike.api.client import Api
from turnpike.command_context import admin_command
from turnpike.command_line import CommandError, CommandParser
from turnpike.operator_identity import add_author, find_author

if TYPE_CHECKING:
    from billing.prices.sheets import PriceSheet
    from turnpike.admin_services import AdminServices


def add_arguments(parser: CommandParser) -> None:
    """Declare these actions of `turnpike prices`."""
    text = "bring a draft into force; its author cannot"
    approve = add_work(parser, "approve", text, _approve, approve_sheet)
    text = "take back a draft, or prices that have not begun"
    withdraw = add_work(parser, "withdraw", text, _withdraw, withdraw_sheet)
    show = add_work(parser, "show", "one price sheet: prices, state, who did what", _show)
    diff = add_work(parser, "diff", "what a price sheet changes", _diff)
    for action in (approve, withdraw, show, diff):
        action.add_argument("sheet", type=int, metavar="SHEET", help="number of the price sheet")
    for action in (approve, withdraw):
        add_author(action)
        action.add_dry_run()
    diff.add_argument("other", type=int, nargs="?", metavar="OTHER", help="compare with this one instead")
    add_action(
        parser,
        "history",
        "every price sheet, the newest first",
        "list_price_sheets",
        arguments=("model",),
        flags={
            "model": Flag("one served model alone", metavar="NAME", nargs="?"),
            "book": Flag("one price book alone", metavar="BOOK"),
        },
        columns={
            **{"sheet": "id", "book": "book", "model": "model", "state": "state"},
            "from": lambda sheet: sheet["effective_at"] or "at approval",
            "until": lambda sheet: sheet["effective_until"] or "",
            "who": lambda sheet: ", ".join(f"{change['action']} {change['actor']}" for change in sheet["changes"]),
            "why": "reason",
        },
    )


async def _approve(api: Api, parsed: argparse.Namespace) -> None:
    await _decide(api, parsed, "activate_price_sheet")


async def _withdraw(api: Api, parsed: argparse.Namespace) -> None:
    await _decide(api, parsed, "withdraw_price_sheet")


async def _decide(api: Api, parsed: argparse.Namespace, operation: str) -> None:
    """Decide on a sheet at a gateway elsewhere, which takes the key's owner for who does."""
    from turnpike.commands.prices.tables import print_sheet

    if parsed.dry_run:
        raise CommandError("--dry-run: at --url a decision cannot only be checked")
    print_sheet(await api.call(operation, number=parsed.sheet, reason=parsed.reason or None))


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
    from turnpike.commands.prices.tables import print_sheet, sheet_fields

    if arguments.dry_run:
        print(f"{sheet.model}: price sheet {sheet.id} would be {sheet.state}; nothing written")
    else:
        print_sheet(sheet_fields(sheet))


async def _show(api: Api, parsed: argparse.Namespace) -> None:
    from turnpike.commands.prices.tables import print_prices, print_sheet, rows_of_cells

    sheet = await api.call("retrieve_price_sheet", number=parsed.sheet)
    if print_json(parsed, sheet):
        return
    print_sheet(sheet)
    print_prices(rows_of_cells(sheet["prices"]), sheet["currency"])
    if sheet["forced"]:
        print(f"unusual, and meant: {sheet['forced']}")
    for change in sheet["changes"]:
        why = f": {change['reason']}" if change["reason"] else ""
        hashes = f"{change['before_sha256'][:12] or 'nothing'} → {change['after_sha256'][:12] or 'nothing'}"
        via = f" ({change['via']})" if change["via"] not in ("", change["actor"]) else ""
        print(f"{change['at']}  {change['action']} by {change['actor']}{via}{why} ({hashes})")


async def _diff(api: Api, parsed: argparse.Namespace) -> None:
    from turnpike.commands.prices.tables import print_difference, rows_of_cells, rows_of_difference

    sheet: Object = await api.call("retrieve_price_sheet", number=parsed.sheet)
    before, after = rows_of_difference(sheet["difference"])
    if parsed.other is not None:
        other = await api.call("retrieve_price_sheet", number=parsed.other)
        before, after = rows_of_cells(other["prices"]), rows_of_cells(sheet["prices"])
    print_difference(before, after, sheet["currency"])
