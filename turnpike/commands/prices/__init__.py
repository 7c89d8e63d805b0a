"""`turnpike prices`: set, approve and show what a model's tokens cost."""

from __future__ import annotations

from turnpike.command_line import CommandParser
from turnpike.commands.prices import books, proposals, sheets, what_if


def add_arguments(parser: CommandParser) -> None:
    """Declare `turnpike prices …`."""
    proposals.add_arguments(parser)
    sheets.add_arguments(parser)
    books.add_arguments(parser)
    what_if.add_arguments(parser)
