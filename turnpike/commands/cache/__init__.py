"""`turnpike cache`: what the prompt cache holds, whether it is whole, how to get rid of it, and why it missed."""

from __future__ import annotations

from turnpike.command_line import CommandParser
from turnpike.commands.cache import explain, records, sharing


def add_arguments(parser: CommandParser) -> None:
    """Declare `turnpike cache …`."""
    records.add_arguments(parser)
    explain.add_arguments(parser)
    sharing.add_arguments(parser)
