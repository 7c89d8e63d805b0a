"""Decoding a body into wire structs, and saying where it is wrong as a JSON path."""

from __future__ import annotations

import re
from typing import TypeVar

import msgspec

from gateway.errors import InvalidRequest

Body = TypeVar("Body")

ABSENT = msgspec.Raw()
"""What a field of any JSON holds that is not there."""

_AT = re.compile(r"^(?P<problem>.*?)(?: - at `(?P<path>\$[^`]*)`)?$", re.DOTALL)
_MISSING = re.compile(r"^Object missing required field `(?P<name>[^`]+)`$")


def decode(decoder: msgspec.json.Decoder[Body], body: bytes, *, at: str = "$") -> Body:
    """The decoded body, which stands at the path `at`. Raises InvalidRequest with the JSON path of what is wrong."""
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise _located(str(error), at) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"The body is not valid JSON: {error}", code="invalid_json") from error
    except RecursionError as error:
        raise InvalidRequest("The body is nested too deeply.", code="invalid_json") from error


def _located(text: str, at: str) -> InvalidRequest:
    match = _AT.match(text)
    problem, path = (match["problem"], match["path"] or "$") if match else (text, "$")
    path = at + path[1:]
    missing = _MISSING.match(problem)
    if missing:
        path = f"{path}.{missing['name']}"
        return InvalidRequest(f"{path} is missing.", path=path, code="missing_required_parameter")
    return InvalidRequest(f"{path}: {problem}.", path=path, code="invalid_value")
