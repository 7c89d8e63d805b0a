"""The arguments of `turnpike budgets …`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from turnpike.commands.tenant_argument import CommandParser
from turnpike.settings.settings import ADMIN


def declare(tree: Any, command: Callable[[str, str], Any]) -> None:
    """Add the group to the tree of commands."""
    budgets = tree.group("budgets", "what a tenant, a project, a key or a tag may use")

    def leaf(name: str, text: str, function: str) -> CommandParser:
        parser: CommandParser = tree.leaf(budgets, name, text, ADMIN, command("budgets", function))
        parser.add_tenant_first()
        return parser

    put = leaf("set", "set a budget, or change it; it counts from now on", "set_budget")
    put.add_argument("limit", help="in the currency's units, such as 25.00")
    put.add_argument("--project", help="for this project alone")
    put.add_argument("--key", help="for this key alone: its public id")
    put.add_argument("--tag", help="for requests whose metadata.tag is this")
    put.add_argument("--window", choices=["month", "day", "total"], default="month", help="in UTC; default: month")
    put.add_argument("--action", choices=["block", "notify"], default="block", help="at the limit; default: block")
    put.add_argument(
        "--thresholds",
        default="50,80,100",
        metavar="PERCENT",
        help="of the limit, when webhooks are told; default: %(default)s",
    )
    put.add_argument("--dry-run", action="store_true", help="check, and write nothing")
    leaf("list", "budgets with what was used of them", "list_budgets")
    remove = leaf("remove", "take a budget out of force", "remove_budget")
    remove.add_argument("budget", help="its id, from the list")
    remove.add_argument("--dry-run", action="store_true", help="say what would change, and write nothing")
