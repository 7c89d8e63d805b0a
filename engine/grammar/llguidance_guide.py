"""The state of one output in an llguidance grammar: masks of allowed tokens, and a valid ending near the token limit.

Masks have a bounded CPU time: a guide that takes more fails, and with it every guide of the same grammar (E6). A
closing search is bounded in positions instead of time, and resumes in a later step when a step has no time left; so
its result depends neither on the machine nor on the batch (E1).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from copy import copy
from typing import TYPE_CHECKING, Self, TypeVar

import llguidance
import numpy as np
from numpy.typing import NDArray

from engine.grammar.closing_search import MOST_TOKENS, ClosingSearch, Search
from engine.grammar.compiler import first_line

if TYPE_CHECKING:
    import torch

TOO_SLOW = "its masks take too long to compute"
_MASK_S = 0.1
"""Seconds of CPU time of one mask or one accepted token after which the grammar is given up."""
FIRST_S, TOKEN_S = 0.2, 0.0015
"""Seconds of CPU time for an output's masks: at first, and more with each token. An ordinary mask takes 0.1 ms."""
_GUESS_S = 0.005
"""Seconds of CPU time of one guess about drafts after which the output gets no more of them. A guess takes 0.01 ms."""
_FORCED_BYTES = 256
"""Bytes of a forced text that are cut into tokens for a guess: more than the drafts of a step spell."""
_SEARCH_FIRST, _SEARCH_TOKEN = 2000, 40
"""Positions that an output's closing searches may visit: at first, and more with each token. One takes 0.05 ms."""
_REFRESH, _VAIN = 16, 3
"""Tokens between two measurements of the distance to the end; failed measurements after which the interval doubles each
time, since a search that finds nothing takes longest."""
_NEAR_LEAST, _NEAR_MARGIN = 32, 16
_NEAR_MOST = 2 * MOST_TOKENS + _NEAR_MARGIN

Guess = TypeVar("Guess")


class LlguidancePosition:
    """A matcher as a `GrammarPosition` of the closing search."""

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
    """What all guides of one compiled grammar share.

    `failure`: why it was given up, for all guides; `failed_at`: when, by the monotonic clock. `exhausted`: the library
    has reached its limit of lexer states, which accumulate over outputs. `spent`: seconds of CPU time of masks and
    tokens so far, from which the memory of the states is estimated.
    """

    def __init__(
        self,
        closer: ClosingSearch,
        ends: Sequence[int],
        ending: list[int] | None,
        words: int,
        tokenize: Callable[[bytes], Sequence[int]] = lambda _: (),
    ) -> None:
        """`ends`: end tokens. `ending`: tokens that complete an empty output, None if none are known. `words`: length
        of a mask row in 32-bit words. `tokenize`: the tokens of a text that more may follow."""
        self.closer = closer
        self.tokenize = tokenize
        self.ends = ends
        self.ending = ending
        self.words = words
        self.first_ends: dict[int, tuple[list[int] | None, int]] = {}
        """most tokens -> (ending of an empty output, positions visited): outputs with the same limit share it."""
        self.failure: str | None = None
        self.failed_at = 0.0
        self.exhausted = False
        self.spent = 0.0


