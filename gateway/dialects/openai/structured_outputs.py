"""Structured outputs: OpenAI's `response_format` and vLLM's `structured_outputs` and `guided_…` to one `Grammar`."""

from __future__ import annotations

import json
from typing import Annotated, Any, Protocol, TypeAlias

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from gateway.dialects.openai.unsupported_fields import Refused, reject_fields
from gateway.errors import InvalidField
from gateway.generation_request import Grammar
from protocol.grammar_limits import MAX_GRAMMAR_CHARS, MAX_SCHEMA_BYTES, GrammarTooLarge, check_depth, check_grammar

GrammarText: TypeAlias = Annotated[str, Meta(min_length=1, max_length=MAX_GRAMMAR_CHARS)]
ChoiceTexts: TypeAlias = Annotated[list[Annotated[str, Meta(min_length=1, max_length=4096)]], Meta(min_length=1)]
Schema: TypeAlias = Annotated[
    Raw,
    Meta(
        description="A JSON schema, which may also come as a string of JSON.",
        extra_json_schema={"type": ["object", "string", "null"], "additionalProperties": True},
        examples=[{"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}],
    ),
]


class NamedSchema(Struct, frozen=True):
    """`strict` has no effect: the output always fulfils the schema."""

    name: Annotated[str, Meta(min_length=1, max_length=64)]
    schema: Schema | UnsetType = UNSET
    description: str | None = None
    strict: bool | None = None


class TextFormat(Struct, frozen=True, tag="text", tag_field="type"):
    pass


class ObjectFormat(Struct, frozen=True, tag="json_object", tag_field="type"):
    pass


class SchemaFormat(Struct, frozen=True, tag="json_schema", tag_field="type"):
    json_schema: NamedSchema


ResponseFormat: TypeAlias = TextFormat | ObjectFormat | SchemaFormat


class StructuredOutputs(Struct, frozen=True):
    """vLLM's. What else it may say of the output's form is refused."""

    json: Schema | UnsetType = UNSET
    regex: GrammarText | None = None
    choice: ChoiceTexts | None = None
    grammar: GrammarText | None = None
    json_object: bool | None = None

    structural_tag: Refused = UNSET
    whitespace_pattern: Refused = UNSET
    disable_any_whitespace: Refused = UNSET
    disable_additional_properties: Refused = UNSET


_UNSUPPORTED = [name for name, kind in StructuredOutputs.__annotations__.items() if kind == "Refused"]


class GrammarFields(Protocol):
    """The fields of a request that may hold a grammar."""

    @property
    def response_format(self) -> ResponseFormat | None: ...
    @property
    def guided_json(self) -> Raw | UnsetType: ...
    @property
    def guided_regex(self) -> str | None: ...
    @property
    def guided_choice(self) -> list[str] | None: ...
    @property
    def guided_grammar(self) -> str | None: ...
    @property
    def structured_outputs(self) -> StructuredOutputs | None: ...


def parse_grammar(request: GrammarFields) -> Grammar | None:
    """The grammar of a request, if it has one. Raises InvalidRequest if it has two, or an invalid one."""
    grammars = _grammars(request)
    if len(grammars) > 1:
        raise InvalidField(grammars[1].path, f"it cannot be combined with {grammars[0].path}; give one of them")
    return grammars[0] if grammars else None


def _grammars(request: GrammarFields) -> list[Grammar]:
    grammars = []
    match request.response_format:
        case ObjectFormat():
            grammars.append(object_grammar("$.response_format"))
        case SchemaFormat(named):
            grammars.append(schema_grammar(named.schema, "$.response_format.json_schema.schema"))
    outputs = request.structured_outputs or StructuredOutputs()
    reject_fields(outputs, _UNSUPPORTED, "$.structured_outputs")
    if outputs.json_object:
        grammars.append(_grammar("json_schema", {"type": "object"}, "$.structured_outputs.json_object"))
    for kind, path, value in (
        ("json_schema", "$.guided_json", request.guided_json),
        ("json_schema", "$.structured_outputs.json", outputs.json),
        ("regex", "$.guided_regex", request.guided_regex),
        ("regex", "$.structured_outputs.regex", outputs.regex),
        ("choice", "$.guided_choice", request.guided_choice),
        ("choice", "$.structured_outputs.choice", outputs.choice),
        ("grammar", "$.guided_grammar", request.guided_grammar),
        ("grammar", "$.structured_outputs.grammar", outputs.grammar),
    ):
        if value is None or value is UNSET:
            continue
        if isinstance(value, Raw):
            if bytes(value) == b"null":
                continue
            grammars.append(_grammar(kind, _schema(value, path), path))
        else:
            grammars.append(_grammar(kind, value, path))
    return grammars


def object_grammar(path: str) -> Grammar:
    """Any JSON object, as the field at this path demands."""
    return _grammar("json_schema", {"type": "object"}, path)


def schema_grammar(schema: Raw | UnsetType, path: str) -> Grammar:
    """What fulfils the schema at this path; any JSON without one. Raises InvalidRequest."""
    if isinstance(schema, UnsetType) or bytes(schema) == b"null":
        return _grammar("json_schema", {}, path)
    return _grammar("json_schema", _schema(schema, path), path)


def _schema(raw: Raw, path: str) -> dict[str, Any]:
    """A JSON schema. vLLM's clients may also send it as a string of JSON."""
    if len(raw) > MAX_SCHEMA_BYTES:
        raise InvalidField(path, f"it has more than {MAX_SCHEMA_BYTES} bytes")
    try:
        schema = msgspec.json.decode(raw)
        if isinstance(schema, str):
            schema = msgspec.json.decode(schema)
        check_depth(schema)
    except GrammarTooLarge as error:
        raise InvalidField(path, str(error)) from error
    except (ValueError, RecursionError) as error:
        raise InvalidField(path, f"it is not JSON: {error}") from error
    if not isinstance(schema, dict):
        raise InvalidField(path, "Expected `object`", code="invalid_type")
    return schema


def _grammar(kind: str, body: object, path: str) -> Grammar:
    try:
        check_grammar(kind, body)
    except GrammarTooLarge as error:
        raise InvalidField(path, str(error)) from error
    return Grammar(json.dumps({kind: body}, ensure_ascii=False), path)
