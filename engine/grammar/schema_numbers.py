"""Rewrites numbers in JSON schemas so that the grammar library holds them exactly, or refuses them by name.

The library (llguidance 1.9) keeps bounds and constants as doubles, makes digits of them that fit 64 bits, reads some
decimals one step off, and lets an exclusive bound itself through where the other bound is less than one away. A bound
beyond 64 bits on the far side is held by numbers of at most 19 digits: each of them fulfils it.
"""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Any

from engine.grammar.schema_nodes import Node, Schema, types_of, unsupported

_EXACT = 2**53
"""Up to here every integer is a double."""
_MOST = 2**63 - 1
_LEAST_INTEGER = 1024 - 2**63
"""The least integer of 64 bits that is a double and can be negated."""
_FARTHEST = 9_200_000_000_000_000_000
"""A double of 64 bits whose shortest spelling is exact: the farthest bound of numbers."""
_NEAREST = 10**18
"""Below this a bound works as a lower bound without an upper one, and the other way round."""
_NEXT_TO_ZERO = 1e-50
"""Numbers nearer to an exclusive bound of zero are not written."""
_DEEPEST = 65
"""Digits behind the point of a bound: the library nests groups as deep."""
_MOST_DIVISORS = 100
"""Different divisors in one root: each two of them are compared."""
_BOUNDS = ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum")
_SIMPLER = "give one that a double holds"


def prepare_numbers(nodes: Sequence[Node]) -> None:
    """Rewrite bounds, divisors and constants in place. Raises InvalidGrammar."""
    for schema, path in nodes:
        for keyword in (*_BOUNDS, "multipleOf"):
            value: Any = schema.get(keyword)
            if value is None and keyword in schema:
                raise unsupported(path, keyword, "give a number", "null")
            if isinstance(value, bool) and keyword.startswith("exclusive"):
                _read_draft_4(schema, keyword)
            elif _is_beyond_doubles(value):
                raise unsupported(path, keyword, _SIMPLER)
            elif keyword in schema and (isinstance(value, bool | str | list | dict) or not math.isfinite(value)):
                raise unsupported(path, keyword, "give a number", repr(value)[:40])
        types = types_of(schema)
        if types is not None and "integer" in types and "number" not in types:
            _bound_integers(schema, path)
        else:
            _bound_numbers(schema, path)
        if "multipleOf" in schema:
            _check_divisor(schema, path)
        if "const" in schema:
            schema["const"] = _exact_constant(schema["const"], path, "const")
        if isinstance(choices := schema.get("enum"), list):
            schema["enum"] = [_exact_constant(value, path, f"enum[{at}]") for at, value in enumerate(choices)]
    _check_common_multiples(nodes)
    _open_intervals(nodes)


def _read_draft_4(schema: Schema, keyword: str) -> None:
    """In draft 4 `exclusiveMinimum` says whether `minimum` itself is excluded."""
    inclusive = {"exclusiveMinimum": "minimum", "exclusiveMaximum": "maximum"}[keyword]
    if not schema.pop(keyword) or inclusive not in schema:
        return
    schema[keyword] = schema.pop(inclusive)


def _bound_integers(schema: Schema, path: str) -> None:
    """Bounds of integers as the least and the most that they include."""
    lower = [(math.ceil(schema["minimum"]), "minimum")] if "minimum" in schema else []
    upper = [(math.floor(schema["maximum"]), "maximum")] if "maximum" in schema else []
    if "exclusiveMinimum" in schema:
        lower.append((math.floor(schema["exclusiveMinimum"]) + 1, "exclusiveMinimum"))
    if "exclusiveMaximum" in schema:
        upper.append((math.ceil(schema["exclusiveMaximum"]) - 1, "exclusiveMaximum"))
    for keyword in _BOUNDS:
        schema.pop(keyword, None)
    if lower:
        least, keyword = max(lower)
        if least > _MOST or not (least <= _LEAST_INTEGER or _is_double(least)):
            raise unsupported(path, keyword, _SIMPLER, str(least))
        schema["minimum"] = max(least, _LEAST_INTEGER)
        if least >= _NEAREST and not upper:
            upper.append((_MOST, keyword))
    if upper:
        most, keyword = min(upper)
        if most < _LEAST_INTEGER or not (most >= _MOST or _is_double(most)):
            raise unsupported(path, keyword, _SIMPLER, str(most))
        schema["maximum"] = min(most, _MOST)
        if most <= -_NEAREST and not lower:
            schema["minimum"] = _LEAST_INTEGER


def _bound_numbers(schema: Schema, path: str) -> None:
    for keyword in _BOUNDS:
        if keyword not in schema:
            continue
        bound, sign = schema[keyword], 1 if keyword.lower().endswith("minimum") else -1
        if sign * bound < -_FARTHEST:
            schema[keyword] = -sign * _FARTHEST
        elif sign * bound >= _NEAREST or (abs(bound) > _EXACT and not (_is_double(bound) and _is_spelled(bound))):
            raise unsupported(path, keyword, _SIMPLER, str(bound))
        elif isinstance(bound, float):
            if bound and -int(Decimal(repr(bound)).as_tuple().exponent) > _DEEPEST:
                raise unsupported(path, keyword, "give one of fewer digits", str(bound))
            schema[keyword] = _spelling(bound, sign * math.inf)


