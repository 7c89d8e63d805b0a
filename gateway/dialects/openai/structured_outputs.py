"""What the output must fulfil: OpenAI's `response_format`, and the fields that vLLM's users send."""

from __future__ import annotations

import json
from typing import Annotated, Any, Protocol, TypeAlias

import msgspec
from msgspec import Meta, Raw, Struct

from gateway.dialects.json_paths import ABSENT
from gateway.errors import InvalidRequest
from gateway.generation_request import Grammar
from protocol.grammar_limits import MAX_GRAMMAR_CHARS, MAX_SCHEMA_BYTES, GrammarTooLarge, check_depth, check_grammar

GrammarText: TypeAlias = Annotated[str, Meta(min_length=1, max_length=MAX_GRAMMAR_CHARS)]
ChoiceTexts: TypeAlias = Annotated[list[Annotated[str, Meta(min_length=1, max_length=4096)]], Meta(min_length=1)]
_NOTHING = (b"", b"null")


class NamedSchema(Struct, frozen=True):
    """`strict` changes nothing: what is generated always fulfils the schema."""

    name: Annotated[str, Meta(min_length=1, max_length=64)]
    schema: Raw = ABSENT
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
    json: Raw = ABSENT
    regex: GrammarText | None = None
    choice: ChoiceTexts | None = None
    grammar: GrammarText | None = None
    json_object: bool | None = None


class GrammarFields(Protocol):
    """Where a request may say it."""

    @property
    def response_format(self) -> ResponseFormat | None: ...
    @property
    def guided_json(self) -> Raw: ...
    @property
    def guided_regex(self) -> str | None: ...
    @property
    def guided_choice(self) -> list[str] | None: ...
    @property
    def guided_grammar(self) -> str | None: ...
    @property
    def structured_outputs(self) -> StructuredOutputs | None: ...


def grammar_of(request: GrammarFields) -> Grammar | None:
    """The one grammar that a request names. Raises InvalidRequest if there are two, or a schema is no object."""
    wishes = _wishes(request)
    if len(wishes) > 1:
        first, second = wishes[0].path, wishes[1].path
        raise InvalidRequest(f"{second} cannot be combined with {first}.", path=second, code="invalid_value")
    return wishes[0] if wishes else None


def _wishes(request: GrammarFields) -> list[Grammar]:
    wishes = []
    match request.response_format:
        case ObjectFormat():
            wishes.append(_wish("json_schema", {"type": "object"}, "$.response_format"))
        case SchemaFormat(named):
            path = "$.response_format.json_schema.schema"
            wishes.append(
                _wish("json_schema", _schema(named.schema, path) if bytes(named.schema) not in _NOTHING else {}, path)
            )
    also = request.structured_outputs or StructuredOutputs()
    if also.json_object:
        wishes.append(_wish("json_schema", {"type": "object"}, "$.structured_outputs.json_object"))
    for kind, path, said in (
        ("json_schema", "$.guided_json", request.guided_json),
        ("json_schema", "$.structured_outputs.json", also.json),
        ("regex", "$.guided_regex", request.guided_regex),
        ("regex", "$.structured_outputs.regex", also.regex),
        ("choice", "$.guided_choice", request.guided_choice),
        ("choice", "$.structured_outputs.choice", also.choice),
        ("grammar", "$.guided_grammar", request.guided_grammar),
        ("grammar", "$.structured_outputs.grammar", also.grammar),
    ):
        if isinstance(said, Raw):
            if bytes(said) in _NOTHING:
                continue
            wishes.append(_wish(kind, _schema(said, path), path))
        elif said is not None:
            wishes.append(_wish(kind, said, path))
    return wishes


def _schema(raw: Raw, path: str) -> dict[str, Any]:
    """A schema, which users of open servers may also send as a text of JSON."""
    if len(raw) > MAX_SCHEMA_BYTES:
        raise InvalidRequest(f"{path}: more than {MAX_SCHEMA_BYTES} bytes.", path=path, code="invalid_value")
    try:
        schema = msgspec.json.decode(raw)
        if isinstance(schema, str):
            schema = msgspec.json.decode(schema)
        check_depth(schema)
    except GrammarTooLarge as error:
        raise InvalidRequest(f"{path}: {error}.", path=path, code="invalid_value") from error
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"{path} is not JSON: {error}.", path=path, code="invalid_value") from error
    if not isinstance(schema, dict):
        raise InvalidRequest(f"{path}: Expected `object`.", path=path, code="invalid_type")
    return schema


def _wish(kind: str, body: object, path: str) -> Grammar:
    try:
        check_grammar(kind, body)
    except GrammarTooLarge as error:
        raise InvalidRequest(f"{path}: {error}.", path=path, code="invalid_value") from error
    return Grammar(json.dumps({kind: body}, ensure_ascii=False), path)