class LlguidanceGuide:
    """A `GrammarGuide`: a matcher, and near the token limit a plan, the shortest known ending from here."""

    idle = False

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
        self._guesses = True
        self.cpu_s = 0.0
        self._spent = 0.0
        self._places_seen = 0
        self._mask: torch.Tensor | None = None
        """The mask at this position once computed: a row that was put off asks again."""
        self._choosing: tuple[int, int, Generator[None, None, int]] | None = None
        """The unfinished choice: token, tokens left, and the search to resume."""

    @property
    def reserve(self) -> int:
        """Tokens from which on endings are planned; none where the output may end at once."""
        return 0 if self._shared.ending == [] else self._near()

    def fill_mask(self, row: torch.Tensor) -> None:
        words = self._shared.words
        if self._mask is not None:
            row.copy_(self._mask)
        elif self._alive():
            began = time.thread_time()
            # The library writes a row of exactly its vocabulary's size; logits are padded beyond it.
            self._matcher.unsafe_compute_mask_ptr(row.data_ptr(), words * row.element_size())
            self._spend(began)
            row[words:] = 0
            self._mask = row.clone()
        if self.failure is None and (self._matcher.is_error() or not bool(row.any())):
            self._fail("nothing can follow")
        if self.failure is not None:
            row.fill_(-1)

    def choose_token(self, token: int, left: int) -> int:
        chosen_token = self.choose_token_within(token, left, lambda: True)
        assert chosen_token is not None
        return chosen_token

    def choose_token_within(self, token: int, left: int, has_time: Callable[[], bool]) -> int | None:
        began = time.thread_time()
        try:
            if self._choosing is None or self._choosing[:2] != (token, left):
                steps = self._choose(token, left)
                self._choosing = token, left, steps
                next(steps)  # up to where a search is needed
            _, _, steps = self._choosing
            while has_time():
                next(steps)
        except StopIteration as chosen_token:
            self._choosing = None
            chosen: int = chosen_token.value
            return chosen
        except BaseException:
            self._choosing = None  # a search that failed cannot go on
            raise
        finally:
            self.cpu_s += time.thread_time() - began
        return None

    def _choose(self, token: int, left: int) -> Generator[None, None, int]:
        """The token to put out. Yields before each position that a search visits."""
        if self.failure is not None:
            return token
        place = LlguidancePosition(self._matcher)
        # Far from the limit the distance to the end does not matter.
        if self._taken >= self._look_at and left <= _NEAR_MOST:
            yield from self._measure_distance(place)
        if self._hopeless or left > self._near():
            self._plan = None
            return token
        closer, ends = self._shared.closer, self._shared.ends
        if self._plan is None or not closer.leads(place, self._plan, left):
            self._plan = yield from self._end(place, left)
        if self._plan is None:
            self._hopeless = True  # no ending fits: the limit will truncate the output
            return token
        if token in ends or token in self._plan[:1]:
            return token
        after = place.copy()
        rest = (yield from self._rest(after, self._plan, left - 1)) if after.advance([token]) else None
        if rest is None:
            if self._plan and not len(place.allowed(np.array(self._plan[:1]))):
                # The plan spells the same text in other tokens than those forced from here.
                other = yield from self._end(place, left)
                self._plan = self._plan if other is None else other
            return self._plan[0] if self._plan else ends[0]
        self._plan = [token, *rest]
        return token

    def accept_token(self, token: int) -> None:
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

    @property
    def choosing(self) -> bool:
        return self._choosing is not None

    def fork(self) -> Self:
        forked = copy(self)
        forked._matcher = self._matcher.deep_copy()
        return forked

    def count_valid(self, tokens: Sequence[int]) -> int:
        return self._guess(lambda matcher: matcher.validate_tokens(list(tokens)), 0)

    def forced_tokens(self, most: int) -> Sequence[int]:
        nothing: Sequence[int] = ()
        return self._guess(self._forced, nothing)[:most]

    def _forced(self, matcher: llguidance.LLMatcher) -> Sequence[int]:
        """The tokens of the text that must follow. Where it could be cut into others, only its text is certain."""
        text = matcher.compute_ff_bytes()
        tokens = self._shared.tokenize(text[:_FORCED_BYTES])
        return tokens or (matcher.compute_ff_tokens() if len(text) <= _FORCED_BYTES else ())

    def _guess(self, ask: Callable[[llguidance.LLMatcher], Guess], otherwise: Guess) -> Guess:
        """What the library says, unless it has nothing to say or took long once. Not counted: with or without guesses a
        grammar is given up after the same time."""
        if not (self._guesses and self._alive()) or self.ended or self._matcher.is_error():
            return otherwise
        began = time.thread_time()
        answer = ask(self._matcher.deep_copy())
        self._guesses = time.thread_time() - began < _GUESS_S
        return answer

    def _measure_distance(self, place: LlguidancePosition) -> Search:
        """Measure the distance to the end, and set when to measure again."""
        end = yield from self._end(place, MOST_TOKENS)
        self._distance = MOST_TOKENS if end is None else len(end)
        self._hopeless = self._hopeless and end is None
        self._in_vain = 0 if end is not None else self._in_vain + 1
        self._look_at = self._taken + (_REFRESH << max(0, self._in_vain - _VAIN))
        return end

    def _rest(self, after: LlguidancePosition, plan: list[int], most: int) -> Search:
        """An ending from one token further. The old plan, or its rest, often still leads there."""
        for candidate in (plan, plan[1:]):
            if self._shared.closer.leads(after, candidate, most):
                return candidate
        return (yield from self._end(after, most, quick=True))

    def _end(self, place: LlguidancePosition, most: int, *, quick: bool = False) -> Search:
        """Search for an ending, unless the output has visited too many positions."""
        most = min(most, MOST_TOKENS)
        at_beginning = not self._taken and not quick
        if at_beginning and most in self._shared.first_ends:
            known, places = self._shared.first_ends[most]
            self._places_seen += places  # as if it had searched itself, so that later results are the same
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
        message = first_line(self._matcher.get_error())
        self.failure = self.failure or message or otherwise
        self._shared.exhausted = self._shared.exhausted or "too many states" in message

    def _alive(self) -> bool:
        if self.failure is None:
            self.failure = self._shared.failure
        return self.failure is None

    def _spend(self, began: float) -> None:
        """Count this thread's CPU time since `began`, and give the grammar up if it is too much."""
        spent = time.thread_time() - began
        self._spent += spent
        self.cpu_s += spent
        self._shared.spent += spent
        if spent > _MASK_S or self._spent > FIRST_S + TOKEN_S * self._taken:
            self.failure = self._shared.failure = TOO_SLOW
            self._shared.failed_at = time.monotonic()
