"""One output's place in an llguidance grammar: which tokens may come, and how its end is reached near the limit.

Whatever the grammar is, it costs the step loop a bounded time: a guide that takes more fails alone, and every other
guide of the same grammar with it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import llguidance
import numpy as np
from numpy.typing import NDArray

from engine.grammar.closing import MOST_TOKENS, Closer
from engine.grammar.compilation import first_line

if TYPE_CHECKING:
    import torch

TOO_SLOW = "its masks take too long to compute"
_MASK_S = 0.1
"""CPU time of one mask or one token taken, in seconds, after which the grammar is given up."""
FIRST_S, TOKEN_S = 0.2, 0.0015
"""CPU time that an output may take with its masks: at first, and more with each token. Ordinary ones take 0.1 ms; a
step draws a token for each of 64 outputs or more."""
_SEARCH_FIRST_S, _SEARCH_TOKEN_S = 0.1, 0.002
"""The same of searching for its end, after which it is not searched for any more."""
_REFRESH, _VAIN = 16, 3
"""How often, in tokens, an output looks how far its end is, and how often in vain until it looks half as often each
time: a search that finds nothing takes longest, and holds up the step."""
_NEAR_LEAST, _NEAR_MARGIN = 32, 16
_NEAR_MOST = 2 * MOST_TOKENS + _NEAR_MARGIN


class LlguidancePlace:
    """A matcher as the search for an end sees it."""

    __slots__ = ("matcher",)

    def __init__(self, matcher: llguidance.LLMatcher) -> None:
        self.matcher = matcher

    def copy(self) -> LlguidancePlace:
        return LlguidancePlace(self.matcher.deep_copy())

    @property
    def accepting(self) -> bool:
        return self.matcher.is_accepting()

    @property
    def complete(self) -> bool:
        return self.matcher.is_stopped() and not self.matcher.is_error()

    def forced(self) -> list[int]:
        return self.matcher.compute_ff_tokens()

    def allowed(self, candidates: NDArray[np.int64]) -> NDArray[np.int64]:
        if self.matcher.is_error() or self.matcher.is_stopped():
            return candidates[:0]
        bits = np.frombuffer(self.matcher.compute_bitmask(), dtype=np.uint8)
        chosen: NDArray[np.int64] = candidates[(bits[candidates >> 3] >> (candidates & 7)) & 1 == 1]
        return chosen

    def advance(self, tokens: list[int]) -> bool:
        return self.matcher.consume_tokens(tokens)


class Shared:
    """What all guides of one grammar share. `failure`: why it is given up, for all that still use it. `worn`: the
    library has no room for more states of its lexer, which all outputs so far have added to. `spent`: seconds of CPU
    time that masks and tokens took so far, as states are made in them. `failed_at`: by the monotonic clock."""

    def __init__(self, closer: Closer, ends: Sequence[int], ending: list[int] | None, words: int) -> None:
        """`ending`: tokens to an end from the beginning; `words`: of 32 tokens each, the vocabulary."""
        self.closer = closer
        self.ends = ends
        self.ending = ending
        self.words = words
        self.failure: str | None = None
        self.failed_at = 0.0
        self.worn = False
        self.spent = 0.0


class LlguidanceGuide:
    """A matcher, and the shortest end that is known from where it stands once the limit is near."""

    def __init__(self, matcher: llguidance.LLMatcher, shared: Shared) -> None:
        self.ended = matcher.is_stopped()
        self.failure: str | None = None
        self._matcher = matcher
        self._shared = shared
        self._distance = MOST_TOKENS if shared.ending is None else len(shared.ending)
        self._plan = shared.ending
        self._taken = 0
        self._left = 0
        self._look_at = _REFRESH
        self._in_vain = 0
        self._hopeless = False
        self._spent = 0.0
        self._searched = 0.0

    def allow(self, row: torch.Tensor) -> None:
        """Write which tokens may come next, a bit each, into an int32 row on the host."""
        words = self._shared.words
        if self._alive():
            began = time.thread_time()
            # The library takes a row of its vocabulary's very size; logits are padded beyond it.
            self._matcher.unsafe_compute_mask_ptr(row.data_ptr(), words * row.element_size())
            self._spend(began)
            row[words:] = 0
        if self.failure is None and (self._matcher.is_error() or not bool(row.any())):
            self._fail("nothing can follow")
        if self.failure is not None:
            row.fill_(-1)

    def settle(self, token: int, left: int) -> int:
        """The drawn token, or the next one of a known end if after it `left` − 1 more could not complete the output."""
        self._left = left
        if self.failure is not None or self._hopeless or left > self._near():
            self._plan = None
            return token
        closer, ends = self._shared.closer, self._shared.ends
        place = LlguidancePlace(self._matcher)
        if self._plan is None or not closer.leads(place, self._plan, left):
            self._plan = self._end(place, left)
        if self._plan is None:
            self._hopeless = True  # the limit will cut it off
            return token
        if token in ends or token in self._plan[:1]:
            return token
        after = place.copy()
        rest = self._rest(after, self._plan, left - 1) if after.advance([token]) else None
        if rest is None:
            if self._plan and not len(place.allowed(np.array(self._plan[:1]))):
                # The same text in other tokens than those that are forced from here.
                other = self._end(place, left)
                self._plan = self._plan if other is None else other
            return self._plan[0] if self._plan else ends[0]
        self._plan = [token, *rest]
        return token

    def take(self, token: int) -> None:
        """The token was put out."""
        self._taken += 1
        if not self._alive():
            return
        began = time.thread_time()
        taken = self._matcher.consume_token(token)
        self._spend(began)
        if not taken:
            self._fail("the token cannot follow")
            return
        self.ended = self._matcher.is_stopped()
        self._plan = self._plan[1:] if self._plan and self._plan[0] == token else None
        # Where even the farthest end would not be near, it does not matter how far it is.
        if self._taken >= self._look_at and self._left <= _NEAR_MOST and not self.ended:
            end = self._end(LlguidancePlace(self._matcher), MOST_TOKENS)
            self._distance = MOST_TOKENS if end is None else len(end)
            self._hopeless = self._hopeless and end is None
            self._in_vain = 0 if end is not None else self._in_vain + 1
            self._look_at = self._taken + (_REFRESH << max(0, self._in_vain - _VAIN))

    def _rest(self, after: LlguidancePlace, plan: list[int], most: int) -> list[int] | None:
        """An end from one token further: what led there before often still does."""
        for known in (plan, plan[1:]):
            if self._shared.closer.leads(after, known, most):
                return known
        return self._end(after, most, quick=True)

    def _end(self, place: LlguidancePlace, most: int, *, quick: bool = False) -> list[int] | None:
        """Search for an end, as long as the output's time for that is not used up."""
        if self._searched > _SEARCH_FIRST_S + _SEARCH_TOKEN_S * self._taken:
            return None
        began = time.thread_time()
        try:
            return self._shared.closer.end(place, most, quick=quick)
        finally:
            self._searched += time.thread_time() - began

    def _near(self) -> int:
        return max(_NEAR_LEAST, 2 * self._distance + _NEAR_MARGIN)

    def _fail(self, otherwise: str) -> None:
        said = first_line(self._matcher.get_error())
        self.failure = self.failure or said or otherwise
        self._shared.worn = self._shared.worn or "too many states" in said

    def _alive(self) -> bool:
        if self.failure is None:
            self.failure = self._shared.failure
        return self.failure is None

    def _spend(self, began: float) -> None:
        """Count the CPU time since `began`, by the clock of this thread; give the grammar up if it is too much."""
        spent = time.thread_time() - began
        self._spent += spent
        self._shared.spent += spent
        if spent > _MASK_S or self._spent > FIRST_S + TOKEN_S * self._taken:
            self.failure = self._shared.failure = TOO_SLOW
            self._shared.failed_at = time.monotonic()
