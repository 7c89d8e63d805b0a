"""Token ids back to text, as they come: never half a character, never a special token."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Protocol

from gateway.conversation.tokenizer import Tokenizer


class StopStrings:
    """Watches one output. After a match nothing more comes out."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = [stop for stop in stops if stop]
        self._held = ""
        self.matched: str | None = None

    @property
    def holding(self) -> int:
        """Characters held back."""
        return len(self._held)

    def feed(self, text: str) -> str:
        """The part of what was held and of `text` that can be shown now."""
        if self.matched is not None:
            return ""
        if not self._stops:
            return text
        buffer = self._held + text
        found = [(at + len(stop), at, stop) for stop in self._stops if (at := buffer.find(stop)) >= 0]
        if found:
            _, start, self.matched = min(found)
            self._held = ""
            return buffer[:start]
        keep = self._partial(buffer)
        self._held = buffer[len(buffer) - keep :]
        return buffer[: len(buffer) - keep]

    def finish(self) -> str:
        """What was held back, when no text follows."""
        text, self._held = self._held, ""
        return text

    def _partial(self, buffer: str) -> int:
        """Length of the longest end of `buffer` that begins a stop string."""
        longest = min(len(buffer), max(map(len, self._stops)) - 1)
        for length in range(longest, 0, -1):
            end = buffer[-length:]
            if any(len(stop) > length and stop.startswith(end) for stop in self._stops):
                return length
        return 0


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
    """For other vocabularies: what a token adds to the one before it, for the first one of a text loses its space.

    Bytes that stand for themselves go through an incremental UTF-8 decoder: `tokenizers` takes a run of them for broken
    as a whole if it does not begin where a character does.
    """

    def __init__(self, tokenizer: Tokenizer, after: Sequence[int] = ()) -> None:
        """`after`: the tokens that the text goes on from, if it does."""
        self._tokenizer = tokenizer
        self._before = [token for token in after if token not in tokenizer.special][-1:]
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    @property
    def pending(self) -> bool:
        """Whether some bytes of a character wait for the rest."""
        return bool(self._decoder.getstate()[0])

    def feed(self, token: int) -> str:
        """The text that became certain with this token."""
        if token in self._tokenizer.special:
            return ""
        raw = self._tokenizer.token_bytes(token)
        text = self._decoder.decode(raw, final=not raw)
        if not raw:
            known = self._tokenizer.decode(self._before) if self._before else ""
            text += self._tokenizer.decode([*self._before, token])[len(known) :]
        self._before = [token]
        return text

    def finish(self) -> str:
        """What is left: a replacement character for an unfinished one."""
        return self._decoder.decode(b"", final=True)


def detokenizer_for(tokenizer: Tokenizer, after: Sequence[int] = ()) -> Detokenizer:
    """A fresh detokenizer for one output; `after`: the tokens that its text goes on from, if it does."""
    return ByteLevelDetokenizer(tokenizer) if tokenizer.byte_level else WholeDetokenizer(tokenizer, after)
