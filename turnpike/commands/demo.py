"""`turnpike demo`: a tour with data: make a demonstration, where there is none, and serve it.

The demonstration has a data folder and a seller of its own, and a month of traffic that went through the real billing.
"""

from __future__ import annotations

import argparse
import sys
import time

import msgspec
import uvloop

from turnpike import logs
from turnpike.command_context import print_progress
from turnpike.command_line import CommandError, CommandParser
from turnpike.settings.settings import SERVE, Settings

SEED = 2026
_MOST_DAYS = 62


def add_arguments(parser: CommandParser) -> None:
    """Declare `turnpike demo`."""
    parser.add_argument(
        "--days",
        type=int,
        default=_MOST_DAYS,
        help="days with traffic, the last ones of the last month and of this one; default: all of both",
    )
    parser.add_argument("--seed", type=int, default=SEED, help="another seed makes other traffic; default: %(default)s")
    parser.add_argument("--make-only", action="store_true", help="make it, and do not serve it")
    parser.runs(demo, SERVE)


def demo(settings: Settings, arguments: argparse.Namespace) -> int:
    """`turnpike demo`: make it if it is not there, then run until SIGINT or SIGTERM. Raises NotADemonstration."""
    from turnpike.commands.serve import serve
    from turnpike.demonstration.folder import DEFAULT_FOLDER, claim, finish, new_mark

    if not 1 <= arguments.days <= _MOST_DAYS:
        raise CommandError(f"--days: {arguments.days} is not from 1 to {_MOST_DAYS}")
    if settings.data_dir == Settings().data_dir:
        settings = msgspec.structs.replace(settings, data_dir=DEFAULT_FOLDER)
    mark = new_mark(arguments.seed, arguments.days, time.time_ns() // 1_000_000 * 1000)
    if claim(settings, mark) is None:
        _make(settings, arguments, mark.until)
        finish(settings, mark)
    if arguments.make_only:
        return 0
    return serve(settings, arguments)


def _make(settings: Settings, arguments: argparse.Namespace, until: int) -> None:
    from turnpike.commands.prices.cells import folder_prices
    from turnpike.commands.serve import KEY_FILE, write_key
    from turnpike.demonstration.making import Months, make

    logs.configure("error", settings.log_format)  # what goes wrong in the past is meant to
    began, shown = time.monotonic(), -1

    def progress(requests: int, made: int, of: int) -> None:
        nonlocal shown
        percent = max(0, min(100, 100 * made // of))
        left_s = (time.monotonic() - began) * (100 - percent) / percent if percent else 0.0
        left = f", about {left_s:.0f} s left" if left_s else ""
        text = f"making the demonstration: {percent} %, {requests:,} requests{left}"
        if sys.stderr.isatty():
            print_progress(text)
        elif percent // 5 > shown:
            shown = percent // 5
            print(text, file=sys.stderr, flush=True)

    print(
        f"Making a demonstration in {settings.data.absolute()}: two minutes on an idle machine, more on a busy one.",
        file=sys.stderr,
        flush=True,
    )
    prices = folder_prices(settings.model_folders[0])
    if prices is None:
        raise CommandError(f"model: {settings.model_folders[0]} names no prices; take the demo model")
    months = Months.until(until, arguments.days)
    done, key = uvloop.run(make(settings, arguments.seed, months, prices, progress))
    print_progress("")
    write_key(settings.data / KEY_FILE, key)
    logs.configure(settings.log_level, settings.log_format)
    took = time.monotonic() - began
    print(f"Made {done.ran:,} requests of two months in {took:.0f} s.", file=sys.stderr, flush=True)
