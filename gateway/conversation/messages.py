"""Conversations as a chat template wants them: messages and tools in the shape of Hugging Face's `apply_chat_template`.

Where a template knows no tools, what is known of them becomes text, in this form: a definition is a line of JSON at the
beginning of the system message, a call a line of JSON in the assistant's message, and a result a part of the user's.

Everything that the client wrote goes through a `Marking`, so that it is found again in the rendered text.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

from gateway.generation_request import Text, Tool, ToolCall, Turn

Piece: TypeAlias = Text | Tool
"""What of a request has a place of its own in the prompt."""
JOINT = "\n"
"""Joins the text parts of a message, since templates take one string."""
_TOOLS_BEGIN = "You can use these tools:"
TEXT_CALL = "Tool call: "
"""How a call begins where the template knows no tools."""
_WORDS_OF_SCHEMAS = frozenset(
    (
        *("type", "properties", "required", "items", "enum", "description", "title", "default", "format", "const"),
        *("anyOf", "oneOf", "allOf", "additionalProperties", "minimum", "maximum", "nullable", "$ref", "$defs"),
        *("string", "number", "integer", "boolean", "array", "object", "null"),
    )
)
"""Keys and values by which templates go through a schema, and which must therefore stay as they are."""


class Marking(Protocol):
    """How the client's strings are written into messages. `index` is the place in `pieces_of`."""

    def text(self, index: int, text: str) -> str:
        """A text of a message."""
        ...

    def value(self, index: int, text: str) -> str:
        """A string in the arguments of a call, or in the definition of a tool."""
        ...

    def free(self, index: int, text: str) -> str:
        """The name or the description of a tool, which a template only repeats."""
        ...

    def key(self, text: str) -> str:
        """The name of a field in the arguments of a call, or in the definition of a tool."""
        ...


def pieces_of(turns: Sequence[Turn], tools: Sequence[Tool]) -> tuple[Piece, ...]:
    """The request's pieces, in the order of their indexes."""
    return (*(text for turn in turns for text in turn.texts), *tools)


def strings_of(pieces: Sequence[Piece]) -> Iterator[str]:
    """All strings that the client wrote."""
    for piece in pieces:
        if isinstance(piece, Tool):
            yield from (piece.name, piece.description or "")
            yield from _strings(json.loads(piece.schema))
        elif isinstance(piece, ToolCall):
            yield piece.name
            if piece.readable:
                yield piece.text
            yield from _strings(json.loads(piece.readable or piece.text))
        else:
            yield piece.text


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield key
            yield from _strings(item)
    elif isinstance(value, list):
        for item in value:
            yield from _strings(item)


class CutArguments(Mapping[str, Any]):
    """Arguments that are no JSON object, as a limit leaves them: for a template that goes through them what can be read
    of them, and where it prints them what the model wrote."""

    def __init__(self, written: str, readable: dict[str, Any]) -> None:
        self.written = written
        self._readable = readable

    def __getitem__(self, key: str) -> Any:
        return self._readable[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._readable)

    def __len__(self) -> int:
        return len(self._readable)

    def __str__(self) -> str:
        return self.written


def messages_with_tools(
    turns: Sequence[Turn], tools: Sequence[Tool], marking: Marking
) -> tuple[list[dict[str, Any]], list[dict[str, Any]] | None]:
    """Messages and tools for a template that knows both. Calls are numbered: some templates want ids of nine letters
    and digits, and the same conversation is the same prompt whatever ids a dialect gave."""
    messages, index, ids = [], 0, dict[str, str]()
    calls = 0
    for turn in turns:
        message: dict[str, Any] = {"role": turn.role, "content": ""}
        contents: dict[str, list[str]] = {"text": [], "thinking": []}
        for text in turn.texts:
            if isinstance(text, ToolCall):
                ids[text.id] = f"call{calls:05d}"
                calls += 1
                message.setdefault("tool_calls", []).append(_call(index, text, ids[text.id], marking))
            else:
                contents["thinking" if text.kind == "thinking" else "text"].append(marking.text(index, text.text))
            index += 1
        message["content"] = JOINT.join(contents["text"])
        if contents["thinking"]:  # templates have either name for it
            message["reasoning_content"] = message["thinking"] = JOINT.join(contents["thinking"])
        if turn.role == "tool":
            message |= {"tool_call_id": ids.get(turn.call, turn.call), "name": marking.key(turn.call_name)}
        messages.append(message)
    return messages, [_definition(index + at, tool, marking) for at, tool in enumerate(tools)] or None


