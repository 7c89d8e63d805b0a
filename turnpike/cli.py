"""`turnpike …`: parse the command line, load the settings, run one command, report known errors in one line.

A command is a module of `turnpike.commands` with `add_arguments(parser)`, imported when the command line names it.
"""

from __future__ import annotations

import argparse
import importlib
import os
import pkgutil
import sys
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

from protocol.addresses import AddressError
from storage.disk_space import is_disk_full
from storage.reported_error import ReportedError
from turnpike import commands, logs
from turnpike.command_line import Command, CommandParser
from turnpike.processes.children import EXIT_TEMPORARY, EXIT_UNUSABLE, stop_with_parent
from turnpike.settings import loading
from turnpike.settings.data_folder import OWNER_ONLY
from turnpike.settings.settings import SettingError, Settings

_REMOTE = ("--url", "--key")
"""Flags before the command that have a value."""
_INTERRUPTED, _BROKEN_PIPE = 130, 141
"""As shells say that a program ended by SIGINT or SIGPIPE: 128 and the signal's number."""


def build_parser(only: str | None = None) -> argparse.ArgumentParser:
    """The command line: all commands, or all names of commands with the arguments of the one named `only`."""
    root = argparse.ArgumentParser(
        prog="turnpike",
        description="A multi-tenant inference gateway with prompt caching and exact billing.",
        epilog="Start with `turnpike serve`: it needs nothing set up.",
    )
    root.add_argument(
        "--url",
        dest="remote_url",
        metavar="URL",
        help="call a gateway elsewhere, not the data folder here [TURNPIKE_URL]",
    )
    root.add_argument(
        "--key", dest="remote_key", metavar="KEY", help="… with this admin or operator key [TURNPIKE_KEY]"
    )
    parsers = root.add_subparsers(metavar="COMMAND", required=True, parser_class=CommandParser)
    for name, text in _summaries():
        parser = parsers.add_parser(name, help=text, description=text)
        if only in (None, name):
            importlib.import_module(f"turnpike.commands.{name}").add_arguments(parser)
    return root


def _summaries() -> Iterator[tuple[str, str]]:
    """Name and one line of help of each command, from the first line of its module, which is not imported for it."""
    folder = Path(commands.__path__[0])
    for module in pkgutil.iter_modules(commands.__path__):
        file = folder / module.name / "__init__.py" if module.ispkg else folder / f"{module.name}.py"
        with file.open(encoding="utf-8") as source:
            yield module.name, source.readline().partition(": ")[2].strip('".\n')


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit status.

    2: the command line or a setting is wrong, or the command cannot work. 75: the same may work later, as when the
    database is away or the disk is full.
    """
    words = sys.argv[1:] if arguments is None else arguments
    named = next(
        (word for before, word in pairwise(["", *words]) if not word.startswith("-") and before not in _REMOTE), ""
    )
    parsed = build_parser(named).parse_args(words)
    try:
        loaded = loading.load(vars(parsed))
    except SettingError as error:
        print(f"turnpike: {error}", file=sys.stderr)
        return EXIT_UNUSABLE
    logs.configure(loaded.log_level, loaded.log_format)
    previous = os.umask(OWNER_ONLY)
    try:
        return _run(loaded, parsed)
    finally:
        os.umask(previous)


def _run(loaded: Settings, parsed: argparse.Namespace) -> int:
    if parsed.parent_pid is not None:
        stop_with_parent(parsed.parent_pid)
    command: Command = parsed.run
    try:
        return command(loaded, parsed)
    except KeyboardInterrupt:
        return _INTERRUPTED
    except BrokenPipeError:
        return _BROKEN_PIPE
    except Exception as error:
        if is_disk_full(error):
            print(f"turnpike: the disk is full: {error}", file=sys.stderr)
            return EXIT_TEMPORARY
        if not isinstance(error, ReportedError | AddressError):  # protocol imports nothing of ours
            raise
        print(f"turnpike: {error}", file=sys.stderr)
        return EXIT_TEMPORARY if getattr(error, "temporary", False) else EXIT_UNUSABLE


if __name__ == "__main__":
    sys.exit(main())
