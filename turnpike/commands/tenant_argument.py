"""The tenant that a command is about: `--tenant NAME` with every command, or NAME first where it has always stood."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

_FLAG = "--tenant"


class CommandParser(argparse.ArgumentParser):
    """A command's parser, whose tenant may be a positional argument and come as `--tenant NAME` all the same."""

    _tenant_first = False

    def add_tenant_first(self, *, optional: bool = False) -> None:
        """Take the tenant as the first argument, or as `--tenant NAME` anywhere."""
        self._tenant_first = True
        nargs = "?" if optional else None
        self.add_argument("tenant", nargs=nargs, metavar="TENANT", help="its name; or --tenant NAME, anywhere")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As argparse does, with the value of `--tenant` put where the argument stands."""
        return super().parse_known_args(_in_front(args) if self._tenant_first and args else args, namespace)


def _in_front(words: Sequence[str]) -> list[str]:
    found: list[str] = []
    rest: list[str] = []
    waiting = iter(words)
    for word in waiting:
        if word == "--":
            rest += [word, *waiting]
        elif word == _FLAG:
            found += [value for value in [next(waiting, None)] if value is not None]
        elif word.startswith(f"{_FLAG}="):
            found.append(word.partition("=")[2])
        else:
            rest.append(word)
    return [*found, *rest]
