"""The tools of a request: their definitions, and the choice of those that may be called."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Annotated, TypeAlias

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from gateway.dialects.anthropic.content_blocks import CacheControl, ToolName
from gateway.dialects.json_objects import JsonObjects
from gateway.dialects.json_paths import json_bytes, json_object
from gateway.errors import InvalidField
from gateway.generation_request import CacheMarker, Tool
from gateway.generation_request import ToolChoice as Choice
from protocol.grammar_limits import MAX_SCHEMA_BYTES

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,128}")
_ABSENT_OR_NULL = (b"", b"null")


InputExamples: TypeAlias = Annotated[
    Raw,
    Meta(
        description="Arguments that the schema allows.",
        extra_json_schema={"type": ["array", "null"], "items": {"type": "object", "additionalProperties": True}},
    ),
]


class ToolParam(Struct, frozen=True):
    """A tool of the client's, or one of the server's, which are refused by their type.

    With `strict` arguments fulfil all of the schema, or the request is refused; without it all that every grammar
    engine knows of it, or all where a call is required. Input always streams eagerly.
    """

    name: str = ""
    type: str | None = None
    description: str | None = None
    input_schema: Annotated[Raw, json_object("A JSON schema of the type `object`.")] | UnsetType = UNSET
    input_examples: InputExamples | UnsetType = UNSET
    cache_control: CacheControl | None = None
    defer_loading: bool | None = None
    strict: bool | None = None
    eager_input_streaming: bool | None = None


class AutoChoice(Struct, frozen=True, tag="auto", tag_field="type"):
    disable_parallel_tool_use: bool | None = None


class AnyChoice(Struct, frozen=True, tag="any", tag_field="type"):
    disable_parallel_tool_use: bool | None = None


class NamedChoice(Struct, frozen=True, tag="tool", tag_field="type"):
    name: ToolName
    disable_parallel_tool_use: bool | None = None


class NoChoice(Struct, frozen=True, tag="none", tag_field="type"):
    pass


ToolChoice: TypeAlias = AutoChoice | AnyChoice | NamedChoice | NoChoice


def read_tools(tools: Sequence[ToolParam], objects: JsonObjects) -> tuple[tuple[Tool, ...], list[CacheMarker]]:
    """The tools, and the markers on them. Raises InvalidRequest naming the path."""
    read: list[Tool] = []
    names: set[str] = set()
    markers: list[CacheMarker] = []
    for index, tool in enumerate(tools):
        path = f"$.tools[{index}]"
        _check(tool, path)
        if tool.name in names:
            raise InvalidField(f"{path}.name", f"another tool is named {tool.name}; names must be unique")
        names.add(tool.name)
        read.append(Tool(tool.name, tool.description, _schema(tool, path, objects), path, bool(tool.strict)))
        if tool.cache_control is not None:
            markers.append(CacheMarker(path, f"{path}.cache_control", tool.cache_control.ttl))
    return tuple(read), markers


def read_choice(choice: ToolChoice | None, tools: Sequence[Tool]) -> Choice:
    """Which tools may be called. Raises InvalidRequest naming the path."""
    if choice is None:
        return Choice()
    if isinstance(choice, NoChoice):
        return Choice("none")
    if not tools:
        raise InvalidField("$.tool_choice", "it needs $.tools")
    if isinstance(choice, NamedChoice) and choice.name not in {tool.name for tool in tools}:
        raise InvalidField("$.tool_choice.name", f"there is no tool named {choice.name}")
    several = not choice.disable_parallel_tool_use
    if isinstance(choice, AutoChoice):
        return Choice(parallel=several)
    if isinstance(choice, AnyChoice):
        return Choice("required", parallel=several)
    return Choice("required", (choice.name,), parallel=several)


def _check(tool: ToolParam, path: str) -> None:
    if tool.type not in (None, "custom"):
        kind = str(tool.type)[:60]
        raise InvalidField(
            f"{path}.type",
            f"{kind!r} is not supported: server tools and toolsets are not",
            code="unsupported_parameter",
        )
    if not _NAME.fullmatch(tool.name):
        raise InvalidField(f"{path}.name", "it must be 1 to 128 of the characters a-z, A-Z, 0-9, _ and -")
    if tool.defer_loading:
        raise InvalidField(
            f"{path}.defer_loading", "it is not supported: there is no tool search", code="unsupported_parameter"
        )
    if json_bytes(tool.input_schema) in _ABSENT_OR_NULL:
        raise InvalidField(f"{path}.input_schema", "it is missing", code="missing_required_parameter")


def _schema(tool: ToolParam, path: str, objects: JsonObjects) -> str:
    assert tool.input_schema is not UNSET, "_check saw it"
    schema = objects.read(tool.input_schema, f"{path}.input_schema")
    if schema.get("type") != "object":
        raise InvalidField(f"{path}.input_schema.type", "it must be 'object'")
    if tool.input_examples is not UNSET and bytes(tool.input_examples) != b"null":
        examples = _examples(tool.input_examples, f"{path}.input_examples", objects)
        if examples:
            schema = {**schema, "examples": examples}
    return json.dumps(schema, ensure_ascii=False)


def _examples(raw: Raw, path: str, objects: JsonObjects) -> list[dict[str, object]]:
    if len(raw) > MAX_SCHEMA_BYTES:
        raise InvalidField(path, f"it has more than {MAX_SCHEMA_BYTES} bytes")
    try:
        examples = msgspec.json.decode(raw, type=list[Raw])
    except msgspec.MsgspecError as error:
        raise InvalidField(path, "Expected `array`", code="invalid_type") from error
    return [objects.read(example, f"{path}[{index}]") for index, example in enumerate(examples)]
