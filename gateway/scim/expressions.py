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
_MOST_VALUES = 100
"""Of a list that operations look through, also between them. Members are found by their ids."""


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
        value = term["value"] if term["value"][0] == '"' else term["value"].lower()
        try:
            terms[name] = msgspec.json.decode(value)
        except msgspec.DecodeError as error:
            raise ScimRefused(400, f"{value[:100]} is no text", "invalidFilter") from error
        at = term.end()
        if at == len(text):
            return terms
        if (joint := _AND.match(text, at)) is None:
            break
        at = joint.end()
    raise ScimRefused(400, 'only filters such as userName eq "ann", joined by and, are understood', "invalidFilter")


def apply_patch(resource: Resource, operations: Any, schema: str) -> Resource:
    """The resource after these operations. Raises ScimRefused."""
    members = {one["value"]: one for one in resource.get("members", ())}
    changed = {**resource, "members": members}
    if not isinstance(operations, list) or not operations:
        raise _wrong_count()
    count = 0
    for one in operations:
        lowered = {str(name).lower(): value for name, value in one.items()} if isinstance(one, dict) else {}
        verb, path, value = str(lowered.get("op", "")).lower(), lowered.get("path"), lowered.get("value")
        if verb not in ("add", "replace", "remove"):
            raise ScimRefused(400, "op: one of add, replace and remove", "invalidSyntax")
        count += max(1, len(value)) if not path and isinstance(value, dict) else 1
        if count > _MOST_OPERATIONS:
            raise _wrong_count()
        if path:
            _apply(changed, verb, str(path), value, schema)
        elif verb == "remove":
            raise ScimRefused(400, "remove needs a path", "noTarget")
        elif isinstance(value, dict):
            for name, inner in value.items():
                if name.lower() not in ("schemas", "id", "meta"):
                    _apply(changed, verb, name, inner, schema)
        else:
            raise ScimRefused(400, "without a path the value is an object", "invalidValue")
    del changed["members"]
    return {**changed, "members": list(members.values())} if members else changed


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
    else:
        value = _cut(value, sub_attribute_names(schema, name))
    terms = None if matched["filter"] is None else read_filter(matched["filter"])
    if terms is not None and (name not in MULTI_VALUED or not terms.keys() <= sub_attribute_names(schema, name).keys()):
        raise ScimRefused(400, f"{path[:100]!r}: {name} has no values to find by this", "invalidPath")
    if name == "members":
        _apply_to_members(resource["members"], verb, terms, part, value)
    elif name in MULTI_VALUED:
        _apply_to_list(resource, verb, name, terms, part=part, value=value)
    else:
        _apply_to_one(resource, verb, name, part, value)


def _cut(value: Any, parts: Mapping[str, str]) -> Any:
    """The value without parts that are not kept, and with the names of the others as they are written."""
    if isinstance(value, list):
        return [_cut(one, parts) for one in value if not isinstance(one, list)]
    if isinstance(value, dict):
        return {parts[name.lower()]: inner for name, inner in value.items() if name.lower() in parts}
    return value


def _apply_to_one(resource: Resource, verb: str, name: str, part: str | None, value: Any) -> None:
    if part is not None:
        present = resource.get(name)
        inner = {**present} if isinstance(present, dict) else {}
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


def _apply_to_members(
    members: dict[str, Resource], verb: str, terms: Mapping[str, Any] | None, part: str | None, value: Any
) -> None:
    """Change members, by their ids: groups are large, and so are changes of them."""
    if part is not None:
        raise ScimRefused(400, "members are added and removed; their parts do not change", "mutability")
    if terms is not None and terms.keys() != {"value"}:
        raise ScimRefused(400, 'members are found by value eq "…"', "invalidFilter")
    given = _as_list(value) if terms is None else [{**terms}]
    if (verb == "replace" and terms is None) or (verb == "remove" and not given):
        members.clear()
    for one in given:
        if not isinstance(one.get("value"), str):
            raise ScimRefused(400, "members: each has the id of a person as its value", "invalidValue")
        if verb == "remove":
            members.pop(one["value"], None)
        else:
            members[one["value"]] = one


def _apply_to_list(
    resource: Resource, verb: str, name: str, terms: Mapping[str, Any] | None, *, part: str | None, value: Any
) -> None:
    present = [{**one} for one in resource.get(name) or [] if isinstance(one, dict)]
    if len(present) > _MOST_VALUES:
        raise ScimRefused(400, f"{name}: {_MOST_VALUES} at most", "invalidValue")
    if terms is None and part is None:
        resource[name] = _whole_list(verb, present, value)
        return
    terms = terms or {}
    if verb == "remove":
        resource[name] = (
            [one for one in present if not _fits(one, terms)] if part is None else _each(present, terms, _drop(part))
        )
        return
    new = {part: value} if part is not None else value
    if not isinstance(new, dict) or isinstance(new.get("value"), dict | list):
        raise ScimRefused(400, f"{name}: a value is an object of texts", "invalidValue")
    if not any(_fits(one, terms) for one in present):
        present.append({**terms})
    resource[name] = _one_primary(_each(present, terms, lambda one: {**one, **new}), new)


def _whole_list(verb: str, present: list[Resource], value: Any) -> list[Resource]:
    given = _as_list(value)
    keys = {one.get("value") for one in given}
    if verb == "remove":
        return [one for one in present if one.get("value") not in keys] if given else []
    if verb == "replace":
        return given
    kept = [one for one in present if one.get("value") not in keys] + given
    return _one_primary(kept, *given)


def _as_list(value: Any) -> list[Resource]:
    """What is given for a list: objects, of which one may stand alone, or as its value. Raises ScimRefused."""
    items = value if isinstance(value, list) else [value]
    given = [one if isinstance(one, dict) else {"value": one} for one in items if one is not None]
    if any(isinstance(one.get("value"), dict | list) for one in given):
        raise ScimRefused(400, "a value is a text", "invalidValue")
    return [one for one in given if one != {"value": None}]


def _wrong_count() -> ScimRefused:
    return ScimRefused(400, f"Operations: name 1 to {_MOST_OPERATIONS}, each attribute is one", "invalidSyntax")


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
    return all(one.get(name) == value for name, value in terms.items())


def _names(text: str) -> frozenset[str]:
    """The attributes in a list, without their schema and parts, in lower case."""
    return frozenset(
        name.strip().rpartition(":")[2].partition(".")[0].lower() for name in text.split(",") if name.strip()
    )
