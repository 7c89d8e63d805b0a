"""Finds a family's markers in an output: special tokens by their id, others in the text.

A marker that the model's tokenizer has as one token is matched as that token alone: the same characters, written out of
several tokens because a user asked for them, stay text. A marker that is no token is matched as text, across tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeAlias

from msgspec import Struct


class Mark(Struct, frozen=True):
    """A marker, by its name in the family, and its text."""

    name: str
    text: str


Lexeme: TypeAlias = Mark | str


class MarkerLexer:
    """Splits an output into markers and text. `names`: a marker's text → its name. `tokens`: the ids of the markers
    that are one token → their text."""

    def __init__(self, names: Mapping[str, str], tokens: Mapping[int, str]) -> None:
        self._by_token = {token: Mark(names[text], text) for token, text in tokens.items() if text in names}
        written = set(names) - {text for text in tokens.values() if text in names}
        self._by_text = {text: Mark(names[text], text) for text in sorted(written, key=len, reverse=True)}
        self._longest = max(map(len, self._by_text), default=0)
        self._held = ""

    @property
    def holding(self) -> bool:
        """Whether text is held back."""
        return bool(self._held)

    def marks(self, token: int) -> bool:
        """Whether this token is a marker."""
        return token in self._by_token

    def feed(self, token: int, text: str) -> Iterable[Lexeme]:
        """Take in a token. Text that a marker may begin in is held back."""
        mark = self._by_token.get(token)
        if mark is None:
            yield from self._split(text)
            return
        if self._held:
            held, self._held = self._held, ""
            yield held
        yield mark

    def finish(self) -> Iterable[Lexeme]:
        """The text held back."""
        held, self._held = self._held, ""
        if held:
            yield held

    def _split(self, text: str) -> Iterable[Lexeme]:
        buffer = self._held + text
        self._held = ""
        while buffer and self._by_text:
            at, marker = self._first(buffer)
            if marker is None:
                keep = self._partial(buffer)
                self._held = buffer[len(buffer) - keep :]
                buffer = buffer[: len(buffer) - keep]
                break
            if at:
                yield buffer[:at]
            yield self._by_text[marker]
            buffer = buffer[at + len(marker) :]
        if buffer:
            yield buffer

    def _first(self, buffer: str) -> tuple[int, str | None]:
        """The first marker, the longest of those that begin there."""
        found = [(at, -len(text), text) for text in self._by_text if (at := buffer.find(text)) >= 0]
        if not found:
            return 0, None
        at, _, text = min(found)
        return at, text

    def _partial(self, buffer: str) -> int:
        """Length of the longest end of the buffer that begins a marker."""
        for length in range(min(len(buffer), self._longest - 1), 0, -1):
            tail = buffer[-length:]
            if any(len(text) > length and text.startswith(tail) for text in self._by_text):
                return length
        return 0
