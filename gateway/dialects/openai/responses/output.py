"""Folds what a model says into items, and each step into the events that tell it.

Each item is built once: the events, the whole response and what is stored have the same one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from msgspec import UNSET
from msgspec.structs import replace

from gateway.conversation.output import events as said
from gateway.dialects.openai.logprobs import ContentLogprob
from gateway.dialects.openai.responses import events as told
from gateway.dialects.openai.responses.custom_input import CustomInput
from gateway.dialects.openai.responses.response_object import (
    CustomCall,
    FunctionCall,
    ItemStatus,
    OutputItem,
    OutputMessage,
    OutputText,
    ReasoningItem,
    ReasoningText,
)
from gateway.dialects.openai.responses.tools import ToolNames

Seal = Callable[[str], str]
Entries = Callable[[Sequence[said.TokenScore]], tuple[ContentLogprob, ...]]
"""Log probabilities as JSON has them."""


class OutputFold:
    """The items of one response. `items` are those that are whole; `number` is that of the next event.

    `key`: what the items' ids are made of; `seal`: seals reasoning for a client who wants it so; `entries`: for one who
    wants log probabilities.
    """

    def __init__(self, key: str, names: ToolNames, seal: Seal | None = None, entries: Entries | None = None) -> None:
        self.items: list[OutputItem] = []
        self.number = 0
        self._key = key
        self._names = names
        self._seal = seal
        self._entries = entries
        self._item: OutputItem | None = None
        """The item that is open. Its text is in `_parts` until it ends."""
        self._parts: list[str] = []
        self._scores: list[ContentLogprob] = []
        self._input: CustomInput | None = None
        self._called = False
        """Whether the item is a call that is complete, but for tokens behind it."""
        self._calls = 0

    def next_number(self) -> int:
        """The number of an event, which is taken."""
        self.number += 1
        return self.number - 1

    def take(self, events: Iterable[said.OutputEvent]) -> Iterator[told.StreamEvent]:
        """More of the output."""
        for event, scored in said.with_scores(events):
            scores = self._entries(scored) if self._entries is not None and scored else ()
            if self._called and event is not None:
                yield from self.end()
            match event:
                case said.TextDelta(text):
                    yield from self._in_message()
                    self._parts.append(text)
                    yield told.TextDelta(**self._place(), delta=text, logprobs=scores)
                case said.ReasoningDelta(text):
                    yield from self._in_reasoning()
                    self._parts.append(text)
                    yield told.ReasoningDelta(**self._place(), delta=text)
                case said.CallStart(_, name):
                    yield from self.end()
                    yield from self._begin(self._call(name))
                case said.ArgumentsDelta(_, text):
                    yield from self._argue(text)
                case said.CallEnd():
                    self._called = True
                    if self._entries is None:
                        yield from self.end()
                case None if scores and isinstance(self._item, OutputMessage):
                    yield told.TextDelta(**self._place(), delta="", logprobs=scores)
            self._scores += scores

    def end(self, status: ItemStatus = "completed") -> Iterator[told.StreamEvent]:
        """The item that is open is over, and is whole unless its status says otherwise."""
        item = self._item
        if item is None:
            return
        if self._called:
            status = "completed"
        if self._input is not None:
            yield from self._give(self._input.finish())
        text, logprobs = "".join(self._parts), tuple(self._scores)
        others = UNSET if self._entries is None else logprobs
        match item:
            case OutputMessage():
                part = OutputText(text, logprobs=logprobs)
                yield told.TextDone(**self._place(), text=text, logprobs=part.logprobs)
                yield told.PartDone(**self._place(), part=part)
                done: OutputItem = replace(item, status=status, content=(part,))
            case ReasoningItem():
                yield told.ReasoningDone(**self._place(), text=text)
                yield told.PartDone(**self._place(), part=ReasoningText(text))
                sealed = None if self._seal is None else self._seal(text)
                done = replace(
                    item, status=status, content=(ReasoningText(text),), encrypted_content=sealed, logprobs=others
                )
            case FunctionCall():
                arguments = text or ("{}" if status == "completed" else "")
                if not text and arguments:
                    yield told.ArgumentsDelta(**self._place(), delta=arguments)
                yield told.ArgumentsDone(**self._place(), arguments=arguments, name=item.name)
                done = replace(item, status=status, arguments=arguments, logprobs=others)
            case CustomCall():
                yield told.InputDone(**self._place(), input=text)
                done = replace(item, status=status, input=text, logprobs=others)
        yield told.ItemDone(sequence_number=self.next_number(), output_index=len(self.items), item=done)
        self.items.append(done)
        self._item, self._parts, self._scores, self._input, self._called = None, [], [], None, False

    def finish(self, status: ItemStatus = "completed") -> Iterator[told.StreamEvent]:
        """The output is over. One that says nothing has a message without text."""
        if self._item is None and not self.items:
            yield from self._in_message()
        yield from self.end(status)

    def _in_message(self) -> Iterator[told.StreamEvent]:
        if not isinstance(self._item, OutputMessage):
            yield from self.end()
            yield from self._begin(OutputMessage(self._id("msg"), "in_progress"))
            yield told.PartAdded(**self._place(), part=OutputText(""))

    def _in_reasoning(self) -> Iterator[told.StreamEvent]:
        if not isinstance(self._item, ReasoningItem):
            yield from self.end()
            yield from self._begin(ReasoningItem(self._id("rs"), "in_progress"))
            yield told.PartAdded(**self._place(), part=ReasoningText(""))

    def _argue(self, text: str) -> Iterator[told.StreamEvent]:
        if self._input is not None:
            yield from self._give(self._input.feed(text))
        elif isinstance(self._item, FunctionCall):
            self._parts.append(text)
            yield told.ArgumentsDelta(**self._place(), delta=text)

    def _give(self, text: str) -> Iterator[told.StreamEvent]:
        if text:
            self._parts.append(text)
            yield told.InputDelta(**self._place(), delta=text)

    def _call(self, name: str) -> FunctionCall | CustomCall:
        called, call_id = self._names.called(name), f"call_{self._key}00{self._calls:02x}"
        self._calls += 1
        if called.kind == "custom":
            self._input = CustomInput()
            return CustomCall(self._id("ctc"), "in_progress", call_id, called.name, namespace=called.namespace)
        return FunctionCall(self._id("fc"), "in_progress", call_id, called.name, namespace=called.namespace)

    def _begin(self, item: OutputItem) -> Iterator[told.StreamEvent]:
        self._item = item
        yield told.ItemAdded(sequence_number=self.next_number(), output_index=len(self.items), item=item)

    def _place(self) -> dict[str, Any]:
        assert self._item is not None, "an item is open"
        return {
            "sequence_number": self.next_number(),
            "item_id": self._item.id,
            "output_index": len(self.items),
        }

    def _id(self, prefix: str) -> str:
        return f"{prefix}_{self._key}{len(self.items):02x}"
