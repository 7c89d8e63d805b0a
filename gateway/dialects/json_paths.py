"""Decodes JSON bodies into msgspec structs, and names what is wrong by its JSON path."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, TypeVar

import msgspec
from msgspec import inspect

from gateway.errors import InvalidField, InvalidRequest

Body = TypeVar("Body")

ABSENT = msgspec.Raw()
"""The default of a `Raw` field, which holds any JSON: the field is absent."""


def json_object(description: str) -> msgspec.Meta:
    """What says, beside `Raw`, that a field is an object that is decoded later."""
    return msgspec.Meta(description=description, extra_json_schema={"type": "object", "additionalProperties": True})


def json_bytes(value: msgspec.Raw | msgspec.UnsetType) -> bytes:
    """The JSON of such a field; no bytes if it is absent."""
    return b"" if value is msgspec.UNSET else bytes(value)


_AT = re.compile(r"^(?P<problem>.*?)(?: - at `(?P<path>\$[^`]*)`)?$", re.DOTALL)
_STEP = re.compile(r"\.([^.\[]+)|\[[^\]]*\]")
"""A step of a path: the name of a field, or nothing for an index."""
_MISSING = re.compile(r"^Object missing required field `(?P<name>[^`]+)`$")


def decode(decoder: msgspec.json.Decoder[Body], body: bytes, *, at: str = "$") -> Body:
    """Decode JSON that stands at the path `at`. Raises InvalidRequest with the JSON path of what is wrong."""
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise _invalid_at_path(str(error), at, decoder.type, getattr(error.__cause__, "code", None)) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"The body is not valid JSON: {error}", code="invalid_json") from error
    except RecursionError as error:
        raise InvalidRequest("The body is nested too deeply.", code="invalid_json") from error


def _invalid_at_path(text: str, at: str, kind: Any, code: str | None = None) -> InvalidRequest:
    match = _AT.match(text)
    problem, path = (match["problem"], match["path"] or "$") if match else (text, "$")
    if problem.startswith("Invalid enum value"):
        problem += _instead(kind, path)
    path = at + path[1:]
    missing = _MISSING.match(problem)
    if missing:
        path = f"{path}.{missing['name']}"
        return InvalidField(path, "it is missing", code="missing_required_parameter")
    return InvalidField(path, problem, code=code)


def _instead(kind: Any, path: str) -> str:
    """What may stand at the path in a body of this type, for the end of a message."""
    found = list(_parts(_described(kind)))
    for name in _STEP.findall(path):
        found = [part for outer in found for part in _inside(outer, name)]
    choices = [repr(value) for part in found if isinstance(part, inspect.LiteralType) for value in part.values]
    return f"; it may be {', '.join(dict.fromkeys(choices))}" if choices else ""


@lru_cache(maxsize=64)
def _described(kind: Any) -> inspect.Type:
    return inspect.type_info(kind)


def _parts(kind: inspect.Type) -> Iterator[inspect.Type]:
    """The types of a union; else the type itself."""
    if isinstance(kind, inspect.Metadata):
        yield from _parts(kind.type)
    elif isinstance(kind, inspect.UnionType):
        for one in kind.types:
            yield from _parts(one)
    else:
        yield kind


def _inside(kind: inspect.Type, name: str) -> Iterator[inspect.Type]:
    """What may stand under a name of an object, or in an array where the name is empty."""
    if isinstance(kind, inspect.StructType):
        for field in kind.fields:
            if field.encode_name == name:
                yield from _parts(field.type)
    elif isinstance(kind, inspect.CollectionType) and not name:
        yield from _parts(kind.item_type)
