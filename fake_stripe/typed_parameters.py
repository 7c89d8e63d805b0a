"""Form bodies of requests: decoded to nested values, and checked against the SDK's TypedDicts."""

from __future__ import annotations

import importlib
import re
import types
import typing
from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from functools import cache
from typing import Any
from urllib.parse import parse_qsl

import typing_extensions

from fake_stripe.errors import StripeError

_KEY = re.compile(r"[^\[\]]+|\[([^\[\]]*)\]")
_INTEGER = re.compile(r"-?\d+")
_MOST_METADATA, _MOST_NAME, _MOST_VALUE = 50, 40, 500


def decode_form(text: str) -> dict[str, Any]:
    """The nested values of a form body: `lines[0][amount]=5` is {"lines": {"0": {"amount": "5"}}}."""
    decoded: dict[str, Any] = {}
    for name, value in parse_qsl(text, keep_blank_values=True):
        path = [match.group(1) if match.group(0).startswith("[") else match.group(0) for match in _KEY.finditer(name)]
        place = decoded
        for part in path[:-1]:
            place = place.setdefault(part, {})
        if path[-1] == "":  # expand[]=a&expand[]=b
            place[str(len(place))] = value
        else:
            place[path[-1]] = value
    return decoded


def check_parameters(given: dict[str, Any], type_name: str) -> dict[str, Any]:
    """The values of a request as the SDK's parameters of this name have them. Raises StripeError for what is unknown,
    missing or of another type."""
    checked = _check_dict(given, _parameters(type_name), "")
    for name, value in checked.get("metadata", {}).items() if isinstance(checked.get("metadata"), dict) else ():
        if len(name) > _MOST_NAME or len(value) > _MOST_VALUE:
            raise StripeError(400, f"metadata {name} is too long", param="metadata")
    if isinstance(checked.get("metadata"), dict) and len(checked["metadata"]) > _MOST_METADATA:
        raise StripeError(400, "too much metadata", param="metadata")
    return checked


@cache
def _parameters(type_name: str) -> Any:
    """A TypedDict by its name, such as `InvoiceCreateParams` or `checkout.SessionCreateParams`."""
    package, _, name = type_name.rpartition(".")
    return getattr(importlib.import_module(f"stripe.params{'.' + package if package else ''}"), name)


@cache
def _fields(kind: Any) -> tuple[dict[str, Any], frozenset[str]]:
    hints = typing_extensions.get_type_hints(kind, localns=_ELSEWHERE, include_extras=True)
    fields = {name: hint for name, hint in hints.items() if name not in _OPTIONS}
    optional: Any = typing_extensions.NotRequired
    required = {name for name in fields if typing_extensions.get_origin(hints[name]) is not optional}
    return fields, frozenset(required & set(getattr(kind, "__required_keys__", fields)))


_ELSEWHERE = {"StripeContext": str, "Mapping": Mapping}
"""Names in annotations that their modules import for type checkers alone."""
_OPTIONS = frozenset(importlib.import_module("stripe").RequestOptions.__annotations__)
"""What the SDK takes beside parameters, and never sends in a body."""


def _check_dict(given: Any, kind: Any, path: str) -> dict[str, Any]:
    if not isinstance(given, dict):
        raise _wrong(path, "an object")
    fields, required = _fields(kind)
    for name in given:
        if name not in fields:
            where = f"{path}[{name}]" if path else name
            raise StripeError(400, f"Received unknown parameter: {where}", code="parameter_unknown", param=where)
    for name in required:
        if name not in given:
            where = f"{path}[{name}]" if path else name
            raise StripeError(400, f"Missing required param: {where}.", code="parameter_missing", param=where)
    return {name: _check(value, fields[name], f"{path}[{name}]" if path else name) for name, value in given.items()}


def _check(given: Any, hint: Any, path: str) -> Any:  # noqa: PLR0911  # a line for each kind of hint
    origin, arguments = typing_extensions.get_origin(hint), typing_extensions.get_args(hint)
    if origin in (typing_extensions.NotRequired, typing_extensions.Required):
        return _check(given, arguments[0], path)
    if origin in (typing.Union, types.UnionType):
        return _check_union(given, arguments, path)
    if origin is typing.Literal:
        if given not in arguments:
            raise _wrong(path, f"one of {', '.join(map(repr, arguments))}")
        return given
    if origin is list:
        if not isinstance(given, dict) or sorted(map(int, given)) != list(range(len(given))):
            raise _wrong(path, "an array")
        return [_check(given[str(n)], arguments[0], f"{path}[{n}]") for n in range(len(given))]
    if origin is dict:
        if not isinstance(given, dict):
            raise _wrong(path, "an object")
        return {name: _check(value, arguments[1], f"{path}[{name}]") for name, value in given.items()}
    if typing_extensions.is_typeddict(hint):
        return _check_dict(given, hint, path)
    return _check_plain(given, hint, path)


def _check_union(given: Any, arguments: tuple[Any, ...], path: str) -> Any:
    """A union; a `str` beside literals stands for values that the SDK does not know, and is not allowed here."""
    literals = [one for one in arguments if typing_extensions.get_origin(one) is typing.Literal]
    has_values = any(set(typing_extensions.get_args(one)) - {""} for one in literals)
    choices = [one for one in arguments if not (has_values and one is str) and one is not type(None)]
    problem: StripeError | None = None
    for choice in choices:
        try:
            return _check(given, choice, path)
        except StripeError as error:
            problem = error
    assert problem is not None, path
    raise problem


def _check_plain(given: Any, hint: Any, path: str) -> Any:
    name = getattr(hint, "__name__", str(hint))
    if not isinstance(given, str):
        raise _wrong(path, name)
    if hint is int:
        if _INTEGER.fullmatch(given) is None:
            raise StripeError(400, f"Invalid integer: {given}", code="parameter_invalid_integer", param=path)
        return int(given)
    if hint is bool:
        if given not in ("true", "false"):
            raise _wrong(path, "a boolean")
        return given == "true"
    if hint in (Decimal, float):
        try:
            return Decimal(given)
        except InvalidOperation:
            raise _wrong(path, "a decimal") from None
    if hint is str or hint is Any:
        return given
    raise _wrong(path, name)


def _wrong(path: str, wanted: str) -> StripeError:
    return StripeError(400, f"Invalid {path}: must be {wanted}", param=path)
