"""`turnpike migrate`: bring the database to this version."""

from __future__ import annotations

import argparse
import asyncio

from turnpike.command_line import CommandParser
from turnpike.settings.data_folder import prepare_data_folder
from turnpike.settings.settings import Settings


def add_arguments(parser: CommandParser) -> None:
    """Declare `turnpike migrate`."""
    parser.runs(migrate)


def migrate(settings: Settings, _arguments: argparse.Namespace) -> int:
    """`turnpike migrate`."""
    from storage.database.migrate import head, upgrade

    if settings.database.startswith("sqlite"):
        prepare_data_folder(settings)
    asyncio.run(upgrade(settings.database))
    print(f"the database is at {head()}")
    return 0
