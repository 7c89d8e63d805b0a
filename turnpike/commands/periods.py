"""`turnpike periods …`: billing periods, and what keeps one from closing."""

from __future__ import annotations

import argparse
import sys

import msgspec

from billing.periods.periods import Periods
from billing.spool.gateway_epochs import declare_dead
from storage.database.base import from_instant
from turnpike.admin_services import AdminServices
from turnpike.commands.running import table, with_admin_services
from turnpike.settings.settings import Settings


def list_periods(settings: Settings, arguments: argparse.Namespace) -> int:
    """`turnpike periods list`."""

    async def work(admin: AdminServices) -> int:
        periods = Periods(admin.database)
        found = await periods.list()
        waiting = {p.period: (await periods.waiting(p.period)).reasons() for p in found if p.state == "closing"}
        if arguments.format == "json":
            rows = [msgspec.to_builtins(p) | {"root": _hex(p.root), "waits_for": waiting.get(p.period)} for p in found]
            print(msgspec.json.encode(rows).decode())
            return 0
        table(
            ("period", "state", "ends at", "closed at", "root"),
            [(p.period, p.state, _when(p.ends_at), _when(p.closed_at), (_hex(p.root) or "")[:16]) for p in found],
        )
        for period, reasons in waiting.items():
            for reason in reasons:
                print(f"{period} waits: {reason}", file=sys.stderr)
        return 0

    return with_admin_services(settings, work)


def close_period(settings: Settings, arguments: argparse.Namespace) -> int:
    """`turnpike periods close PERIOD`."""

    async def work(admin: AdminServices) -> int:
        closed = await Periods(admin.database).close(arguments.period, dry_run=arguments.dry_run)
        if closed.state != "closed":
            print(f"{closed.period} can be closed; nothing was written")
            return 0
        print(f"{closed.period} is closed since {_when(closed.closed_at)}")
        return 0

    return with_admin_services(settings, work)


def declare_epoch_dead(settings: Settings, arguments: argparse.Namespace) -> int:
    """`turnpike periods declare-dead EPOCH`."""

    async def work(admin: AdminServices) -> int:
        epoch = await declare_dead(admin.database, arguments.epoch, arguments.reason, settings.data / "spool")
        print(f"epoch {epoch.epoch} of gateway {epoch.gateway} is {epoch.state}: no period waits for it")
        return 0

    return with_admin_services(settings, work)


def _when(instant: int | None) -> str:
    return "" if instant is None else from_instant(instant).isoformat(timespec="seconds")


def _hex(root: bytes | None) -> str | None:
    return None if root is None else root.hex()
