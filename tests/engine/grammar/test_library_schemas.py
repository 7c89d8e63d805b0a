"""Schemas as libraries emit them: each is held to, or refused with the path and keyword of what cannot be held."""

from __future__ import annotations

import datetime
import decimal
import enum
import ipaddress
import json
import uuid
from typing import Annotated, Any, Literal

import jsonschema
import pydantic
import pytest
from openai.lib._pydantic import to_strict_json_schema
from pydantic import BaseModel, Field

from engine.grammar.guide import InvalidGrammar
from tests.engine.grammar.test_grammar import accepted, drawn, grammars


class Colour(enum.StrEnum):
    RED = "red"
    GREEN = "green"


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int = Field(9, gt=0, le=9)


class Dog(BaseModel):
    kind: Literal["dog"]
    name: str | None = None


class Amounts(BaseModel):
    share: Annotated[float, Field(gt=0, lt=0.1)]
    price: decimal.Decimal
    step: Annotated[int, Field(multiple_of=5)]
    big: int = Field(ge=-(2**63), le=2**63 - 1)
    far: float = Field(ge=-1e20, le=1e20)


class Texts(BaseModel):
    code: Annotated[str, pydantic.StringConstraints(pattern=r"^\d{3}$", min_length=3)]
    at: datetime.datetime
    address: pydantic.IPvAnyAddress
    host: ipaddress.IPv4Address
    net: pydantic.IPvAnyNetwork
    key: pydantic.UUID4
    older: pydantic.UUID5 | None
    plain: uuid.UUID
    blob: pydantic.Base64Bytes
    path: pydantic.FilePath
    secret: pydantic.SecretStr
    inner: pydantic.Json[dict[str, int]]


class Shapes(BaseModel):
    pet: Cat | Dog = Field(discriminator="kind")
    colours: set[Colour]
    pair: tuple[int, Colour]
    counts: dict[Colour, int]
    either: Literal[1, "a", None]


class Chain(BaseModel):
    pet: Cat | Dog
    next: Chain | None


DRAFT = "https://json-schema.org/draft/2020-12/schema"
MAIL = r"^(?!\.)(?!.*\.\.)([A-Za-z0-9_'+\-\.]*)[A-Za-z0-9_+-]@([A-Za-z0-9][A-Za-z0-9\-]*\.)+[A-Za-z]{2,}$"
UUID = (
    r"^([0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[1-8][0-9a-fA-F]{3}-[89abAB][0-9a-fA-F]{3}-[0-9a-fA-F]{12}"
    r"|00000000-0000-0000-0000-000000000000|ffffffff-ffff-ffff-ffff-ffffffffffff)$"
)
DATE = (
    r"^(?:(?:\d\d[2468][048]|\d\d[13579][26]|\d\d0[48]|[02468][048]00|[13579][26]00)-02-29|\d{4}-(?:(?:0[13578]|1[02])"
    r"-(?:0[1-9]|[12]\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\d|30)|(?:02)-(?:0[1-9]|1\d|2[0-8])))$"
)
BASE64 = r"^$|^(?:[0-9a-zA-Z+/]{4})*(?:(?:[0-9a-zA-Z+/]{2}==)|(?:[0-9a-zA-Z+/]{3}=))?$"


