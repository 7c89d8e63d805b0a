"""The sampler's state of one request: parameters, token counts for penalties, position, and grammar guide."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import chain

import torch

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
        # A tensor takes microseconds for each element that is written alone.
        room = max(_FIRST_CAPACITY, 2 * len(found))
        self._ids = torch.empty(room, dtype=torch.int64)
        self._counts = torch.empty(room, dtype=torch.float64)
        self._ids[: len(found)] = torch.tensor(list(found), dtype=torch.int64)
        self._counts[: len(found)] = torch.tensor([sampled[token] for token in found], dtype=torch.float64)

    def add(self, token: int) -> None:
        """Count a sampled token."""
        place = self._place(token)  # first, since it may replace the arrays
        self._counts[place] += 1

    @property
    def ids(self) -> torch.Tensor:
        """int64 [distinct tokens], on the host."""
        return self._ids[: len(self._places)]

    @property
    def counts(self) -> torch.Tensor:
        """float64 [distinct tokens], on the host."""
        return self._counts[: len(self._places)]

    def _place(self, token: int) -> int:
        place = self._places.get(token)
        if place is None:
            place = self._places[token] = len(self._places)
            if place == len(self._ids):
                self._ids = torch.cat([self._ids, torch.empty_like(self._ids)])
                self._counts = torch.cat([self._counts, torch.empty_like(self._counts)])
            self._ids[place] = token
            self._counts[place] = 0
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
        prompt: Iterable[int],
        output: Iterable[int] = (),
        guide: Guide | None = None,
        flow: str = "",
    ) -> None:
        prompt, output = list(prompt), list(output)
        self.sampling = sampling
        self.position = len(prompt) + len(output)
        self.drawn = len(output)
        self.counts = TokenCounts(prompt, output) if _penalized(sampling) else None
        self.limit = self.drawn + sampling.max_tokens
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

    def _changes_logits(self) -> bool:
        """Whether the logits are changed before the draw."""
        guided = self.guide is not None and not self.guide.idle
        return self.counts is not None or guided or bool(self.sampling.logit_bias) or self.stops_forbidden


def _penalized(sampling: Sampling) -> bool:
    neutral = sampling.repetition_penalty == 1.0
    return not (neutral and sampling.presence_penalty == 0 == sampling.frequency_penalty)
