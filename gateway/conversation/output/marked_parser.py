"""A model's output between markers: reasoning, calls and text, token by token."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar

from gateway.conversation.output.call_payloads import CallPayload, Schemas
from gateway.conversation.output.events import EventLog, OutputEvent
from gateway.conversation.output.markers import Lexeme, Mark, MarkerLexer

_THINK, _ANSWER = "think", "answer"
_SPACE = " \t\r\n"


class MarkedParser(ABC):
    """A parser over markers. A family implements `mark`, what a marker of its calls does, and `text`, what a text is.
    Neither is called within the reasoning, where nothing is a call."""

    MARKERS: ClassVar[Mapping[str, str]] = {}
    """The text of a marker of calls → its name."""
    REASONING: ClassVar[tuple[str, ...]] = ("<think>", "</think>")
    """The markers before and behind reasoning; none where the family reads them itself."""

    def __init__(self, tokens: Mapping[int, str], schemas: Schemas, *, reasons: bool | None = False) -> None:
        """`tokens`: the ids of the markers that are one token → their texts. `reasons`: whether the template has opened
        the reasoning; None for a model that marks none, whose answers may quote the markers."""
        self.log = EventLog()
        self.schemas = schemas
        self.reasons = bool(reasons)
        self.payload: CallPayload | None = None
        self._after_reasoning = False
        self._lexer = MarkerLexer(self.MARKERS if reasons is None else self.markers(), tokens)

    @classmethod
    def markers(cls) -> Mapping[str, str]:
        """The texts of all markers → their names."""
        return {**cls.MARKERS, **dict(zip(cls.REASONING, (_THINK, _ANSWER), strict=False))}

    def marks(self, token: int) -> bool:
        """Whether this token is a marker."""
        return self._lexer.marks(token)

    def feed(self, token: int, text: str) -> Sequence[OutputEvent]:
        """Take in one token and its text."""
        self._take(self._lexer.feed(token, text))
        return self.log.take()

    def finish(self) -> Sequence[OutputEvent]:
        """What was held back, when no token follows."""
        self._take(self._lexer.finish())
        self.end()
        self.log.finish()
        return self.log.take()

    @property
    def holding(self) -> bool:
        """Whether text is held back. What is read of a call counts as given: it is waited for as a whole."""
        return self._lexer.holding or self.log.holding

    @property
    def reasoning(self) -> bool:
        """Whether reasoning is open."""
        return self.reasons

    @abstractmethod
    def mark(self, name: str) -> None:
        """A marker stands here."""

    def text(self, text: str) -> None:
        """Text between markers, outside of reasoning and of a payload."""
        self.log.text(text)

    def end(self) -> None:
        """No token follows."""
        self.close_payload()

    def close_payload(self) -> None:
        """The call's text is over: what of it was no call is text."""
        payload, self.payload = self.payload, None
        if payload is not None and (rest := payload.close()):
            self.log.text(rest)

    def _take(self, lexemes: Iterable[Lexeme]) -> None:
        for lexeme in lexemes:
            if not isinstance(lexeme, Mark):
                self._take_text(lexeme)
            elif lexeme.name in (_THINK, _ANSWER) and self.payload is None:
                self._after_reasoning = self.reasons and lexeme.name == _ANSWER
                self.reasons = lexeme.name == _THINK
            elif lexeme.name in (_THINK, _ANSWER) or self.reasons:
                self._take_text(lexeme.text)  # it marks nothing within arguments, or within reasoning
            else:
                self.mark(lexeme.name)

    def _take_text(self, text: str) -> None:
        if self.reasons:
            self.log.reasoning(text)
            return
        if self._after_reasoning:
            text = text.lstrip(_SPACE)
            self._after_reasoning = not text
        while text:
            if self.payload is None:
                self.text(text)
                return
            taken = self.payload.take(text)
            text = text[taken:]
            if self.payload.finished:
                self.close_payload()
                text = self.after_payload(text)

    def after_payload(self, text: str) -> str:
        """What of the text after a whole call is still to be read."""
        return text
