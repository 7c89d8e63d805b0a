"""Token ids to text, incrementally: no incomplete characters, no special tokens; and stop strings."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Protocol

from gateway.conversation.tokenizer import Tokenizer


class StopStrings:
    """Finds stop strings in one output. After a match, no more text is returned."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = [stop for stop in stops if stop]
        self._held = ""
        self.matched: str | None = None

    @property
    def holding(self) -> int:
        """The number of characters that are held back, since a stop string may begin there."""
        return len(self._held)

    def feed(self, text: str) -> str:
        """Add text. Returns the text that cannot belong to a stop string any more."""
        if self.matched is not None:
            return ""
        if not self._stops:
            return text
        buffer = self._held + text
        matches = [(start + len(stop), start, stop) for stop in self._stops if (start := buffer.find(stop)) >= 0]
        if matches:
            _, start, self.matched = min(matches)
            self._held = ""
            return buffer[:start]
        keep = self._partial(buffer)
        self._held = buffer[len(buffer) - keep :]
        return buffer[: len(buffer) - keep]

    def finish(self) -> str:
        """The text held back; call it when no more text follows."""
        text, self._held = self._held, ""
        return text

    def _partial(self, buffer: str) -> int:
        """Length of the longest suffix of `buffer` that is a prefix of a stop string."""
        longest = min(len(buffer), max(map(len, self._stops)) - 1)
        for length in range(longest, 0, -1):
            suffix = buffer[-length:]
            if any(len(stop) > length and stop.startswith(suffix) for stop in self._stops):
                return length
        return 0


class Detokenizer(Protocol):
    """The text of one output. `pending`: the last tokens end within a character."""

    @property
    def pending(self) -> bool: ...

    def feed(self, token: int) -> str:
        """Add a token. Returns the text that is complete with it."""
        ...

    def finish(self) -> str:
        """The remaining text; call it when no more token follows."""
        ...


class ByteLevelDetokenizer:
    """For byte-level vocabularies: the tokens' bytes through an incremental UTF-8 decoder."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    @property
    def pending(self) -> bool:
        """Whether the last character is incomplete."""
        return bool(self._decoder.getstate()[0])

    def feed(self, token: int) -> str:
        """Add a token. Returns the text that is complete with it."""
        return self._decoder.decode(self._tokenizer.token_bytes(token))

    def finish(self) -> str:
        """The remaining text: a replacement character, if the last one is incomplete."""
        return self._decoder.decode(b"", final=True)


class WholeDetokenizer:
    """For other vocabularies: the text that a token adds to the one before, since a text's first token loses its space.

    Byte tokens go through an incremental UTF-8 decoder, because `tokenizers` replaces a whole run of them if it does
    not begin at a character.
    """

    def __init__(self, tokenizer: Tokenizer, after: Sequence[int] = ()) -> None:
        """`after`: the tokens that the text continues, if any."""
        self._tokenizer = tokenizer
        self._previous = [token for token in after if token not in tokenizer.special][-1:]
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    @property
    def pending(self) -> bool:
        """Whether the last character is incomplete."""
        return bool(self._decoder.getstate()[0])

    def feed(self, token: int) -> str:
        """Add a token. Returns the text that is complete with it."""
        if token in self._tokenizer.special:
            return ""
        raw = self._tokenizer.token_bytes(token)
        text = self._decoder.decode(raw, final=not raw)
        if not raw:
            previous_text = self._tokenizer.decode(self._previous) if self._previous else ""
            text += self._tokenizer.decode([*self._previous, token])[len(previous_text) :]
        self._previous = [token]
        return text

    def finish(self) -> str:
        """The remaining text: a replacement character, if the last one is incomplete."""
        return self._decoder.decode(b"", final=True)


def detokenizer_for(tokenizer: Tokenizer, after: Sequence[int] = ()) -> Detokenizer:
    """A detokenizer for one output. `after`: the tokens that its text continues, if any."""
    return ByteLevelDetokenizer(tokenizer) if tokenizer.byte_level else WholeDetokenizer(tokenizer, after)
