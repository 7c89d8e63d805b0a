"""`turnpike audit`: check the books, the replicas' counts, and that projects do not see each other's prompts."""

from __future__ import annotations

from turnpike.command_line import CommandParser
from turnpike.commands.audit import books, isolation


def add_arguments(parser: CommandParser) -> None:
    """Declare `turnpike audit …`."""
    books.add_arguments(parser)
    isolation.add_arguments(parser)
