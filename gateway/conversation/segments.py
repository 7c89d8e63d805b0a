"""Finds the client's texts in a rendered prompt: they are marked before rendering, and split off afterwards.

The marks are private-use code points that no content of the request has: one opens a content, two write its index in
binary, one closes it. To the template they are ordinary text.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from msgspec import Struct

_POOL = tuple(map(chr, (*range(0xF0000, 0xF0200), *range(0x10FF00, 0x10FFFE))))
_NEEDED = 5
_PIECE = 65_536


class NoMarksLeft(Exception):
    """The contents use so many private-use code points that too few are left for marks."""


class Segment(Struct, frozen=True):
    """A part of the rendered text: of the content with this index, or of the template (`content` None)."""

    text: str
    content: int | None


class Marks:
    """The marks for one request's contents."""

    def __init__(self, contents: Sequence[str]) -> None:
        used = _characters(contents)
        free = list(islice((mark for mark in _POOL if mark not in used), _NEEDED))
        if len(free) < _NEEDED:
            raise NoMarksLeft
        self._open, self._close, self._zero, self._one, self.cut = free
        self._bits = {self._zero: "0", self._one: "1"}

    def whole(self, index: int, content: str) -> str:
        """The content with marks around it. An empty one stays empty, because templates test for that."""
        if not content:
            return content
        digits = f"{index:b}".replace("0", self._zero).replace("1", self._one)
        return f"{self._open}{digits}{content}{self._close}"

    def core(self, index: int, content: str) -> str:
        """The content with marks inside its outer white space, for templates that trim."""
        core = content.strip()
        if not core:
            return content
        start = content.index(core)
        return content[:start] + self.whole(index, core) + content[start + len(core) :]

    def cut_at(self, content: str, first_characters: frozenset[str]) -> str:
        """The content with a cut mark after every character that a special token begins with."""
        for character in first_characters:
            content = content.replace(character, character + self.cut)
        return content

    def cut_around(self, content: str, first_characters: frozenset[str]) -> str:
        """The same, and cut off from what stands beside it, with which it might form a special token."""
        return f"{self.cut}{self.cut_at(content, first_characters)}{self.cut}"

    def split(self, rendered: str) -> list[Segment] | None:
        """The segments of a rendered text; None if the template changed the marks."""
        segments: list[Segment] = []
        pieces = rendered.split(self._open)
        self._literal(segments, pieces[0])
        for piece in pieces[1:]:
            content, close, after = piece.partition(self._close)
            digits = len(content) - len(content.lstrip(self._zero + self._one))
            if not close or not digits:
                return None
            index = int("".join(self._bits[mark] for mark in content[:digits]), 2)
            segments.append(Segment(content[digits:], index))
            self._literal(segments, after)
        stray = (self._close, self._zero, self._one)
        if any(mark in segment.text for segment in segments for mark in stray):
            return None
        return segments

    def _literal(self, segments: list[Segment], text: str) -> None:
        segments += [Segment(piece, None) for piece in text.split(self.cut) if piece]


def _characters(contents: Sequence[str]) -> set[str]:
    """The characters of those texts that may contain marks.

    A long text is read in pieces, because one operation on megabytes would block all other threads.
    """
    used: set[str] = set()
    for text in contents:
        if not text.isascii():
            for start in range(0, len(text), _PIECE):
                used.update(text[start : start + _PIECE])
    return used
