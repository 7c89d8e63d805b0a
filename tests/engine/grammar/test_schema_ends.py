"""Schemas in a circle: what only leads on is forbidden, what must lead on is refused, and the rest ends."""

from __future__ import annotations

import json
import time
from typing import Any

import jsonschema
import pytest

from engine.grammar.guide import InvalidGrammar
from tests.engine.grammar.test_grammar import drawn, grammars

NODE: dict[str, Any] = {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}, "required": ["next"]}
DEFINED: dict[str, Any] = {"$defs": {"node": NODE}}


@pytest.mark.parametrize(
    ("schema", "place"),
    [
        ({"$ref": "#/$defs/node", **DEFINED}, "#/$defs/node.properties.next.$ref"),
        ({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}, "properties.a.$ref"),
        ({"type": "array", "items": {"$ref": "#"}, "minItems": 1}, "items.$ref"),
        ({"type": "array", "prefixItems": [{"type": "null"}, {"$ref": "#"}], "minItems": 2}, "prefixItems[1].$ref"),
        ({"type": "object", "additionalProperties": {"$ref": "#"}, "required": ["a"]}, "additionalProperties.$ref"),
        ({"anyOf": [{"$ref": "#/$defs/node"}, {"type": "array", "items": {"$ref": "#"}, "minItems": 2}], **DEFINED},
         "#/$defs/node.properties.next.$ref"),
        ({"type": ["object", "array"], "properties": {"a": {"$ref": "#"}}, "required": ["a"], "items": {"$ref": "#"},
          "minItems": 1}, "properties.a.$ref"),
        ({"allOf": [{"type": "object"}, {"$ref": "#/$defs/node"}], **DEFINED}, "#/$defs/node.properties.next.$ref"),
        ({"$ref": "#"}, "$ref"),
        ({"type": "object", "properties": {"a": False}, "required": ["a"]}, "properties.a"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("kind", ["json_schema", "calls"])
def test_what_no_finite_value_fulfils_is_refused_at_once(schema: dict[str, Any], place: str, kind: str):
    body = schema if kind == "json_schema" else {"lark": "start: @0", "schemas": [schema]}
    began = time.thread_time()
    with pytest.raises(InvalidGrammar) as refused:
        grammars().compiled(json.dumps({kind: body}))
    assert f"{place}: no finite value fulfils it" in str(refused.value)
    assert time.thread_time() - began < 1


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"$ref": "#/$defs/node"}},
         "required": ["a"], "additionalProperties": False},
        {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "integer"}]},
        {"type": "array", "items": {"$ref": "#/$defs/node"}, "maxItems": 3},
        {"type": "object", "additionalProperties": {"$ref": "#/$defs/node"}, "maxProperties": 2},
        {"type": "object", "patternProperties": {"^a": {"$ref": "#/$defs/node"}}, "additionalProperties": False},
        {"type": "array", "prefixItems": [{"type": "null"}, {"$ref": "#/$defs/node"}], "minItems": 1},
        {"$ref": "#/$defs/tree", "$defs": {"node": NODE, "tree": {
            "type": "object", "properties": {"left": {"$ref": "#/$defs/tree"}, "leaf": {"$ref": "#/$defs/node"}},
            "additionalProperties": False}}},
        {"type": "object", "properties": {"next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}}, "required": ["next"],
         "additionalProperties": False},
    ],
)  # fmt: skip
def test_what_only_leads_on_is_never_begun(schema: dict[str, Any]):
    schema = DEFINED | schema
    for seed in range(4):
        text, why = drawn({"json_schema": json.loads(json.dumps(schema))}, 80, seed)
        assert why == "stop", text
        jsonschema.validate(json.loads(text), schema)
