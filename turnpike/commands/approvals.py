"""`turnpike approvals`: changes that take two operators: list them, approve another's, withdraw one."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

import msgspec

from turnpike.command_context import admin_command, print_table
from turnpike.command_line import CommandParser
from turnpike.operator_identity import own_operator

if TYPE_CHECKING:
    from billing.approvals.approvals import Approvals
    from billing.pending_changes import PendingChange
    from turnpike.admin_services import AdminServices


def add_arguments(parser: CommandParser) -> None:
    """Declare `turnpike approvals …`."""
    listing = parser.add_action("list", "what waits for a second operator", list_changes)
    listing.add_argument("--all", action="store_true", help="what was approved or withdrawn too")
    listing.add_format("json")
    show = parser.add_action("show", "one change, with all that it says", show_change)
    approve = parser.add_action("approve", "make a change that another operator proposed", approve_change)
    withdraw = parser.add_action("withdraw", "end a change without making it", withdraw_change)
    for action in (show, approve, withdraw):
        action.add_argument("change", metavar="ID", help="such as change_… or price_sheet_7")
    for action in (approve, withdraw):
        action.add_argument("--reason", default="", help="why; kept with the change and in the audit log")
    approve.add_dry_run()


def _approvals(admin: AdminServices) -> Approvals:
    from billing.approvals.approvals import Approvals

    return Approvals(admin.database, admin.prices)


@admin_command
async def list_changes(admin: AdminServices, arguments: argparse.Namespace) -> None:
    """`turnpike approvals list`."""
    from billing.calendar import format_instant

    changes = await _approvals(admin).list(None if arguments.all else "pending")
    if arguments.format == "json":
        print(msgspec.json.format(msgspec.json.encode(changes, enc_hook=str)).decode())
        return
    names = await admin.tenant_names()
    print_table(
        ("change", "kind", "tenant", "says", "state", "by", "at", "why"),
        [
            (
                change.id,
                change.kind,
                names.get(change.tenant_id, "-") if change.tenant_id else "-",
                change.summary,
                change.state,
                change.author if change.decider is None else f"{change.author}, {change.decider}",
                format_instant(change.created_at),
                change.reason,
            )
            for change in changes
        ],
    )


@admin_command
async def show_change(admin: AdminServices, arguments: argparse.Namespace) -> None:
    """`turnpike approvals show ID`."""
    change = await _approvals(admin).get(arguments.change)
    print(msgspec.json.format(msgspec.json.encode(change, enc_hook=str)).decode())


@admin_command
async def approve_change(admin: AdminServices, arguments: argparse.Namespace) -> None:
    """`turnpike approvals approve ID`: as the operator whose key is presented, who is not its author."""
    operator = await own_operator(admin, "approvals.decide")
    approvals = _approvals(admin)
    change = await approvals.approve(arguments.change, operator.may, arguments.reason, dry_run=arguments.dry_run)
    _print_decided(change, "would be approved, nothing written" if arguments.dry_run else "approved")


@admin_command
async def withdraw_change(admin: AdminServices, arguments: argparse.Namespace) -> None:
    """`turnpike approvals withdraw ID`."""
    operator = await own_operator(admin, "approvals.read")
    change = await _approvals(admin).withdraw(arguments.change, operator.may, arguments.reason)
    _print_decided(change, "withdrawn")


def _print_decided(change: PendingChange, verb: str) -> None:
    made = f": {change.result}" if change.result else ""
    print(f"{change.id} ({change.summary}): {verb}{made}")
