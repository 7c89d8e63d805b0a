"""How an output can be brought to a valid end: a short sequence of tokens from here to where the grammar accepts.

A grammar library says which tokens may come next, not how far the end is. So we look for an end ourselves: what is
forced is followed; where there is a choice, the token goes first that most likely closes something. That guess is
mostly right; where it is not, the search departs from it in one place, then in two (limited discrepancy search, Harvey
and Ginsberg 1995), but only in places of a new kind, so that it does not try each of a thousand digits when it is the
point behind them that leads on. It is bounded, so it may miss an end of an odd grammar; it never names a wrong one.
It is bounded in what it looks at, not in time, so that it finds the same on any machine; whoever has no time for all
of it at once does a part and goes on later.
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
_NODES = 400
"""How many places a search looks at, by first guesses and once more when it departs from them."""
_BRANCHES = 16
_SAME = 2
"""Of bytes that are alike, so many are tried before all others."""
_CIRCLING = 6
"""An attempt that comes by so many places where others departed lets them go first."""
_OF_A_KIND = 3
"""In how many places of a kind the search departs."""
_ORDER = b'}])",:0123456789;@.-_/+<>=!?*&%$#~|^`' + b"'"
"""First bytes by how likely they lead to an end: what closes, what comes between, digits, what holds formats together;
then all others, letters first."""
_LAST = b"[({ \n\t\r\\"
"""What opens, and white space, which can go on for ever."""
_CLOSERS = b'}]"'
_BRACKETS = b"}])"
_QUOTE = ord('"')
_FREE = 64
"""Where so many different bytes may come we are inside a text, which a quotation mark ends and a bracket does not."""


Search: TypeAlias = Generator[None, None, list[int] | None]
"""A search under way: it stops before each place that it looks at, and returns an end or None."""
Kind: TypeAlias = tuple[bytes, int]
"""Of a place: what is allowed, and after which kind of byte."""


class Place(Protocol):
    """A place in a grammar that can be copied and moved on."""

    def copy(self) -> Place: ...
    @property
    def accepting(self) -> bool: ...
    @property
    def complete(self) -> bool: ...
    def forced(self) -> list[int]: ...
    def allowed(self, candidates: NDArray[np.int64]) -> NDArray[np.int64]: ...
    def advance(self, tokens: list[int]) -> bool: ...


class _Attempt:
    """One way on from where the search began; `way`: the kinds of places that it came by, the same in a row as one."""

    def __init__(
        self, path: list[int], place: Place, way: int = 0, kind: Kind | None = None, token: int | None = None
    ) -> None:
        """`token`: what comes next, if that is decided; the place is others' then, and to be copied."""
        self.path = path
        self.way = way
        self._place = place
        self._kind = kind
        self._token = token

    @property
    def departed(self) -> bool:
        """Whether its next token is decided."""
        return self._token is not None

    def begin(self) -> Place:
        """The place from where it goes on, its own."""
        if self._token is not None:
            self._place = self._place.copy()
            self._place.advance([self._token])  # it was allowed there
            self.path, self._token = [*self.path, self._token], None
        return self._place

    def pass_by(self, kind: Kind, ways: dict[tuple[int, Kind], int]) -> None:
        """It has come to a place of this kind; `ways` numbers all that were gone."""
        if kind != self._kind:
            self._kind = kind
            self.way = ways.setdefault((self.way, kind), len(ways) + 1)

    def departing(self, tokens: list[int]) -> Iterator[_Attempt]:
        """Attempts that go on from here with one of these tokens."""
        place = self._place.copy() if tokens else self._place
        path = self.path.copy()
        for token in tokens:
            yield _Attempt(path, place, self.way, self._kind, token)


class ClosingSearch:
    """Finds ends over one vocabulary."""

    def __init__(self, tokens: Iterable[tuple[int, bytes]]) -> None:
        """`tokens`: each id and its bytes. Single bytes can say everything; a few closers say it faster."""
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

    def leads(self, place: Place, plan: list[int], most: int) -> bool:
        """Whether these tokens complete the output from here, and are at most `most` with its end token."""
        if len(plan) > most:
            return False
        end = place.copy() if plan else place
        if plan and not end.advance(plan):
            return False
        return end.complete or (end.accepting and len(plan) < most)

    def search(self, place: Place, most: int, *, quick: bool = False) -> Search:
        """Tokens that complete the output from here with at most `most` of them, its end token counted; or None.

        `quick`: by the first guesses alone, which lead through long texts of a fixed length, too.
        """
        most = min(most, MOST_TOKENS)
        found = yield from self._search(place, most, departs=False)
        return found if found is not None or quick else (yield from self._search(place, most, departs=True))

    def _search(self, place: Place, most: int, *, departs: bool) -> Search:
        nodes = _NODES
        known: set[int] = set()
        kinds: Counter[Kind] = Counter()
        ways: dict[tuple[int, Kind], int] = {}
        waiting = deque([_Attempt([], place.copy())])
        while waiting:
            attempt = waiting.popleft()
            # One that has just departed is to come to something new at once.
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
                    if departs and attempt.way not in known and kinds[kind] < _OF_A_KIND:
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

    def _branches(self, place: Place, path: list[int]) -> tuple[list[int], Kind]:
        """The longest token for each first byte, the likeliest to close first; and what kind of place this is."""
        allowed = place.allowed(self._candidates)
        best: dict[int, int] = {}
        for token in allowed.tolist():
            best.setdefault(self._first[token], token)
        kind = allowed.tobytes(), _alike(self._last[path[-1]]) if path and path[-1] in self._last else 0
        if len(best) >= _FREE and _QUOTE in best:
            best = {_QUOTE: best[_QUOTE]} | best
        elif len(best) >= _FREE:  # nor does a bracket end a text that no quotation mark ends, such as half an address
            best = {byte: token for byte, token in best.items() if byte not in _BRACKETS} | best
        # Of bytes that mostly mean the same a few are enough, so that others come among the first.
        count: Counter[int] = Counter()
        first: list[int] = []
        rest: list[int] = []
        for byte, token in best.items():
            alike = _alike(byte)
            count[alike] += 1
            (first if count[alike] <= _SAME else rest).append(token)
        return (first + rest)[:_BRANCHES], kind


def run(search: Search, seconds: float = math.inf) -> list[int] | None:
    """What a search finds, without a pause. It is given up after so many seconds of CPU time of this thread."""
    until = time.thread_time() + seconds
    try:
        while time.thread_time() < until:
            next(search)
    except StopIteration as found:
        end: list[int] | None = found.value
        return end
    return None


def _alike(byte: int) -> int:
    """Digits, small letters and capitals are alike; every other byte is like itself alone."""
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
