"""`turnpike openapi`: print the OpenAPI document of the gateway's API; it needs no server."""

from __future__ import annotations

import argparse
import sys

from turnpike.command_line import CommandParser
from turnpike.settings.settings import Settings


def add_arguments(parser: CommandParser) -> None:
    """Declare `turnpike openapi`."""
    parser.runs(print_document)
    parser.add_argument(
        "--audience",
        choices=["all", "tenants"],
        default="all",
        help="tenants: without what only administrators call (default: %(default)s)",
    )


def print_document(settings: Settings, arguments: argparse.Namespace) -> int:
    """`turnpike openapi`."""
    import msgspec

    from gateway.app import application_of
    from gateway.openapi.document import make_document
    from gateway.openapi.stand_in import stand_in

    document = make_document(application_of(stand_in()), arguments.audience)
    sys.stdout.buffer.write(msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n")
    return 0
