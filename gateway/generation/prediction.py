"""How much of what the client predicted became output (`prediction` of OpenAI's chat API).

It is told from the text, not from how the replica computed it: whether drafts were verified is the replica's choice and
changes neither the answer nor its usage. So the same answer to the same prediction has the same counts.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

_CONTEXT = 3
"""Tokens of the output that must stand in the prediction to find the place there again after it went another way."""
_MOST_MISALIGNED = 8


class PredictionMatch:
    """Follows one output through the prediction. `accepted`: tokens that came as predicted, each counted once."""

    def __init__(self, prediction: array[int]) -> None:
        """`prediction`: of token ids of four bytes."""
        self.accepted = 0
        self._prediction = prediction
        self._at: int | None = 0
        """The next predicted token; None where the output went another way."""
        self._reached = 0
        """Behind the last predicted token that was counted: what lies before it is not counted again."""
        self._unmatched: array[int] = array("I")
        """The last tokens that were not as predicted."""

    def feed(self, tokens: Sequence[int]) -> None:
        """The output goes on with these tokens."""
        for token in tokens:
            if self._at is not None and self._at < len(self._prediction) and self._prediction[self._at] == token:
                self.accepted += 1
                self._at = self._reached = self._at + 1
                del self._unmatched[:]
            else:
                self._unmatched.append(token)
                del self._unmatched[:-_CONTEXT]
                self._at = self._find_place() if len(self._unmatched) == _CONTEXT else None

    def _find_place(self) -> int | None:
        """Where the output is in the prediction, by its last tokens: the next such place behind what was counted."""
        # A search of bytes takes some µs; an index of a long prediction would take milliseconds to make.
        there, sought = memoryview(self._prediction).cast("B"), self._unmatched.tobytes()
        text, start = bytes(there[4 * self._reached :]), 0
        for _ in range(_MOST_MISALIGNED):
            start = text.find(sought, start)
            if start < 0:
                return None
            if start % 4 == 0:
                place = self._reached + start // 4 + _CONTEXT
                self.accepted += _CONTEXT  # the tokens by which the place was found stand there too
                self._reached = place
                del self._unmatched[:]
                return place
            start += 1
        return None
