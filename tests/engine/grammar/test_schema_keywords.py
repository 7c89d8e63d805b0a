"""Keywords of JSON schema: what constrains a value is fulfilled or refused by name, never ignored."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest

from engine.grammar.guide import InvalidGrammar
from tests.engine.grammar.test_grammar import drawn, grammars

NAMES: dict[str, Any] = {"$ref": "#/$defs/Colour"}
COLOUR: dict[str, Any] = {"$defs": {"Colour": {"enum": ["red", "green"], "title": "Colour", "type": "string"}}}


@pytest.mark.parametrize(
    "names",
    [{"enum": ["red", "green"]}, {"const": "red"}, {"pattern": "^[ab]{2}$"}, {"minLength": 2.0, "maxLength": 4}, NAMES],
)
def test_property_names_are_those_that_are_said(names: dict[str, Any]) -> None:
    """As pydantic writes dictionaries with constrained keys."""
    schema = {"type": "object", "additionalProperties": {"type": "integer"}, "propertyNames": names} | COLOUR
    seen = set()
    for seed in range(8):
        text, why = drawn({"json_schema": schema}, 60, seed)
        assert why == "stop"
        jsonschema.validate(json.loads(text), schema)
        seen.add(text)
    assert any(json.loads(text) for text in seen), "something is put out at all"


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"type": "array", "items": {"type": "string"}, "uniqueItems": True}, "uniqueItems is not supported: leave it"),
        ({"type": "object", "propertyNames": {"format": "uuid"}}, "propertyNames is not supported: list the names"),
        ({"type": "object", "properties": {"a": {}}, "propertyNames": {"enum": ["a"]}}, "propertyNames is not"),
        ({"type": "array", "contains": {"type": "integer"}}, "contains is not supported"),
        ({"not": {"type": "string"}}, "not is not supported"),
        ({"if": {"type": "string"}, "then": {"minLength": 2}}, "if is not supported"),
        ({"type": "object", "dependentRequired": {"a": ["b"]}}, "dependentRequired is not supported"),
        ({"type": "object", "unevaluatedProperties": False}, "unevaluatedProperties is not supported"),
        ({"type": "string", "format": "iri"}, "format 'iri' is not supported"),
        ({"type": "array", "items": {"enum": list(range(9))}, "uniqueItems": True}, "uniqueItems of 9 values is not"),
        ({"properties": {"a": {"oneOf": [{"type": "integer"}, {"type": "number"}]}}}, "properties.a.oneOf of schemas"),
        ({"oneOf": [{"required": ["a"]}, {"properties": {"b": {}}}]}, "oneOf of schemas that one value may fulfil two"),
        ({"type": "object", "propertyNames": {"minLength": 1.5}}, "propertyNames.minLength 1.5 is not supported"),
        ({"type": "object", "propertyNames": {"enum": "a"}}, "propertyNames is not supported: list the names"),
        ({"type": "array", "minItems": 1.5}, "minItems 1.5 is not supported: give a whole number"),
        ({"type": "integer", "divisibleBy": 3}, "divisibleBy is not supported: use `multipleOf`"),
        ({"disallow": "string"}, "disallow is not supported"),
        ({"type": "object", "properties": {"a": {"type": "string", "required": True}}}, "properties.a.required"),
        ({"type": "object", "minProperties": 3}, "minProperties above 1 is not supported"),
        ({"items": {"properties": {"b": {}, "c": {}}, "maxProperties": 1}}, "items.maxProperties beside names that"),
        ({"type": "object", "properties": {"a": {}, "b": {}}, "minProperties": 1}, "minProperties beside names that"),
        ({"type": "object", "x-guidance": {"item_separator": "x"}}, "x-guidance is not supported"),
        ({"type": "object", "properties": {"tags": {"$ref": "#/$defs/t"}},
          "$defs": {"t": {"type": "array", "uniqueItems": True}}}, "#/$defs/t.uniqueItems"),
    ],
)  # fmt: skip
def test_what_cannot_be_held_is_refused_by_name(schema: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidGrammar) as refused:
        grammars().compiled(json.dumps({"json_schema": schema}))
    assert message in str(refused.value)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "array", "items": {"type": "string"}, "uniqueItems": False, "maxItems": 2},
        {"type": "array", "items": {"type": "integer"}, "uniqueItems": True, "maxItems": 1},
        {"type": "object", "properties": {"a": {"type": "null"}, "b": {"type": "null"}}, "required": ["a"],
         "minProperties": 1, "maxProperties": 2, "additionalProperties": False},
        {"type": "object", "properties": {"a": {"type": "null"}, "b": {"type": "null"}}, "minProperties": 1,
         "additionalProperties": False},
        {"type": "string", "format": "path"},
        {"type": "string", "format": "ipv4network", "maxLength": 4},
        {"type": "string", "format": "byte", "contentMediaType": "image/png", "contentSchema": {"not": {}}},
        {"$schema": "https://example.org/own", "type": "array", "maxItems": 2.0, "items": {"type": "null"}},
        {"type": "string", "format": "password", "writeOnly": True, "maxLength": 4},
        {"type": "integer", "format": "int32"},
        {"type": "object", "propertyNames": {"type": "string", "title": "Name"}, "maxProperties": 1},
        {"type": "boolean", "title": "Unused", "$defs": {"unused": {"uniqueItems": True}}},
        {"type": "object", "properties": {"not": {"type": "null"}}, "required": ["not"], "additionalProperties": False},
        {"enum": [{"uniqueItems": True}]},
    ],
)  # fmt: skip
def test_what_constrains_nothing_is_no_reason_to_refuse(schema: dict[str, Any]) -> None:
    """Annotations, definitions that nothing leads to, and names or values that are spelled like keywords."""
    outputs = [drawn({"json_schema": schema}, 60, seed) for seed in range(3)]
    whole = [text for text, why in outputs if why == "stop"]
    assert whole
    for text in whole:
        jsonschema.Draft202012Validator(schema).validate(json.loads(text))


@pytest.mark.parametrize("limit", [16, 24, 60])
@pytest.mark.parametrize("form", ["email", "uri", "hostname", "ipv6", "duration"])
def test_a_format_of_any_length_is_ended_in_time(form: str, limit: int) -> None:
    """What is open in an address is ended by an @, a point, a colon: never by a bracket, which may stand in it."""
    schema = {"type": "object", "properties": {"x": {"type": "string", "format": form}}, "required": ["x"],
              "additionalProperties": False}  # fmt: skip
    for seed in range(4):
        text, why = drawn({"json_schema": schema}, limit, seed)
        assert why == "stop", text
        assert set(json.loads(text)) == {"x"}
