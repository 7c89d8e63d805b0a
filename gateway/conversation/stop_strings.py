"""Stop strings in a stream of text: the output ends before the first one that completes.

"First" is decided character by character, the longest winning where two complete together, so that the result does not
depend on how the text was cut into tokens. Text that may be the beginning of a stop string is held back.
"""

from __future__ import annotations

from collections.abc import Sequence


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
