"""The items of a Responses request as turns of the one conversation model.

An answer of the model is several items: reasoning, a message, calls. Those that follow each other are one turn, as the
model wrote them. A call must be answered before anything else is said, but for one that was cut off.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import TypeVar

from msgspec.structs import replace

from gateway.dialects.json_objects import JsonObjects
from gateway.dialects.openai.cache_fields import Marked
from gateway.dialects.openai.responses.input_items import INCOMPLETE, InputItem, ItemPart
from gateway.dialects.openai.responses.tools import INPUT, model_name
from gateway.errors import InvalidField
from gateway.generation_request import Role, Text, TextKind, ToolCall, Turn

MOST_UNSEALED = 8 * 1024 * 1024
"""Characters of sealed reasoning in a request. What repeats itself is a thousandth of that when it is sealed."""
Value = TypeVar("Value")
Unseal = Callable[[str], str | None]
"""What sealed reasoning says; None if it cannot be read, and then it is left out."""


class TurnReader:
    """Makes turns of items, one after the other. `turns` are whole after `finish`; `marked`: what the client marked."""

    def __init__(self, objects: JsonObjects, unseal: Unseal) -> None:
        self.turns: list[Turn] = []
        self.marked: list[Marked] = []
        self._objects = objects
        self._unseal = unseal
        self._answer: list[Text] = []
        """What the model says in the turn that is being read."""
        self._calls: dict[str, ToolCall] = {}
        """Its calls, by their ids."""
        self._open: dict[str, ToolCall] = {}
        """The calls that no result has answered yet."""
        self._unsealed = 0

    def text(self, role: str, text: str, path: str) -> None:
        """A message that is one text: the instructions, or an input without items."""
        self.read(InputItem(role="system" if role == "system" else "user", content=text), path, at=path)

    def read(self, item: InputItem, path: str, *, at: str | None = None) -> None:
        """The next item, at this path; `at`: of its content, if it is elsewhere. Raises InvalidRequest."""
        match item.type:
            case "message":
                self._message(item, path, at or f"{path}.content")
            case "reasoning":
                self._reasoning(item, path)
            case "function_call":
                self._call(item, path, item.arguments or "", f"{path}.arguments")
            case "custom_tool_call":
                text = json.dumps({INPUT: _needed(item.input, f"{path}.input")}, ensure_ascii=False)
                written = text.removesuffix('"}') if item.status == INCOMPLETE else text
                self._call(item, path, written, f"{path}.input")
            case "function_call_output" | "custom_tool_call_output":
                self._result(item, path)
            case "item_reference":
                raise InvalidField(f"{path}.id", f"there is no item {(item.id or '')[:80]!r}", code="not_found")

    def finish(self) -> tuple[Turn, ...]:
        """The turns. Raises InvalidRequest where a call has no result, or there are none."""
        self._end_answer()
        self._check_answered()
        if not self.turns:
            raise InvalidField("$.input", "it is missing", code="missing_required_parameter")
        return tuple(self.turns)

    def _message(self, item: InputItem, path: str, at: str) -> None:
        role: Role = _needed(item.role, f"{path}.role")
        texts = self._texts(_content(item.content, f"{path}.content"), at)
        self._mark(item, path, texts)
        if role == "assistant":
            self._begin_answer()
            # Without calls the second text ends the answer, so that its items are not searched again and again.
            if not self._calls and any(text.kind == "text" for text in self._answer):
                self._end_answer()
            self._answer += texts
            return
        self._end_answer()
        self._check_answered()
        self.turns.append(Turn(role, texts))

    def _reasoning(self, item: InputItem, path: str) -> None:
        self._begin_answer()
        if self._answer and not self._calls and self._answer[-1].kind == "text":
            self._end_answer()  # reasoning comes before what is said: this is another answer
        if item.content:
            self._answer += self._texts(item.content, f"{path}.content", "thinking")
        elif item.encrypted_content:
            said = self._unseal(item.encrypted_content)
            if said is not None:
                self._unsealed += len(said)
                if self._unsealed > MOST_UNSEALED:
                    raise InvalidField(f"{path}.encrypted_content", "there is too much sealed reasoning before it")
                self._answer.append(Text(said, f"{path}.encrypted_content", "thinking"))

    def _call(self, item: InputItem, path: str, arguments: str, at: str) -> None:
        self._begin_answer()
        id_, name = _needed(item.call_id, f"{path}.call_id"), _needed(item.name, f"{path}.name")
        if not id_ or id_ in self._calls:
            raise InvalidField(f"{path}.call_id", "it is empty" if not id_ else "another call has it")
        text, readable = self._objects.read_arguments(arguments, at)
        if item.status == INCOMPLETE:  # its arguments may be whole all the same
            readable = readable or text
        call = ToolCall(text, path, id=id_, name=model_name(name, item.namespace), readable=readable)
        self._calls[id_] = call
        self._answer.append(call)

    def _result(self, item: InputItem, path: str) -> None:
        self._end_answer()
        id_ = _needed(item.call_id, f"{path}.call_id")
        call = self._open.pop(id_, None)
        if call is None:
            known = f"there is no call {id_[:80]!r} before it that waits for an output"
            raise InvalidField(f"{path}.call_id", known)
        texts = self._texts(_content(item.output, f"{path}.output"), f"{path}.output", "tool_result")
        self._mark(item, path, texts)
        self.turns.append(Turn("tool", texts, call.id, call.name))

    def _begin_answer(self) -> None:
        if not self._answer:
            self._check_answered()

    def _end_answer(self) -> None:
        """The items of an answer are all read: they are a turn."""
        if not self._answer:
            return
        texts, self._answer = self._answer, []
        said = [text for text in texts if text.text] or texts[:1]
        self.turns.append(Turn("assistant", tuple(said)))
        self._open, self._calls = self._calls, {}

    def _check_answered(self) -> None:
        for id_, call in self._open.items():
            if not call.readable:
                raise InvalidField(call.path, f"no output with call_id {id_[:80]!r} follows")
        self._open = {}

    def _texts(self, content: str | Sequence[ItemPart], path: str, kind: TextKind = "text") -> tuple[Text, ...]:
        if isinstance(content, str):
            return (Text(content, path, kind),)
        if not content:
            raise InvalidField(path, "the list of parts is empty")
        texts = []
        for index, part in enumerate(content):
            at = f"{path}[{index}]"
            refused = part.type == "refusal"
            text = Text((part.refusal or "") if refused else part.text, f"{at}.{'refusal' if refused else 'text'}")
            texts.append(text if kind == "text" else replace(text, kind=kind))
            self._mark(part, at, [text])
        return tuple(texts)

    def _mark(self, marked: InputItem | ItemPart, at: str, texts: Sequence[Text]) -> None:
        if marked.prompt_cache_breakpoint is not None or marked.cache_control is not None:
            self.marked.append(Marked(texts[-1].path, at, marked))


def _needed(value: Value | None, path: str) -> Value:
    if value is None:
        raise InvalidField(path, "it is missing", code="missing_required_parameter")
    return value


def _content(content: str | list[ItemPart] | None, path: str) -> str | list[ItemPart]:
    if content is None:
        raise InvalidField(path, "it is missing", code="missing_required_parameter")
    return content
