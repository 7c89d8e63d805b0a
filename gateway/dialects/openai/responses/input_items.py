"""What a request to the Responses API is made of, as it stands in JSON: items, their parts, and tools.

Source: https://platform.openai.com/docs/api-reference/responses and the types of the official client. An item may come
without `type`, which makes it a message, so items are one struct with the fields of all kinds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType
from msgspec.structs import replace

from gateway.dialects.json_paths import json_object
from gateway.dialects.openai.cache_fields import CacheControl, ExplicitBreakpoint, MarkableTool
from gateway.dialects.openai.tools import MOST_TOOLS, CalledName

MOST_REFERENCES = 256
"""Items of earlier responses that one request may refer to."""
_ENTRY = 32
"""About how many bytes an item or a part has in JSON, without what it says."""

ItemKind = Literal[
    "message",
    "function_call",
    "function_call_output",
    "custom_tool_call",
    "custom_tool_call_output",
    "reasoning",
    "item_reference",
]
PartKind = Literal["input_text", "output_text", "text", "refusal", "reasoning_text", "summary_text"]
ItemId: TypeAlias = Annotated[str, Meta(max_length=256)]


class ItemPart(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A piece of text within an item. A marker says that the prompt is to be cached up to its end."""

    type: PartKind
    text: str = ""
    refusal: str | None = None
    prompt_cache_breakpoint: ExplicitBreakpoint | None = None
    cache_control: CacheControl | None = None


INCOMPLETE = "incomplete"
"""The `status` of an item of an answer that ended within it."""


class InputItem(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One item of the conversation. `output`: what a tool answered; `input`: of a custom tool's call. A marker on a
    message or an output is one on its last part."""

    type: ItemKind = "message"
    id: ItemId | None = None
    status: ItemId | None = None
    role: Literal["user", "assistant", "system", "developer"] | None = None
    content: str | list[ItemPart] | None = None
    call_id: ItemId | None = None
    name: CalledName | None = None
    namespace: CalledName | None = None
    arguments: str | None = None
    input: str | None = None
    output: str | list[ItemPart] | None = None
    summary: list[ItemPart] | None = None
    encrypted_content: str | None = None
    prompt_cache_breakpoint: ExplicitBreakpoint | None = None
    cache_control: CacheControl | None = None


class CustomFormat(Struct, frozen=True, omit_defaults=True):
    """What a custom tool takes: any text, or what a grammar allows."""

    type: Literal["text", "grammar"]
    syntax: Literal["lark", "regex"] | None = None
    definition: str | None = None


HOSTED_TOOLS = ("web_search", "image_generation")
"""Tools that the server would run, of which a client may do without some."""


class ResponseTool(MarkableTool, frozen=True, kw_only=True):
    """A tool: a function, which takes JSON, a custom one, which takes text, a named group of both, or a hosted one."""

    type: Literal["function", "custom", "namespace", "web_search", "image_generation"]
    name: Annotated[str, Meta(examples=["weather"])] = ""
    description: str | UnsetType | None = UNSET
    parameters: Annotated[Raw, json_object("A JSON schema of the type `object`.")] | UnsetType = UNSET
    strict: bool | UnsetType | None = UNSET
    format: CustomFormat | UnsetType | None = UNSET
    tools: Annotated[list[ResponseTool], Meta(max_length=MOST_TOOLS)] | UnsetType = UNSET
    external_web_access: bool | UnsetType | None = UNSET


class NamedTool(Struct, frozen=True):
    """A tool of a list of those that may be called."""

    name: CalledName
    type: Literal["function", "custom"] = "function"
    namespace: CalledName | UnsetType = UNSET


class ChosenTool(Struct, frozen=True, kw_only=True):
    """One tool that must be called, or the list of those that may or must be."""

    type: Literal["function", "custom", "allowed_tools"]
    name: CalledName | UnsetType = UNSET
    namespace: CalledName | UnsetType = UNSET
    mode: Literal["auto", "required"] | UnsetType = UNSET
    tools: Annotated[list[NamedTool], Meta(min_length=1, max_length=MOST_TOOLS)] | UnsetType = UNSET


ResponseToolChoice: TypeAlias = Literal["none", "auto", "required"] | ChosenTool


def numbered(items: Sequence[InputItem], key: str) -> list[InputItem]:
    """The items of one input, each with an id of its own, made of the response's `key`. What a client gave as an id may
    stand there twice, or be that of another response's item."""
    return [replace(item, id=f"item_{key}{index:04x}") for index, item in enumerate(items)]


def listed(item: InputItem) -> dict[str, Any]:
    """An item as OpenAI lists it."""
    shown: dict[str, Any] = {"id": item.id, "type": item.type, "status": item.status or "completed"}
    shown |= {name: value for name, value in msgspec.to_builtins(item).items() if name not in shown}
    if item.type == "message" and isinstance(item.content, str):
        kind = "output_text" if item.role == "assistant" else "input_text"
        shown["content"] = [{"type": kind, "text": item.content}]
    return shown


def json_size(item: InputItem) -> int:
    """About how many bytes an item has in JSON, where reading it costs something even if it says nothing."""
    lists = [field for field in (item.content, item.output, item.summary) if isinstance(field, list)]
    texts = (item.content, item.output, item.arguments, item.input, item.encrypted_content, item.call_id, item.name)
    said = sum(len(text) for text in texts if isinstance(text, str))
    return said + _ENTRY + sum(_ENTRY + len(part.text) + len(part.refusal or "") for parts in lists for part in parts)
