"""`turnpike batches`: the batches of a tenant, how far each is, and the end of one."""

from __future__ import annotations

import argparse
from typing import Any

from turnpike.api.actions import Flag, Object, add_action
from turnpike.command_line import CommandParser

_TENANT = Flag("whose batches they are", metavar="NAME", required=True)
_BATCH = Flag("its id, from the list", metavar="ID")
_BAR = 20


def add_arguments(parser: CommandParser) -> None:
    """Declare `turnpike batches …`."""
    flags: dict[str, Any] = {
        "tenant": _TENANT,
        "project": Flag("only of this project", metavar="NAME"),
        "state": Flag("only those that run, or have ended"),
        "limit": Flag("how many; default: all"),
    }
    add_action(
        parser,
        "list",
        "the batches, the newest first",
        "list_batches",
        flags=flags,
        columns={
            **{"id": "id", "project": "project", "state": "status", "progress": progress},
            "lines": lambda batch: batch["counts"]["total"],
            "failed": lambda batch: batch["counts"]["failed"],
            **{"cost": cost, "lane": "lane", "ordered": "created_at", "expires": "expires_at"},
        },
        empty="none",
    )
    add_action(
        parser,
        "show",
        "one batch, with what came of its lines",
        "retrieve_batch",
        arguments=("batch",),
        flags={"tenant": _TENANT, "batch": _BATCH},
        show=_described,
    )
    add_action(
        parser,
        "cancel",
        "begin no further line of a batch; those that run are finished, and paid for",
        "cancel_batch",
        arguments=("batch",),
        flags={"tenant": _TENANT, "batch": _BATCH},
        show="batch {id} is {status}",
    )


def progress(batch: Object) -> str:
    """How far a batch is, as a bar and a share."""
    counts = batch["counts"]
    if counts["total"] == 0:
        return "-"
    ended = counts["total"] - counts["left"]
    full = ended * _BAR // counts["total"]
    return f"{'#' * full}{'.' * (_BAR - full)} {ended * 100 // counts['total']} %"


def cost(batch: Object) -> str:
    """What a batch cost until now."""
    return ", ".join(f"{one['amount']} {one['currency']}" for one in batch["cost"]) or "-"


def _described(batch: Object, _: argparse.Namespace) -> str:
    counts, tokens = batch["counts"], batch["tokens"]
    lines = [
        f"{batch['id']}: {batch['status']}",
        f"  project   {batch['project'] or batch['project_id']}, key {batch['key']}",
        f"  endpoint  {batch['endpoint']}, on the lane {batch['lane']}",
        f"  progress  {progress(batch)}",
        "  lines     "
        + ", ".join(
            f"{counts[name]} {name}" for name in ("total", "left", "completed", "failed", "cancelled", "expired")
        ),
        "  tokens    " + ", ".join(f"{tokens[name]} {name}" for name in ("input", "cached", "output", "reasoning")),
        f"  cost      {cost(batch)}",
    ]
    lines += [
        f"  {label:<9} {batch[field]}"
        for label, field in (("ordered", "created_at"), ("expires", "expires_at"), ("ended", "ended_at"))
        if batch[field] is not None
    ]
    for error in batch["errors"]:
        lines.append(f"  error     {error['code']}: {error['message']}")
    return "\n".join(lines)
