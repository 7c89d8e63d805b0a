"""Searches for an ending: a short sequence of tokens that brings an output from here to where its grammar accepts.

A grammar library says which tokens may come next, not how far the end is. The search follows forced tokens, and where
there is a choice first tries the token that most likely closes something. That guess is mostly right. Where it runs in
a circle, such as the digits of a fraction, the second try takes the next best token each time it comes to a position
of the same kind. Where that fails too, the search departs from the guess at one position, then at two (limited
discrepancy search, Harvey and Ginsberg, IJCAI '95), but only at positions of a new kind: it does not try each of a
thousand digits when the point behind them leads on.

The search is bounded, so it may miss an ending of an unusual grammar; every ending that it returns is valid. The bound
is a number of positions instead of a time, so the result is the same on any machine. It is a generator, so that a
caller without time left can resume it later.
"""

from __future__ import annotations

import math
import time
from collections import Counter, deque
from collections.abc import Generator, Iterable, Iterator
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

MOST_TOKENS = 256
"""The most tokens of an ending."""
_NODES = 400
"""Positions that a search visits by first guesses, by next guesses, and once more when it departs from them."""
_BRANCHES = 16
"""Tokens that are tried at one position."""
_SAME = 2
"""Tokens of similar first bytes (`_alike`) that are tried before all others."""
_CIRCLING = 6
"""An attempt that passes so many positions where others departed lets the others go first."""
_OF_A_KIND = 3
"""Positions of one kind at which the search departs."""
_ORDER = b'}])",:0123456789;@.-_/+<>=!?*&%$#~|^`' + b"'"
"""First bytes by how likely they lead to an end: closers, separators, digits, punctuation of formats; then all others,
letters first."""
_LAST = b"[({ \n\t\r\\"
"""First bytes that are tried last: openers, and white space, which can go on for ever."""
_CLOSERS = b'}]"'
_BRACKETS = b"}])"
_QUOTE = ord('"')
_FREE = 64
"""A position that allows so many different bytes is inside a string: a quotation mark ends it, a bracket does not."""


Search: TypeAlias = Generator[None, None, list[int] | None]
"""A search in progress: yields before each position that it visits, and returns an ending or None."""
Kind: TypeAlias = tuple[bytes, int]
"""The kind of a position: the tokens allowed there, and the kind of byte before it."""


class GrammarPosition(Protocol):
    """A position in a grammar. `accepting`: an output may end here. `complete`: nothing can follow.

    `forced`: the only tokens that may follow. `allowed`: those of the candidates that may come next. `advance`: move on
    by tokens; False if they cannot follow.
    """

    def copy(self) -> GrammarPosition: ...
    @property
    def accepting(self) -> bool: ...
    @property
    def complete(self) -> bool: ...
    def forced(self) -> list[int]: ...
    def allowed(self, candidates: NDArray[np.int64]) -> NDArray[np.int64]: ...
    def advance(self, tokens: list[int]) -> bool: ...


class _Attempt:
    """One path from where the search began. `way`: a number for the kinds of positions on it, repeats left out."""

    def __init__(
        self, path: list[int], place: GrammarPosition, way: int = 0, kind: Kind | None = None, token: int | None = None
    ) -> None:
        """`token`: the next token if it is decided; then `place` is shared with others and is copied by `begin`."""
        self.path = path
        self.way = way
        self._place = place
        self._kind = kind
        self._token = token

    @property
    def departed(self) -> bool:
        """Whether its next token is decided."""
        return self._token is not None

    def begin(self) -> GrammarPosition:
        """The position to go on from, owned by this attempt."""
        if self._token is not None:
            self._place = self._place.copy()
            self._place.advance([self._token])  # it was allowed there
            self.path, self._token = [*self.path, self._token], None
        return self._place

    def pass_by(self, kind: Kind, ways: dict[tuple[int, Kind], int]) -> None:
        """Record that the path came to a position of this kind. `ways`: (way, kind) -> number, of all attempts."""
        if kind != self._kind:
            self._kind = kind
            self.way = ways.setdefault((self.way, kind), len(ways) + 1)

    def departing(self, tokens: list[int]) -> Iterator[_Attempt]:
        """Attempts that go on from here with each of these tokens."""
        place = self._place.copy() if tokens else self._place
        path = self.path.copy()
        for token in tokens:
            yield _Attempt(path, place, self.way, self._kind, token)


