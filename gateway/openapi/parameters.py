"""The parameters in paths: what their names mean, and an example of each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from litestar.types.internal_types import PathParameterDefinition

_HEX = "01934f6e0d2a7b3c8e51a9c4d7f60b12"
PATH_PARAMETERS: Mapping[str, tuple[str, Any]] = {
    "adapter": ("The id of an adapter.", f"adapter_{_HEX}"),
    "approval": ("The id of an approval.", f"approval_{_HEX}"),
    "batch": ("The id of a batch.", f"batch_{_HEX}"),
    "budget": ("The name or id of a budget.", "month"),
    "change": ("The id of a change that waits for approval.", f"change_{_HEX}"),
    "day": ("A calendar day (UTC).", "2026-11-22"),
    "delivery": ("The id of a delivery.", "01934f6e-0d2a-7b3c-8e51-a9c4d7f60b12"),
    "endpoint": ("The id of a webhook endpoint.", "01934f6e-0d2a-7b3c-8e51-a9c4d7f60b12"),
    "epoch": ("A gateway's run.", "gateway-0-1795339800"),
    "export": ("The id of an export.", f"export_{_HEX}"),
    "file": ("The id of a file.", f"file_{_HEX}"),
    "grant": ("The id of a grant.", "01934f6e-0d2a-7b3c-8e51-a9c4d7f60b12"),
    "invitation": ("The id of an invitation.", f"invitation_{_HEX}"),
    "invoice": ("The number or id of an invoice.", "2026-0007"),
    "key": ("The public id of a key.", "k7WmXq2ZpR4t"),
    "line": ("The number of a line.", 1),
    "model": ("The name of a model.", "tiny"),
    "name": ("The id of the object.", f"cache_{_HEX}"),
    "number": ("The number of the object.", 7),
    "period": ("A calendar month.", "2026-11"),
    "passkey": ("The id of a passkey.", "01934f6e-0d2a-7b3c-8e51-a9c4d7f60b12"),
    "group": ("The id of a group of a directory.", "01934f6e-0d2a-7b3c-8e51-a9c4d7f60b12"),
    "identity": ("The id of a linked identity.", "01934f6e-0d2a-7b3c-8e51-a9c4d7f60b12"),
    "provider": ("The id of an identity provider.", "01934f6e-0d2a-7b3c-8e51-a9c4d7f60b12"),
    "resource": ("The id of a SCIM resource.", "01934f6e-0d2a-7b3c-8e51-a9c4d7f60b12"),
    "project": ("The name of a project, or `project_<hex>`.", "search"),
    "project_id": ("The id of a project.", "01934f6e-0d2a-7b3c-8e51-a9c4d7f60b12"),
    "receipt": ("The id of money that came in.", "01934f6e-0d2a-7b3c-8e51-a9c4d7f60b12"),
    "reminder": ("The id of a reminder.", "01934f6e-0d2a-7b3c-8e51-a9c4d7f60b12"),
    "replica": ("The name of a replica.", "replica-0"),
    "request": ("The id of a request.", f"req_{_HEX}"),
    "response": ("The id of a kept response.", f"resp_{_HEX}"),
    "seller": ("The name of a seller.", "default"),
    "session": ("The id of a session.", f"session_{_HEX}"),
    "task": ("The id of a task for finance.", "01934f6e-0d2a-7b3c-8e51-a9c4d7f60b12"),
    "tenant": ("The name of a tenant, or `tenant_<hex>`.", "acme"),
    "top_up": ("The id of a top-up.", "01934f6e-0d2a-7b3c-8e51-a9c4d7f60b12"),
    "upload": ("The id of an upload.", f"upload_{_HEX}"),
    "user": ("The id of a user.", f"user_{_HEX}"),
    "path": ("The path of a page, which the script of the console reads.", "/tenants/acme/overview"),
}
"""Name of a parameter → what it is, and an example; `describes(path=...)` gives another example."""
_TYPES: Mapping[type, str] = {int: "integer", float: "number"}


def path_parameter(parameter: PathParameterDefinition, examples: Mapping[str, Any]) -> dict[str, Any]:
    """The document's parameter of one in a path. `examples`: those of the operation."""
    description, example = PATH_PARAMETERS.get(parameter.name, ("", None))
    schema: dict[str, Any] = {"type": _TYPES.get(parameter.type, "string")}
    if schema["type"] == "string":
        schema["minLength"] = 1
    example = examples.get(parameter.name, example)
    return {
        "name": parameter.name,
        "in": "path",
        "required": True,
        "description": description,
        "schema": schema,
        **({} if example is None else {"example": example}),
    }
