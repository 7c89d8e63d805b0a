"""`turnpike audit log`: who changed what, and whether the log says what it said."""

from __future__ import annotations

import argparse
import sys
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import msgspec

from storage.free_text import counted
from turnpike.command_context import long_admin_command, print_progress, print_table, tenant_id_of
from turnpike.command_line import CommandError, CommandParser

if TYPE_CHECKING:
    from audit_log.reading import Entry, Filter
    from turnpike.admin_services import AdminServices

_SHOWN = 100
"""Entries without --limit."""


def add_arguments(parser: CommandParser) -> None:
    """Declare `turnpike audit log`."""
    log = parser.add_action("log", "who changed what, the newest first; or verify that nothing of it changed", show_log)
    log.add_argument("--tenant", help="only of this tenant")
    log.add_argument("--platform", action="store_true", help="only what is no tenant's")
    log.add_argument("--actor", metavar="WHO", help="only what this one did: an id or a name")
    log.add_argument("--action", help="only this, such as key.revoked, or one kind, such as invoice.*")
    log.add_argument("--since", metavar="INSTANT", help="only from then on, such as 2026-11-01T00:00:00Z")
    log.add_argument("--until", metavar="INSTANT", help="only before then")
    log.add_argument("--limit", type=int, metavar="N", help=f"at most so many; default: {_SHOWN} in a table, else all")
    log.add_format("json", "csv")
    text = "read the whole log and name every entry that was altered, removed or added; exits 1 if there is one"
    log.add_argument("--verify", action="store_true", help=text)
    text = "with --verify: what an earlier --verify, or a worker's log, said of the log's end"
    log.add_argument("--witness", metavar="NUMBER:HEAD", help=text)


@long_admin_command
async def show_log(admin: AdminServices, arguments: argparse.Namespace) -> int:
    """`turnpike audit log`: with --verify 1 on any finding."""
    if arguments.verify:
        return await _verify(admin, arguments)
    if arguments.witness:
        raise CommandError("--witness: it is for --verify")
    if arguments.limit is not None and arguments.limit < 1:
        raise CommandError("--limit: it must be 1 or more")
    await _FORMATS[arguments.format](admin, await _wanted(admin, arguments), arguments.limit)
    return 0


async def _wanted(admin: AdminServices, arguments: argparse.Namespace) -> Filter:
    from audit_log.reading import Filter

    return Filter(
        actor=arguments.actor,
        action=arguments.action,
        tenant_id=await tenant_id_of(admin, arguments.tenant),
        platform=arguments.platform,
        since=_instant("--since", arguments.since),
        until=_instant("--until", arguments.until),
    )


def _instant(flag: str, text: str | None) -> int | None:
    from billing.calendar import InvalidInstant, parse_instant

    try:
        return None if text is None else parse_instant(text)
    except InvalidInstant as error:
        raise CommandError(f"{flag}: {error}") from error


async def _entries(admin: AdminServices, wanted: Filter, limit: int | None) -> AsyncIterator[Entry]:
    from audit_log.reading import EVERYTHING, AuditLog

    left = limit
    async for entry in AuditLog(admin.database).stream(wanted, EVERYTHING):
        if left is not None:
            if not left:
                return
            left -= 1
        yield entry


async def _print_csv(admin: AdminServices, wanted: Filter, limit: int | None) -> None:
    from audit_log import csv_rows

    print(csv_rows.header(), end="")
    async for entry in _entries(admin, wanted, limit):
        print(csv_rows.lines([entry]), end="")


async def _print_json(admin: AdminServices, wanted: Filter, limit: int | None) -> None:
    async for entry in _entries(admin, wanted, limit):
        told = msgspec.to_builtins(entry)
        told |= {name: _raw(getattr(entry, name)) for name in ("before", "after")}
        print(msgspec.json.encode(told).decode())


def _raw(text: str | None) -> msgspec.Raw | None:
    return None if text is None else msgspec.Raw(text.encode())


async def _print_table(admin: AdminServices, wanted: Filter, limit: int | None) -> None:
    from audit_log.csv_rows import format_at

    names = await admin.tenant_names()
    rows = [
        (
            f"{format_at(entry.at)[:19]}Z",
            entry.actor.name,
            entry.actor.means,
            entry.action,
            entry.target_id,
            "" if entry.tenant_id is None else names.get(entry.tenant_id, str(entry.tenant_id)),
            entry.reason,
        )
        async for entry in _entries(admin, wanted, limit or _SHOWN)
    ]
    print_table(("at", "who", "how", "action", "target", "tenant", "reason"), rows)


_FORMATS = {"table": _print_table, "json": _print_json, "csv": _print_csv}


async def _verify(admin: AdminServices, arguments: argparse.Namespace) -> int:
    from audit_log.anchors import Witness, latest_witness
    from audit_log.verification import verify_log

    witness = None if arguments.witness is None else Witness.parse(arguments.witness)
    read = 0

    def progress(entries: int) -> None:
        nonlocal read
        read = entries
        print_progress(f"{entries} entries")

    async with admin.database.reading() as session:
        findings = await verify_log(session, progress, witness)
    print_progress("")
    for finding in findings:
        print(msgspec.json.encode(finding).decode())
    if findings:
        print(counted(len(findings), "finding"), file=sys.stderr)
        return 1
    latest = await latest_witness(admin.database)
    entries = f"{read} {'entry' if read == 1 else 'entries'}"
    print(f"the audit log says what it said: {entries}" + (f"; its witness: {latest.text}" if latest else ""))
    return 0
