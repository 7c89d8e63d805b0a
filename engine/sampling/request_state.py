"""What the sampler keeps of one request: its parameters, which tokens were seen how often, where it stands."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from engine.grammar.guide import Guide
from protocol.requests import Sampling

_FIRST_CAPACITY = 64


class TokenCounts:
    """Distinct token ids and how often each was drawn, as growing arrays: a token costs O(1), a step a slice.

    Prompt tokens are in it with a count of 0: the repetition penalty knows them too.
    """

    def __init__(self, prompt: Iterable[int], output: Iterable[int]) -> None:
        self._places: dict[int, int] = {}
        self._ids = torch.empty(_FIRST_CAPACITY, dtype=torch.int64)
        self._counts = torch.empty(_FIRST_CAPACITY, dtype=torch.float64)
        for token in dict.fromkeys(prompt):
            self._place(token)
        for token in output:
            self.add(token)

    def add(self, token: int) -> None:
        """The token was drawn."""
        place = self._place(token)  # first: it may make the arrays anew
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
    """One request's side of the sampler. `position`: of the token to draw, in the sequence of prompt and output.

    `drawn` output tokens came before it, those of a replica that died included. `put_off`: its token is to be drawn in
    a later step, since its grammar took longer than the last one had time for. `grammar_s`: CPU time that the grammar
    took, as far as it was counted.
    """

    __slots__ = (
        "counts", "drawn", "flow", "grammar_s", "guide", "limit", "position", "put_off", "sampling", "shaped",
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
                guide.settle(token, self.limit - at)  # it makes plans, which decide what comes next
                guide.take(token)
        self.shaped = self._changes_logits()

    @property
    def stops_forbidden(self) -> bool:
        """Whether stop tokens may not be drawn yet."""
        return self.drawn < self.sampling.min_tokens

    def take(self, token: int) -> None:
        """The token was drawn: go on to the next position."""
        self.position += 1
        self.drawn += 1
        if self.shaped:
            if self.guide is not None:
                self.guide.take(token)
            if self.counts is not None:
                self.counts.add(token)
            self.shaped = self._changes_logits()

    def _changes_logits(self) -> bool:
        """Whether the logits are changed before the draw."""
        return (
            self.counts is not None or self.guide is not None or bool(self.sampling.logit_bias) or self.stops_forbidden
        )


def _penalized(sampling: Sampling) -> bool:
    neutral = sampling.repetition_penalty == 1.0
    return not (neutral and sampling.presence_penalty == 0 == sampling.frequency_penalty)
