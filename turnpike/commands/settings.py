"""`turnpike settings`: print the settings in force, or their reference."""

from __future__ import annotations

import argparse

from turnpike.command_line import CommandParser
from turnpike.settings import loading
from turnpike.settings.settings import Settings


def add_arguments(parser: CommandParser) -> None:
    """Declare `turnpike settings`."""
    parser.runs(print_settings)
    parser.add_argument("--markdown", action="store_true", help="print the reference instead")


def print_settings(settings: Settings, arguments: argparse.Namespace) -> int:
    """`turnpike settings`."""
    if arguments.markdown:
        print(loading.reference(), end="")
    else:
        for name in Settings.__struct_fields__:
            print(f"{name} = {getattr(settings, name)!r}")
    return 0
