"""`turnpike verify`: compare an invoice with receipts, without asking any server."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from turnpike.command_line import CommandError, CommandParser

if TYPE_CHECKING:
    from turnpike.settings.settings import Settings


def add_arguments(parser: CommandParser) -> None:
    """Declare `turnpike verify`."""
    parser.runs(verify_invoice)
    parser.add_argument(
        "invoice", nargs="?", metavar="INVOICE", help="the invoice's JSON; - for none: then the files alone are checked"
    )
    parser.add_argument(
        "receipts", nargs="*", metavar="RECEIPTS", help="JSON lines: files of days, receipts that came with answers"
    )
    parser.add_argument("--keys", metavar="FILE", help="the JWK set of the public keys, kept from earlier")
    parser.add_argument(
        "--write-verifier", metavar="FILE", help="write this program as one file that needs Python alone"
    )


def verify_invoice(_settings: Settings, arguments: argparse.Namespace) -> int:
    """`turnpike verify`: 1 if anything does not hold."""
    from billing.receipts import verifier

    if arguments.write_verifier:
        target = Path(arguments.write_verifier)
        try:
            target.write_bytes(Path(verifier.__file__).read_bytes())
        except OSError as error:
            raise CommandError(f"--write-verifier: cannot write {target}: {error.strerror}") from error
        print(f"wrote {target}: python3 {target} INVOICE RECEIPTS --keys KEYS", file=sys.stderr)
        return 0
    if not arguments.invoice or not arguments.receipts:
        raise CommandError("give INVOICE and RECEIPTS; INVOICE may be -")
    try:
        return verifier.report(arguments.invoice, arguments.receipts, arguments.keys)
    except (verifier.Unreadable, OSError) as error:
        raise CommandError(str(error)) from error
