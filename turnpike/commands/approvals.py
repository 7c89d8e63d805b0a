"""`turnpike approvals`: changes that take two operators: list them, approve another's, withdraw one."""

from __future__ import annotations

import argparse
from typing import Any

from turnpike.api.actions import Flag, Object, add_action, add_work, print_json, print_objects, tenant_names
from turnpike.api.client import Api
from turnpike.command_line import CommandParser

_CHANGE = Flag("such as change_… or price_sheet_7", metavar="ID")
_REASON = "why; kept with the change and in the audit log"


def add_arguments(parser: CommandParser) -> None:
    """Declare `turnpike approvals …`."""
    listing = add_work(parser, "list", "what waits for a second operator", _list)
    listing.add_argument("--all", action="store_true", help="what was approved or withdrawn too")
    listing.add_format("json")
    show = add_action(
        parser,
        "show",
        "one change, with all that it says",
        "retrieve_approval",
        arguments=("change",),
        flags={"change": _CHANGE},
    )
    show.set_defaults(format="json")
    for name, text in (
        ("approve", "make a change that another operator proposed"),
        ("withdraw", "end a change without making it"),
    ):
        add_action(
            parser,
            name,
            text,
            f"{name}_change",
            arguments=("change",),
            flags={"change": _CHANGE, "reason": _REASON},
            show=_decided,
        )


async def _list(api: Api, parsed: argparse.Namespace) -> None:
    changes = await api.pages("list_approvals", state=None if parsed.all else "pending")
    if print_json(parsed, changes):
        return
    names = await tenant_names(api)
    print_objects(
        changes["data"],
        {
            **{"change": "id", "kind": "kind", "tenant": lambda change: names.get(change["tenant_id"], "-")},
            **{"says": "summary", "state": "state"},
            "by": lambda change: ", ".join(filter(None, (change["author"], change["decider"]))),
            **{"at": "created_at", "why": "reason"},
        },
    )


def _decided(change: Object, parsed: Any) -> str:
    verb = "would be approved, nothing written" if getattr(parsed, "api_dry_run", False) else change["state"]
    return f"{change['id']} ({change['summary']}): {verb}" + (f": {change['result']}" if change["result"] else "")
