"""`turnpike doctor`: what is wrong with this installation, a line each, with what to do."""

from __future__ import annotations

import argparse
import asyncio
from typing import TYPE_CHECKING

import msgspec

from turnpike.command_line import CommandParser

if TYPE_CHECKING:
    from turnpike.doctor.findings import Finding
    from turnpike.settings.settings import Settings

_SIGNS = {"ok": "ok     ", "warning": "warning", "wrong": "WRONG  "}


def add_arguments(parser: CommandParser) -> None:
    """Declare `turnpike doctor`."""
    parser.runs(doctor)
    parser.add_argument("--quiet", action="store_true", help="print only what is not as it should be")
    parser.add_format("json")


def doctor(settings: Settings, arguments: argparse.Namespace) -> int:
    """`turnpike doctor`: 0 if nothing is wrong, warnings aside; else 1."""
    findings = asyncio.run(_findings(settings))
    shown = [one for one in findings if one.level != "ok" or not arguments.quiet]
    if arguments.format == "json":
        print(msgspec.json.encode(shown).decode())
    else:
        for one in shown:
            print(f"{_SIGNS[one.level]} {one.part}: {one.state}{f' → {one.advice}' if one.advice else ''}")
    return int(any(one.level == "wrong" for one in findings))


async def _findings(settings: Settings) -> list[Finding]:
    from turnpike.doctor.machine import check_machine
    from turnpike.doctor.parts import check_parts
    from turnpike.settings.data_folder import with_served

    settings = with_served(settings)
    return [*check_machine(settings), *[finding async for finding in check_parts(settings)]]
