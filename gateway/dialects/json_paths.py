"""Decodes JSON bodies into msgspec structs, and names what is wrong by its JSON path."""

from __future__ import annotations

import re
from typing import TypeVar

import msgspec

from gateway.errors import InvalidField, InvalidRequest

Body = TypeVar("Body")

ABSENT = msgspec.Raw()
"""The default of a `Raw` field, which holds any JSON: the field is absent."""

_AT = re.compile(r"^(?P<problem>.*?)(?: - at `(?P<path>\$[^`]*)`)?$", re.DOTALL)
_MISSING = re.compile(r"^Object missing required field `(?P<name>[^`]+)`$")


def decode(decoder: msgspec.json.Decoder[Body], body: bytes, *, at: str = "$") -> Body:
    """Decode JSON that stands at the path `at`. Raises InvalidRequest with the JSON path of what is wrong."""
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise _invalid_at_path(str(error), at) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"The body is not valid JSON: {error}", code="invalid_json") from error
    except RecursionError as error:
        raise InvalidRequest("The body is nested too deeply.", code="invalid_json") from error


def _invalid_at_path(text: str, at: str) -> InvalidRequest:
    match = _AT.match(text)
    problem, path = (match["problem"], match["path"] or "$") if match else (text, "$")
    path = at + path[1:]
    missing = _MISSING.match(problem)
    if missing:
        path = f"{path}.{missing['name']}"
        return InvalidField(path, "it is missing", code="missing_required_parameter")
    return InvalidField(path, problem)
