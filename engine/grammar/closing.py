"""How an output can be brought to a valid end: a short sequence of tokens from here to where the grammar accepts.

A grammar library says which tokens may come next, not how far the end is. So we look for an end ourselves: what is
forced is followed; where there is a choice, the token goes first that most likely closes something. That guess is
mostly right; where it is not, the search departs from it in one place, then in two (limited discrepancy search, Harvey
and Ginsberg 1995). It is bounded, so it may miss an end of an odd grammar; it never names a wrong one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

MOST_TOKENS = 256
_NODES = 600
_BRANCHES = 10
_DISCREPANCIES = (0, 1, 2)
_ORDER = b'}])",:0123456789;@.-_/+<>=!?*&%$#~|^`[({' + b"'"
"""First bytes by how likely they lead to an end: what closes, what comes between, digits, what holds formats together;
then all others, letters first."""
_LAST = b" \t\r\n\\"
_CLOSERS = b'}]"'
_QUOTE = ord('"')
_FREE = 64
"""Where so many different bytes may come we are inside a text, which a quotation mark ends and a bracket does not."""


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


class Closer:
    """Finds ends over one vocabulary."""

    def __init__(self, tokens: Iterable[tuple[int, bytes]]) -> None:
        """`tokens`: each id and its bytes. Single bytes can say everything; a few closers say it faster."""
        ranks: list[tuple[tuple[int, int], int, int]] = []
        for token, raw in tokens:
            if len(raw) == 1 or (raw and not raw.strip(_CLOSERS)):
                ranks.append(((_rank(raw[0]), -len(raw)), token, raw[0]))
        ranks.sort()
        self._candidates = np.array([token for _, token, _ in ranks], dtype=np.int64)
        self._first = {token: first for _, token, first in ranks}

    def leads(self, place: Place, plan: list[int], most: int) -> bool:
        """Whether these tokens complete the output from here, and are at most `most` with its end token."""
        if len(plan) > most:
            return False
        end = place.copy()
        if plan and not end.advance(plan):
            return False
        return end.complete or (end.accepting and len(plan) < most)

    def end(self, place: Place, most: int, *, quick: bool = False) -> list[int] | None:
        """Tokens that complete the output from here with at most `most` of them, its end token counted; or None.

        `quick`: by the first guess alone.
        """
        self._nodes = _NODES
        most = min(most, MOST_TOKENS)
        for discrepancies in _DISCREPANCIES[: 1 if quick else None]:
            found = self._search(place.copy(), most, discrepancies)
            if found is not None:
                return found
        return None

    def _search(self, place: Place, most: int, discrepancies: int) -> list[int] | None:
        path: list[int] = []
        while not self.leads(place, [], most - len(path)):
            self._nodes -= 1
            if len(path) >= most or self._nodes < 0:
                return None
            step = place.forced()
            if not step:
                branches = self._branches(place)
                rest = self._departing(place, branches[1:], most - len(path) - 1, discrepancies)
                if rest is not None:
                    return path + rest
                step = branches[:1]
            if not step or not place.advance(step):
                return None
            path += step
        return path

    def _departing(self, place: Place, branches: list[int], most: int, discrepancies: int) -> list[int] | None:
        """An end that does not begin with the first guess."""
        for token in branches if discrepancies else ():
            other = place.copy()
            rest = self._search(other, most, discrepancies - 1) if other.advance([token]) else None
            if rest is not None:
                return [token, *rest]
        return None

    def _branches(self, place: Place) -> list[int]:
        """The longest token for each first byte, the likeliest to close first."""
        best: dict[int, int] = {}
        for token in place.allowed(self._candidates).tolist():
            best.setdefault(self._first[token], token)
        if len(best) >= _FREE and _QUOTE in best:
            best = {_QUOTE: best[_QUOTE]} | best
        return list(best.values())[:_BRANCHES]


def _rank(byte: int) -> int:
    if byte in _LAST:
        return len(_ORDER) + 256
    return _ORDER.index(byte) if byte in _ORDER else len(_ORDER) + (byte ^ 0x60)