def one_call_each(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages with each call of several in a message of its own, before its result. The first has what else the
    message says."""
    made: list[dict[str, Any]] = []
    said: dict[str, Any] = {}
    waiting: dict[str, dict[str, Any]] = {}
    """Calls whose results have not come, by id."""

    def tell(call: dict[str, Any]) -> None:
        nonlocal said
        made.append({**said, "tool_calls": [call]})
        said = {"role": "assistant", "content": ""}

    for message in messages:
        if message["role"] != "tool":
            for call in waiting.values():
                tell(call)
            waiting = {}
        elif (answered := waiting.pop(message["tool_call_id"], None)) is not None:
            tell(answered)
        calls = message.get("tool_calls") or ()
        if len(calls) > 1:
            said, waiting = message, {call["id"]: call for call in calls}
        else:
            made.append(message)
    for call in waiting.values():
        tell(call)
    return made


def _call(index: int, call: ToolCall, id_: str, marking: Marking) -> dict[str, Any]:
    arguments = _marked(index, json.loads(call.readable or call.text), marking)
    if call.readable:
        arguments = CutArguments(marking.value(index, call.text), arguments)
    return {
        "id": id_,
        "type": "function",
        "function": {"name": marking.free(index, call.name), "arguments": arguments},
    }


def _definition(index: int, tool: Tool, marking: Marking) -> dict[str, Any]:
    function = {"name": marking.free(index, tool.name)}
    if tool.description is not None:
        function["description"] = marking.free(index, tool.description)
    function["parameters"] = _marked(index, json.loads(tool.schema), marking)
    return {"type": "function", "function": function}


def _marked(index: int, value: Any, marking: Marking) -> Any:
    """A JSON value with every string of it marked, but for the words of JSON schemas."""
    if isinstance(value, str):
        return marking.value(index, value)
    if isinstance(value, dict):
        return {
            key if key in _WORDS_OF_SCHEMAS else marking.key(key): _marked(index, item, marking)
            for key, item in value.items()
        }
    if isinstance(value, list):
        return [_marked(index, item, marking) for item in value]
    return value


def is_word_of_schemas(text: str) -> bool:
    """Whether templates may compare with this."""
    return text in _WORDS_OF_SCHEMAS


def messages_without_tools(turns: Sequence[Turn], tools: Sequence[Tool], marking: Marking) -> list[dict[str, Any]]:
    """Messages for a template that knows no tools and no reasoning: calls, results and definitions are texts, and
    reasoning is left out. A result is the user's, and one message with what the user says after it."""
    said: list[tuple[str, list[str]]] = []
    """The role of each message and its contents, which are joined once: results are many."""
    index, answering = 0, False
    for turn in turns:
        contents = []
        for text in turn.texts:
            if text.kind != "thinking":
                contents.append(marking.text(index, _as_text(turn, text)))
            index += 1
        role = "user" if turn.role == "tool" else turn.role
        if not (answering and role == "user"):
            said.append((role, []))
        said[-1][1].append(JOINT.join(contents))
        answering = turn.role == "tool"
    messages: list[dict[str, Any]] = [{"role": role, "content": JOINT.join(contents)} for role, contents in said]
    if tools:
        lines = [_TOOLS_BEGIN, *(marking.text(index + at, _line(tool)) for at, tool in enumerate(tools))]
        if not messages or messages[0]["role"] not in ("system", "developer"):
            messages.insert(0, {"role": "system", "content": ""})
        system = messages[0]["content"]
        messages[0]["content"] = JOINT.join(lines) + (JOINT * 2 + system if system else "")
    return messages


def _line(tool: Tool) -> str:
    definition = {"name": tool.name, "description": tool.description, "parameters": json.loads(tool.schema)}
    return json.dumps({k: v for k, v in definition.items() if v is not None}, ensure_ascii=False)


def _as_text(turn: Turn, text: Text) -> str:
    if isinstance(text, ToolCall):
        arguments = text.text if text.readable else json.dumps(json.loads(text.text), ensure_ascii=False)
        name = json.dumps(text.name, ensure_ascii=False)
        return f'{TEXT_CALL}{{"name": {name}, "arguments": {arguments}}}'
    if turn.role == "tool":
        return f"Tool {'error' if turn.call_failed else 'result'}: {text.text}"
    return text.text
