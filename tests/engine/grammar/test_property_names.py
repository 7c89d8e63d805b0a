"""Names in JSON have one spelling: no listed name comes as another one, past its schema."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest

from engine.grammar.guide import InvalidGrammar
from tests.engine.grammar.test_grammar import accepted, drawn, grammars

SIZE: dict[str, Any] = {"properties": {"größe": {"type": "integer"}}}
OPEN: list[dict[str, Any]] = [
    SIZE,
    {"type": "object", **SIZE, "additionalProperties": {"type": "string"}},
    {"patternProperties": {"^gr": {"type": "integer"}}},
    {"allOf": [SIZE, {"required": ["a"]}]},
    {"anyOf": [SIZE, {"type": "null"}]},
    {"$ref": "#/$defs/size", "$defs": {"size": SIZE}},
    {"type": "object", "properties": {"größe": {"type": "integer"}}, "required": ["größe"], "minProperties": 1},
]


@pytest.mark.parametrize("schema", OPEN)
@pytest.mark.parametrize("kind", ["json_schema", "calls"])
@pytest.mark.parametrize(
    "spelling", ["größe", r"gr\u00f6\u00dfe", r"gr\u00F6ße", r"\u0067röße", r"gröss\u0065", "gr\\u00f6\\/"]
)
def test_a_listed_name_in_another_spelling_is_no_other_name(schema: dict[str, Any], kind: str, spelling: str):
    body = schema if kind == "json_schema" else {"lark": "start: @0", "schemas": [schema]}
    grammar = json.dumps({kind: body})
    other = f'"{spelling}": "x"'
    for text in (f"{{{other}}}", f'{{{other}, "a": "b"}}', f'{{"a": "b", {other}}}'):
        assert not accepted(grammar, text) or jsonschema.Draft202012Validator(schema).is_valid(json.loads(text)), text
    assert accepted(grammar, '{"größe": 1, "a": "b"}')


def test_other_names_and_texts_are_as_they_were():
    grammar = json.dumps({"json_schema": SIZE})
    for name in ("größen", "a", r"a\nb", r"\"quoted\"", "\\\\", "日本", "😀", ""):
        assert accepted(grammar, f'{{"{name}": "x"}}'), name
    closed = json.dumps({"json_schema": SIZE | {"additionalProperties": False}})
    assert not accepted(closed, r'{"gr\u00f6\u00dfe": 1}')
    texts = {"type": "object", "properties": {"a": {"type": "string"}}, "additionalProperties": False}
    assert accepted(json.dumps({"json_schema": texts}), r'{"a": "\u001b[31m"}')


def test_a_constant_that_needs_another_spelling_is_refused():
    schema = {"properties": {"key": {"enum": ["a", "\u001b"]}}}
    with pytest.raises(InvalidGrammar, match=r"properties\.key\.enum with control characters is not supported"):
        grammars().compiled(json.dumps({"json_schema": schema}))
    grammars().compiled(json.dumps({"json_schema": schema | {"additionalProperties": False}}))


@pytest.mark.parametrize("schema", OPEN[:4])
def test_what_is_drawn_of_an_open_object_is_valid(schema: dict[str, Any]):
    for seed in range(4):
        text, why = drawn({"json_schema": schema | {"type": "object"}}, 40, seed)
        assert why == "stop"
        jsonschema.validate(json.loads(text), schema)
