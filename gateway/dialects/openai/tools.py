"""Tools of a chat request: definitions, the choice of them, calls of earlier answers and their results.

Source: https://platform.openai.com/docs/api-reference/chat/create. Custom tools take a text instead of JSON, and are
refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Annotated, Literal, TypeAlias

from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from gateway.dialects.json_objects import JsonObjects
from gateway.dialects.json_paths import json_object
from gateway.dialects.openai.cache_fields import MarkableTool
from gateway.errors import InvalidField
from gateway.generation_request import Tool, ToolCall, ToolChoice

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_ABSENT_OR_NULL = (b"", b"null")
MOST_TOOLS = 1024

CallId: TypeAlias = Annotated[str, Meta(min_length=1, max_length=256)]
CalledName: TypeAlias = Annotated[str, Meta(max_length=256)]
"""A name that a model gave, which need not be one of a tool."""


class FunctionDefinition(MarkableTool, frozen=True):
    """A function that the model may call. With `strict` arguments fulfil all of the schema, or the request is refused;
    without it all that every grammar engine knows of it, or all where a call is required."""

    name: str
    description: str | None = None
    parameters: Annotated[Raw, json_object("A JSON schema of the type `object`.")] | UnsetType = UNSET
    strict: bool | None = None


class FunctionTool(MarkableTool, frozen=True, tag="function", tag_field="type"):
    function: FunctionDefinition


class CustomTool(Struct, frozen=True, tag="custom", tag_field="type"):
    pass


ChatTool: TypeAlias = FunctionTool | CustomTool


class NamedFunction(Struct, frozen=True):
    name: CalledName


class FunctionChoice(Struct, frozen=True, tag="function", tag_field="type"):
    function: NamedFunction


class CustomChoice(Struct, frozen=True, tag="custom", tag_field="type"):
    pass


class AllowedTools(Struct, frozen=True):
    mode: Literal["auto", "required"]
    tools: Annotated[list[FunctionChoice], Meta(min_length=1, max_length=MOST_TOOLS)]


class AllowedChoice(Struct, frozen=True, tag="allowed_tools", tag_field="type"):
    allowed_tools: AllowedTools


ChatToolChoice: TypeAlias = Literal["none", "auto", "required"] | FunctionChoice | CustomChoice | AllowedChoice


class CalledFunction(Struct, frozen=True):
    name: CalledName
    arguments: str = ""


class MessageToolCall(Struct, frozen=True, tag="function", tag_field="type"):
    """A call of an earlier answer, as it was given."""

    id: CallId
    function: CalledFunction


def read_tools(tools: Sequence[ChatTool], objects: JsonObjects) -> tuple[Tool, ...]:
    """The tools of a request. Raises InvalidRequest naming the path."""
    if len(tools) > MOST_TOOLS:
        raise InvalidField("$.tools", f"there are more than {MOST_TOOLS}")
    read: list[Tool] = []
    names: set[str] = set()
    for index, tool in enumerate(tools):
        path = f"$.tools[{index}]"
        if isinstance(tool, CustomTool):
            raise InvalidField(f"{path}.type", "custom tools are not supported", code="unsupported_parameter")
        read.append(read_function(tool.function, f"{path}.function", path, names, objects))
    return tuple(read)


def read_function(definition: FunctionDefinition, at: str, path: str, names: set[str], objects: JsonObjects) -> Tool:
    """The function that is defined `at` this path, as the tool at `path`. `names`: those of the tools before, to which
    its own is added. Raises InvalidRequest naming the path."""
    check_name(definition.name, at, names)
    schema = _schema(definition.parameters, at, objects)
    return Tool(definition.name, definition.description, schema, path, bool(definition.strict))


def check_name(name: str, at: str, names: set[str]) -> None:
    """Add the name of the tool that is defined `at` this path. Raises InvalidRequest if it cannot be one."""
    if not _NAME.fullmatch(name):
        raise InvalidField(f"{at}.name", "it must be 1 to 64 of the characters a-z, A-Z, 0-9, _ and -")
    if name in names:
        raise InvalidField(f"{at}.name", f"another tool is named {name}; names must be unique")
    names.add(name)


def _schema(raw: Raw | UnsetType, path: str, objects: JsonObjects) -> str:
    if raw is UNSET or bytes(raw) in _ABSENT_OR_NULL:
        return '{"type": "object", "properties": {}}'
    schema = objects.read(raw, f"{path}.parameters")
    if schema.get("type", "object") != "object":
        raise InvalidField(f"{path}.parameters.type", "it must be 'object'")
    return json.dumps(schema, ensure_ascii=False)


def read_choice(choice: ChatToolChoice | None, tools: Sequence[Tool], *, parallel: bool | None) -> ToolChoice:
    """Which tools may be called. Raises InvalidRequest naming the path."""
    several = parallel is not False
    if choice is not None and choice not in ("none", "auto") and not tools:
        raise InvalidField("$.tool_choice", "it needs $.tools")
    match choice:
        case None | "auto":
            return ToolChoice(parallel=several)
        case "none":
            return ToolChoice("none")
        case "required":
            return ToolChoice("required", parallel=several)
        case FunctionChoice(named):
            check_known([named.name], tools, "$.tool_choice.function.name")
            return ToolChoice("required", (named.name,), parallel=False)
        case AllowedChoice(allowed):
            names = tuple(one.function.name for one in allowed.tools)
            check_known(names, tools, "$.tool_choice.allowed_tools.tools")
            return ToolChoice(allowed.mode, names, parallel=several)
    raise InvalidField("$.tool_choice.type", "custom tools are not supported", code="unsupported_parameter")


def check_known(names: Sequence[str], tools: Sequence[Tool], path: str) -> None:
    """Raise InvalidRequest where a tool of these names is not there."""
    known = {tool.name for tool in tools}
    for name in names:
        if name not in known:
            raise InvalidField(path, f"there is no tool named {name[:64]!r} in $.tools")


def read_calls(calls: Sequence[MessageToolCall], path: str, objects: JsonObjects) -> tuple[ToolCall, ...]:
    """The calls of an assistant's message. Raises InvalidRequest naming the path."""
    read = []
    for index, call in enumerate(calls):
        at = f"{path}[{index}]"
        arguments, readable = objects.read_arguments(call.function.arguments, f"{at}.function.arguments")
        read.append(ToolCall(arguments, at, id=call.id, name=call.function.name, readable=readable))
    return tuple(read)
