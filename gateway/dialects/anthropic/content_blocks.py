"""The Messages API's content blocks as structs; which of them are refused by name.

Source: https://docs.anthropic.com/en/api/messages. Unknown fields are ignored.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from gateway.dialects.json_paths import json_object
from gateway.errors import InvalidField

ToolId: TypeAlias = Annotated[str, Meta(pattern=r"^[a-zA-Z0-9_-]+$", max_length=256)]
ToolName: TypeAlias = Annotated[str, Meta(pattern=r"^[a-zA-Z0-9_-]+$", max_length=128)]


Citations: TypeAlias = Annotated[
    Raw,
    Meta(
        description="Of an earlier answer's text: not looked at there. Other texts cannot have any from 2026-10-21 on.",
        extra_json_schema={"type": ["array", "null"], "items": {"type": "object", "additionalProperties": True}},
    ),
]
NoMarker: TypeAlias = Annotated[Raw, Meta(description="It cannot be marked.", extra_json_schema={"type": "null"})]


class CacheControl(Struct, frozen=True, tag="ephemeral", tag_field="type"):
    """Cache the prompt up to here, for `ttl`."""

    ttl: Literal["5m", "1h"] | None = None


class TextBlock(Struct, frozen=True, tag="text", tag_field="type"):
    text: str
    cache_control: CacheControl | None = None
    citations: Citations | UnsetType = UNSET


class ToolUseBlock(Struct, frozen=True, tag="tool_use", tag_field="type"):
    id: ToolId
    name: ToolName
    input: Annotated[Raw, json_object("The arguments of the call.")]
    cache_control: CacheControl | None = None


class ThinkingBlock(Struct, frozen=True, tag="thinking", tag_field="type"):
    """Reasoning of an earlier answer. Under a signature that is not ours, or of another text, it is left out."""

    thinking: str
    signature: str = ""
    cache_control: NoMarker | UnsetType = UNSET


class RedactedThinkingBlock(Struct, frozen=True, tag="redacted_thinking", tag_field="type"):
    data: str
    cache_control: NoMarker | UnsetType = UNSET


_UNSUPPORTED = {
    "image": "images",
    "document": "documents",
    "search_result": "search results",
    "container_upload": "containers",
    "server_tool_use": "server tools",
    "tool_reference": "tool search",
    "web_search_tool_result": "server tools",
    "web_fetch_tool_result": "server tools",
    "code_execution_tool_result": "server tools",
    "bash_code_execution_tool_result": "server tools",
    "text_editor_code_execution_tool_result": "server tools",
    "tool_search_tool_result": "server tools",
    "mcp_tool_use": "MCP connectors",
    "mcp_tool_result": "MCP connectors",
}
"""The type of a block that is known and not supported -> what it is for."""


def _refused(kind: str) -> Any:
    return msgspec.defstruct(
        f"Unsupported_{kind}",
        [],
        tag=kind,
        tag_field="type",
        frozen=True,
        namespace={"__doc__": f"Not supported ({_UNSUPPORTED[kind]}): refused."},
    )


_Refused = {kind: _refused(kind) for kind in _UNSUPPORTED}
_AnyRefused: Any = None
for _kind in _Refused.values():
    _AnyRefused = _kind if _AnyRefused is None else _AnyRefused | _kind


class ToolResultBlock(Struct, frozen=True, tag="tool_result", tag_field="type"):
    """What a tool answered: a text, or text blocks."""

    tool_use_id: ToolId
    content: str | list[TextBlock | _AnyRefused] | None = None
    is_error: bool | None = None
    cache_control: CacheControl | None = None


Block: TypeAlias = TextBlock | ToolUseBlock | ToolResultBlock | ThinkingBlock | RedactedThinkingBlock
AnyBlock: Any = Block | _AnyRefused


def refuse_unsupported(block: Any, path: str) -> None:
    """Raise InvalidRequest for a block of a type that is known and not supported."""
    kind = block.__struct_config__.tag
    if kind in _UNSUPPORTED:
        raise InvalidField(
            path, f"blocks of the type {kind} are not supported ({_UNSUPPORTED[kind]})", code="unsupported_parameter"
        )
