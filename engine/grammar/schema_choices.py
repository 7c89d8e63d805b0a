"""Rewrites `oneOf` and `uniqueItems` in JSON schemas, which a grammar cannot count, as choices that it can hold.

Of schemas that no value fulfils two of, `oneOf` is `anyOf`. A `oneOf` of names that are required says which of them are
there, and so which are not. An array of different items out of a few is one of all such arrays.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from engine.grammar.schema_nodes import Node, Schema, list_of, resolve_reference, types_of, unsupported

_MOST_CHOICES = 100
_DEEPEST = 20
"""Schemas within schemas that are compared to find two apart."""
_MOST_COMPARISONS = 10_000
"""Comparisons of two schemas, or of 64 pairs of values, in one root: choices within choices multiply."""
_SAYS_NOTHING = frozenset(["title", "description", "$comment", "examples", "default"])
_UNIQUE = "leave it out and drop duplicates afterwards, or use an object with a boolean for each item"
_TYPES = frozenset(["string", "fraction", "integer", "boolean", "null", "array", "object"])


@dataclass
class _Comparer:
    """Compares schemas within a root, as often as is left to it."""

    root: Any
    left: int = _MOST_COMPARISONS

    def spend(self, comparisons: int = 1) -> bool:
        """Whether so many more are left to it."""
        self.left -= comparisons
        return self.left >= 0


def rewrite_choices(root: Any, nodes: Sequence[Node]) -> None:
    """Rewrite in place. Raises InvalidGrammar that names path and keyword."""
    comparer = _Comparer(root)
    for schema, path in nodes:
        if isinstance(schema.get("oneOf"), list):
            _rewrite_one_of(comparer, schema, path)
        if schema.get("uniqueItems") is not None:
            _rewrite_unique(root, schema, path)


def _rewrite_one_of(comparer: _Comparer, schema: Schema, path: str) -> None:
    options = schema["oneOf"]
    common, kinds = _names(schema), _kinds(schema)
    pairs = itertools.combinations(options, 2)
    if not all(_are_apart(comparer, one, other, common, kinds=kinds) for one, other in pairs):
        required = [_only_requires(option) for option in options]
        given = [names for names in required if names is not None]
        options = _with_some_absent(given, common) if len(given) == len(required) else []
        if not options:
            advice = "use `anyOf`, or give each a property with a `const` of its own"
            what = "of so many choices" if comparer.left < 0 else "of schemas that one value may fulfil two of"
            raise unsupported(path, "oneOf", advice, what)
    del schema["oneOf"]
    if "anyOf" in schema:
        schema["allOf"] = [*schema.get("allOf", []), {"anyOf": options}]
    else:
        schema["anyOf"] = options


def _only_requires(option: Any) -> frozenset[str] | None:
    """The names that an option requires, if that is all that it says."""
    if not isinstance(option, dict) or option.keys() - _SAYS_NOTHING - {"required", "type"}:
        return None
    return _names(option) if option.get("type", "object") == "object" else None


def _with_some_absent(required: list[frozenset[str]], common: frozenset[str]) -> list[Schema]:
    """Each option, with a name missing of every other one, in all ways; [] if these are too many."""
    options: list[Schema] = []
    for at, names in enumerate(required):
        others = [sorted(other - names - common) for other in required[:at] + required[at + 1 :]]
        for absent in itertools.product(*others):
            forbidden = dict.fromkeys(absent, False)
            options.append({"type": "object", "required": sorted(names), "properties": forbidden})
            if len(options) > _MOST_CHOICES:
                return []
    return options


def _are_apart(
    comparer: _Comparer, one: Any, other: Any, common: frozenset[str], *, kinds: frozenset[str] = _TYPES, depth: int = 0
) -> bool:
    """Whether it is certain that no value fulfils both. `common`: names that any value has if it is an object.
    `kinds`: the types that it may have."""
    if not comparer.spend():
        return False
    one, other = _followed(comparer.root, one), _followed(comparer.root, other)
    if one is False or other is False:
        return True
    if not isinstance(one, dict) or not isinstance(other, dict) or depth > _DEEPEST:
        return False
    common, kinds = common | _names(one) | _names(other), kinds & _kinds(one) & _kinds(other)
    if kinds <= {"object"}:
        for name in common:
            members = _member(one, name), _member(other, name)
            if None not in members and _are_apart(comparer, *members, frozenset(), depth=depth + 1):
                return True
    return not kinds or any(
        _is_apart_within(
            comparer,
            lambda part: _are_apart(comparer, part, that, common, kinds=kinds, depth=depth + 1),  # noqa: B023
            this,
            that,
        )
        for this, that in ((one, other), (other, one))
    )


def _is_apart_within(comparer: _Comparer, is_apart: Callable[[Any], bool], schema: Schema, other: Schema) -> bool:
    """Whether the schemas within one, or the values that it lists, are certainly apart from the other schema."""
    values = _values(schema)
    return (
        (
            values is not None
            and comparer.spend(len(values) * len(_values(other) or [None]) // 64)
            and not any(_may_fulfil(value, other) for value in values)
        )
        or any(choice and all(map(is_apart, choice)) for choice in (list_of(schema, "anyOf"), list_of(schema, "oneOf")))
        or any(map(is_apart, list_of(schema, "allOf")))
    )


def _followed(root: Any, schema: Any) -> Any:
    """The schema that a reference without other keywords leads to."""
    for _ in range(_DEEPEST):
        if not isinstance(schema, dict) or not isinstance(target := schema.get("$ref"), str):
            break
        if schema.keys() - _SAYS_NOTHING - {"$ref"}:
            break
        schema = resolve_reference(root, target)
    return schema


def _member(schema: Schema, name: str) -> Any:
    properties = schema.get("properties")
    if isinstance(properties, dict) and name in properties:
        return properties[name]
    return schema.get("additionalProperties") if not schema.get("patternProperties") else None


def _values(schema: Schema) -> list[Any] | None:
    """The only values that may fulfil a schema; None if it lists none."""
    if "const" in schema:
        return [schema["const"]]
    return schema["enum"] if isinstance(schema.get("enum"), list) else None


def _may_fulfil(value: Any, schema: Schema) -> bool:
    values = _values(schema)
    if values is not None and not any(_same(value, other) for other in values):
        return False
    return not _kinds({"const": value}).isdisjoint(_kinds(schema))


def _same(value: Any, other: Any) -> bool:
    """Whether two JSON values are equal: 1 is 1.0, and true is not 1."""
    if isinstance(value, bool) or isinstance(other, bool):
        return value is other
    if isinstance(value, list) and isinstance(other, list):
        return len(value) == len(other) and all(map(_same, value, other))
    if isinstance(value, dict) and isinstance(other, dict):
        return value.keys() == other.keys() and all(_same(value[name], other[name]) for name in value)
    return bool(value == other)


def _kinds(schema: Schema) -> frozenset[str]:
    """The types that a value may have: a number is an integer or a fraction."""
    values = _values(schema)
    if values is not None:
        return frozenset(map(_kind, values))
    types = types_of(schema)
    if types is None:
        return _TYPES
    return frozenset(kind for name in types for kind in (("integer", "fraction") if name == "number" else (str(name),)))


def _kind(value: Any) -> str:
    if isinstance(value, float):
        return "integer" if value.is_integer() else "fraction"
    names = {bool: "boolean", int: "integer", str: "string", list: "array", dict: "object"}
    return names.get(type(value), "null")


def _rewrite_unique(root: Any, schema: Schema, path: str) -> None:
    most = schema.get("maxItems")
    if schema["uniqueItems"] is not True or (most is not None and most <= 1):
        del schema["uniqueItems"]
        return
    values = _few_values(_followed(root, schema.get("items")))
    arrays = [] if values is None else _arrays(values, schema.get("minItems", 0), most)
    others = schema.keys() & {"prefixItems", "additionalItems", "const", "enum"}
    if not arrays or others or schema.get("type") != "array":
        raise unsupported(path, "uniqueItems", _UNIQUE, "" if values is None else f"of {len(values)} values")
    for keyword in ("uniqueItems", "items", "minItems", "maxItems"):
        schema.pop(keyword, None)
    schema["enum"] = arrays


def _few_values(items: Any) -> list[Any] | None:
    """The different values of items, if these are all that the items' schema says; else None."""
    if not isinstance(items, dict) or items.keys() - _SAYS_NOTHING - {"const", "enum", "type"}:
        return None
    values = _values(items)
    if values is None:
        return [True, False] if items.get("type") == "boolean" else None
    if "type" in items and not {_kind(value) for value in values} <= _kinds({"type": items["type"]}):
        return None
    alike = any(_same(value, other) for value, other in itertools.combinations(values[:_MOST_CHOICES], 2))
    return None if alike else values


def _arrays(values: list[Any], least: int, most: int | None) -> list[list[Any]]:
    """All arrays of different ones of these values, of these lengths; [] if these are too many."""
    arrays: list[list[Any]] = []
    for length in range(least, min(len(values), len(values) if most is None else most) + 1):
        arrays += map(list, itertools.islice(itertools.permutations(values, length), _MOST_CHOICES + 1))
        if len(arrays) > _MOST_CHOICES:
            return []
    return arrays


def _names(schema: Schema) -> frozenset[str]:
    return frozenset(name for name in list_of(schema, "required") if isinstance(name, str))
