"""What a document of the API must be, as functions that return what is wrong, a line each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from jsonschema import Draft202012Validator
from litestar import Litestar

from gateway.openapi.document import described_routes, operations_of

Document = Mapping[str, Any]


def undescribed_routes(app: Litestar) -> list[str]:
    return [f"{one.method} {one.path}: no describes(…)" for one in described_routes(app) if one.operation is None]


def drift(app: Litestar, document: Document) -> list[str]:
    """Operations that only one of the two has."""
    routes = {(one.method, one.path) for one in described_routes(app)}
    written = {(method, path) for method, path, _ in operations_of(document)}
    return [
        *(f"{method} {path} is not in the document" for method, path in sorted(routes - written)),
        *(f"{method} {path} is no route" for method, path in sorted(written - routes)),
    ]


def bare_operations(document: Document) -> list[str]:
    """Operations without description, answer or example, and with an id that another has."""
    wrong = []
    ids = Counter(operation["operationId"] for _, _, operation in operations_of(document))
    for method, path, operation in operations_of(document):
        where = f"{method} {path}"
        if ids[operation["operationId"]] > 1:
            wrong.append(f"{where}: another operation has the id {operation['operationId']}")
        if not operation["description"] or not operation["summary"]:
            wrong.append(f"{where}: no description")
        if not any(status.startswith(("2", "30")) for status in operation["responses"]):
            wrong.append(f"{where}: no answer")
        wrong += [
            f"{where}: parameter {parameter['name']} has no description or example"
            for parameter in operation.get("parameters", ())
            if not parameter["description"] or parameter.get("example") is None
        ]
        for what, content in contents(operation):
            wrong += [
                f"{where}: {what} {kind} has no example"
                for kind, media in content.items()
                if "example" not in media and kind.startswith(("text/", "application/json"))
            ]
        for status, answer in operation["responses"].items():
            if not answer.get("content") and status not in ("204", "302", "303"):
                wrong.append(f"{where}: answer {status} has no content")
    return wrong


def empty_schemas(document: Document) -> list[str]:
    """Objects without properties, and schemas that say nothing."""
    wrong = []
    for name, schema in document["components"]["schemas"].items():
        wrong += [f"{name}{at}" for at in _empty(schema)]
    for method, path, operation in operations_of(document):
        for what, content in contents(operation):
            for kind, media in content.items():
                if kind == "application/json" and not isinstance(media.get("example"), str):
                    wrong += [f"{method} {path}: {what}{at}" for at in _empty(media["schema"])]
    return wrong


def wrong_examples(document: Document) -> list[str]:
    """Examples that their own schemas do not allow."""
    wrong = []
    for method, path, operation in operations_of(document):
        for what, content in contents(operation):
            media = content.get("application/json")
            if media and "example" in media:
                wrong += _errors(document, media["schema"], media["example"], f"{method} {path}: {what}")
        for parameter in operation.get("parameters", ()):
            if "example" in parameter:
                where = f"{method} {path}: parameter {parameter['name']}"
                wrong += _errors(document, parameter["schema"], parameter["example"], where)
    return wrong


def contents(operation: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    if "requestBody" in operation:
        yield "body", operation["requestBody"]["content"]
    for status, answer in operation["responses"].items():
        yield f"answer {status}", answer.get("content", {})


def validator(document: Document, schema: Any) -> Draft202012Validator:
    return Draft202012Validator({"$ref": "#/$defs/it", "$defs": {"it": schema}, "components": document["components"]})


def _errors(document: Document, schema: Any, example: Any, where: str) -> list[str]:
    return [
        f"{where}: {error.json_path}: {error.message[:200]}"
        for error in validator(document, schema).iter_errors(example)
    ]


def _empty(schema: Any, at: str = "") -> Iterator[str]:
    if not schema:
        yield f"{at} says nothing"
        return
    if not isinstance(schema, Mapping):
        return
    kinds = {"$ref", "anyOf", "enum", "type", "const"}
    if not kinds & set(schema):
        yield f"{at} says no type"
    types = schema.get("type", ())
    open_object = "object" in ([types] if isinstance(types, str) else types) and "additionalProperties" not in schema
    if open_object and not schema.get("properties"):
        yield f"{at} is an object without properties"
    for name, inner in schema.get("properties", {}).items():
        yield from _empty(inner, f"{at}.{name}")
    if schema.get("type") == "array" and schema.get("maxItems") != 0 and "prefixItems" not in schema:
        yield from _empty(schema.get("items"), f"{at}[]")
    for index, inner in enumerate(schema.get("anyOf", ())):
        yield from _empty(inner, f"{at}({index})")
