"""`turnpike files`: the files that a tenant's projects keep, and the removal of one."""

from __future__ import annotations

import argparse
from typing import Any

from turnpike.api.actions import Flag, Object, add_action
from turnpike.command_line import CommandParser

_TENANT = Flag("whose files they are", metavar="NAME", required=True)
_FILE = Flag("its id, from the list", metavar="ID")


def add_arguments(parser: CommandParser) -> None:
    """Declare `turnpike files …`."""
    flags: dict[str, Any] = {
        "tenant": _TENANT,
        "project": Flag("only of this project", metavar="NAME"),
        "purpose": Flag("only those of it"),
        "limit": Flag("how many; default: all"),
    }
    add_action(
        parser,
        "list",
        "the files, the newest first",
        "list_files",
        flags=flags,
        columns={
            **{"id": "id", "project": "project", "name": "filename", "purpose": "purpose", "bytes": "bytes"},
            **{"made": "created_at", "kept until": "expires_at"},
        },
        empty="none",
    )
    add_action(
        parser,
        "show",
        "one file, without its content",
        "retrieve_file",
        arguments=("file",),
        flags={"tenant": _TENANT, "file": _FILE},
        show=_described,
    )
    add_action(
        parser,
        "delete",
        "delete a file; one that a running batch reads stays",
        "delete_file",
        arguments=("file",),
        flags={"tenant": _TENANT, "file": _FILE},
        show="the file {id} is deleted",
    )


def _described(file: Object, _: argparse.Namespace) -> str:
    kept = file["expires_at"] or "it is deleted"
    return "\n".join(
        (
            f"{file['id']}: {file['filename']}",
            f"  project  {file['project'] or file['project_id']}",
            f"  purpose  {file['purpose']}",
            f"  bytes    {file['bytes']}",
            f"  made     {file['created_at']}",
            f"  kept     until {kept}",
        )
    )
