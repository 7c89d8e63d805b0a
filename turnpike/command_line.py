"""The parser of one command, and the arguments that several commands take."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from storage.reported_error import ReportedError
from turnpike.settings import loading
from turnpike.settings.data_folder import with_served
from turnpike.settings.settings import ADMIN, Settings

Command: TypeAlias = Callable[[Settings, argparse.Namespace], int]
"""Runs with the settings and the parsed arguments; returns the exit status."""
URL_VARIABLE = "TURNPIKE_URL"
_TENANT_FLAG = "--tenant"


class CommandError(ReportedError):
    """A command cannot do what was asked. The message says why and what to do."""


class _Help(argparse.HelpFormatter):
    """Help whose first line leaves out the settings: they are many, and listed below."""

    def add_usage(self, usage: Any, actions: Any, groups: Any, prefix: str | None = None) -> None:
        """As argparse does, for the command's own arguments."""
        own = [action for action in actions if action.dest not in Settings.__struct_fields__]
        super().add_usage(usage, own, groups, prefix)


class CommandParser(argparse.ArgumentParser):
    """The parser of a command: either it runs something, or it has actions that do."""

    _action_parsers: argparse._SubParsersAction[CommandParser] | None = None
    _tenant_first = False

    def runs(self, command: Command, role: str = ADMIN, *, calls_api: bool = False) -> None:
        """Run `command` when this parser has parsed. It takes the settings of `role` as flags. `calls_api`: it works at
        a gateway elsewhere too.

        An administrator's command serves nothing: its models and replicas are those of the data folder's `serve`.
        """
        self.formatter_class = _Help
        run = _beside_serve(command) if role == ADMIN else command
        self.set_defaults(run=run if calls_api else _here(run), parent_pid=None)
        self.add_argument("--parent-pid", type=int, help=argparse.SUPPRESS)
        loading.add_flags(self, role)

    def add_action(
        self, name: str, text: str, command: Command | None = None, *, calls_api: bool = False
    ) -> CommandParser:
        """Add `turnpike … NAME` with its one line of help; without `command` it is a group of actions."""
        if self._action_parsers is None:
            self._action_parsers = self.add_subparsers(metavar="ACTION", required=True, parser_class=CommandParser)
        parser = self._action_parsers.add_parser(name, help=text, description=text)
        if command is not None:
            parser.runs(command, calls_api=calls_api)
        return parser

    def add_tenant_first(self, *, optional: bool = False) -> None:
        """Take the tenant as the first argument, or as `--tenant NAME` anywhere."""
        self._tenant_first = True
        nargs = "?" if optional else None
        self.add_argument("tenant", nargs=nargs, metavar="TENANT", help="its name; or --tenant NAME, anywhere")

    def add_format(self, *others: str) -> None:
        """Take `--format`: a table, or one of the others."""
        self.add_argument("--format", choices=["table", *others], default="table", help="default: %(default)s")

    def add_dry_run(self) -> None:
        """Take `--dry-run`."""
        self.add_argument("--dry-run", action="store_true", help="check everything and write nothing")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As argparse does, with the value of `--tenant` put where the argument stands."""
        return super().parse_known_args(_tenant_in_front(args) if self._tenant_first and args else args, namespace)


def remote_url(arguments: argparse.Namespace) -> str | None:
    """The gateway that `--url` or TURNPIKE_URL names."""
    return getattr(arguments, "remote_url", None) or os.environ.get(URL_VARIABLE) or None


def _here(command: Command) -> Command:
    def run(settings: Settings, arguments: argparse.Namespace) -> int:
        if arguments.remote_url:
            raise CommandError("--url: this command works on the machine itself alone: leave --url out")
        return command(settings, arguments)

    return run


def _beside_serve(command: Command) -> Command:
    return lambda settings, arguments: command(with_served(settings), arguments)


def _tenant_in_front(words: Sequence[str]) -> list[str]:
    tenants: list[str] = []
    others: list[str] = []
    remaining = iter(words)
    for word in remaining:
        if word == "--":
            others += [word, *remaining]
        elif word == _TENANT_FLAG:
            tenants.append(next(remaining, _TENANT_FLAG))  # without a name it is left for the parser to refuse
        elif word.startswith(f"{_TENANT_FLAG}="):
            tenants.append(word.partition("=")[2])
        else:
            others.append(word)
    return [*tenants, *others]