class ClosingSearch:
    """Finds endings over one vocabulary."""

    def __init__(self, tokens: Iterable[tuple[int, bytes]]) -> None:
        """`tokens`: each id and its bytes. Only single bytes and runs of closers are used: they suffice."""
        spelled = [(token, raw) for token, raw in tokens if raw]
        ranks = [
            ((_rank(raw[0]), -len(raw)), token, raw[0])
            for token, raw in spelled
            if len(raw) == 1 or not raw.strip(_CLOSERS)
        ]
        ranks.sort()
        self._candidates = np.array([token for _, token, _ in ranks], dtype=np.int64)
        self._first = {token: first for _, token, first in ranks}
        self._last = {token: raw[-1] for token, raw in spelled}

    def leads(self, place: GrammarPosition, plan: list[int], most: int) -> bool:
        """Whether these tokens complete the output from here, and are at most `most` with the end token."""
        if len(plan) > most:
            return False
        end = place.copy() if plan else place
        if plan and not end.advance(plan):
            return False
        return end.complete or (end.accepting and len(plan) < most)

    def search(self, place: GrammarPosition, most: int, *, quick: bool = False) -> Search:
        """At most `most` tokens, the end token counted, that complete the output from here; None if none are found.

        `quick`: by first guesses alone, which also lead through long strings of fixed length.
        """
        most = min(most, MOST_TOKENS)
        ending = yield from self._guess(place, most, varies=False)
        if ending is None and not quick:
            ending = yield from self._guess(place, most, varies=True)
            if ending is None:
                ending = yield from self._search(place, most)
        return ending

    def _guess(self, place: GrammarPosition, most: int, *, varies: bool) -> Search:
        """One path of guesses: the first one each time, or the next one each time a kind of position comes again."""
        at, path = place.copy(), list[int]()
        visits: Counter[Kind] = Counter()
        for _ in range(_NODES):
            if self.leads(at, [], most - len(path)):
                return path
            yield
            if len(path) >= most:
                break
            step = at.forced()
            if not step:
                branches, kind = self._branches(at, path)
                if not branches:
                    break
                guess = visits[kind] % len(branches) if varies else 0
                visits[kind] += 1
                step = branches[guess : guess + 1]
            if not at.advance(step):
                break
            path += step
        return None

    def _search(self, place: GrammarPosition, most: int) -> Search:
        """Several paths, each of which departs from the first guesses somewhere."""
        nodes = _NODES
        known: set[int] = set()
        kinds: Counter[Kind] = Counter()
        ways: dict[tuple[int, Kind], int] = {}
        waiting = deque([_Attempt([], place.copy())])
        while waiting:
            attempt = waiting.popleft()
            # An attempt that has just departed should come to something new at once.
            circling = _CIRCLING if attempt.departed else 0
            at = attempt.begin()
            path = attempt.path
            while not self.leads(at, [], most - len(path)):
                nodes -= 1
                if nodes < 0:
                    return None
                yield
                if len(path) >= most:
                    break
                step = at.forced()
                if not step:
                    branches, kind = self._branches(at, path)
                    attempt.pass_by(kind, ways)
                    if attempt.way not in known and kinds[kind] < _OF_A_KIND:
                        known.add(attempt.way)
                        kinds[kind] += 1
                        waiting.extend(attempt.departing(branches[1:]))
                        circling = 0
                    elif branches and self._first[branches[0]] not in _CLOSERS:
                        circling += 1
                    if circling > _CIRCLING and waiting:
                        waiting.append(attempt)  # others first
                        break
                    step = branches[:1]
                if not step or not at.advance(step):
                    break
                path += step
            else:
                return path
        return None

    def _branches(self, place: GrammarPosition, path: list[int]) -> tuple[list[int], Kind]:
        """The longest token for each first byte, the most likely to close first; and the kind of this position."""
        allowed = place.allowed(self._candidates)
        best: dict[int, int] = {}
        for token in allowed.tolist():
            best.setdefault(self._first[token], token)
        kind = allowed.tobytes(), _alike(self._last[path[-1]]) if path and path[-1] in self._last else 0
        if len(best) >= _FREE and _QUOTE in best:
            best = {_QUOTE: best[_QUOTE]} | best
        elif len(best) >= _FREE:  # in a string that cannot end here, such as half an address, a bracket closes nothing
            best = {byte: token for byte, token in best.items() if byte not in _BRACKETS} | best
        # A few of similar bytes are enough, so that others come early.
        count: Counter[int] = Counter()
        first: list[int] = []
        rest: list[int] = []
        for byte, token in best.items():
            alike = _alike(byte)
            count[alike] += 1
            (first if count[alike] <= _SAME else rest).append(token)
        return (first + rest)[:_BRANCHES], kind


def run(search: Search, seconds: float = math.inf) -> list[int] | None:
    """Run a search to its end; None if it takes more than `seconds` of this thread's CPU time."""
    until = time.thread_time() + seconds
    try:
        while time.thread_time() < until:
            next(search)
    except StopIteration as found:
        end: list[int] | None = found.value
        return end
    return None


def _alike(byte: int) -> int:
    """A byte that stands for its class: digits, lower case letters, capitals; every other byte is its own class."""
    character = chr(byte)
    if character.isdecimal():
        return ord("0")
    if byte < 128 and character.isalpha():
        return ord("a") if character.islower() else ord("A")
    return byte


def _rank(byte: int) -> int:
    if byte in _LAST:
        return len(_ORDER) + 256 + _LAST.index(byte)
    return _ORDER.index(byte) if byte in _ORDER else len(_ORDER) + (byte ^ 0x60)