def closed(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


SCHEMAS: dict[str, dict[str, Any]] = {
    "pydantic amounts": Amounts.model_json_schema(),
    "pydantic texts": Texts.model_json_schema(),
    "pydantic shapes": Shapes.model_json_schema(),
    "openai strict": to_strict_json_schema(Chain),
    "openai strict shapes": to_strict_json_schema(Texts),
    "zod": {"$schema": DRAFT, **closed(
        mail={"type": "string", "format": "email", "pattern": MAIL},
        id={"type": "string", "format": "uuid", "pattern": UUID},
        day={"type": "string", "format": "date", "pattern": DATE},
        blob={"type": "string", "format": "base64", "contentEncoding": "base64", "pattern": BASE64},
        phone={"type": "string", "format": "e164", "pattern": r"^\+[1-9]\d{6,14}$"},
        count={"type": "integer", "exclusiveMinimum": 0, "maximum": 9007199254740991},
        rate={"type": "number", "exclusiveMinimum": 0, "maximum": 0.5},
        map={"type": "object", "propertyNames": {"type": "string"}, "additionalProperties": {"type": "boolean"}},
        pet={"oneOf": [closed(kind={"type": "string", "const": "a"}), closed(kind={"type": "string", "const": "b"})]},
        tuple={"type": "array", "prefixItems": [{"type": "string"}, {"type": "null"}], "minItems": 2, "maxItems": 2},
        maybe={"anyOf": [{"type": "string"}, {"type": "null"}]},
    )},
    "zod to draft 7": {"$schema": "http://json-schema.org/draft-07/schema#", **closed(
        slug={"type": "string", "pattern": "^[a-z0-9]+(?:-[a-z0-9]+)*$"},
        above={"type": "number", "exclusiveMinimum": 3},
        flag={"type": ["boolean", "null"], "default": None}, both={"allOf": [closed(a={"type": "null"})]},
    )},
    "instructor": {"title": "Users", "description": "Correctly segmented list", "type": "object", "required": ["tasks"],
        "properties": {"tasks": {"type": "array", "items": {"$ref": "#/$defs/User"}, "description": "The list"}},
        "$defs": {"User": {"title": "User", **closed(age={"title": "Age", "type": "integer", "minimum": 0})}}},
    "langchain": {"type": "object", "properties": {"query": {"description": "what to look up", "type": "string"},
        "top_k": {"default": 3, "maximum": 10, "minimum": 1, "type": "integer"},
        "how": {"default": "fast", "enum": ["fast", "deep"], "type": "string"}}, "required": ["query"]},
    "either name": {**closed(a={"type": "integer"}, b={"type": "string"}), "required": [],
                    "oneOf": [{"required": ["a"]}, {"required": ["b"]}]},
    "openapi": closed(
        id={"type": "integer", "format": "int64", "example": 7}, file={"type": "string", "format": "byte"},
        old={"type": "string", "deprecated": True, "nullable": True}, price={"type": "number", "format": "double"},
    ),
    "schemars": closed(id={"type": "integer", "format": "uint64", "minimum": 0.0, "maximum": 2**64 - 1},
                       name={"type": "string", "minLength": 1.0}),
}  # fmt: skip


@pytest.mark.parametrize("schema", SCHEMAS.values(), ids=SCHEMAS.keys())
def test_what_can_be_held_is_held(schema: dict[str, Any]):
    if "colours" not in schema.get("properties", {}):
        schema = schema | {"additionalProperties": False}
    text, why = drawn({"json_schema": schema}, 400, 0)
    assert why == "stop"
    jsonschema.validate(json.loads(text), schema)


HELD = {"share", "step", "big", "far", "code", "address", "host", "key", "older", "colours"}
"""Fields of which the grammar holds all that the model says."""


@pytest.mark.slow
@pytest.mark.parametrize("model", [Amounts, Texts, Shapes])
def test_what_is_drawn_is_what_the_model_takes(model: type[BaseModel]):
    for seed in range(2):
        text, why = drawn({"json_schema": model.model_json_schema() | {"additionalProperties": False}}, 900, seed)
        assert why == "stop"
        fields = json.loads(text)
        for name in HELD & fields.keys():
            field = model.model_fields[name]
            annotation = Annotated[field.annotation, *field.metadata] if field.metadata else field.annotation
            pydantic.TypeAdapter(annotation).validate_json(json.dumps(fields[name]))


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({"properties": {"tags": {"type": "array", "items": {"type": "string"}, "uniqueItems": True}}},
         "properties.tags.uniqueItems is not supported: leave it out"),
        ({"oneOf": [closed(a={"type": "string"}), {"type": "object"}]}, "oneOf of schemas that one value may fulfil"),
        ({"properties": {"d": {"type": "string", "pattern": r"^P(?!$)(\d+W)?$(?=T)"}}}, "properties.d.pattern with a"),
        ({"items": {"type": "string", "format": "idn-email"}}, "items.format 'idn-email' is not supported"),
        ({"properties": {"n": {"type": "number", "minimum": 1e20}}}, "properties.n.minimum 1e+20 is not supported"),
        ({"properties": {"a": {"if": {}, "then": {}}}}, "properties.a.if is not supported"),
        ({"properties": {"a": {"not": {"type": "null"}}}}, "properties.a.not is not supported"),
    ],
)  # fmt: skip
def test_what_cannot_be_held_is_refused_in_our_words(schema: dict[str, Any], said: str):
    with pytest.raises(InvalidGrammar) as refused:
        grammars().compiled(json.dumps({"json_schema": schema}))
    assert said in str(refused.value)
    assert not any(word in str(refused.value) for word in ("coerce", "NoExtensionBias", "Unimplemented"))


@pytest.mark.parametrize(
    ("schema", "yes", "no"),
    [
        ({"format": "uuid4"}, ["6ba7b810-9dad-41d1-80b4-00c04fd430c8"], ["6ba7b810-9dad-11d1-80b4-00c04fd430c8"]),
        ({"format": "uuid7"}, ["6ba7b810-9dad-71d1-90b4-00c04fd430c8"], ["6ba7b810-9dad-71d1-70b4-00c04fd430c8"]),
        ({"format": "date"}, ["2024-02-29", "2000-02-29", "2023-12-31"], ["2023-02-29", "1900-02-29", "2023-04-31"]),
        ({"format": "date-time"}, ["2024-02-29T00:00:00.5Z", "2023-01-31t23:59:60+01:00"], ["2023-02-29T00:00:00Z"]),
        ({"format": "ipvanyaddress"}, ["10.0.0.1", "::1"], ["10.0.0", "a"]),
        ({"format": "base64"}, ["", "YWI=", "YWJj"], ["YWI", "YW=="[:3]]),
        ({"contentEncoding": "base64", "minLength": 4}, ["YWI="], ["", "YWI"]),
        ({"contentEncoding": "base16"}, ["0A"], ["0", "0G"]),
        ({"format": "json-pointer"}, ["", "/a~1b/0"], ["a", "/~2"]),
        ({"format": "base64", "pattern": "^Y"}, ["YWI="], ["ZWI=", "Y"]),
    ],
)  # fmt: skip
def test_a_format_is_held_to(schema: dict[str, Any], yes: list[str], no: list[str]):
    grammar = json.dumps({"json_schema": {"type": "string"} | schema})
    assert [text for text in yes + no if accepted(grammar, json.dumps(text))] == yes
