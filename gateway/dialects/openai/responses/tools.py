"""Tools of a Responses request: functions, custom tools and groups of them, and the choice of what is called.

To the model a custom tool is a function with one string, `input`; a tool of a group is named `GROUP__TOOL`. `ToolNames`
turns its calls back into what the client knows.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

from gateway.dialects.json_objects import JsonObjects
from gateway.dialects.openai.cache_fields import Marked
from gateway.dialects.openai.responses.input_items import (
    HOSTED_TOOLS,
    ChosenTool,
    NamedTool,
    ResponseTool,
    ResponseToolChoice,
)
from gateway.dialects.openai.tools import (
    MOST_TOOLS,
    FunctionDefinition,
    check_known,
    check_name,
    read_choice,
    read_function,
)
from gateway.errors import InvalidField
from gateway.generation_request import Tool, ToolChoice

INPUT = "input"
"""The argument that is a custom tool's text."""
_JOINT = "__"
_LONGEST_GRAMMAR = 64 * 1024


class CalledAs(Struct, frozen=True):
    """What the client calls a tool."""

    kind: Literal["function", "custom"]
    name: str
    namespace: str | UnsetType = UNSET


class ToolNames:
    """The model's names of a request's tools, with what the client calls them."""

    def __init__(self, names: Mapping[str, CalledAs] | None = None) -> None:
        self._names = dict(names or {})

    def called(self, name: str) -> CalledAs:
        """What the tool is that the model called; a function for a name that nobody gave."""
        return self._names.get(name) or CalledAs("function", name)


def model_name(name: str, namespace: str | UnsetType | None = None) -> str:
    """The name by which the model knows a tool of this name and group."""
    return f"{namespace}{_JOINT}{name}" if namespace else name


def read_response_tools(
    tools: Sequence[ResponseTool], objects: JsonObjects, *, hosted_optional: bool = False
) -> tuple[tuple[Tool, ...], ToolNames, list[Marked]]:
    """The tools that the model is told of, what the client calls them, and those that it marked. `hosted_optional`: the
    client does without hosted tools, which are left out. Raises InvalidRequest naming the path."""
    reader = _Reader(objects, hosted_optional=hosted_optional)
    for index, tool in enumerate(tools):
        reader.read(tool, f"$.tools[{index}]")
    if len(reader.tools) > MOST_TOOLS:
        raise InvalidField("$.tools", f"there are more than {MOST_TOOLS}")
    return tuple(reader.tools), ToolNames(reader.names), reader.marked


class _Reader:
    def __init__(self, objects: JsonObjects, *, hosted_optional: bool) -> None:
        self.tools: list[Tool] = []
        self.names: dict[str, CalledAs] = {}
        self.marked: list[Marked] = []
        self._objects = objects
        self._hosted_optional = hosted_optional
        self._taken: dict[str, set[str]] = {}
        """The names of each group."""

    def read(self, tool: ResponseTool, path: str, namespace: str = "") -> None:
        """One tool, or the tools of a group. Raises InvalidRequest."""
        match tool.type:
            case kind if kind in HOSTED_TOOLS:
                # a search without access to the web finds nothing that the model does not know
                needless = kind == "web_search" and tool.external_web_access is False
                if not needless and not self._hosted_optional:
                    raise InvalidField(f"{path}.type", f"{kind!r} is not supported", code="unsupported_parameter")
            case "namespace":
                if namespace:
                    raise InvalidField(f"{path}.type", "a namespace cannot be in another one")
                check_name(tool.name, path, self._taken.setdefault(_JOINT, set()))
                for index, inner in enumerate(tool.tools or ()):
                    self.read(inner, f"{path}.tools[{index}]", tool.name)
            case "function":
                self._add(tool, self._function(tool, path, namespace), namespace)
            case "custom":
                self._add(tool, self._custom(tool, path, namespace), namespace)
        if tool.cache_control and self.tools:
            self.marked.append(Marked(self.tools[-1].path, path, tool))

    def _add(self, tool: ResponseTool, read: Tool, namespace: str) -> None:
        name = model_name(tool.name, namespace)
        if name in self.names:
            raise InvalidField(f"{read.path}.name", f"another tool is named {name}; names must be unique")
        kind: Literal["function", "custom"] = "custom" if tool.type == "custom" else "function"
        self.names[name] = CalledAs(kind, tool.name, namespace or UNSET)
        self.tools.append(replace(read, name=name))

    def _function(self, tool: ResponseTool, path: str, namespace: str) -> Tool:
        strict = None if isinstance(tool.strict, UnsetType) else tool.strict
        definition = FunctionDefinition(tool.name, tool.description or None, tool.parameters, strict)
        return read_function(definition, path, path, self._taken.setdefault(namespace, set()), self._objects)

    def _custom(self, tool: ResponseTool, path: str, namespace: str) -> Tool:
        check_name(tool.name, path, self._taken.setdefault(namespace, set()))
        described, argument = tool.description or "", {"type": "string"}
        grammar = tool.format or None
        if grammar is not None and grammar.type == "grammar":
            if not grammar.definition or grammar.syntax is None:
                raise InvalidField(f"{path}.format", "a grammar needs a syntax and a definition")
            if len(grammar.definition) > _LONGEST_GRAMMAR:
                raise InvalidField(f"{path}.format.definition", f"it is longer than {_LONGEST_GRAMMAR} characters")
            if grammar.syntax == "regex":
                argument["pattern"] = f"^(?:{grammar.definition})$"
            described += f"\n\nThe input matches this {grammar.syntax} grammar:\n{grammar.definition}"
        schema: dict[str, Any] = {
            "type": "object",
            "properties": {INPUT: argument},
            "required": [INPUT],
            "additionalProperties": False,
        }
        return Tool(tool.name, described.strip() or None, json.dumps(schema, ensure_ascii=False), path)


def read_response_choice(
    choice: ResponseToolChoice | None, tools: Sequence[Tool], *, parallel: bool | None
) -> ToolChoice:
    """Which tools may be called. Raises InvalidRequest naming the path."""
    if not isinstance(choice, ChosenTool):
        return read_choice(choice, tools, parallel=parallel)
    if not tools:
        raise InvalidField("$.tool_choice", "it needs $.tools")
    several = parallel is not False
    if choice.type == "allowed_tools":
        if isinstance(choice.tools, UnsetType) or isinstance(choice.mode, UnsetType):
            missing = "tools" if choice.tools is UNSET else "mode"
            raise InvalidField(f"$.tool_choice.{missing}", "it is missing", code="missing_required_parameter")
        names = tuple(_known(one, tools, f"$.tool_choice.tools[{at}].name") for at, one in enumerate(choice.tools))
        return ToolChoice(choice.mode, names, parallel=several)
    if isinstance(choice.name, UnsetType):
        raise InvalidField("$.tool_choice.name", "it is missing", code="missing_required_parameter")
    named = NamedTool(choice.name, choice.type, choice.namespace)
    return ToolChoice("required", (_known(named, tools, "$.tool_choice.name"),), parallel=False)


def _known(named: NamedTool, tools: Sequence[Tool], path: str) -> str:
    name = model_name(named.name, named.namespace)
    check_known([name], tools, path)
    return name
