"""Token ids back to text, as they come: never half a character, never a special token."""

from __future__ import annotations

import codecs
from typing import Protocol

from gateway.conversation.tokenizer import Tokenizer

_REPLACEMENT = "\ufffd"
_MOST_PENDING = 16


class Detokenizer(Protocol):
    """One output's text so far. `pending`: the last tokens' text is not complete yet."""

    @property
    def pending(self) -> bool: ...

    def feed(self, token: int) -> str:
        """The text that became certain with this token."""
        ...

    def finish(self) -> str:
        """What is left when no token follows."""
        ...


class ByteLevelDetokenizer:
    """For byte-level vocabularies: bytes through an incremental UTF-8 decoder."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    @property
    def pending(self) -> bool:
        """Whether some bytes of a character wait for the rest."""
        return bool(self._decoder.getstate()[0])

    def feed(self, token: int) -> str:
        """The text that became certain with this token."""
        return self._decoder.decode(self._tokenizer.token_bytes(token))

    def finish(self) -> str:
        """What is left: a replacement character for an unfinished one."""
        return self._decoder.decode(b"", final=True)


class WholeDetokenizer:
    """For other vocabularies: decodes a window of tokens again, and shows what a new token added to it."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._shown: list[int] = []
        self._waiting: list[int] = []

    @property
    def pending(self) -> bool:
        """Whether the last tokens' text may still change."""
        return bool(self._waiting)

    def feed(self, token: int) -> str:
        """The text that became certain with this token."""
        if token in self._tokenizer.special:
            return ""
        self._waiting.append(token)
        text = self._added()
        if text.endswith(_REPLACEMENT) and len(self._waiting) < _MOST_PENDING:
            return ""
        return self._show(text)

    def finish(self) -> str:
        """What is left."""
        return self._show(self._added()) if self._waiting else ""

    def _added(self) -> str:
        before = self._tokenizer.decode(self._shown) if self._shown else ""
        return self._tokenizer.decode(self._shown + self._waiting)[len(before) :]

    def _show(self, text: str) -> str:
        self._shown = (self._shown + self._waiting)[-_MOST_PENDING:] if text else self._shown + self._waiting
        self._waiting = []
        return text


def detokenizer_for(tokenizer: Tokenizer) -> Detokenizer:
    """A fresh detokenizer for one output."""
    return ByteLevelDetokenizer(tokenizer) if tokenizer.byte_level else WholeDetokenizer(tokenizer)
