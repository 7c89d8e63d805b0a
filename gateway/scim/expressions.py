"""Filters and PATCH operations of SCIM, as functions of JSON objects (RFC 7644, sections 3.4.2.2 and 3.5.2)."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import msgspec

from gateway.scim.schemas import MULTI_VALUED, READ_ONLY, attribute_names, sub_attribute_names

Resource: TypeAlias = dict[str, Any]
_PATH = re.compile(
    r"(?:urn:[A-Za-z0-9:._-]+:)?(?P<attribute>[A-Za-z][\w$-]*)(?:\[(?P<filter>[^\]]*)\])?(?:\.(?P<part>[$\w-]+))?",
    re.ASCII,
)
_TERM = re.compile(
    r'\s*(?P<name>[A-Za-z$][\w$.:-]*)\s+(?P<operator>eq)\s+(?P<value>"(?:[^"\\]|\\.)*"|true|false|-?\d+)\s*',
    re.ASCII | re.IGNORECASE,
)
_AND = re.compile(r"and\b", re.IGNORECASE)
_MOST_FILTER, _MOST_OPERATIONS = 2_000, 1_000


class ScimRefused(Exception):
    """What a SCIM client asked cannot be done. `kind` is RFC 7644's scimType; empty where it has none."""

    def __init__(self, status: int, message: str, kind: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind


def read_filter(text: str) -> dict[str, Any]:
    """What must be equal to what, by names in lower case, of a filter such as `userName eq "ann"`; several terms are
    joined by `and`. Raises ScimRefused."""
    terms: dict[str, Any] = {}
    at = 0
    while len(text) <= _MOST_FILTER and (term := _TERM.match(text, at)):
        name = term["name"].rpartition(":")[2].lower()
        terms[name] = msgspec.json.decode(term["value"] if term["value"][0] == '"' else term["value"].lower())
        at = term.end()
        if at == len(text):
            return terms
        if (joint := _AND.match(text, at)) is None:
            break
        at = joint.end()
    raise ScimRefused(400, 'only filters such as userName eq "ann", joined by and, are understood', "invalidFilter")


def apply_patch(resource: Resource, operations: Any, schema: str) -> Resource:
    """The resource after these operations. Raises ScimRefused."""
    changed = {**resource}
    if not isinstance(operations, list) or not 0 < len(operations) <= _MOST_OPERATIONS:
        raise ScimRefused(400, f"Operations: name 1 to {_MOST_OPERATIONS}", "invalidSyntax")
    for one in operations:
        lowered = {str(name).lower(): value for name, value in one.items()} if isinstance(one, dict) else {}
        verb, path, value = str(lowered.get("op", "")).lower(), lowered.get("path"), lowered.get("value")
        if verb not in ("add", "replace", "remove"):
            raise ScimRefused(400, "op: one of add, replace and remove", "invalidSyntax")
        if path:
            _apply(changed, verb, str(path), value, schema)
        elif verb == "remove":
            raise ScimRefused(400, "remove needs a path", "noTarget")
        elif isinstance(value, dict):
            for name, inner in value.items():
                if name not in ("schemas", "id", "meta"):
                    _apply(changed, verb, str(name), inner, schema)
        else:
            raise ScimRefused(400, "without a path the value is an object", "invalidValue")
    return changed


def select_attributes(resource: Resource, wanted: str, unwanted: str) -> Resource:
    """The resource with the attributes that were asked for alone, or without those that are not wanted."""
    names, excluded = _names(wanted), _names(unwanted)
    return {
        name: value
        for name, value in resource.items()
        if name in ("id", "schemas") or ((not names or name.lower() in names) and name.lower() not in excluded)
    }


def _apply(resource: Resource, verb: str, path: str, value: Any, schema: str) -> None:
    matched = _PATH.fullmatch(path)
    name = None if matched is None else attribute_names(schema).get(matched["attribute"].lower())
    if matched is None:
        raise ScimRefused(400, f"{path[:100]!r} is no path", "invalidPath")
    if name is None:
        if matched["attribute"].lower() in ("id", "meta", "schemas"):
            raise ScimRefused(400, f"{matched['attribute']} cannot be changed", "mutability")
        return  # what is not kept is left out, as in a whole resource
    if name in READ_ONLY:
        raise ScimRefused(400, f"{name} cannot be changed", "mutability")
    part = matched["part"]
    if part is not None:
        part = sub_attribute_names(schema, name).get(part.lower())
        if part is None:
            return
    if name in MULTI_VALUED:
        _apply_to_list(resource, verb, name, matched["filter"], part=part, value=value)
    elif matched["filter"] is not None:
        raise ScimRefused(400, f"{name} has one value", "invalidPath")
    else:
        _apply_to_one(resource, verb, name, part, value)


def _apply_to_one(resource: Resource, verb: str, name: str, part: str | None, value: Any) -> None:
    if part is not None:
        inner = {**(resource.get(name) or {})}
        if verb == "remove":
            inner.pop(part, None)
        else:
            inner[part] = value
        resource[name] = inner
    elif verb == "remove":
        resource.pop(name, None)
    elif verb == "add" and isinstance(value, dict) and isinstance(resource.get(name), dict):
        resource[name] = {**resource[name], **value}
    else:
        resource[name] = value


def _apply_to_list(
    resource: Resource, verb: str, name: str, condition: str | None, *, part: str | None, value: Any
) -> None:
    present = [{**one} for one in resource.get(name) or [] if isinstance(one, dict)]
    if condition is None and part is None:
        resource[name] = _whole_list(verb, present, value)
        return
    terms = {} if condition is None else read_filter(condition)
    if verb == "remove":
        resource[name] = (
            [one for one in present if not _fits(one, terms)] if part is None else _each(present, terms, _drop(part))
        )
        return
    new = {part: value} if part is not None else value
    if not isinstance(new, dict):
        raise ScimRefused(400, f"{name}: a value is an object", "invalidValue")
    if not any(_fits(one, terms) for one in present):
        present.append({**terms})
    resource[name] = _one_primary(_each(present, terms, lambda one: {**one, **new}), new)


def _whole_list(verb: str, present: list[Resource], value: Any) -> list[Resource]:
    given = [
        one if isinstance(one, dict) else {"value": one} for one in (value if isinstance(value, list) else [value])
    ]
    given = [one for one in given if one != {"value": None}]
    keys = {one.get("value") for one in given}
    if verb == "remove":
        return [one for one in present if one.get("value") not in keys] if given else []
    if verb == "replace":
        return given
    kept = [one for one in present if one.get("value") not in keys] + given
    return _one_primary(kept, *given)


def _one_primary(items: list[Resource], *new: Resource) -> list[Resource]:
    """The items, of which at most one is primary: one that was just said to be it."""
    if not any(one.get("primary") is True for one in new):
        return items
    last = max(place for place, one in enumerate(items) if one.get("primary") is True)
    return [
        {**one, "primary": False} if place != last and one.get("primary") is True else one
        for place, one in enumerate(items)
    ]


def _each(items: list[Resource], terms: Mapping[str, Any], change: Callable[[Resource], Resource]) -> list[Resource]:
    return [change(one) if _fits(one, terms) else one for one in items]


def _drop(part: str) -> Callable[[Resource], Resource]:
    return lambda one: {name: value for name, value in one.items() if name != part}


def _fits(one: Resource, terms: Mapping[str, Any]) -> bool:
    lowered = {name.lower(): value for name, value in one.items()}
    return all(lowered.get(name) == value for name, value in terms.items())


def _names(text: str) -> frozenset[str]:
    """The attributes in a list, without their schema and parts, in lower case."""
    return frozenset(
        name.strip().rpartition(":")[2].partition(".")[0].lower() for name in text.split(",") if name.strip()
    )
