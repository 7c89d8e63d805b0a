"""The arguments of `turnpike platform …`."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from turnpike.settings.settings import ADMIN


def declare(tree: Any, command: Callable[[str, str], Any]) -> None:
    """Add the group to the tree of commands."""
    platform = tree.group("platform", "settings of the whole platform, kept in its database")
    tree.leaf(platform, "show", "the settings, and who set them", ADMIN, command("platform", "show_platform"))
    put = tree.leaf(platform, "set", "change a setting", ADMIN, command("platform", "set_platform"))
    put.add_argument("name", metavar="NAME", help="approvals: whether it takes two operators to change a price")
    put.add_argument("value", metavar="VALUE", help="on or off")
    put.add_argument("--reason", default="", help="why; kept in the log")
    add_second_operator(put)


def add_second_operator(parser: argparse.ArgumentParser) -> None:
    """Let a command take the key of a second operator."""
    parser.add_argument(
        "--second-operator-key-file",
        metavar="FILE",
        help="key of a second operator, beside --operator-key-file: needed while approvals are on",
    )
