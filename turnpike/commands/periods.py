"""`turnpike periods`: list and close billing periods."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

import msgspec

from turnpike.command_context import admin_command, print_table
from turnpike.command_line import CommandParser

if TYPE_CHECKING:
    from turnpike.admin_services import AdminServices


def add_arguments(parser: CommandParser) -> None:
    """Declare `turnpike periods …`."""
    listing = parser.add_action("list", "the periods, and what those that have ended wait for", list_periods)
    listing.add_format("json")
    text = "close a period that has ended and waits for nothing; the worker does so by itself"
    close = parser.add_action("close", text, close_period)
    close.add_argument("period", help="such as 2026-11")
    close.add_dry_run()
    text = "let no period wait for a gateway epoch that is lost together with its spool"
    dead = parser.add_action("declare-dead", text, declare_epoch_dead)
    dead.add_argument("epoch", help="as the list names it")
    dead.add_argument("--reason", required=True, help="what happened to it; kept with the epoch")


@admin_command
async def list_periods(admin: AdminServices, arguments: argparse.Namespace) -> None:
    """`turnpike periods list`."""
    from billing.periods.periods import Periods
    from prompt_cache.promise.lease_storage import LeaseStorage

    store = Periods(admin.database, LeaseStorage(admin.database))
    periods = await store.list()
    waiting = {p.period: (await store.waiting(p.period)).reasons() for p in periods if p.state == "closing"}
    if arguments.format == "json":
        rows = [msgspec.to_builtins(p) | {"root": _hex(p.root), "waits_for": waiting.get(p.period)} for p in periods]
        print(msgspec.json.encode(rows).decode())
        return
    print_table(
        ("period", "state", "ends at", "closed at", "root"),
        [(p.period, p.state, _when(p.ends_at), _when(p.closed_at), (_hex(p.root) or "")[:16]) for p in periods],
    )
    for period, reasons in waiting.items():
        for reason in reasons:
            print(f"{period} waits: {reason}", file=sys.stderr)


@admin_command
async def close_period(admin: AdminServices, arguments: argparse.Namespace) -> None:
    """`turnpike periods close PERIOD`."""
    from billing.periods.periods import Periods
    from prompt_cache.promise.lease_storage import LeaseStorage

    closed = await Periods(admin.database, LeaseStorage(admin.database)).close(
        arguments.period, dry_run=arguments.dry_run
    )
    if closed.state != "closed":
        print(f"{closed.period} can be closed; nothing was written")
        return
    print(f"{closed.period} is closed since {_when(closed.closed_at)}")


@admin_command
async def declare_epoch_dead(admin: AdminServices, arguments: argparse.Namespace) -> None:
    """`turnpike periods declare-dead EPOCH`."""
    from billing.spool.gateway_epochs import declare_dead

    epoch = await declare_dead(admin.database, arguments.epoch, arguments.reason, admin.settings.data / "spool")
    print(f"epoch {epoch.epoch} of gateway {epoch.gateway} is {epoch.state}: no period waits for it")


def _when(instant: int | None) -> str:
    from storage.database.base import from_instant

    return "" if instant is None else from_instant(instant).isoformat(timespec="seconds")


def _hex(root: bytes | None) -> str | None:
    return None if root is None else root.hex()
