"""A model's output between markers: reasoning, calls and text, token by token."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar

from gateway.conversation.output.call_payloads import CallPayload, Schemas
from gateway.conversation.output.events import EventLog, OutputEvent
from gateway.conversation.output.markers import Lexeme, Mark, MarkerLexer


class MarkedParser(ABC):
    """A parser over markers. A family says what a marker does in `mark`, and what text is in `text`."""

    MARKERS: ClassVar[Mapping[str, str]] = {}
    """A marker's text → its name."""

    def __init__(self, tokens: Mapping[int, str], schemas: Schemas, *, reasons: bool = False) -> None:
        """`tokens`: the ids of special tokens → their texts. `reasons`: the template has opened the reasoning."""
        self.log = EventLog()
        self.schemas = schemas
        self.reasons = reasons
        self.payload: CallPayload | None = None
        self._lexer = MarkerLexer(self.MARKERS, tokens)

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
        """Text between markers, outside of a payload."""
        if self.reasons:
            self.log.reasoning(text)
        else:
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
            if isinstance(lexeme, Mark):
                self.mark(lexeme.name)
            else:
                self._take_text(lexeme)

    def _take_text(self, text: str) -> None:
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
