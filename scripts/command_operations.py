"""Write `turnpike/api/operations.json`: the operations of /admin/v1 for commands, from the OpenAPI document.

`python scripts/command_operations.py` writes it; tests/turnpike/api/test_operations.py compares.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import msgspec
from litestar.routes import HTTPRoute

from gateway.admin.operation import MADE_BY
from gateway.app import application_of
from gateway.openapi.document import make_document
from gateway.openapi.stand_in import stand_in
from turnpike.api.operations import FILE, Field, Operation

_PREFIX = "admin_"


def content() -> bytes:
    """What the file has to hold."""
    app = application_of(stand_in())
    document = make_document(app, "all")
    factories = {}
    for route in app.routes:
        if isinstance(route, HTTPRoute):
            for handler in route.route_handlers:
                factory, _, rest = handler.fn.__qualname__.partition(".")
                made_by = getattr(handler.fn, MADE_BY, f"{handler.fn.__module__}:{factory}")
                if rest:
                    factories[route.path_format, *handler.http_methods] = made_by
    found = {
        operation["operationId"].removeprefix(_PREFIX): Operation(
            method.upper(), path, factories[path, method.upper()], tuple(_fields(operation, document))
        )
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
        if path.startswith("/admin/v1/") and operation["operationId"].startswith(_PREFIX)
    }
    lines = [f" {msgspec.json.encode(name).decode()}: {_line(found[name])}" for name in sorted(found)]
    return ("{\n" + ",\n".join(lines) + "\n}\n").encode()


def _line(operation: Operation) -> str:
    return msgspec.json.encode(operation).decode()


def _fields(operation: dict[str, Any], document: dict[str, Any]) -> Iterator[Field]:
    schemas = document["components"]["schemas"]
    for parameter in operation.get("parameters", []):
        if parameter.get("in") in ("path", "query"):
            yield _field(parameter["name"], parameter["in"], parameter, parameter["schema"], schemas)
    if "requestBody" not in operation:
        return
    body = next(iter(operation["requestBody"]["content"].values()))["schema"]
    struct = schemas[body["$ref"].rpartition("/")[2]] if "$ref" in body else body
    for name, schema in struct.get("properties", {}).items():
        described = {"required": name in struct.get("required", []), "description": schema.get("description", "")}
        yield _field(name, "body", described, schema, schemas)


def _field(name: str, place: Any, described: dict[str, Any], schema: dict[str, Any], schemas: dict[str, Any]) -> Field:
    forms = [each for each in schema.get("anyOf", [schema]) if each.get("type") != "null"]
    form = schemas[forms[0]["$ref"].rpartition("/")[2]] if "$ref" in forms[0] else forms[0]
    choices, kind = form.get("enum", ()), form.get("type", "string" if form.get("enum") else "object")
    return Field(
        name=name,
        place=place,
        type=kind if isinstance(kind, str) else kind[0],
        items=str(form.get("items", {}).get("type", "object")) if kind == "array" else "",
        choices=tuple(map(str, choices)),
        required=bool(described.get("required")),
        most=form.get("maximum", 0),
        about=described.get("description", ""),
    )


if __name__ == "__main__":
    FILE.write_bytes(content())
