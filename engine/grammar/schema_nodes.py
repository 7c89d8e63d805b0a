"""Walks JSON schemas: the schemas within a schema, what a reference leads to, and how a keyword is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

from engine.grammar.guide import InvalidGrammar

Schema: TypeAlias = dict[str, Any]

MAX_REFERENCES_DEEP = 500
"""The longest chain of `$ref`s: the library follows them by recursion."""
_ONE = ("items", "additionalItems", "additionalProperties")
_MANY = ("allOf", "anyOf", "oneOf", "prefixItems", "items")
NAMED = ("properties", "patternProperties")


class Node(NamedTuple):
    """A schema within a root that constrains some value, and its path."""

    schema: Schema
    path: str


def walk_schema(root: Any, visit: Callable[[Schema, str], None]) -> list[Node]:
    """Visit each schema within the root before those within it; returns them. A visit may rewrite its schema.

    Definitions are visited only where a `$ref` leads to them. Raises InvalidGrammar.
    """
    nodes: list[Node] = []
    seen: set[int] = set()
    waiting: list[tuple[Any, str, int]] = [(root, "", 0)]
    while waiting:
        schema, path, references = waiting.pop()
        if not isinstance(schema, dict) or id(schema) in seen:
            continue
        seen.add(id(schema))
        if references > MAX_REFERENCES_DEEP:
            raise InvalidGrammar(f"a chain of more than {MAX_REFERENCES_DEEP} references")
        visit(schema, path)
        nodes.append(Node(schema, path))
        waiting += [(inner, f"{path}.{place}", references) for place, inner in inner_schemas(schema)]
        if isinstance(target := schema.get("$ref"), str):
            waiting.append((resolve_reference(root, target), target, references + 1))
    return nodes


def inner_schemas(schema: Schema) -> list[tuple[str, Any]]:
    """The schemas directly within a schema, each with its place."""
    inner = [(key, schema[key]) for key in _ONE if key in schema]
    for key in _MANY:
        inner += [(f"{key}[{at}]", item) for at, item in enumerate(list_of(schema, key))]
    for key in NAMED:
        if isinstance(named := schema.get(key), dict):
            inner += [(f"{key}.{name}", item) for name, item in named.items()]
    return inner


def resolve_reference(root: Any, reference: str) -> Any:
    """The target of a reference within the schema; None if there is none, which the library then reports."""
    if not reference.startswith("#"):
        return None
    target = root
    for part in reference[1:].split("/")[1:]:
        key = part.replace("~1", "/").replace("~0", "~")
        if isinstance(target, dict):
            target = target.get(key)
        elif isinstance(target, list) and len(key) < 7 and key.isdecimal() and int(key) < len(target):
            target = target[int(key)]
        else:
            return None
    return target


def list_of(schema: Schema, key: str) -> list[Any]:
    """The list at a keyword; [] if there is none."""
    value = schema.get(key)
    return value if isinstance(value, list) else []


def types_of(schema: Schema) -> list[Any] | None:
    """The types that a schema lists; None if it lists none."""
    kind = schema.get("type")
    return kind if isinstance(kind, list) or kind is None else [kind]


def unsupported(path: str, keyword: str, advice: str, what: str = "") -> InvalidGrammar:
    """The refusal of a keyword: its path, what of it is not supported, and an alternative."""
    place = f"{path}.{keyword}".lstrip(".")[-120:]
    return InvalidGrammar(f"{place} {what}{' ' if what else ''}is not supported: {advice}")
