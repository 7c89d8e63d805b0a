"""The messages of a request as turns: neighbours of one role merge, results of tools become turns of their own.

A call must be answered at the beginning of the user's turn that follows, each by one result, as Anthropic demands.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any, Literal, TypeAlias

from msgspec import UNSET, Raw, Struct, UnsetType

from gateway.dialects.anthropic.content_blocks import (
    AnyBlock,
    CacheControl,
    NoMarker,
    RedactedThinkingBlock,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
    refuse_unsupported,
)
from gateway.dialects.json_objects import JsonObjects
from gateway.dialects.json_paths import json_bytes
from gateway.errors import InvalidField
from gateway.generation_request import CacheMarker, Text, ToolCall, Turn

ReadThinking: TypeAlias = Callable[[str, str], str | None]
"""The text of a block of thinking, by the text and the signature in it; None: leave the block out."""
Role: TypeAlias = Literal["user", "assistant", "system"]
_NOT_IN: dict[Role, tuple[type, ...]] = {
    "user": (ToolUseBlock, ThinkingBlock, RedactedThinkingBlock),
    "assistant": (ToolResultBlock,),
    "system": (ToolUseBlock, ToolResultBlock, ThinkingBlock, RedactedThinkingBlock),
}
"""The blocks that a role cannot have."""
_THINKING = "thinking cannot be marked; it is cached with what follows it"


def unsigned(text: str, signature: str) -> str:
    """The text, whatever its signature."""
    return text


class Message(Struct, frozen=True):
    """One message. `system` may stand anywhere in the conversation."""

    role: Role
    content: str | list[AnyBlock]
    cache_control: NoMarker | UnsetType = UNSET


class _Placed(Struct, frozen=True):
    """A block and its path. A text that is the whole content of a message is a block too, whose text is `at` there."""

    block: Any
    path: str
    at: str


class Conversation(Struct, frozen=True):
    """The turns of a request and what of them the client marked; `continued`: the last turn is one to go on with."""

    turns: tuple[Turn, ...]
    markers: tuple[CacheMarker, ...]
    continued: bool


def read_system(
    system: str | Sequence[TextBlock] | None, *, no_citations: bool
) -> tuple[Turn | None, list[CacheMarker]]:
    """The turn that the field `system` makes, if any, and its markers."""
    reader = _Reader(JsonObjects(), no_citations=no_citations)
    if not system:
        return None, []
    return Turn("system", tuple(reader.texts(_placed(system, "$.system", "$.system"), "system"))), reader.markers


def read_messages(
    messages: Sequence[Message],
    objects: JsonObjects,
    *,
    no_citations: bool = False,
    read_thinking: ReadThinking = unsigned,
) -> Conversation:
    """The conversation. `no_citations`: citations on texts that are not the model's are refused, as API version
    2026-10-21 does. Raises InvalidRequest naming the path."""
    if not messages:
        raise InvalidField("$.messages", "at least one message is required")
    reader = _Reader(objects, no_citations=no_citations, read_thinking=read_thinking)
    groups = list(_merged(messages))
    for index, (role, blocks) in enumerate(groups):
        reader.read(role, blocks, last=index == len(groups) - 1)
    reader.finish()
    if not reader.turns:
        raise InvalidField("$.messages", "there is no message with content")
    last_role, last = groups[-1]
    continued = last_role == "assistant" and bool(reader.turns and reader.turns[-1].role == "assistant")
    if continued:
        _check_prefill(last)
    return Conversation(tuple(reader.turns), tuple(reader.markers), continued)


def _merged(messages: Sequence[Message]) -> Iterator[tuple[Role, list[_Placed]]]:
    """The blocks of each run of messages of one role."""
    role: Role | None = None
    blocks: list[_Placed] = []
    for index, message in enumerate(messages):
        _refuse_marker(message.cache_control, f"$.messages[{index}]", "a message cannot be marked, but its blocks can")
        path = f"$.messages[{index}].content"
        placed = _placed(message.content, path, path)
        if not placed:
            if message.role != "assistant":
                raise InvalidField(path, "it is empty; only the assistant's may be")
            if index < len(messages) - 1:  # an answer that said nothing before it was cut off
                placed = _placed("", path, path)
        if role is not None and message.role != role:
            yield role, blocks
            blocks = []
        role = message.role
        blocks += placed
    if role is not None:
        yield role, blocks


def _placed(content: str | Sequence[Any], path: str, text_path: str) -> list[_Placed]:
    if isinstance(content, str):
        return [_Placed(TextBlock(content), path, text_path)]
    return [_Placed(block, f"{path}[{index}]", f"{path}[{index}].text") for index, block in enumerate(content)]


def _check_prefill(blocks: Sequence[_Placed]) -> None:
    last = blocks[-1]
    if not isinstance(last.block, TextBlock):
        raise InvalidField(last.path, "the answer can only go on from a text")
    if last.block.text != last.block.text.rstrip():
        raise InvalidField(last.at, "the text that the answer goes on from must not end with white space")


class _Reader:
    """Makes turns of merged messages. `turns` and `markers` are what was read so far."""

    def __init__(self, objects: JsonObjects, *, no_citations: bool, read_thinking: ReadThinking = unsigned) -> None:
        self.turns: list[Turn] = []
        self.markers: list[CacheMarker] = []
        self._objects = objects
        self._no_citations = no_citations
        self._read_thinking = read_thinking
        self._calls: dict[str, ToolCall] = {}
        """The calls of the last assistant's turn that no result has answered yet."""
        self._answered: set[str] = set()
        self._ids: set[str] = set()

    def read(self, role: Role, blocks: Sequence[_Placed], *, last: bool) -> None:
        """Read the blocks of one role; the last of the conversation, or others."""
        for placed in blocks:
            refuse_unsupported(placed.block, placed.path)
            if type(placed.block) in _NOT_IN[role]:
                kind = placed.block.__struct_config__.tag
                raise InvalidField(placed.path, f"a block of the type {kind} cannot be in a message of the role {role}")
        if role == "assistant":
            self._assistant(blocks, last=last)
            return
        results = [placed for placed in blocks if isinstance(placed.block, ToolResultBlock)]
        for before, placed in pairwise(blocks):
            if isinstance(placed.block, ToolResultBlock) and not isinstance(before.block, ToolResultBlock):
                raise InvalidField(placed.path, "results of tools must come first in the user's turn")
        for placed in results:
            self._result(placed)
        self._all_answered()
        if texts := list(self.texts(blocks[len(results) :], role)):
            self.turns.append(Turn(role, tuple(texts)))

    def finish(self) -> None:
        """Check that no call is left without a result. Raises InvalidRequest."""
        self._all_answered()

    def texts(self, blocks: Sequence[_Placed], role: Role) -> Iterator[Text]:
        """The texts of text blocks."""
        for placed in blocks:
            block = placed.block
            if self._no_citations and role != "assistant" and json_bytes(block.citations) not in (b"", b"null", b"[]"):
                raise InvalidField(f"{placed.path}.citations", "API version 2026-10-21 does not allow citations here")
            if block.cache_control is not None and not block.text:
                raise InvalidField(f"{placed.path}.cache_control", "an empty text block cannot be cached")
            self._mark(placed.at, placed.path, block.cache_control)
            yield Text(block.text, placed.at)

    def _assistant(self, blocks: Sequence[_Placed], *, last: bool) -> None:
        self._all_answered()
        texts: list[Text] = []
        signed_otherwise = False
        for placed in blocks:
            block, path = placed.block, placed.path
            match block:
                case TextBlock():
                    texts += self.texts([placed], "assistant")
                case ToolUseBlock():
                    texts.append(self._call(block, path))
                case ThinkingBlock():
                    _refuse_marker(block.cache_control, path, _THINKING)
                    thinking = self._read_thinking(block.thinking, block.signature)
                    texts.append(Text(thinking or "", f"{path}.thinking", "thinking"))
                    signed_otherwise |= thinking is None
                case RedactedThinkingBlock():  # nobody here can read it
                    _refuse_marker(block.cache_control, path, _THINKING)
        # Also without a text the turn stays, so that turns still alternate. The last is one to go on with.
        if signed_otherwise or not last or any(text.text or text.kind == "tool_use" for text in texts):
            self.turns.append(Turn("assistant", tuple(texts) or (Text("", blocks[0].at),)))

    def _call(self, block: ToolUseBlock, path: str) -> ToolCall:
        if block.id in self._ids:
            raise InvalidField(f"{path}.id", f"another call has the id {block.id}; ids must be unique")
        self._ids.add(block.id)
        arguments = json.dumps(self._objects.read(block.input, f"{path}.input"), ensure_ascii=False)
        call = self._calls[block.id] = ToolCall(arguments, path, id=block.id, name=block.name)
        self._mark(path, path, block.cache_control)
        return call

    def _result(self, placed: _Placed) -> None:
        block: ToolResultBlock = placed.block
        path, id_ = placed.path, block.tool_use_id
        call = self._calls.pop(id_, None)
        if call is None:
            why = "it was answered before" if id_ in self._answered else "the turn before has no call with this id"
            raise InvalidField(f"{path}.tool_use_id", f"{id_}: {why}")
        self._answered.add(id_)
        texts = []
        for inner in _placed(block.content or "", f"{path}.content", f"{path}.content"):
            refuse_unsupported(inner.block, inner.path)
            texts += [Text(text.text, text.path, "tool_result") for text in self.texts([inner], "user")]
        self._mark(texts[-1].path, path, block.cache_control)
        self.turns.append(Turn("tool", tuple(texts), id_, call.name, bool(block.is_error)))

    def _all_answered(self) -> None:
        if self._calls:
            id_, call = next(iter(self._calls.items()))
            raise InvalidField(
                call.path, f"the call {id_} has no tool_result block at the beginning of the next message"
            )

    def _mark(self, path: str, block_path: str, control: CacheControl | None) -> None:
        if control is not None:
            self.markers.append(CacheMarker(path, f"{block_path}.cache_control", control.ttl))


def _refuse_marker(control: Raw | UnsetType, path: str, why: str) -> None:
    if control is not UNSET and bytes(control) != b"null":
        raise InvalidField(f"{path}.cache_control", why)
