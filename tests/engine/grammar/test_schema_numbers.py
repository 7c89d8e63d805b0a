"""Bounds and constants of numbers: what a grammar lets through is what jsonschema finds valid, digit by digit."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.grammar.guide import InvalidGrammar
from engine.grammar.schema_keywords import prepare_schema
from tests.engine.grammar.test_grammar import accepted, grammars
from tests.fast import examples

BIG = 2**53 + 1


def valid(schema: dict[str, Any], text: str) -> bool:
    """By jsonschema, with all numbers as the decimals that they are."""
    exact = json.loads(json.dumps(schema), parse_float=Decimal)
    return jsonschema.Draft202012Validator(exact).is_valid(json.loads(text, parse_float=Decimal))


def spell(number: Decimal) -> str:
    """Without an exponent, zeros at the end, or the sign of zero."""
    digits = format(number, "f")
    digits = digits.rstrip("0").rstrip(".") if "." in digits else digits
    return "0" if digits in ("-0", "") else digits


NEAR = [Decimal(step) for step in ("0", "1", "0.5", "0.01", "1e-17", "1e-25")]
numbers = st.one_of(
    st.integers(-3, 3),
    st.integers(-30, 30).map(lambda tenths: tenths / 10),
    st.sampled_from([2**53, BIG, 2**60, 2**63 - 1, -(2**63), 2**64 - 1, 10**18, 1e17, 1e20, -1e20, 1e-7, 123.456]),
    st.floats(-1000, 1000, allow_nan=False).filter(lambda number: number == 0 or abs(number) > 1e-9),
)
bounds = st.dictionaries(
    st.sampled_from(["minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"]), numbers, min_size=1, max_size=3
)
types = st.sampled_from([{"type": "number"}, {"type": "integer"}, {}, {"type": ["integer", "null"]}])


@pytest.mark.slow
@settings(max_examples=examples(150), deadline=None)
@given(kind=types, one=bounds, other=st.none() | bounds, values=st.lists(numbers, max_size=3))
def test_a_bound_lets_through_what_it_should(
    kind: dict[str, Any], one: dict[str, Any], other: dict[str, Any] | None, values: list[float]
):
    schema = kind | one | ({} if other is None else {"allOf": [other]})
    grammar = json.dumps({"json_schema": schema})
    try:
        grammars().compiled(grammar)
    except InvalidGrammar as refused:
        said = str(refused)
        assert any(word in said for word in ["imum", "no text fulfils it", "contains no integer values"]), said
        if "not supported" not in said:
            candidates = [spell(Decimal(bound) + step) for bound in one.values() for step in NEAR[:3]]
            assert not any(valid(schema, text) for text in candidates if "type" in kind)
        return
    around = [*one.values(), *(other or {}).values(), *values]
    for number in around:
        for step in NEAR:
            for near in (Decimal(repr(number)) + step, Decimal(repr(number)) - step):
                text = spell(near)
                written = accepted(grammar, text)
                assert not written or valid(schema, text), text
                if abs(near) < 10**15 and len(text) < 12:
                    assert written or not valid(schema, text), f"{text} is lost"


@pytest.mark.parametrize(
    ("bounds", "no", "yes"),
    [
        ({"exclusiveMinimum": 0, "exclusiveMaximum": 0.1}, "0", "0.05"),
        ({"exclusiveMinimum": 0, "maximum": 0.5}, "0", "0.5"),
        ({"exclusiveMinimum": 3, "maximum": 3.25}, "3", "3.125"),
        ({"exclusiveMinimum": -0.1, "exclusiveMaximum": 0}, "-0", "-0.05"),
        ({"minimum": -2.5, "exclusiveMaximum": -2}, "-2", "-2.25"),
        ({"minimum": 0, "exclusiveMinimum": True, "maximum": 0.5}, "0", "0.5"),
        ({"exclusiveMinimum": 0, "allOf": [{"maximum": 0.5}]}, "0", "0.5"),
        ({"allOf": [{"exclusiveMinimum": 0}, {"$ref": "#/$defs/h"}], "$defs": {"h": {"maximum": 0.5}}}, "0", "0.5"),
        ({"minimum": 0.30000000000000004}, "0.30000000000000003", "0.30000000000000004"),
    ],
)  # fmt: skip
def test_an_exclusive_bound_is_no_value(bounds: dict[str, Any], no: str, yes: str):
    grammar = json.dumps({"json_schema": {"type": "number"} | bounds})
    assert not accepted(grammar, no)
    assert accepted(grammar, yes)


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({"properties": {"id": {"const": BIG}}}, f"properties.id.const {BIG} is not supported: no double has its"),
        ({"items": {"enum": [1, {"id": BIG}]}}, f"items.enum[1] {BIG} is not"),
        ({"type": "integer", "minimum": BIG}, f"minimum {BIG} is not supported: give one that a double holds"),
        ({"type": "integer", "exclusiveMaximum": BIG + 1}, f"exclusiveMaximum {BIG} is not"),
        ({"type": "number", "maximum": BIG}, f"maximum {BIG} is not"),
        ({"minimum": BIG}, f"minimum {BIG} is not"),
        ({"type": "integer", "minimum": 10**19}, "minimum 10000000000000000000 is not"),
        ({"type": "number", "minimum": 1e20}, "minimum 1e+20 is not"),
        ({"type": "number", "multipleOf": 0.07}, "multipleOf 0.07 is not"),
        ({"allOf": [{"multipleOf": 65536}, {"multipleOf": 65537}]}, "allOf[1].multipleOf 65537 beside 65536 is not"),
        ({"type": "number", "minimum": "3"}, "minimum '3' is not supported: give a number"),
        ({"type": "number", "minimum": 1e-70}, "minimum 1e-70 is not supported: give one of fewer digits"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("kind", ["json_schema", "calls"])
def test_a_number_that_the_library_would_round_is_refused(schema: dict[str, Any], said: str, kind: str):
    body = schema if kind == "json_schema" else {"lark": 'start: "go " @0', "schemas": [schema]}
    with pytest.raises(InvalidGrammar) as refused:
        grammars().compiled(json.dumps({kind: body}))
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("schema", "yes", "no"),
    [
        ({"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1}, [f"{2**63 - 1}"], [f"{2**63}"]),
        ({"type": "integer", "minimum": 0, "maximum": 2**65}, ["9223372036854775807"], ["-1", "18446744073709551615"]),
        ({"type": "number", "minimum": -1e20, "maximum": 1e20}, ["0.5", "-9" + 18 * "0"], ["1" + 19 * "0" + "1"]),
        ({"type": "integer", "minimum": 10**18}, ["1000000000000000000"], ["999999999999999999"]),
        ({"allOf": [{"multipleOf": 4}, {"multipleOf": 0.6}], "type": "integer"}, ["12"], ["4", "6"]),
        ({"enum": [2**60, 1e20, 5e-324]}, ["1152921504606846976", "100000000000000000000"], ["1152921504606847000"]),
        ({"const": 0.9391491627785106}, ["0.9391491627785106"], ["0.9391491627785107", "0.9391491627785105"]),
        ({"type": "integer", "maximum": 5.0, "default": 2**70}, ["5"], ["6"]),
    ],
)  # fmt: skip
def test_a_number_that_can_be_held_is_held(schema: dict[str, Any], yes: list[str], no: list[str]):
    grammar = json.dumps({"json_schema": schema})
    assert [text for text in yes + no if accepted(grammar, text)] == yes


@pytest.mark.parametrize("keyword", ["minimum", "exclusiveMaximum", "multipleOf", "const", "enum"])
@pytest.mark.parametrize("number", [10**400, -(10**400)], ids=["positive", "negative"])
def test_a_number_beyond_all_doubles_is_refused_by_name(keyword: str, number: int):
    schema = {"properties": {"a": {"type": "integer", keyword: [number] if keyword == "enum" else number}}}
    with pytest.raises(InvalidGrammar, match=rf"^properties\.a\.{keyword}"):
        prepare_schema(schema)


def test_divisors_are_compared_only_where_they_are_few():
    def choices(count: int) -> dict[str, Any]:
        return {"anyOf": [{"type": "number", "multipleOf": number} for number in range(1, count + 1)]}

    assert prepare_schema(choices(100)).schema == choices(100)
    with pytest.raises(InvalidGrammar, match=r"^multipleOf of 101 different numbers is not supported"):
        prepare_schema(choices(101))
