"""`turnpike periods`: list and close billing periods."""

from __future__ import annotations

import sys
from typing import Any

from turnpike.api.actions import Flag, Object, add_action
from turnpike.command_line import CommandParser


def add_arguments(parser: CommandParser) -> None:
    """Declare `turnpike periods …`."""
    add_action(
        parser,
        "list",
        "the periods, and what those that have ended wait for",
        "list_periods",
        columns={
            **{"period": "period", "state": "state", "ends at": "ends_at"},
            "closed at": lambda period: period["closed_at"] or "",
            "root": lambda period: (period["root"] or "")[:16],
        },
        after=_say_reasons,
    )
    add_action(
        parser,
        "close",
        "close a period that has ended and waits for nothing; the worker does so by itself",
        "close_period",
        arguments=("period",),
        flags={"period": "such as 2026-11"},
        show=_closed,
    )
    add_action(
        parser,
        "declare-dead",
        "let no period wait for a gateway epoch that is lost together with its spool",
        "declare_epoch_dead",
        arguments=("epoch",),
        flags={"epoch": "as the list names it", "reason": Flag("what happened to it; kept with the epoch")},
        show="epoch {epoch} of gateway {gateway} is {state}: no period waits for it",
    )


def _closed(period: Object, _parsed: Any) -> str:
    if period["state"] != "closed":
        return f"{period['period']} can be closed; nothing was written"
    return f"{period['period']} is closed since {period['closed_at']}"


def _say_reasons(periods: Object) -> None:
    for period in periods["data"]:
        for reason in period["waits_for"]:
            print(f"{period['period']} waits: {reason}", file=sys.stderr)
