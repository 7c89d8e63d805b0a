"""The field `context_management`: edits of the conversation before the model reads it, of which we make none.

Source: https://docs.anthropic.com/en/docs/build-with-claude/context-editing. An edit is accepted where there is nothing
that it could clear, and refused by name elsewhere: a model that reads what its client believes cleared answers another
question, at another price.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from msgspec import Meta, Struct

from gateway.dialects.anthropic.content_blocks import RedactedThinkingBlock, ThinkingBlock, ToolUseBlock
from gateway.dialects.anthropic.conversation_turns import Message
from gateway.errors import InvalidField

_THINKING, _TOOL_USES = "clear_thinking_20251015", "clear_tool_uses_20250919"
_THOUGHTS = (ThinkingBlock, RedactedThinkingBlock)
_DEFAULT_KEEP = {_THINKING: 1, _TOOL_USES: 3}


class KeepCount(Struct, frozen=True):
    """How many of the last ones an edit leaves."""

    type: Literal["thinking_turns", "tool_uses"]
    value: Annotated[int, Meta(ge=0)]


class ContextEdit(Struct, frozen=True):
    """One edit. Accepted if the conversation has no more than what it keeps: of turns with thinking, or of calls."""

    type: Annotated[str, Meta(max_length=128, examples=[_THINKING])]
    keep: Literal["all"] | KeepCount | None = None


class ContextManagement(Struct, frozen=True):
    """Edits of the conversation, in their order."""

    edits: Annotated[list[ContextEdit], Meta(max_length=16)] | None = None


def check_context_edits(management: ContextManagement, messages: Sequence[Message]) -> None:
    """Raise InvalidRequest, naming the path, for an edit that would have an effect on these messages."""
    for index, edit in enumerate(management.edits or ()):
        path = f"$.context_management.edits[{index}]"
        clearable = _clearable(edit.type, messages)
        if clearable is None:
            raise InvalidField(f"{path}.type", f"{edit.type!r} is not supported", code="unsupported_parameter")
        kept = _kept(edit, path)
        if kept is not None and clearable > kept:
            problem = f"{edit.type!r} is not supported where it clears anything; keep all, and leave out what may go"
            raise InvalidField(f"{path}.type", problem, code="unsupported_parameter")


def _clearable(kind: str, messages: Sequence[Message]) -> int | None:
    """Of how many things an edit of this kind clears all but the last ones; None for a kind that is not known."""
    blocks = [message.content for message in messages if not isinstance(message.content, str)]
    if kind == _THINKING:
        return sum(any(isinstance(block, _THOUGHTS) for block in content) for content in blocks)
    if kind == _TOOL_USES:
        return sum(isinstance(block, ToolUseBlock) for content in blocks for block in content)
    return None


def _kept(edit: ContextEdit, path: str) -> int | None:
    """How many of the last ones the edit keeps; None for all."""
    of, least = ("thinking_turns", 1) if edit.type == _THINKING else ("tool_uses", 0)
    match edit.keep:
        case None:
            return _DEFAULT_KEEP[edit.type]
        case "all":
            return None
        case KeepCount(type=kind, value=value):
            if kind != of:
                raise InvalidField(f"{path}.keep.type", f"this edit keeps {of}")
            if value < least:
                raise InvalidField(f"{path}.keep.value", f"it must be at least {least}")
            return value
