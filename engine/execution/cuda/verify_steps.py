"""Decode steps that verify drafts: a row for each request's last token, and one for each of its drafts.

The rows are computed as in any decode step, by the same graphs, and a row has the bits that it has alone (E1). The host
knows the tokens of all rows, so that nothing is taken from what the device holds of the requests: tokens come with the
step, and what penalties count is counted here, the drafts before a row included. What is drawn is drawn as in plain
steps, and `engine.execution.verification` says which drafts that accepts. Drafts that are not leave nothing behind but
KV that nobody reads before it is written again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from engine.execution.cuda.adapters import slots_of
from engine.execution.cuda.decode_steps import DecodeSteps
from engine.execution.cuda.deferred_draws import DeferredDraws, KnownRow
from engine.execution.cuda.flights import Flags, exact, not_finite
from engine.execution.cuda.slots import NOWHERE
from engine.execution.cuda.step_grammars import StepGrammars
from engine.execution.model_runner import Sizes
from engine.execution.verification import DrawnRun, draw_runs_by
from engine.kernels.host_words import to_host
from engine.kernels.likeliest import NOT_FINITE
from engine.kernels.uploads import Ints
from engine.sampling.grammar_allowance import StepAllowance
from engine.sampling.request_state import SamplingState
from engine.sampling.sampler import choose_near_limit, logprobs_of
from engine.scheduling.step_work import Decode, Work, WorkOutcome
from protocol.requests import TokenLogprob

_MOST_ROWS = 256
"""Rows of a step with drafts, where fewer requests run: with more rows no draft pays."""
_TOLD_AT_ONCE = 64
"""Rows whose log probabilities are computed at a time."""

Meanwhile = Callable[[Callable[[], bool]], None]
OnLogits = Callable[[Sequence[Work], torch.Tensor], None]


def most_rows(sizes: Sizes) -> int:
    """How many rows a decode step may have."""
    return max(sizes.running, min(_MOST_ROWS, sizes.running * (1 + sizes.drafts)))


class VerifySteps:
    """Runs steps with drafts on the device's decode steps. `allowance`: the grammar time of a step."""

    def __init__(
        self, steps: DecodeSteps, deferred: DeferredDraws, grammars: StepGrammars, allowance: StepAllowance
    ) -> None:
        self._steps = steps
        self._slots = steps.slots
        self._deferred = deferred
        self._grammars = grammars
        self._allowance = allowance
        self._vocabulary = steps.model.vocabulary
        self._later: Flags = np.zeros(0, np.bool_)
        """Which rows of the step are drawn from logits that are changed, or under a grammar: behind the graph."""
        self._drawn: list[int] | None = None
        """The tokens of the other rows, once they are here."""
        self._meanwhile: Meanwhile = lambda _done: None

    def run(self, works: Sequence[Decode], meanwhile: Meanwhile, on_logits: OnLogits | None) -> list[WorkOutcome]:
        """The outcomes of the decodes to which the slots are bound. `meanwhile`, `on_logits`: as in `ModelRunner`."""
        self._launch(works)
        self._meanwhile = meanwhile
        runs = draw_runs_by(works, self._draw, self._allowance)
        outcomes = self._outcomes(runs)
        if on_logits is not None:
            shown = [(run.work, row) for run in runs for row in run.rows]
            logits = self._logits([row for _, row in shown])
            on_logits([work for work, _ in shown], exact(logits, self._vocabulary)[:, : self._vocabulary])
        return outcomes

    def _launch(self, works: Sequence[Decode]) -> None:
        """Queue the rows of all works, one work behind the other."""
        slots = self._slots
        counts = np.array([work.count for work in works])
        firsts = np.cumsum(counts) - counts
        within = _within(counts)
        starts = np.array([work.start for work in works])
        rows = np.repeat(slots.rows, counts)
        # The rows of a request are neighbours, so that its keys are read once for all of them.
        order = np.repeat(firsts[slots.order], counts[slots.order]) + _within(counts[slots.order])
        later = [
            (row := work.request.row) is not None and (row.guide is not None or row.changes_logits) for work in works
        ]
        self._later = np.repeat(np.array(later, np.bool_), counts)
        draws = slots.plain_draws(rows, self._later)
        sources = slots.place_tokens([token for work in works for token in work.tokens])
        positions = np.repeat(starts, counts) + within
        ordered = order.astype(np.int32)
        self._steps.run(rows, positions.astype(np.int32), ordered, sources, draws=draws, adapted=slots_of(works))
        # The device has no latest token of these: what they were given lies elsewhere.
        slots.token_at[slots.rows] = NOWHERE
        self._drawn = None

    def _draw(self, rows: Sequence[int], states: Sequence[SamplingState], allowance: StepAllowance) -> list[int]:
        """The tokens of these rows, as `sample` draws them."""
        at = [place for place, row in enumerate(rows) if self._later[row]]
        some = [states[place] for place in at]
        masks = self._grammars.masks_of(some, allowance)
        known = [KnownRow(state.sampling, state, state.position - 1) for state in some]
        queued = (
            to_host(self._deferred.behind_known(known, self._logits([rows[place] for place in at]), masks))
            if at
            else None
        )
        if self._drawn is None:
            drawn, event = to_host(self._steps.tokens[: len(self._later)])
            if event is not None:
                self._meanwhile(event.query)
                event.synchronize()
            self._drawn = drawn.tolist()
        tokens = [self._drawn[row] for row in rows]
        if queued is not None:
            late, event = queued
            if event is not None:
                event.synchronize()
            for place, token in zip(at, late.tolist(), strict=True):
                tokens[place] = token
        guided = [place for place, state in enumerate(states) if state.guide is not None]
        for place in guided:
            # No choice can be made of it; where it is no request's first row, the next step finds it again.
            states[place].put_off |= tokens[place] == NOT_FINITE
        if guided:
            choose_near_limit(tokens, states, allowance)
        return tokens

    def _outcomes(self, runs: Sequence[DrawnRun]) -> list[WorkOutcome]:
        for run in runs:
            # What a draft makes that is not finite, plain decoding makes in the next step, and fails there.
            if len(run.tokens) > 1 and run.tokens[-1] == NOT_FINITE:
                run.tokens.pop()
        told = self._told([run for run in runs if run.tokens[-1] != NOT_FINITE])
        return [
            WorkOutcome(error=not_finite())
            if run.tokens[-1] == NOT_FINITE
            else WorkOutcome(
                run.tokens[-1],
                None,
                tuple(told[row] for row in run.rows if row in told),
                run.tokens[:-1],
                guide=run.guide,
            )
            for run in runs
        ]

    def _told(self, runs: Sequence[DrawnRun]) -> dict[int, TokenLogprob]:
        """By row, what is told of the tokens that are put out."""
        asked = [
            (row, token, count)
            for run in runs
            if (count := run.work.request.sampling.logprobs) is not None
            for row, token in zip(run.rows, run.tokens, strict=True)
        ]
        told: dict[int, TokenLogprob] = {}
        for first in range(0, len(asked), _TOLD_AT_ONCE):
            rows, tokens, counts = map(list, zip(*asked[first : first + _TOLD_AT_ONCE], strict=True))
            logits = exact(self._logits(rows), self._vocabulary)
            told |= dict(zip(rows, logprobs_of(logits, tokens, counts), strict=True))
        return told

    def _logits(self, rows: Sequence[int]) -> torch.Tensor:
        """A copy of the logits of these rows."""
        (there,) = self._slots.upload([np.array(rows, np.int32)])
        return self._steps.logits.index_select(0, there)


def _within(counts: Ints) -> Ints:
    """0, 1, … for each of these counts."""
    ends = np.cumsum(counts)
    within: Ints = np.arange(counts.sum()) - np.repeat(ends - counts, counts)
    return within
