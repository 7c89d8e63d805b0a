"""Finds schemas that no finite value fulfils, such as a list node whose next node is required.

An output under one would never end. Where such a schema is optional, it is forbidden instead, so that no output begins
what it cannot end; where the root needs it, the root is refused. A schema is taken to have a value unless its own
keywords show that it has none: the least fixed point of that leaves the schemas that only lead in a circle.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from engine.grammar.guide import InvalidGrammar
from engine.grammar.schema_nodes import NAMED, Node, Schema, list_of, resolve_reference, types_of

_SCALARS = frozenset(["string", "number", "integer", "boolean", "null"])


def forbid_endless(root: Any, nodes: Sequence[Node]) -> None:
    """Rewrite in place each schema without a finite value as `false`. Raises InvalidGrammar if the root has none."""
    ending: set[int] = set()
    waiting = list(reversed(nodes))  # those within others come first, mostly
    while True:
        rest = [node for node in waiting if not _settle(root, node, ending)]
        if len(rest) == len(waiting):
            break
        waiting = rest[::-1]
    if any(node.schema is root for node in waiting):
        raise InvalidGrammar(
            f"{_circle(root, nodes, ending)}no finite value fulfils it: let something in it be optional"
        )
    endless = {id(node.schema) for node in waiting}
    for schema, _ in nodes if endless else ():
        for key, inner in schema.items():
            if key in NAMED and isinstance(inner, dict):
                schema[key] = {name: id(item) not in endless and item for name, item in inner.items()}
            elif isinstance(inner, list):
                schema[key] = [id(item) not in endless and item for item in inner]
            elif id(inner) in endless:
                schema[key] = False


def _settle(root: Any, node: Node, ending: set[int]) -> bool:
    if any(True for _ in _obstacles(root, node.schema, ending)):
        return False
    ending.add(id(node.schema))
    return True


def _obstacles(root: Any, schema: Schema, ending: set[int]) -> Iterator[tuple[str, Any]]:
    """The schemas that this one needs and that are not known to have a finite value, each with its place."""
    if isinstance(target := schema.get("$ref"), str):
        yield from _unless(ending, ("$ref", resolve_reference(root, target)))
    for at, inner in enumerate(list_of(schema, "allOf")):
        yield from _unless(ending, (f"allOf[{at}]", inner))
    for key in ("anyOf", "oneOf"):
        options = [(f"{key}[{at}]", inner) for at, inner in enumerate(list_of(schema, key))]
        yield from _unless_any(ending, [[option] for option in options])
    types = types_of(schema)
    if types is None or "const" in schema or "enum" in schema or not _SCALARS.isdisjoint(map(str, types)):
        return
    kinds = [_required_members(schema)] if "object" in types else []
    kinds += [_required_items(schema)] if "array" in types else []
    yield from _unless_any(ending, kinds)


def _required_members(schema: Schema) -> list[tuple[str, Any]]:
    properties, others = schema.get("properties"), schema.get("additionalProperties", True)
    named = properties if isinstance(properties, dict) else {}
    members = []
    for name in list_of(schema, "required"):
        if name in named:
            members.append((f"properties.{name}", named[name]))
        elif not schema.get("patternProperties"):
            members.append(("additionalProperties", others))
    return members


def _required_items(schema: Schema) -> list[tuple[str, Any]]:
    least = schema.get("minItems", 0)
    first, rest = "prefixItems", "items"
    if isinstance(schema.get("items"), list):
        first, rest = "items", "additionalItems"
    given = list_of(schema, first)
    items = [(f"{first}[{at}]", item) for at, item in enumerate(given) if isinstance(least, int) and at < least]
    return [*items, (rest, schema.get(rest, True))] if isinstance(least, int) and least > len(given) else items


def _unless(ending: set[int], *needed: tuple[str, Any]) -> Iterator[tuple[str, Any]]:
    for place, inner in needed:
        if inner is False or (isinstance(inner, dict) and id(inner) not in ending):
            yield place, inner


def _unless_any(ending: set[int], ways: list[list[tuple[str, Any]]]) -> Iterator[tuple[str, Any]]:
    """What stands in the way of the first one, if something stands in the way of each."""
    obstacles = [list(_unless(ending, *way)) for way in ways]
    if obstacles and all(obstacles):
        yield from obstacles[0]


def _circle(root: Any, nodes: Sequence[Node], ending: set[int]) -> str:
    """The place, below the root, where the first circle of needs closes, and a colon; "" for the root itself."""
    paths = {id(node.schema): node.path for node in nodes}
    schema, passed, place = root, set[int](), ""
    while isinstance(schema, dict) and id(schema) not in passed:
        passed.add(id(schema))
        key, inner = next(_obstacles(root, schema, ending))
        place, schema = f"{paths[id(schema)]}.{key}".lstrip("."), inner
    return f"{place[-120:]}: " if place else ""
