"""Draws that are queued once the host knows all tokens before: behind prompts, and where a grammar has a say.

The device computes the logits meanwhile. So what a grammar allows next is found out beside the forward pass, and the
step after it is queued behind the draw, before anybody has read its tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from engine.execution.cuda.draws import Drawer, Draws, RowMasks, StepRows, compose, drawing_of
from engine.execution.cuda.flights import Told, tell
from engine.execution.cuda.seen_tokens import SeenTokens
from engine.execution.cuda.slots import Slots
from engine.kernels.host_words import to_host
from engine.kernels.uploads import Ints, Uploads
from engine.sampling.request_state import SamplingState
from engine.scheduling.step_work import Work, WorkOutcome
from protocol.requests import Sampling

NO_MASK = -1
_AT_ONCE = 64
"""Rows that are drawn at a time, if some have changed logits: these are in memory in fp32, with what they have seen."""


@dataclass(frozen=True)
class Masks:
    """Masks of works, int32 [masks, words] on the device, and by work which of them is its own, `NO_MASK` for none."""

    words: torch.Tensor
    of: Ints

    def __getitem__(self, works: slice) -> Masks:
        return Masks(self.words, self.of[works])


@dataclass(frozen=True)
class Drawn:
    """Tokens of the works at `rows` of a step, on the host once the event has come, what is told of them, and the
    logits that they were drawn from."""

    rows: Sequence[int]
    logits: torch.Tensor
    tokens: torch.Tensor
    event: torch.cuda.Event | None
    told: Told | None

    def enter(self, outcomes: Sequence[WorkOutcome]) -> None:
        """Wait for the tokens, and enter them for works that did not fail."""
        if self.event is not None:
            self.event.synchronize()
        tokens: list[int] = self.tokens.tolist()
        told = [None] * len(tokens) if self.told is None else self.told.wait(len(tokens))
        for row, token, logprob in zip(self.rows, tokens, told, strict=True):
            if outcomes[row].error is None:
                outcomes[row].token, outcomes[row].logprobs = token, () if logprob is None else (logprob,)


class DeferredDraws:
    """Draws by `drawer`, for requests in `slots` and for prompts, from logits of `vocabulary` tokens."""

    def __init__(self, drawer: Drawer, slots: Slots, vocabulary: int, upload: Uploads) -> None:
        self._drawer = drawer
        self._slots = slots
        self._vocabulary = vocabulary
        self._upload = upload
        self._seen = SeenTokens(_AT_ONCE, vocabulary, upload)

    def of_decodes(self, step: Sequence[Work], at: Sequence[int], logits: torch.Tensor, masks: Masks) -> Drawn:
        """The tokens of the decodes at these places of the step that has the slots; by slot they are the latest ones.

        `logits`, which are not changed, and `masks` are theirs alone.
        """
        works, slots = [step[row] for row in at], self._slots.rows[list(at)]
        tokens = self._likeliest(logits)
        inputs = np.array([work.tokens[0] for work in works], np.int32)
        known = _known(works)
        for some in _groups(known):
            changed = [at for at, row in enumerate(known[some]) if row.changes_logits]
            draws = self._slots.draws_of(slots[some], changed, deferred=True)
            if draws is not None:
                rows = _Rows(known[some], logits[some], tokens[some], masks.of[some], inputs[some], slots[some])
                self._draw(rows, draws, masks.words, self._slots.seen, self._slots.latest)
        told = tell(works, logits, tokens, self._upload, vocabulary=self._vocabulary)
        return Drawn(at, logits, *to_host(tokens), told)

    def of_prompts(self, step: Sequence[Work], at: Sequence[int], logits: torch.Tensor, masks: Masks) -> Drawn:
        """The first tokens behind prompts, which end with the works at these places of a step."""
        works = [step[row] for row in at]
        tokens = self.behind_known(_known(works), logits, masks)
        told = tell(works, logits, tokens, self._upload, vocabulary=self._vocabulary)
        return Drawn(at, logits, *to_host(tokens), told)

    def behind_known(self, known: Sequence[KnownRow], logits: torch.Tensor, masks: Masks) -> torch.Tensor:
        """The tokens that follow rows of which the host knows all tokens, on the device; `logits` are theirs alone."""
        tokens = self._likeliest(logits)
        for some in _groups(known):
            changed = [at for at, row in enumerate(known[some]) if row.changes_logits]
            drawings = [drawing_of(row.sampling, row.state) for row in known[some]]
            numbers = np.arange(len(drawings), dtype=np.int32)
            given = np.stack([drawing.parameters for drawing in drawings])
            draws = compose(given, changed, [drawings[row] for row in changed], numbers[: len(changed)], self._upload)
            if draws is not None:
                # None of their tokens is counted by the kernel.
                self._seen.forget(slice(None))
                inputs = np.zeros_like(numbers)
                rows = _Rows(known[some], logits[some], tokens[some], masks.of[some], inputs, numbers)
                self._draw(rows, draws, masks.words, self._seen, torch.empty_like(rows.tokens))
        return tokens

    def _likeliest(self, logits: torch.Tensor) -> torch.Tensor:
        nothing = torch.full((len(logits),), -1, dtype=torch.int32, device=logits.device)
        tokens = torch.empty_like(nothing)
        self._drawer.likeliest(logits, nothing, nothing, tokens, nothing)
        return tokens

    def _draw(self, given: _Rows, draws: Draws, masks: torch.Tensor, seen: SeenTokens, latest: torch.Tensor) -> None:
        """Replace the likeliest tokens of the logits as they are, where these are not what is drawn."""
        ends = np.array([row.position for row in given.known])
        rows, places = draws.penalized()
        states = [state for at in rows.tolist() if (state := given.known[at].state) is not None]
        counting = np.zeros(len(ends), np.int32)
        counting[rows] = seen.follow(places, ends[rows], states)
        which = given.masks[draws.changed]
        masked = np.nonzero(which != NO_MASK)[0].astype(np.int32)
        inputs, counted, positions, slots, shaped, chosen = self._upload(
            [given.inputs, counting, ends.astype(np.int32), given.slots, masked, which[masked]]
        )
        there = StepRows(inputs, counted, positions, slots, given.tokens, latest)
        row_masks = RowMasks(masks, shaped, chosen) if len(masked) else None
        self._drawer(given.logits, draws, seen.counts, there, row_masks)


@dataclass(frozen=True)
class KnownRow:
    """A row behind which a token is drawn: how, in which state, and at which position the row's own token is."""

    sampling: Sampling
    state: SamplingState | None
    position: int

    @property
    def changes_logits(self) -> bool:
        """Whether its logits are changed before the draw."""
        return self.state is not None and self.state.changes_logits


def _known(works: Sequence[Work]) -> list[KnownRow]:
    """The last rows of these works."""
    return [KnownRow(work.request.sampling, work.request.row, work.start + work.count - 1) for work in works]


@dataclass(frozen=True)
class _Rows:
    """Rows that are drawn together: their logits, whither their tokens go, and by row, on the host, its mask, the
    token that was computed, and its slot."""

    known: Sequence[KnownRow]
    logits: torch.Tensor
    tokens: torch.Tensor
    masks: Ints
    inputs: Ints
    slots: Ints


def _groups(rows: Sequence[KnownRow]) -> list[slice]:
    at_once = _AT_ONCE if any(row.changes_logits for row in rows) else max(1, len(rows))
    return [slice(first, first + at_once) for first in range(0, len(rows), at_once)]
