"""`turnpike budgets`: limit what a tenant, project, key or tag may use."""

from __future__ import annotations

import argparse

from turnpike.api.actions import Cell, Flag, Object, add_action
from turnpike.command_line import CommandParser


def add_arguments(parser: CommandParser) -> None:
    """Declare `turnpike budgets …`."""
    add_action(
        parser,
        "set",
        "set a budget, or change it; it counts from now on",
        "set_budget",
        arguments=("tenant", "limit"),
        flags={
            "limit": "in the currency's units, such as 25.00",
            "project": "for this project alone",
            "key": "for this key alone: its public id",
            "tag": "for requests whose metadata.tag is this",
            "window": Flag("in UTC; default: month", default="month"),
            "action": Flag("at the limit; default: block", default="block"),
            "thresholds": Flag(
                "parts of the limit at which webhooks are sent; default: %(default)s",
                metavar="PERCENT",
                default="50,80,100",
            ),
        },
        show=_set,
    )
    columns: dict[str, Cell] = {
        **{"budget": "id", "scope": "scope", "subject": _subject, "window": "window", "limit": "limit"},
        **{"spent": "spent", "held": "held", "action": "action"},
        "resets": lambda budget: (budget["resets_at"] or "never")[:10],
    }
    text = "budgets with what was used of them"
    add_action(parser, "list", text, "list_budgets", arguments=("tenant",), columns=columns)
    add_action(
        parser,
        "remove",
        "end a budget",
        "remove_budget",
        arguments=("tenant", "budget"),
        flags={"budget": "its id, from the list"},
        show=lambda budget, _: f"{'removed' if budget['deleted'] else 'would remove'} {budget['id']}",
    )


def _subject(budget: Object) -> str:
    return str(budget["subject"] if budget["scope"] == "key" else budget["name"])


def _set(budget: Object, arguments: argparse.Namespace) -> str:
    if arguments.api_dry_run:
        replaced = f", in place of {budget['replaces']}" if budget["replaces"] else ""
        return f"would set {arguments.api_limit} for {arguments.tenant}{replaced}; nothing was written"
    whose = f"the {budget['scope']} {_subject(budget)}" if budget["name"] else arguments.tenant
    money = f"{budget['limit']} {budget['currency']}"
    return f"set budget {budget['id']}: {money} for {whose}, window {budget['window']}, {budget['action']}"
