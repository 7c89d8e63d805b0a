"""What grammars say of a step's tokens, on the host: masks while the device computes, and ends near token limits."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from engine.execution.cuda.deferred_draws import NO_MASK, Drawn, Masks
from engine.execution.cuda.draws import is_guided
from engine.execution.cuda.flights import exact
from engine.execution.stopwatch import Stopwatch
from engine.kernels.grammar_masks import words_of
from engine.kernels.uploads import Uploads
from engine.sampling.grammar_allowance import StepAllowance
from engine.sampling.logit_shaping import fill_masks
from engine.sampling.request_state import SamplingState
from engine.sampling.sampler import choose_near_limit, logprobs_of
from engine.scheduling.step_work import Work, WorkOutcome


class StepGrammars:
    """Grammars over `vocabulary` tokens, which take `allowance` of each step."""

    def __init__(self, allowance: StepAllowance, vocabulary: int, upload: Uploads) -> None:
        self._allowance = allowance
        self._vocabulary = vocabulary
        self._upload = upload
        self._watches: list[Stopwatch] = []

    def begin(self) -> None:
        """A step begins."""
        self._watches.clear()

    def masks(self, works: Sequence[Work]) -> Masks:
        """What may follow these works, as far as a grammar has a say, found out and sent while the device computes."""
        return self.masks_of([work.request.row for work in works], self._allowance)

    def masks_of(self, rows: Sequence[SamplingState | None], allowance: StepAllowance) -> Masks:
        """The same by the states of the rows, with the grammar time that is left."""
        asked = [
            (at, row) for at, row in enumerate(rows) if row is not None and row.guide is not None and not row.guide.idle
        ]
        of = np.full(len(rows), NO_MASK, np.int32)
        of[[at for at, _ in asked]] = np.arange(len(asked), dtype=np.int32)
        words = torch.empty(len(asked), words_of(self._vocabulary), dtype=torch.int32, device=self._upload.device)
        if asked:
            watch = Stopwatch(self._upload.device)
            self._watches.append(watch)
            with watch, self._upload.filling(words) as here:
                fill_masks(torch.from_numpy(here), [row for _, row in asked], allowance)
        return Masks(words, of)

    def waited_s(self) -> float:
        """Seconds for which the device had nothing to do but to wait for the step's masks. Waits for the draws."""
        return sum(watch.microseconds() for watch in self._watches) * 1e-6

    def choose(self, works: Sequence[Work], outcomes: Sequence[WorkOutcome], drawn: Sequence[Drawn]) -> list[int]:
        """Let grammars replace tokens of a step, or put them off, near their limits: all at once, as time is bounded.

        Returns the works whose token on the device is not the one that is put out, as their places in the step.
        """
        guided = [
            (part, place, at)
            for part in drawn
            for place, at in enumerate(part.rows)
            if is_guided(works[at].request) and outcomes[at].error is None
        ]
        if not guided:
            return []
        rows = [row for _, _, at in guided if (row := works[at].request.row) is not None]
        tokens = [outcomes[at].token or 0 for _, _, at in guided]
        before = list(tokens)
        choose_near_limit(tokens, rows, self._allowance)
        others = []
        for (part, place, at), row, old, token in zip(guided, rows, before, tokens, strict=True):
            outcome = outcomes[at]
            outcome.token = token
            if token != old and outcome.logprobs:
                logits = exact(part.logits[place : place + 1], self._vocabulary)
                outcome.logprobs = tuple(logprobs_of(logits, [token], [works[at].request.sampling.logprobs or 0]))
            if token != old or row.put_off:
                others.append(at)
        return others
