"""The sampler's state of one request: parameters, token counts for penalties, position, and grammar guide."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from copy import copy
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from engine.grammar.guide import Guide
from protocol.requests import Sampling

_FIRST_CAPACITY = 64


class TokenCounts:
    """Distinct token ids and how often each was sampled, in growing arrays: O(1) a token.

    Prompt tokens have a count of 0; the repetition penalty applies to them too.
    """

    def __init__(self, prompt: Iterable[int], output: Iterable[int]) -> None:
        sampled = Counter(output)
        found = dict.fromkeys(chain(prompt, sampled))
        self._places = dict(zip(found, range(len(found)), strict=True))
        self._size = len(found)
        room = max(_FIRST_CAPACITY, 2 * len(found))
        # Arrays of numpy: a small operation of torch lets other threads have the interpreter, for milliseconds.
        self._ids = np.zeros(room, np.int64)
        self._ids[: len(found)] = np.fromiter(found, np.int64, len(found))
        self._counts = np.zeros(room, np.float64)
        for token, count in sampled.items():
            self._counts[self._places[token]] = count

    def add(self, token: int) -> None:
        """Count a sampled token."""
        place = self._place(token)  # first, since it may replace the arrays
        self._counts[place] += 1

    def after(self, tokens: Sequence[int]) -> TokenCounts:
        """These counts with some tokens more, to be read only: the same places, and others for new tokens."""
        fresh = [token for token in dict.fromkeys(tokens) if token not in self._places]
        places = dict(zip(fresh, range(self._size, self._size + len(fresh)), strict=True))
        later = copy(self)
        later._size += len(fresh)
        later._ids = np.concatenate([self.ids, np.array(fresh, np.int64)])
        later._counts = np.concatenate([self.counts, np.zeros(len(fresh))])
        for token in tokens:
            later._counts[places[token] if token in places else self._places[token]] += 1
        return later

    @property
    def ids(self) -> NDArray[np.int64]:
        """[distinct tokens]"""
        return self._ids[: self._size]

    @property
    def counts(self) -> NDArray[np.float64]:
        """[distinct tokens]"""
        return self._counts[: self._size]

    def _place(self, token: int) -> int:
        place = self._places.get(token)
        if place is None:
            place = self._places[token] = self._size
            self._size += 1
            if place == len(self._ids):
                self._ids = np.concatenate([self._ids, np.zeros_like(self._ids)])
                self._counts = np.concatenate([self._counts, np.zeros_like(self._counts)])
            self._ids[place] = token
        return place


class SamplingState:
    """One request's state in the sampler.

    `position`: of the token to sample, in prompt and output. `drawn`: output tokens so far, those of a replica that
    died included. `limit`: `drawn` at which the output ends. `changes_logits`: whether `shape_logits` has work.
    `put_off`: the token is sampled in a later step, as the step had no time left for its grammar. `grammar_s`: seconds
    of CPU time of the grammar that were counted.
    """

    __slots__ = (
        "changes_logits", "counts", "drawn", "flow", "grammar_s", "guide", "limit", "position", "put_off", "sampling",
    )  # fmt: skip

    def __init__(
        self,
        sampling: Sampling,
        prompt: Sequence[int],
        output: Sequence[int] = (),
        guide: Guide | None = None,
        flow: str = "",
    ) -> None:
        self.sampling = sampling
        self.position = len(prompt) + len(output)
        self.drawn = len(output)
        self.counts = TokenCounts(prompt, output) if _penalized(sampling) else None
        self.limit = sampling.max_tokens
        self.guide = guide
        self.flow = flow
        self.put_off = False
        self.grammar_s = 0.0
        if guide is not None:
            for at, token in enumerate(output):
                guide.choose_token(token, self.limit - at)  # rebuilds its plan, on which later choices depend
                guide.accept_token(token)
        self.changes_logits = self._changes_logits()

    @property
    def stops_forbidden(self) -> bool:
        """Whether stop tokens may not be sampled yet."""
        return self.drawn < self.sampling.min_tokens

    def accept_token(self, token: int) -> None:
        """The token was sampled: advance to the next position."""
        self.position += 1
        self.drawn += 1
        if self.guide is not None:
            self.guide.accept_token(token)
        if self.counts is not None:
            self.counts.add(token)
        if self.changes_logits or self.guide is not None:
            self.changes_logits = self._changes_logits()

    def accept_run(self, tokens: Sequence[int], guide: Guide) -> None:
        """These tokens were sampled, and a copy of its guide has accepted them: advance."""
        self.position += len(tokens)
        self.drawn += len(tokens)
        self.guide = guide
        if self.counts is not None:
            for token in tokens:
                self.counts.add(token)
        self.changes_logits = self._changes_logits()

    @property
    def draftable(self) -> bool:
        """Whether drafts can be verified now: not while its grammar is to finish a choice."""
        return self.guide is None or not (self.guide.choosing or self.guide.ended)

    def after(self, drafts: Sequence[int], guide: Guide | None = None) -> SamplingState:
        """The state if these tokens were sampled next, for the row behind them, to be read only. `guide`: a copy of its
        guide that has accepted them."""
        if not drafts:
            return self
        assert (self.guide is None) == (guide is None), "a grammar goes from token to token"
        later = SamplingState.__new__(SamplingState)
        for name in self.__slots__:  # several times as quick as `copy`, and there is one for each draft
            setattr(later, name, getattr(self, name))
        later.guide = guide
        later.put_off = False
        later.position += len(drafts)
        later.drawn += len(drafts)
        later.counts = None if self.counts is None else self.counts.after(drafts)
        later.changes_logits = later._changes_logits()
        return later

    def _changes_logits(self) -> bool:
        """Whether the logits are changed before the draw."""
        guided = self.guide is not None and not self.guide.idle
        return self.counts is not None or guided or bool(self.sampling.logit_bias) or self.stops_forbidden


def _penalized(sampling: Sampling) -> bool:
    neutral = sampling.repetition_penalty == 1.0
    return not (neutral and sampling.presence_penalty == 0 == sampling.frequency_penalty)
