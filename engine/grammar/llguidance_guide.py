"""One output's place in an llguidance grammar: which tokens may come, and how its end is reached near the limit.

Whatever the grammar is, its masks cost a bounded time: a guide that takes more fails alone, and every other guide of
the same grammar with it. A search for an end is bounded in what it looks at, and goes on in a later step when a step
has no more time for it: what it finds depends neither on the machine nor on others.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING

import llguidance
import numpy as np
from numpy.typing import NDArray

from engine.grammar.closing_search import MOST_TOKENS, ClosingSearch, Search
from engine.grammar.compiler import first_line

if TYPE_CHECKING:
    import torch

TOO_SLOW = "its masks take too long to compute"
_MASK_S = 0.1
"""CPU time of one mask or one token taken, in seconds, after which the grammar is given up."""
FIRST_S, TOKEN_S = 0.2, 0.0015
"""CPU time that an output may take with its masks: at first, and more with each token. Ordinary ones take 0.1 ms; a
step draws a token for each of 64 outputs or more."""
_SEARCH_FIRST, _SEARCH_TOKEN = 2000, 40
"""How many places an output may look at to find its end: at first, and more with each token. One takes 0.05 ms."""
_REFRESH, _VAIN = 16, 3
"""How often, in tokens, an output looks how far its end is, and how often in vain until it looks half as often each
time: a search that finds nothing takes longest, and holds up the step."""
_NEAR_LEAST, _NEAR_MARGIN = 32, 16
_NEAR_MOST = 2 * MOST_TOKENS + _NEAR_MARGIN


class LlguidancePosition:
    """A matcher as the search for an end sees it."""

    __slots__ = ("matcher",)

    def __init__(self, matcher: llguidance.LLMatcher) -> None:
        self.matcher = matcher

    def copy(self) -> LlguidancePosition:
        return LlguidancePosition(self.matcher.deep_copy())

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


class SharedGrammarState:
    """What all guides of one grammar share. `failure`: why it is given up, for all that still use it. `worn`: the
    library has no room for more states of its lexer, which all outputs so far have added to. `spent`: seconds of CPU
    time that masks and tokens took so far, as states are made in them. `failed_at`: by the monotonic clock."""

    def __init__(self, closer: ClosingSearch, ends: Sequence[int], ending: list[int] | None, words: int) -> None:
        """`ending`: tokens to an end from the beginning; `words`: of 32 tokens each, the vocabulary."""
        self.closer = closer
        self.ends = ends
        self.ending = ending
        self.words = words
        self.first_ends: dict[int, tuple[list[int] | None, int]] = {}
        """What was found from the beginning and how many places were looked at, by how many tokens the end might have:
        outputs with one limit ask the same."""
        self.failure: str | None = None
        self.failed_at = 0.0
        self.worn = False
        self.spent = 0.0


class LlguidanceGuide:
    """A matcher, and the shortest end that is known from where it stands once the limit is near."""

    def __init__(self, matcher: llguidance.LLMatcher, shared: SharedGrammarState) -> None:
        self.ended = matcher.is_stopped()
        self.failure: str | None = None
        self._matcher = matcher
        self._shared = shared
        self._distance = MOST_TOKENS if shared.ending is None else len(shared.ending)
        self._plan = shared.ending
        self._taken = 0
        self._look_at = _REFRESH
        self._in_vain = 0
        self._hopeless = False
        self.cpu_s = 0.0
        self._spent = 0.0
        self._places_seen = 0
        self._mask: torch.Tensor | None = None
        """What may come here, once that is known: a row that is put off asks again, and that is no cost of its own."""
        self._settling: tuple[int, int, Generator[None, None, int]] | None = None
        """What is being settled: the token, what was left, and the search that goes on."""

    def allow(self, row: torch.Tensor) -> None:
        """Write which tokens may come next, a bit each, into an int32 row on the host."""
        words = self._shared.words
        if self._mask is not None:
            row.copy_(self._mask)
        elif self._alive():
            began = time.thread_time()
            # The library takes a row of its vocabulary's very size; logits are padded beyond it.
            self._matcher.unsafe_compute_mask_ptr(row.data_ptr(), words * row.element_size())
            self._spend(began)
            row[words:] = 0
            self._mask = row.clone()
        if self.failure is None and (self._matcher.is_error() or not bool(row.any())):
            self._fail("nothing can follow")
        if self.failure is not None:
            row.fill_(-1)

    def settle(self, token: int, left: int) -> int:
        """The drawn token, or the next one of a known end if after it `left` − 1 more could not complete the output."""
        settled = self.settle_within(token, left, lambda: True)
        assert settled is not None
        return settled

    def settle_within(self, token: int, left: int, has_time: Callable[[], bool]) -> int | None:
        """The same, or None when `has_time` says no before it is known: asked again, it goes on from there."""
        began = time.thread_time()
        try:
            if self._settling is None or self._settling[:2] != (token, left):
                steps = self._settle(token, left)
                self._settling = token, left, steps
                next(steps)  # as far as is known without a search
            _, _, steps = self._settling
            while has_time():
                next(steps)
        except StopIteration as settled:
            self._settling = None
            chosen: int = settled.value
            return chosen
        except BaseException:
            self._settling = None  # a search that failed cannot go on
            raise
        finally:
            self.cpu_s += time.thread_time() - began
        return None

    def _settle(self, token: int, left: int) -> Generator[None, None, int]:
        """It stops before each place that a search looks at."""
        if self.failure is not None:
            return token
        place = LlguidancePosition(self._matcher)
        # Where even the farthest end would not be near, it does not matter how far it is.
        if self._taken >= self._look_at and left <= _NEAR_MOST:
            yield from self._measure_distance(place)
        if self._hopeless or left > self._near():
            self._plan = None
            return token
        closer, ends = self._shared.closer, self._shared.ends
        if self._plan is None or not closer.leads(place, self._plan, left):
            self._plan = yield from self._end(place, left)
        if self._plan is None:
            self._hopeless = True  # the limit will cut it off
            return token
        if token in ends or token in self._plan[:1]:
            return token
        after = place.copy()
        rest = (yield from self._rest(after, self._plan, left - 1)) if after.advance([token]) else None
        if rest is None:
            if self._plan and not len(place.allowed(np.array(self._plan[:1]))):
                # The same text in other tokens than those that are forced from here.
                other = yield from self._end(place, left)
                self._plan = self._plan if other is None else other
            return self._plan[0] if self._plan else ends[0]
        self._plan = [token, *rest]
        return token

    def take(self, token: int) -> None:
        """The token was put out."""
        self._taken += 1
        self._mask = None
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

    def _measure_distance(self, place: LlguidancePosition) -> Search:
        """Look how far the end is, and when to look again."""
        end = yield from self._end(place, MOST_TOKENS)
        self._distance = MOST_TOKENS if end is None else len(end)
        self._hopeless = self._hopeless and end is None
        self._in_vain = 0 if end is not None else self._in_vain + 1
        self._look_at = self._taken + (_REFRESH << max(0, self._in_vain - _VAIN))
        return end

    def _rest(self, after: LlguidancePosition, plan: list[int], most: int) -> Search:
        """An end from one token further: what led there before often still does."""
        for known in (plan, plan[1:]):
            if self._shared.closer.leads(after, known, most):
                return known
        return (yield from self._end(after, most, quick=True))

    def _end(self, place: LlguidancePosition, most: int, *, quick: bool = False) -> Search:
        """Search for an end, unless the output has looked at too many places for that."""
        most = min(most, MOST_TOKENS)
        at_beginning = not self._taken and not quick
        if at_beginning and most in self._shared.first_ends:
            known, places = self._shared.first_ends[most]
            self._places_seen += places  # as if it had searched itself, so that it goes on alike
            return known
        if self._places_seen > _SEARCH_FIRST + _SEARCH_TOKEN * self._taken:
            return None
        search, places = self._shared.closer.search(place, most, quick=quick), 0
        try:
            while True:
                next(search)
                places += 1
                yield
        except StopIteration as found:
            end: list[int] | None = found.value
        self._places_seen += places
        if at_beginning:
            self._shared.first_ends[most] = end, places
        return end

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
        self.cpu_s += spent
        self._shared.spent += spent
        if spent > _MASK_S or self._spent > FIRST_S + TOKEN_S * self._taken:
            self.failure = self._shared.failure = TOO_SLOW
            self._shared.failed_at = time.monotonic()
