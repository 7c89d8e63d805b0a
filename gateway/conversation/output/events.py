"""What a model's output says, in events that only ever append: text, reasoning, and calls of tools."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol, TypeAlias

from msgspec import Struct

from protocol.requests import TokenLogprob


class TextDelta(Struct, frozen=True):
    """More of the answer's text."""

    text: str


class ReasoningDelta(Struct, frozen=True):
    """More of the reasoning before the answer."""

    text: str


class CallStart(Struct, frozen=True):
    """A call of the tool `name` begins. `call`: its position among this output's calls."""

    call: int
    name: str


class ArgumentsDelta(Struct, frozen=True):
    """More of a call's arguments. All of a call's deltas together are the JSON text that the model wrote."""

    call: int
    text: str


class CallEnd(Struct, frozen=True):
    """A call is complete. A call that the output's limit cut off has no such event."""

    call: int


class TokenScore(Struct, frozen=True):
    """A token, where its text begins in the answer (`offset`, in characters), and its log probability.

    A prompt's first token has no log probability.
    """

    token: int
    offset: int
    score: TokenLogprob | None


class ScoredTokens(Struct, frozen=True):
    """The tokens of what was said before this event and after the one before it. Each sampled token is in one."""

    scores: tuple[TokenScore, ...]


NO_TOKEN = -1
"""Stands for the token of a text that is not complete with any."""

OutputEvent: TypeAlias = TextDelta | ReasoningDelta | CallStart | ArgumentsDelta | CallEnd | ScoredTokens


def with_scores(events: Iterable[OutputEvent]) -> Iterator[tuple[OutputEvent | None, tuple[TokenScore, ...]]]:
    """Each event with the scores that follow it; None for scores that no event comes before."""
    said: OutputEvent | None = None
    scores: tuple[TokenScore, ...] = ()
    for event in events:
        if isinstance(event, ScoredTokens):
            scores += event.scores
            continue
        if said is not None or scores:
            yield said, scores
        said, scores = event, ()
    if said is not None or scores:
        yield said, scores


class OutputParser(Protocol):
    """Reads one output. A pure fold: the events depend on the tokens and their text alone, not on how they arrive."""

    @property
    def holding(self) -> bool:
        """Whether something of the output is not in any event yet."""
        ...

    @property
    def reasoning(self) -> bool:
        """Whether the last token is the model's reasoning, or begins it."""
        ...

    def marks(self, token: int) -> bool:
        """Whether this token is a marker, before which text ends."""
        ...

    def feed(self, token: int, text: str) -> Sequence[OutputEvent]:
        """Take in one token and the text that is complete with it; "" for a special token. Returns what is certain."""
        ...

    def finish(self) -> Sequence[OutputEvent]:
        """What was held back, when no token follows. Never invents a brace."""
        ...


class WholeOutput(Struct, frozen=True):
    """All that an output says. `calls`: name and arguments of each."""

    text: str
    reasoning: str
    calls: tuple[tuple[str, str], ...]


def whole_output(events: Iterable[OutputEvent]) -> WholeOutput:
    """What these events say together."""
    text: list[str] = []
    reasoning: list[str] = []
    calls: list[tuple[str, list[str]]] = []
    for event in events:
        match event:
            case TextDelta(more):
                text.append(more)
            case ReasoningDelta(more):
                reasoning.append(more)
            case CallStart(_, name):
                calls.append((name, []))
            case ArgumentsDelta(call, more):
                calls[call][1].append(more)
    named = tuple((name, "".join(arguments)) for name, arguments in calls)
    return WholeOutput("".join(text), "".join(reasoning), named)


NO_CALL = -1
_MOST_SPACE = 64
"""Characters of white space that may wait: a stream that shows nothing would not go on."""


class EventLog:
    """The events of one output as a family's parser makes them."""

    def __init__(self) -> None:
        self._events: list[OutputEvent] = []
        self._spaces = ""
        """White space after text: shown with the text that follows, and dropped where a call does."""
        self._said = False
        self.calls = 0
        self.names: frozenset[str] | None = None
        """The tools that may be called, None if any: what calls another one is given out as text."""
        self.only_calls = False
        """The output is calls alone, as its grammar has it: what is no call yet when it ends was to be one."""
        self._fragment = False
        """Whether the beginning of a call that names no tool yet was read."""

    @property
    def holding(self) -> bool:
        """Whether white space waits."""
        return bool(self._spaces)

    def take(self) -> list[OutputEvent]:
        """The events since the last call."""
        events, self._events = self._events, []
        return events

    def text(self, text: str) -> None:
        """More text. White space at its end waits; after calls, white space alone is none."""
        if self.only_calls:
            self._fragment = self._fragment or bool(text.strip())
            return
        whole = self._spaces + text
        shown = whole.rstrip() if len(whole) - len(whole.rstrip()) <= _MOST_SPACE else whole
        self._spaces = whole[len(shown) :]
        if shown:
            if self.calls and not self._said:
                shown = shown.lstrip()
            self._said = True
            self._append(TextDelta, shown)

    def reasoning(self, text: str) -> None:
        """More reasoning."""
        if text:
            self._append(ReasoningDelta, text)

    def begin_call(self, name: str) -> int:
        """A call begins; returns its position, or NO_CALL for a tool that nobody offered: that is text."""
        if self.names is not None and name not in self.names:
            self.text(name)
            return NO_CALL
        self._spaces, self._said = "", False
        self._events.append(CallStart(self.calls, name))
        self.calls += 1
        return self.calls - 1

    def arguments(self, call: int, text: str) -> None:
        """More of a call's arguments."""
        if call == NO_CALL:
            self.text(text)
        if not text or call == NO_CALL:
            return
        last = self._events[-1] if self._events else None
        if isinstance(last, ArgumentsDelta) and last.call == call:
            self._events[-1] = ArgumentsDelta(call, last.text + text)
        else:
            self._events.append(ArgumentsDelta(call, text))

    def end_call(self, call: int) -> None:
        """A call is complete."""
        if call != NO_CALL:
            self._events.append(CallEnd(call))

    def finish(self) -> None:
        """No token follows: white space that waited is text, unless only calls stand before it. A call that was cut off
        before its tool's name is one of the only tool that it can be of; of several, none is made up."""
        if self._fragment and not self.calls and self.names is not None and len(self.names) == 1:
            self.begin_call(next(iter(self.names)))
        if self._spaces and (self._said or not self.calls):
            self._append(TextDelta, self._spaces)
        self._spaces = ""

    def _append(self, kind: type[TextDelta] | type[ReasoningDelta], text: str) -> None:
        last = self._events[-1] if self._events else None
        if isinstance(last, TextDelta | ReasoningDelta) and type(last) is kind:
            self._events[-1] = kind(last.text + text)
        else:
            self._events.append(kind(text))
