"""Prepares JSON schemas for the grammar library: rewrites keywords that it lacks, and refuses what it cannot express.

The library refuses most unknown keywords, but ignores some that constrain a value. Refusals name the JSON path, the
keyword and an alternative. Definitions are checked only where a `$ref` leads to them.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any, NamedTuple

from engine.grammar.schema_choices import rewrite_choices
from engine.grammar.schema_ends import forbid_endless
from engine.grammar.schema_nodes import (
    MAX_REFERENCES_DEEP,
    NAMED,
    Node,
    Schema,
    resolve_reference,
    unsupported,
    walk_schema,
)
from engine.grammar.schema_numbers import prepare_numbers
from engine.grammar.schema_texts import prepare_texts

_UNSUPPORTED = {
    "contains": "describe the item at its place with `prefixItems`",
    "minContains": "describe the items at their places with `prefixItems`",
    "maxContains": "describe the items at their places with `prefixItems`",
    "not": "list what is allowed with `enum` or `anyOf`",
    "if": "write the cases as `anyOf`",
    "then": "write the cases as `anyOf`",
    "else": "write the cases as `anyOf`",
    "dependentRequired": "write the cases as `anyOf`",
    "dependentSchemas": "write the cases as `anyOf`",
    "dependencies": "write the cases as `anyOf`",
    "unevaluatedProperties": "use `additionalProperties` beside `properties`",
    "unevaluatedItems": "use `items` beside `prefixItems`",
    "$dynamicRef": "use `$ref`",
    "$dynamicAnchor": "use `$defs` and `$ref`",
    "$recursiveRef": "use `$ref`",
    "$recursiveAnchor": "use `$defs` and `$ref`",
    "extends": "use `allOf`",
    "disallow": "list what is allowed with `enum` or `anyOf`",
    "divisibleBy": "use `multipleOf`",
    "x-guidance": "leave it out: how JSON is written is decided here",
}
_COUNTS = frozenset(["minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties"])
_DRAFTS = frozenset(
    [f"https://json-schema.org/draft/{year}/schema" for year in ("2020-12", "2019-09")]
    + [f"http://json-schema.org/draft-0{number}/schema{end}" for number in (4, 6, 7) for end in ("", "#")]
)
"""What the library knows; it refuses others, which say nothing of a value."""
_UNPRINTABLE = re.compile(r"\\u00[01]|\x7f")
_NAME_KEYWORDS = frozenset(
    ["type", "enum", "const", "pattern", "minLength", "maxLength", "title", "description", "$ref"]
)


class PreparedSchema(NamedTuple):
    """`open_names`: some object lists names or patterns of names and lets others through too."""

    schema: Any
    open_names: bool


def prepare_schema(root: Any) -> PreparedSchema:
    """Rewrite a parsed schema in place and return it. Raises InvalidGrammar that names path and keyword."""
    nodes = walk_schema(root, lambda schema, path: _prepare(root, schema, path))
    forbid_endless(root, nodes)
    rewrite_choices(root, nodes)
    prepare_numbers(nodes)
    prepare_texts(nodes)
    open_names = any(_is_open(node.schema) for node in nodes)
    if open_names:
        for node in nodes:
            _check_spellings(node)
    return PreparedSchema(root, open_names)


def _is_open(schema: Schema) -> bool:
    listed = schema.get("properties") or schema.get("patternProperties") or schema.get("required")
    return bool(listed) and schema.get("additionalProperties") is not False


def _check_spellings(node: Node) -> None:
    """Refuse constants that take `\\u` to write, which is not allowed where names must have one spelling."""
    for keyword in ("const", "enum"):
        if keyword in node.schema and _UNPRINTABLE.search(json.dumps(node.schema[keyword])):
            advice = "set `additionalProperties` to false where it has `properties`, or leave such characters out"
            raise unsupported(node.path, keyword, advice, "with control characters")


def _prepare(root: Any, schema: Schema, path: str) -> None:
    if "propertyNames" in schema:
        _rewrite_names(root, schema, path)
    for keyword in schema:
        if keyword in _UNSUPPORTED:
            raise unsupported(path, keyword, _UNSUPPORTED[keyword])
    if not isinstance(schema.get("required", []), list):
        raise unsupported(path, "required", "list the names beside `properties`", "that is no list")
    for keyword in _COUNTS & schema.keys():
        schema[keyword] = _read_count(schema[keyword], path, keyword)
    if str(schema.get("$schema")) not in _DRAFTS:
        schema.pop("$schema", None)
    _check_count(schema, path)


def _read_count(value: Any, path: str, keyword: str) -> int:
    whole = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf and value % 1 == 0
    if not whole:
        raise unsupported(path, keyword, "give a whole number", repr(value)[:40])
    return int(value)


def _check_count(schema: Schema, path: str) -> None:
    """Refuse a number of names that the grammar would have to count, and leave out one that says nothing."""
    properties, listed = schema.get("properties"), schema.get("required", [])
    required = {str(name) for name in listed}
    names = required | (properties.keys() if isinstance(properties, dict) else set())
    closed = schema.get("additionalProperties") is False and not schema.get("patternProperties")
    if schema.get("minProperties", 0) <= len(required):
        schema.pop("minProperties", None)
    if closed and schema.get("maxProperties", 0) >= len(names):
        schema.pop("maxProperties", None)
    least, most = schema.get("minProperties", 0), schema.get("maxProperties")
    if least > len(required) + 1 and not closed:  # a name beyond the listed ones may come twice
        raise unsupported(path, "minProperties", "list the names as `required`", f"above {len(required) + 1}")
    one = closed and least <= len(required) + 1 and most in (None, len(required) + 1)
    if names > required and not one and (least or most is not None):
        keyword = "minProperties" if least else "maxProperties"
        raise unsupported(path, keyword, "list all names as `required`", "beside names that are not required")


def _rewrite_names(root: Any, schema: Schema, path: str) -> None:
    """Rewrite `propertyNames` as `properties` or `patternProperties`. Raises InvalidGrammar."""
    advice = "list the names as `properties`, or describe them with `patternProperties`"
    names: Any = schema["propertyNames"]
    for _ in range(MAX_REFERENCES_DEEP):
        if not (isinstance(names, dict) and isinstance(target := names.get("$ref"), str)):
            break
        names = resolve_reference(root, target)
    if names is True or (isinstance(names, dict) and not names.keys() - {"type", "title", "description"}):
        del schema["propertyNames"]
        return
    kinds = {"enum": list, "pattern": str}
    odd = not isinstance(names, dict) or any(
        not isinstance(names.get(key, kind()), kind) for key, kind in kinds.items()
    )
    if odd or names.keys() - _NAME_KEYWORDS or schema.keys() & set(NAMED):
        raise unsupported(path, "propertyNames", advice)
    values = schema.get("additionalProperties", True)
    if "enum" in names or "const" in names:
        if names.keys() & {"pattern", "minLength", "maxLength"} or ("enum" in names and "const" in names):
            raise unsupported(path, "propertyNames", advice)
        listed = names.get("enum", [names.get("const")])
        schema["properties"] = {name: values for name in listed if isinstance(name, str)}
    elif "pattern" in names and not names.keys() & {"minLength", "maxLength"}:
        schema["patternProperties"] = {names["pattern"]: values}
    elif "pattern" not in names:
        place = f"{path}.propertyNames"
        least = _read_count(names.get("minLength", 0), place, "minLength")
        most = _read_count(names["maxLength"], place, "maxLength") if "maxLength" in names else ""
        schema["patternProperties"] = {rf"^[\s\S]{{{least},{most}}}$": values}
    else:
        raise unsupported(path, "propertyNames", advice)
    schema["additionalProperties"] = False
    del schema["propertyNames"]
