"""`turnpike cache`: what the prompt cache holds, and why it missed."""

from __future__ import annotations

from turnpike.command_line import CommandParser
from turnpike.commands.cache import explain


def add_arguments(parser: CommandParser) -> None:
    """Declare `turnpike cache …`."""
    explain.add_arguments(parser)
