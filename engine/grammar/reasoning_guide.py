"""The state of an output that reasons before it answers: where its budget ends the reasoning, where a grammar begins.

A budget and a grammar are bounds in tokens of the output alone, so what follows from them depends neither on the batch
nor on when the request was preempted (E1).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Sequence
from copy import copy
from itertools import islice, takewhile
from typing import TYPE_CHECKING, Self

from engine.grammar.guide import GrammarGuide
from protocol.requests import Reasoning

if TYPE_CHECKING:
    import torch

_WORD = 32


class ReasoningGuide:
    """A `Guide`: free within a section of reasoning, then free or under the guide of the answer's grammar."""

    def __init__(self, reasoning: Reasoning, stop_tokens: Collection[int], answer: GrammarGuide | None) -> None:
        """`stop_tokens`: end an output without a grammar. `answer`: the guide of the grammar of what follows the
        reasoning."""
        self._reasoning = reasoning
        self._stops = frozenset(stop_tokens)
        self._answer = answer
        self._inside = reasoning.begun
        self._used = 0
        self._forced = deque(() if answer is None or reasoning.begun else reasoning.opening)
        """Tokens that follow whatever is drawn."""
        self._recent: deque[int] = deque(maxlen=len(reasoning.begin))
        self._reasoned = reasoning.begun
        """Whether there was a section: beside a grammar there is one at most."""
        self._answering = False
        """Whether the answer's grammar has taken in a token."""
        self._stopped = False

    @property
    def ended(self) -> bool:
        """Whether the output is complete."""
        return self._stopped or (self._answer is not None and self._answer.ended and not self._before_answer)

    @property
    def failure(self) -> str | None:
        """Why the answer's grammar was given up."""
        return None if self._answer is None else self._answer.failure

    @property
    def cpu_s(self) -> float:
        """Seconds of CPU time of the answer's grammar."""
        return 0.0 if self._answer is None else self._answer.cpu_s

    @property
    def idle(self) -> bool:
        """Whether any token may follow: without a grammar, until the budget has something to say."""
        spent = self._spent and (self._inside or self._opens() is not None)
        return self._answer is None and not self._forced and not spent

    @property
    def choosing(self) -> bool:
        """Whether a choice of the answer's grammar is unfinished."""
        return self._answer is not None and self._answer.choosing

    def fork(self) -> Self:
        """A copy that goes its own way."""
        forked = copy(self)
        forked._forced, forked._recent = self._forced.copy(), self._recent.copy()
        forked._answer = None if self._answer is None else self._answer.fork()
        return forked

    def count_valid(self, tokens: Sequence[int]) -> int:
        """How many of these tokens may follow each other: within a section of reasoning all up to its end, in an answer
        those that its grammar allows."""
        forced = [*self._forced] or ([*self._reasoning.end] if self._next_forced() is not None else [])
        if forced:
            agreeing = takewhile(lambda pair: pair[0] == pair[1], zip(tokens, forced, strict=False))
            return sum(1 for _ in agreeing)
        if self._inside or self._answer is None:
            end = self._reasoning.end[0] if self._inside else None
            return next((at + 1 for at, token in enumerate(tokens) if token == end), len(tokens))
        return self._answer.count_valid(tokens)

    def forced_tokens(self, most: int) -> Sequence[int]:
        """What must follow: a marker, or what the answer's grammar forces."""
        if self._forced:
            return list(islice(self._forced, most))
        if self._next_forced() is not None:
            return self._reasoning.end[:most]
        return () if self._inside or self._answer is None else self._answer.forced_tokens(most)

    def fill_mask(self, row: torch.Tensor) -> None:
        """Allow what may follow here."""
        forced = self._next_forced()
        if forced is not None:
            row.zero_()
            _allow(row, forced)
        elif self._inside or self._answer is None:
            row.fill_(-1)
            for token in self._stops if self._answer is not None else ():
                _forbid(row, token)
            if not self._inside and (opening := self._opens()) is not None and self._spent:
                _forbid(row, opening)
        else:
            self._answer.fill_mask(row)
            if (opening := self._may_open()) is not None:
                _allow(row, opening)

    def choose_token(self, token: int, left: int) -> int:
        """The sampled token, or the one that is due here."""
        chosen_token = self.choose_token_within(token, left, lambda: True)
        assert chosen_token is not None
        return chosen_token

    def choose_token_within(self, token: int, left: int, has_time: Callable[[], bool]) -> int | None:
        """The same, or None where the answer's grammar has no time left in this step."""
        forced = self._next_forced()
        if forced is not None:
            return forced
        if self._answer is None:
            return token
        # The answer begins while there is room to complete it.
        reserve = self._answer.reserve
        tight = reserve > 0 and left <= len(self._reasoning.end) + len(self._reasoning.answer) + reserve
        if self._inside:
            return self._reasoning.end[0] if tight else token
        if token == self._may_open() and not tight:
            return token
        return self._answer.choose_token_within(token, left, has_time)

    def accept_token(self, token: int) -> None:
        """Advance by a token of the output."""
        reasoning, was_forced = self._reasoning, bool(self._forced)
        self._stopped = self._answer is None and token in self._stops
        if was_forced:
            self._forced.popleft()
        self._recent.append(token)
        if self._inside:
            self._accept_reasoning(token)
        elif reasoning.begin and tuple(self._recent) == reasoning.begin and not self._closed:
            self._inside = self._reasoned = True
        elif self._answer is not None and not was_forced:
            self._answering = True
            self._answer.accept_token(token)

    def _accept_reasoning(self, token: int) -> None:
        reasoning = self._reasoning
        if token != reasoning.end[0]:
            self._used += 1
            return
        self._inside = False
        if self._spent or self._answer is not None:
            self._forced.extend(reasoning.end[1:])
        if self._answer is not None:
            self._forced.extend(reasoning.answer)

    @property
    def _spent(self) -> bool:
        budget = self._reasoning.budget
        return budget is not None and self._used >= budget

    @property
    def _before_answer(self) -> bool:
        return self._inside or bool(self._forced)

    def _next_forced(self) -> int | None:
        if self._forced:
            return self._forced[0]
        return self._reasoning.end[0] if self._inside and self._spent else None

    def _opens(self) -> int | None:
        """The token that would open a section here."""
        *before, last = self._reasoning.begin or (None,)
        after = list(self._recent)[max(0, len(self._recent) - len(before)) :] if before else []
        return last if after == before else None

    def _may_open(self) -> int | None:
        """The token that may open a section in place of an answer under a grammar."""
        begin = self._reasoning.begin
        return begin[0] if len(begin) == 1 and not (self._closed or self._spent) else None

    @property
    def _closed(self) -> bool:
        """Whether no section may follow, since the answer's grammar has begun or is due."""
        return self._answer is not None and (self._answering or self._reasoned)


def _allow(row: torch.Tensor, token: int) -> None:
    row[token // _WORD] = _signed(int(row[token // _WORD]) | 1 << token % _WORD)


def _forbid(row: torch.Tensor, token: int) -> None:
    row[token // _WORD] = _signed(int(row[token // _WORD]) & ~(1 << token % _WORD))


def _signed(word: int) -> int:
    """A word of 32 bits as int32 holds it."""
    word &= 0xFFFFFFFF
    return word - (1 << _WORD) if word >> (_WORD - 1) else word
