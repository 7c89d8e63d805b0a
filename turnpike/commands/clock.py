"""`turnpike clock`: the time of a sandbox, which is moved by hand."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from turnpike.command_context import admin_command
from turnpike.command_line import CommandError, CommandParser

if TYPE_CHECKING:
    from billing.periods.sandbox_clock import SandboxClock
    from turnpike.admin_services import AdminServices


def add_arguments(parser: CommandParser) -> None:
    """Declare `turnpike clock …`."""
    parser.add_action("show", "where the clock stands", show_clock)
    start = parser.add_action("start", "make an empty installation a sandbox, whose time is moved by hand", start_clock)
    start.add_argument("--at", metavar="INSTANT", help="such as 2027-01-20T12:00:00Z, not past; default: the present")
    step = parser.add_action("advance", "move a sandbox's time forward, a year at most", advance)
    step.add_argument("to", metavar="INSTANT", help="such as 2027-02-01 (UTC)")
    step.add_argument("--reason", default="", help="why; kept in the log")


@admin_command
async def show_clock(admin: AdminServices, _arguments: argparse.Namespace) -> None:
    """`turnpike clock show`."""
    from billing.periods.sandbox_clock import read_clock

    clock = await read_clock(admin.database)
    if clock is None:
        print("this installation is no sandbox: its time is the present's")
    else:
        _print(clock)


@admin_command
async def start_clock(admin: AdminServices, arguments: argparse.Namespace) -> None:
    """`turnpike clock start`."""
    from billing.calendar import parse_instant
    from billing.periods.sandbox_clock import begin_clock

    at = parse_instant(arguments.at) if arguments.at else None
    _print(await begin_clock(admin.database, at))


@admin_command
async def advance(admin: AdminServices, arguments: argparse.Namespace) -> None:
    """`turnpike clock advance`."""
    from billing.calendar import InvalidInstant, parse_instant
    from billing.periods.sandbox_clock import advance_clock

    try:
        to = parse_instant(arguments.to)
    except InvalidInstant as error:
        raise CommandError(f"INSTANT: {error}") from None
    _print(await advance_clock(admin.database, to, arguments.reason))


def _print(clock: SandboxClock) -> None:
    from billing.calendar import format_instant

    days = clock.ahead / 86_400_000_000
    print(f"it is {format_instant(clock.now)} in this sandbox, {days:.1f} days ahead of the present")
