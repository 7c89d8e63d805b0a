"""Prepares JSON schemas for the grammar library: rewrites keywords that it lacks, and refuses what it cannot express.

The library refuses most unknown keywords, but ignores some that constrain a value. Refusals name the JSON path, the
keyword and an alternative. Definitions are checked only where a `$ref` leads to them.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from engine.grammar.guide import InvalidGrammar

Schema: TypeAlias = dict[str, Any]

MAX_REFERENCES_DEEP = 500
"""The longest chain of `$ref`s: the library follows them by recursion."""

_UNSUPPORTED = {
    "uniqueItems": "leave it out and drop duplicates afterwards, or use an object with a boolean for each item",
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
    "contentEncoding": "describe the text with `pattern`",
    "contentMediaType": "describe the value itself instead of a text that holds it",
    "contentSchema": "describe the value itself instead of a text that holds it",
    "extends": "use `allOf`",
    "disallow": "list what is allowed with `enum` or `anyOf`",
    "divisibleBy": "use `multipleOf`",
    "x-guidance": "leave it out: how JSON is written is decided here",
}
_FORMATS = frozenset(
    ["date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "time", "unknown", "uri", "uuid"]
)
_ANY_TEXT_FORMATS = frozenset(["binary", "directory-path", "file-path", "password", "path"])
"""Formats that pydantic writes and that any string satisfies."""
_ONE = ("items", "additionalItems", "additionalProperties")
_MANY = ("allOf", "anyOf", "oneOf", "prefixItems", "items")
_NAMED = ("properties", "patternProperties")
_NAME_KEYWORDS = frozenset(
    ["type", "enum", "const", "pattern", "minLength", "maxLength", "title", "description", "$ref"]
)


def prepare_schema(root: Any) -> Any:
    """Rewrite a parsed schema in place and return it. Raises InvalidGrammar that names path and keyword."""
    seen: set[int] = set()
    waiting: list[tuple[Any, str, int]] = [(root, "", 0)]
    while waiting:
        schema, path, references = waiting.pop()
        if not isinstance(schema, dict) or id(schema) in seen:
            continue
        seen.add(id(schema))
        if references > MAX_REFERENCES_DEEP:
            raise InvalidGrammar(f"a chain of more than {MAX_REFERENCES_DEEP} references")
        _prepare(root, schema, path)
        waiting += [(inner, f"{path}.{place}", references) for place, inner in _inner(schema)]
        if isinstance(target := schema.get("$ref"), str):
            waiting.append((_resolve(root, target), target, references + 1))
    return root


def _inner(schema: Schema) -> list[tuple[str, Any]]:
    found = [(key, schema[key]) for key in _ONE if key in schema]
    for key in _MANY:
        if isinstance(listed := schema.get(key), list):
            found += [(f"{key}[{at}]", inner) for at, inner in enumerate(listed)]
    for key in _NAMED:
        if isinstance(named := schema.get(key), dict):
            found += [(f"{key}.{name}", inner) for name, inner in named.items()]
    return found


def _prepare(root: Any, schema: Schema, path: str) -> None:
    if schema.get("uniqueItems") is False or _at_most(schema, "maxItems", 1):
        schema.pop("uniqueItems", None)
    if "propertyNames" in schema:
        _rewrite_names(root, schema, path)
    for keyword in schema:
        if keyword in _UNSUPPORTED:
            raise _unsupported(path, keyword, _UNSUPPORTED[keyword])
    if not isinstance(schema.get("required", []), list):
        raise _unsupported(path, "required", "list the names beside `properties`", "that is no list")
    _check_count(schema, path)
    types = schema.get("type", "string")
    if "string" in (types if isinstance(types, list) else [types]):
        _prepare_text(schema, path)


def _prepare_text(schema: Schema, path: str) -> None:
    form = schema.get("format")
    if form in _ANY_TEXT_FORMATS:
        del schema["format"]
    elif isinstance(form, str) and form not in _FORMATS:
        raise _unsupported(path, "format", "describe the text with `pattern`", f"{form!r}")


def _check_count(schema: Schema, path: str) -> None:
    """Refuse a `minProperties` that names beyond the required ones must meet: such a name may come twice."""
    least, required = schema.get("minProperties"), schema.get("required", [])
    if isinstance(least, int | float) and least > len(required) + 1 and schema.get("additionalProperties") is not False:
        raise _unsupported(path, "minProperties", "list the names as `required`", f"above {len(required) + 1}")


def _rewrite_names(root: Any, schema: Schema, path: str) -> None:
    """Rewrite `propertyNames` as `properties` or `patternProperties`. Raises InvalidGrammar."""
    advice = "list the names as `properties`, or describe them with `patternProperties`"
    names: Any = schema["propertyNames"]
    for _ in range(MAX_REFERENCES_DEEP):
        if not (isinstance(names, dict) and isinstance(target := names.get("$ref"), str)):
            break
        names = _resolve(root, target)
    if names is True or (isinstance(names, dict) and not names.keys() - {"type", "title", "description"}):
        del schema["propertyNames"]
        return
    if not isinstance(names, dict) or names.keys() - _NAME_KEYWORDS or schema.keys() & set(_NAMED):
        raise _unsupported(path, "propertyNames", advice)
    values = schema.get("additionalProperties", True)
    if "enum" in names or "const" in names:
        if names.keys() & {"pattern", "minLength", "maxLength"} or ("enum" in names and "const" in names):
            raise _unsupported(path, "propertyNames", advice)
        listed = names.get("enum", [names.get("const")])
        schema["properties"] = {name: values for name in listed if isinstance(name, str)}
    elif "pattern" in names and not names.keys() & {"minLength", "maxLength"}:
        schema["patternProperties"] = {names["pattern"]: values}
    elif "pattern" not in names:
        least, most = names.get("minLength", 0), names.get("maxLength", "")
        schema["patternProperties"] = {rf"^[\s\S]{{{least},{most}}}$": values}
    else:
        raise _unsupported(path, "propertyNames", advice)
    schema["additionalProperties"] = False
    del schema["propertyNames"]


def _resolve(root: Any, reference: str) -> Any:
    """The target of a reference within the schema; None if there is none, which the library then reports."""
    if not reference.startswith("#"):
        return None
    found = root
    for part in reference[1:].split("/")[1:]:
        key = part.replace("~1", "/").replace("~0", "~")
        if isinstance(found, dict):
            found = found.get(key)
        elif isinstance(found, list) and len(key) < 7 and key.isdecimal() and int(key) < len(found):
            found = found[int(key)]
        else:
            return None
    return found


def _at_most(schema: Schema, keyword: str, most: int) -> bool:
    value = schema.get(keyword)
    return isinstance(value, int | float) and value <= most


def _unsupported(path: str, keyword: str, advice: str, what: str = "") -> InvalidGrammar:
    place = f"{path}.{keyword}".lstrip(".")[-120:]
    return InvalidGrammar(f"{place} {what}{' ' if what else ''}is not supported: {advice}")
