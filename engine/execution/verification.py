"""Draws the tokens of works from their rows of logits, and so verifies drafts: each that is what was drawn is accepted.

Each row draws the token that plain decoding would draw there, from the same logits and the same random number. The rows
of a request are drawn at once. Under a grammar they are drawn one after the other, each by a copy of the guide that has
chosen and accepted the tokens before: so no mask is computed that plain decoding would not compute, and what a grammar
chooses near its limit is what it would choose then.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch

from engine.grammar.guide import Guide
from engine.sampling.grammar_allowance import DraftAllowance, StepAllowance
from engine.sampling.request_state import SamplingState
from engine.sampling.sampler import sample
from engine.scheduling.step_work import Work

DrawRows: TypeAlias = Callable[[Sequence[int], Sequence[SamplingState], StepAllowance], list[int]]
"""Draws the tokens of these rows, by their states and the grammar time that is left, as `sample` does."""


@dataclass(slots=True)
class DrawnRun:
    """What a work drew: `tokens` from row `first` on, all but the last are its drafts. `guide`: as in `WorkOutcome`."""

    work: Work
    first: int
    tokens: list[int]
    guide: Guide | None = None

    @property
    def rows(self) -> range:
        """The rows that its tokens were drawn from."""
        return range(self.first, self.first + len(self.tokens))


def draw_runs(works: Sequence[Work], logits: torch.Tensor, allowance: StepAllowance) -> list[DrawnRun]:
    """The runs of works by the first rows of fp32 logits: a row for each work, and one more for each of its drafts."""
    count = sum(1 + len(work.drafts) for work in works)

    def draw(rows: Sequence[int], states: Sequence[SamplingState], allowance: StepAllowance) -> list[int]:
        return sample(logits if len(rows) == count else logits[rows], states, allowance)

    return draw_runs_by(works, draw, allowance)


def draw_runs_by(works: Sequence[Work], draw: DrawRows, allowance: StepAllowance) -> list[DrawnRun]:
    """The runs of works, by what draws the tokens of their rows."""
    runs: list[DrawnRun] = []
    states: list[SamplingState] = []
    rows: list[int] = []
    end = 0
    for work in works:
        run = DrawnRun(work, end, [])
        runs.append(run)
        if (state := work.request.row) is not None:
            ahead = 0 if state.guide is not None else len(work.drafts)
            states += (state.after(work.drafts[:count]) for count in range(1 + ahead))
            rows += range(end, end + 1 + ahead)
        end += 1 + len(work.drafts)
    drawn = iter(draw(rows, states, allowance))
    pending: list[_GuidedRun] = []
    for run in runs:
        state, drafts = run.work.request.row, run.work.drafts
        assert state is not None, "a work without a sampler samples nothing"
        if state.guide is not None:
            run.tokens.append(next(drawn))
            if drafts and not state.put_off and run.tokens[0] == drafts[0]:
                pending.append(_GuidedRun(run, state, state.guide.fork()))
        else:
            tokens = [next(drawn) for _ in range(1 + len(drafts))]
            run.tokens += tokens[: 1 + accepted_count(drafts, tokens)]
    rest = DraftAllowance()
    while pending := [guided for guided in pending if guided.advance()]:
        at = [guided.run.rows.stop for guided in pending]
        for guided, token in zip(pending, draw(at, [guided.state for guided in pending], rest), strict=True):
            guided.take(token)
    return runs


def accepted_count(drafts: Sequence[int], tokens: Sequence[int]) -> int:
    """How many drafts, from the first on, are the tokens that were drawn in the rows before them."""
    return next((at for at, draft in enumerate(drafts) if draft != tokens[at]), len(drafts))


class _GuidedRun:
    """A run under a grammar, whose next row is drawn by a copy of the guide that has accepted the tokens before."""

    def __init__(self, run: DrawnRun, state: SamplingState, guide: Guide) -> None:
        self.run = run
        self.state = state
        self._before = state
        self._guide = guide
        run.guide = guide

    def advance(self) -> bool:
        """Let the guide accept the token that was drawn last; returns whether the row behind it is to be drawn."""
        if self.state.put_off:
            return False
        tokens, drafts = self.run.tokens, self.run.work.drafts
        self._guide.accept_token(tokens[-1])
        if len(tokens) > len(drafts) or tokens[-1] != drafts[len(tokens) - 1]:
            return False
        if self._guide.ended or self._guide.failure is not None:
            return False
        self.state = self._before.after(tokens, self._guide)
        return True

    def take(self, token: int) -> None:
        """The row's token. Where there was no time for it, it is drawn in the next step."""
        if not self.state.put_off:
            self.run.tokens.append(token)
