"""Drafts from the request's own text: what followed the last time that its latest tokens stood there.

Prompt lookup (Saxena 2023): a model that edits, quotes or repeats writes long runs that are in its prompt or output
already. The longest earlier match of the last tokens is looked up, the latest among equals, and continued. While what
was proposed is accepted, the next proposal goes on at the same place without a search.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from engine.scheduling.request import Request
from engine.speculation.drafter import Drafter, Proposal, Query

LEAST_MATCH = 2
LONGEST_MATCH = 16
"""Tokens of context that are compared: a longer match tells no more."""
_SEARCHED_TOKENS = 1 << 20
"""Tokens that are searched before a step, of all requests together: about 1 ms. Others wait for the next step."""
_COPIED_TOKENS = 1 << 20
"""Tokens of requests that are new here, with their predictions, that are copied before a step. Others wait."""
_MOST_ENDS = 2048
"""Places of the last token, the latest, that are looked at further: in a text of few tokens each stands everywhere."""
_SPARE = 256
_SEAM = 0xFFFFFFFF
"""Stands between a prediction and the prompt; no token has this id."""
_AS_PREDICTED = 6
"""The match that the beginning of a prediction counts as: a client that sends one expects it."""


def chance_of(match: int) -> float:
    """How likely a token behind a match of so many tokens is right, before anything is known of the request."""
    return match / (match + 2.0)


class RequestText:
    """The tokens of one request so far, in an array that grows with its output."""

    __slots__ = ("_predicted", "_tokens", "place", "size")

    def __init__(self, request: Request) -> None:
        predicted = len(request.prediction)
        self._predicted = self.size = predicted + 1 if predicted else 0
        self._tokens: NDArray[np.uint32] = np.empty(self.size + len(request.tokens) + _SPARE, np.uint32)
        if predicted:
            self._tokens[:predicted] = request.prediction
            self._tokens[predicted] = _SEAM
        self.place: int | None = None
        """Where the text goes on as it did before, as far as is known: the index of the expected token."""
        self.follow(request)
        output = request.output
        # Nothing stands before what is predicted: it is the output from its first token on.
        if output < predicted and np.array_equal(self.tokens[self.size - output :], self._tokens[:output]):
            self.place = output

    @property
    def tokens(self) -> NDArray[np.uint32]:
        """The tokens, to be read before the next change."""
        return self._tokens[: self.size]

    def follow(self, request: Request) -> None:
        """Append what was emitted since; `place` moves on with it while it was what was expected."""
        fresh = np.frombuffer(request.tokens[self.size - self._predicted :], np.uint32)
        end = self.size + len(fresh)
        if end > len(self._tokens):
            grown = np.empty(end + end // 4 + _SPARE, np.uint32)
            grown[: self.size] = self.tokens
            self._tokens = grown
        self._tokens[self.size : end] = fresh
        if self.place is not None:
            expected = self._tokens[self.place : self.place + len(fresh)]
            self.place = self.place + len(fresh) if np.array_equal(expected, fresh) else None
            if self.place is not None and self._tokens[self.place] == _SEAM:
                self.place = None
        self.size = end

    def continued(self, most: int) -> Sequence[int]:
        """The tokens from `place` on. Where they reach to the end, what the text repeats goes on; a prediction ends."""
        assert self.place is not None
        end = self._predicted - 1 if self.place < self._predicted else self.size
        tokens = self._tokens[self.place : min(end, self.place + most)]
        if len(tokens) < most and end == self.size:
            tokens = np.resize(tokens, most)
        ahead: list[int] = tokens.tolist()
        return ahead

    def longest_match(self) -> int:
        """Set `place` behind the longest earlier match of the last tokens, the latest one. Returns its length, or 0 for
        one that is shorter than LEAST_MATCH."""
        tokens = self.tokens
        ends = np.flatnonzero(tokens[:-1] == tokens[-1])[-_MOST_ENDS:]
        length = 1
        while len(ends) and length < LONGEST_MATCH and length < self.size - 1:
            before = ends[ends >= length]
            longer = before[tokens[before - length] == tokens[self.size - 1 - length]]
            if not len(longer):
                break
            ends, length = longer, length + 1
        place = int(ends[-1]) + 1 if len(ends) and length >= LEAST_MATCH else None
        self.place = None if place is None or tokens[place] == _SEAM else place
        return length if self.place is not None else 0

    def match_at_place(self) -> int:
        """How many of the last tokens are those before `place`."""
        assert self.place is not None
        if self.place < self._predicted and self.place <= 1:
            return _AS_PREDICTED
        most = min(LONGEST_MATCH, self.place)
        same = self._tokens[self.place - most : self.place][::-1] == self.tokens[self.size - most :][::-1]
        return most if same.all() else int(same.argmin())


class NgramDrafter(Drafter):
    """Drafts what followed earlier in the prompt or the output of the same request."""

    name: ClassVar[str] = "ngram"

    def __init__(self) -> None:
        self._texts: dict[int, RequestText] = {}
        """By arrival, of those that were asked about."""
        self._first = 0
        """The arrival from which on requests are searched first: where the last step had no time left."""

    def end(self, request: Request) -> None:
        self._texts.pop(request.arrival, None)

    def propose(self, queries: Sequence[Query]) -> Sequence[Proposal | None]:
        proposals: list[Proposal | None] = [None] * len(queries)
        searched, copied = _SEARCHED_TOKENS, _COPIED_TOKENS
        order = sorted(range(len(queries)), key=lambda at: queries[at].request.arrival < self._first)
        self._first = 0
        for at in order:
            query = queries[at]
            arrival = query.request.arrival
            if arrival not in self._texts:
                if copied <= 0:
                    self._first = self._first or arrival
                    continue
                self._texts[arrival] = RequestText(query.request)
                copied -= self._texts[arrival].size
            text = self._texts[arrival]
            text.follow(query.request)
            if text.place is not None:
                match = text.match_at_place()
            elif searched >= 0:
                searched -= text.size
                match = text.longest_match()
            else:
                self._first = self._first or arrival
                continue
            if text.place is not None:
                proposals[at] = Proposal(text.continued(query.most), chance_of(match))
        return proposals
