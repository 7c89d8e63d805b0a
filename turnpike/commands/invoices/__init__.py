"""`turnpike invoices`: make, settle and show invoices, with sellers and buyers."""

from __future__ import annotations

from turnpike.command_line import CommandParser
from turnpike.commands.invoices import changes, documents, parties, runs


def add_arguments(parser: CommandParser) -> None:
    """Declare `turnpike invoices …`."""
    runs.add_arguments(parser)
    documents.add_arguments(parser)
    changes.add_arguments(parser)
    parties.add_arguments(parser)