def _check_divisor(schema: Schema, path: str) -> None:
    """The library takes a divisor of at most 32 bits, times a power of ten that it finds by multiplying."""
    divisor = schema["multipleOf"]
    coefficient, exponent = abs(float(divisor)), 0
    while coefficient % 1 and coefficient < 2**32:
        coefficient, exponent = coefficient * 10, exponent + 1
    exact = Decimal(repr(divisor)) == Decimal(int(coefficient)).scaleb(-exponent)
    if divisor <= 0 or coefficient >= 2**32 or not exact:
        raise unsupported(path, "multipleOf", "give one of fewer digits, or describe it in words", str(divisor))


def _check_common_multiples(nodes: Sequence[Node]) -> None:
    """Where schemas may be intersected, the library multiplies two divisors within 32 bits, whatever comes of it."""
    if not any(node.schema.keys() & {"allOf", "anyOf", "oneOf", "$ref"} for node in nodes):
        return
    divisors = {Decimal(repr(node.schema["multipleOf"])): node.path for node in nodes if "multipleOf" in node.schema}
    if len(divisors) > _MOST_DIVISORS:
        raise unsupported("", "multipleOf", "describe them in words", f"of {len(divisors)} different numbers")
    for one, other in itertools.combinations(sorted(divisors), 2):
        unit = min(int(one.as_tuple().exponent), int(other.as_tuple().exponent), 0)
        if one.scaleb(-unit) * other.scaleb(-unit) >= 2**32:
            raise unsupported(divisors[other], "multipleOf", "give one of fewer digits", f"{other} beside {one}")


def _exact_constant(value: Any, path: str, place: str) -> Any:
    """The constant as the library is to read it, with all numbers within it."""
    if isinstance(value, list):
        return [_exact_constant(item, path, place) for item in value]
    if isinstance(value, dict):
        return {name: _exact_constant(item, path, place) for name, item in value.items()}
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value
    spelled: int | float | None = value
    if isinstance(value, float):
        spelled = next((number for number in _neighbours(value) if _as_read(number) == value), None)
    elif _is_beyond_doubles(value):
        spelled = None
    elif abs(value) > _MOST:  # written as a number, with the digits of the double
        spelled = float(value) if _is_spelled(value) and _as_read(float(value)) == value else None
    elif not _is_double(value):
        spelled = None
    if spelled is None:
        raise unsupported(path, place, "no double has its value; let it be text", str(value)[:60])
    return spelled


def _open_intervals(nodes: Sequence[Node]) -> None:
    """Write an exclusive bound as the next number where any other bound is less than one away.

    Schemas may be intersected, so the other bound may stand anywhere.
    """
    lows = [bound for node in nodes for bound in _values(node.schema, "minimum", "exclusiveMinimum")]
    highs = [bound for node in nodes for bound in _values(node.schema, "maximum", "exclusiveMaximum")]
    for schema, path in nodes:
        low: Any = schema.get("exclusiveMinimum")
        high: Any = schema.get("exclusiveMaximum")
        if low is not None and low >= 0 and low == int(low):
            near = [bound for bound in highs if low < bound < low + 1]
            if near:
                del schema["exclusiveMinimum"]
                schema["minimum"] = max(_above(low, min(near), path), schema.get("minimum", low))
        if high is not None and high <= 0 and high == int(high):
            near = [-bound for bound in lows if high - 1 < bound < high]
            if near:
                del schema["exclusiveMaximum"]
                schema["maximum"] = min(-_above(-high, min(near), path), schema.get("maximum", high))


def _above(bound: float, other: float, path: str) -> float:
    """The next number that the library can tell from this bound, which is below `other`."""
    if bound:
        return _spelling(math.nextafter(bound, math.inf), math.inf)
    if other <= _NEXT_TO_ZERO:
        raise unsupported(path, "exclusive bound of 0", "give bounds that are farther apart")
    return _NEXT_TO_ZERO


def _values(schema: Schema, *keywords: str) -> Iterator[float]:
    return (schema[keyword] for keyword in keywords if keyword in schema)


def _is_beyond_doubles(value: Any) -> bool:
    return isinstance(value, int) and value.bit_length() >= sys.float_info.max_exp


def _is_double(value: float) -> bool:
    return abs(value) <= _EXACT or float(value) == value


def _is_spelled(value: float) -> bool:
    """Whether the shortest spelling of the double has exactly this value."""
    return int(Decimal(repr(float(value)))) == value


def _spelling(bound: float, inward: float) -> float:
    """The double that the library reads as this bound, or else as the nearest one inward."""
    for number in _neighbours(bound):
        if _as_read(number) == bound:
            return number
    number = bound
    while (_as_read(number) < bound) if inward > 0 else (_as_read(number) > bound):
        number = math.nextafter(number, inward)
    return number


def _neighbours(number: float) -> list[float]:
    above, below = math.nextafter(number, math.inf), math.nextafter(number, -math.inf)
    return [number, above, below, math.nextafter(above, math.inf), math.nextafter(below, -math.inf)]


def _as_read(number: float) -> float:
    """The double that serde_json reads in the shortest spelling of this one: digits as a double, times a power."""
    sign, digits, exponent = Decimal(repr(number)).as_tuple()
    assert isinstance(exponent, int)
    read = float(int("".join(map(str, digits))))
    while exponent < -308:
        read, exponent = read / 1e308, exponent + 308
    read = read / float(f"1e{-exponent}") if exponent < 0 else read * float(f"1e{exponent}")
    return -read if sign else read
