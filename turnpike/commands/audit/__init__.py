"""`turnpike audit`: check the books, the replicas' counts and what projects see of each other; who changed what."""

from __future__ import annotations

from turnpike.command_line import CommandParser
from turnpike.commands.audit import books, isolation, log


def add_arguments(parser: CommandParser) -> None:
    """Declare `turnpike audit …`."""
    books.add_arguments(parser)
    isolation.add_arguments(parser)
    log.add_arguments(parser)
