"""What a command works with: the admin services, opened for one run, and the terminal.

Commands are imported for their help too. So whatever needs the database's libraries is imported when a command runs.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import os
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, TypeAlias
from uuid import UUID

from audit_log.actors import Actor, become
from turnpike.command_line import URL_VARIABLE, Command, CommandError
from turnpike.settings.settings import Settings

if TYPE_CHECKING:
    from turnpike.admin_services import AdminServices

_Work: TypeAlias = "Callable[[AdminServices, argparse.Namespace], Awaitable[int | None]]"
CURRENCY = "USD"
"""Of the base book before its first price."""
DEFAULT_PROJECT = "default"
EXIT_PENDING = 3
"""The status of a command whose change is kept until another operator approves it."""


def with_admin_services(
    settings: Settings, work: Callable[[AdminServices], Awaitable[int | None]], *, long: bool = False
) -> int:
    """Run `work` with the admin services of these settings, and record its changes as made by whoever runs this.

    `long`: its statements may take a day, not an hour. Returns the exit status that `work` returns, 0 for None.
    Raises NoData.
    """
    from storage.database import database
    from turnpike.admin_services import open_admin_services

    if os.environ.get(URL_VARIABLE):
        raise CommandError(f"{URL_VARIABLE} names a gateway elsewhere, and this works on the data folder: unset it")
    statement_s = database.LONG_STATEMENT_S if long else database.JOB_STATEMENT_S

    async def run() -> int:
        async with open_admin_services(settings, statement_s=statement_s) as admin:
            become(await _actor(admin))
            return await _until_pending(work(admin)) or 0

    return asyncio.run(run())


async def _until_pending(work: Awaitable[int | None]) -> int | None:
    """The exit status of `work`. A change that a second operator must approve is printed with the command that does it,
    and ends with EXIT_PENDING."""
    from billing.pending_changes import ChangePending

    try:
        return await work
    except ChangePending as pending:
        print(f"{pending}: `turnpike approvals approve {pending.change.id}`")
        return EXIT_PENDING


async def _actor(admin: AdminServices) -> Actor:
    """Who runs this command. With a key that is not valid it is USER@HOST; a command that needs the key says what is
    wrong with it."""
    from turnpike.admin_services import system_user
    from turnpike.operator_identity import find_caller

    try:
        return (await find_caller(admin))[1]
    except CommandError:
        return Actor("command", system_user(), system_user())


def admin_command(work: _Work, *, long: bool = False) -> Command:
    """Make a command of a function that takes the admin services and the arguments."""

    @functools.wraps(work)
    def command(settings: Settings, arguments: argparse.Namespace) -> int:
        return with_admin_services(settings, lambda admin: work(admin, arguments), long=long)

    return command


long_admin_command = functools.partial(admin_command, long=True)
"""As `admin_command`, for one that reads all that was ever recorded: an audit."""


async def tenant_id_of(admin: AdminServices, name: str | None) -> UUID | None:
    """The id of the tenant of this name; None without a name. Raises NoSuchRecord."""
    return (await admin.tenancy.tenant(name)).id if name else None


def this_month() -> str:
    """The current billing period (UTC), such as 2026-11."""
    return time.strftime("%Y-%m", time.gmtime())


def print_table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print rows under a header, numbers to the right."""
    lines = [list(header), *([str(cell) for cell in row] for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(header))]
    for line in lines:
        cells = [
            cell.rjust(width) if cell.replace(".", "").replace("-", "").isdigit() else cell.ljust(width)
            for cell, width in zip(line, widths, strict=True)
        ]
        print("  ".join(cells).rstrip())


def print_progress(text: str) -> None:
    """Show a line that the next one overwrites, where stderr is a terminal; an empty text removes it."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)
