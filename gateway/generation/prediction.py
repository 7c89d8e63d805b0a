"""How much of what the client predicted became output (`prediction` of OpenAI's chat API).

It is told from the text, not from how the replica computed it: whether drafts were verified is the replica's choice and
changes neither the answer nor its usage. So the same answer to the same prediction has the same counts.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

_CONTEXT = 3
"""Tokens of the output that must stand in the prediction to find the place there again after it went another way."""
_WINDOW = 1024
"""Predicted tokens, behind the last one that was counted, among which the place is looked for."""
_EAGER, _MOST_SKIPPED = 16, 15
"""Failed searches in a row after each of which one more token goes by until the next search, and most such tokens: an
output that has nothing to do with its prediction is hardly searched for."""
_MOST_MISALIGNED = 8
_BYTES = 4


class PredictionMatch:
    """Follows one output through the prediction. `accepted`: tokens that came as predicted, each counted once."""

    def __init__(self, prediction: bytes) -> None:
        """`prediction`: token ids of four bytes, which several outputs may share."""
        self.accepted = 0
        self._bytes = prediction
        self._prediction = memoryview(prediction).cast("I")
        self._at: int | None = 0
        """The next predicted token; None where the output went another way."""
        self._reached = 0
        """Behind the last predicted token that was counted: what lies before it is not counted again."""
        self._unmatched: array[int] = array("I")
        """The last tokens that were not as predicted."""
        self._failed = self._skipping = 0
        """Searches in a row that found nothing, and tokens until the next one."""

    def feed(self, tokens: Sequence[int]) -> None:
        """The output goes on with these tokens."""
        for token in tokens:
            if self._at is not None and self._at < len(self._prediction) and self._prediction[self._at] == token:
                self.accepted += 1
                self._at = self._reached = self._at + 1
                del self._unmatched[:]
            else:
                self._unmatched.append(token)
                del self._unmatched[: -_CONTEXT - _MOST_SKIPPED]
                self._at = self._look_for_place() if len(self._unmatched) >= _CONTEXT else None

    def _look_for_place(self) -> int | None:
        """Where the output is in the prediction, if that is looked for now."""
        if self._skipping:
            self._skipping -= 1
            return None
        place = self._find_place()
        if place is None:
            self._failed += 1
            self._skipping = min(self._failed // _EAGER, _MOST_SKIPPED)
            return None
        self._failed = 0
        self.accepted += self._matching_before(place)  # the tokens by which the place was found stand there too
        self._reached = place
        del self._unmatched[:]
        return place

    def _find_place(self) -> int | None:
        """By the last tokens: the next such place behind what was counted."""
        # A search of bytes takes some µs; an index of a long prediction would take milliseconds to make.
        sought, start = self._unmatched[-_CONTEXT:].tobytes(), _BYTES * self._reached
        end = start + _BYTES * _WINDOW
        for _ in range(_MOST_MISALIGNED):
            start = self._bytes.find(sought, start, end)
            if start < 0:
                return None
            if start % _BYTES == 0:
                return start // _BYTES + _CONTEXT
            start += 1
        return None

    def _matching_before(self, place: int) -> int:
        """How many of the last tokens stand before this place, behind what was counted."""
        most = min(len(self._unmatched), place - self._reached)
        count = 0
        while count < most and self._unmatched[-1 - count] == self._prediction[place - 1 - count]:
            count += 1
        return count
