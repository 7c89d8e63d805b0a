"""`turnpike receipts`: write the numbered, signed files of a tenant's days."""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from turnpike.command_context import long_admin_command, print_table, this_month
from turnpike.command_line import CommandError, CommandParser
from turnpike.settings.settings import Settings

if TYPE_CHECKING:
    from turnpike.admin_services import AdminServices


def add_arguments(parser: CommandParser) -> None:
    """Declare `turnpike receipts …`."""
    days = parser.add_action("days", "list the closed days of a month with their roots", list_days)
    export = parser.add_action("export", "write the files of a month's closed days as JSON lines", export_files)
    for action in (days, export):
        action.add_argument("--tenant", required=True)
        action.add_argument("--period", help="such as 2026-11; default: this month (UTC)")
    export.add_argument("-o", "--output", metavar="FILE", help="default: receipts-PERIOD.jsonl here")
    keys = parser.add_action("keys", "print the public keys as a JWK set", print_keys)
    keys.set_defaults(period=None)


@long_admin_command
async def list_days(admin: AdminServices, arguments: argparse.Namespace) -> None:
    """`turnpike receipts days`."""
    from billing.calendar import check_period
    from billing.receipts.day_files import closed_days

    tenant = (await admin.tenancy.tenant(arguments.tenant)).id
    period = check_period(arguments.period or this_month())
    async with admin.database.reading() as session:
        days = await closed_days(session, tenant, period)
    print_table(
        ("day", "events", "late", "cost_pico", "root"),
        [(day.day, day.events, day.late, day.cost_pico, day.root.hex()) for day in days],
    )


@long_admin_command
async def export_files(admin: AdminServices, arguments: argparse.Namespace) -> None:
    """`turnpike receipts export`."""
    from billing.calendar import check_period
    from billing.receipts.files import file_lines
    from turnpike.settings.data_folder import read_secrets
    from turnpike.settings.secrets import receipt_keys

    tenant = (await admin.tenancy.tenant(arguments.tenant)).id
    period = check_period(arguments.period or this_month())
    path = Path(arguments.output or f"receipts-{period}.jsonl")
    keys = receipt_keys(read_secrets(admin.settings))
    count = 0
    try:
        with await asyncio.to_thread(path.open, "wb") as file:
            async for line in file_lines(admin.database, admin.prices, keys, tenant, period):
                file.write(line)
                count += 1
    except OSError as error:
        raise CommandError(f"-o: cannot write {path}: {error.strerror}") from error
    print(f"{path}: {count} lines", file=sys.stderr)


def print_keys(settings: Settings, _arguments: argparse.Namespace) -> int:
    """`turnpike receipts keys`."""
    import msgspec

    from turnpike.settings.data_folder import read_secrets
    from turnpike.settings.secrets import receipt_keys

    print(msgspec.json.format(msgspec.json.encode(receipt_keys(read_secrets(settings)).key_set())).decode())
    return 0
