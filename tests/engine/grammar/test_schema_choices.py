"""`oneOf` and `uniqueItems`: a grammar lets through what jsonschema finds valid, out of many small values."""

from __future__ import annotations

import itertools
import json
import time
from typing import Any

import jsonschema
import pytest

from engine.grammar.guide import InvalidGrammar
from engine.grammar.schema_keywords import prepare_schema
from tests.engine.grammar.test_grammar import accepted

CAT: dict[str, Any] = {
    "type": "object",
    "properties": {"kind": {"const": "cat", "type": "string"}, "a": {"type": "integer"}},
    "required": ["kind"],
}
DOG: dict[str, Any] = {"type": "object", "properties": {"kind": {"const": "dog"}, "b": {}}, "required": ["kind"]}
AB: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}, "c": {}}}
DEFINED: dict[str, Any] = {"$defs": {"cat": CAT, "dog": DOG}}
PETS = [{"$ref": "#/$defs/cat"}, {"$ref": "#/$defs/dog"}]

VALUES: list[Any] = [
    None, True, 0, 1, 1.5, "", "cat", [], {},
    *[dict(zip(names, values, strict=True))
      for length in (1, 2, 3)
      for names in itertools.combinations(("kind", "a", "b", "c"), length)
      for values in itertools.product(("cat", "dog", 1)[length == 3 :], repeat=length)],
    *[list(items) for length in (1, 2, 3) for items in itertools.product(("x", "y", True), repeat=length)],
]  # fmt: skip


@pytest.mark.parametrize(
    "schema",
    [
        {"oneOf": PETS, "discriminator": {"propertyName": "kind"}, **DEFINED},
        {"oneOf": [*PETS, {"type": "null"}], "anyOf": [{"type": "object"}, {"type": ["null", "string"]}], **DEFINED},
        {"oneOf": [{"type": "integer"}, {"type": ["string", "boolean"]}, {"enum": [1.5, []]}]},
        {"oneOf": [{"allOf": PETS[:1]}, {"anyOf": [PETS[1], {"const": 1}]}], **DEFINED},
        {"required": ["kind"], "type": "object",
         "oneOf": [{"properties": {"kind": {"const": "cat"}}}, {"properties": {"kind": {"enum": ["dog"]}}}]},
        AB | {"oneOf": [{"required": ["a"]}, {"required": ["b"]}]},
        AB | {"oneOf": [{"required": ["a"]}, {"required": ["b"]}], "additionalProperties": False},
        AB | {"oneOf": [{"required": ["a", "b"]}, {"required": ["c"], "title": "C"}]},
        AB | {"required": ["a"], "oneOf": [{"required": ["a", "b"]}, {"required": ["a", "c"]}]},
        {"type": "object", "oneOf": [{"required": ["a"]}, {"required": ["a", "b"]}]},
        {"type": "array", "items": {"enum": ["x", "y"]}, "uniqueItems": True},
        {"type": "array", "items": {"enum": ["x", "y", True]}, "uniqueItems": True, "minItems": 2},
        {"type": "array", "items": {"$ref": "#/$defs/x"}, "uniqueItems": True, "maxItems": 2,
         "$defs": {"x": {"type": "string", "enum": ["x", "y"], "title": "X"}}},
        {"type": "array", "items": {"type": "boolean"}, "uniqueItems": True},
    ],
)  # fmt: skip
def test_a_choice_lets_through_what_it_should(schema: dict[str, Any]):
    grammar = json.dumps({"json_schema": schema})
    validator = jsonschema.Draft202012Validator(schema)
    assert any(map(validator.is_valid, VALUES))
    for value in VALUES:
        # Names come in the order of the schema: what comes in another one is lost, but in one of them it is not.
        orders = map(dict, itertools.permutations(value.items())) if isinstance(value, dict) else [value]
        written = any(accepted(grammar, json.dumps(order)) for order in orders)
        assert written == validator.is_valid(value), value


def nested_choices(deep: int) -> dict[str, Any]:
    """A `oneOf` of two choices, each of which leads to `2 ** deep` schemas."""
    defs: dict[str, Any] = {"0": {"type": "object", "required": ["a"]}}
    for level in range(1, deep + 1):
        defs[f"{level}"] = {"anyOf": [{"$ref": f"#/$defs/{level - 1}"}] * 2}
    deepest = {"$ref": f"#/$defs/{deep}"}
    return {"oneOf": [deepest, {"type": "object", "anyOf": [deepest] * 2}], "$defs": defs}


@pytest.mark.parametrize(
    "schema",
    [nested_choices(9), {"oneOf": [{"enum": [f"{option} {at}" for at in range(50)]} for option in range(50)]}],
)
def test_choices_that_multiply_are_refused_before_they_take_long(schema: dict[str, Any]):
    began = time.thread_time()
    with pytest.raises(InvalidGrammar, match=r"^oneOf of so many choices"):
        prepare_schema(schema)
    assert time.thread_time() - began < 1.0
