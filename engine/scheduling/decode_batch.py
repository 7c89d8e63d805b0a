"""The requests that decode: one token each, step after step, and nothing else to be done for most of them.

A decoding request needs attention only now and then: when its last block is full, when its credit ends, when it has
earned what its last preemption cost. Each of these is a number of tokens ahead, and each step adds one token to every
request here; so a calendar by steps says who needs it, and all others cost nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

from engine.protocol import Lane
from engine.scheduling.lanes import LANES
from engine.scheduling.request import Request
from engine.scheduling.work import Decode, Work
from prompt_cache.keys import BLOCK_TOKENS


class DecodeBatch:
    """Requests whose next token has room in their blocks. `lanes` counts them by lane."""

    def __init__(self) -> None:
        self.rows: list[Decode] = []
        self._tokens: list[list[int]] = []
        """Those of each row's request."""
        self.lanes: dict[Lane, int] = dict.fromkeys(LANES, 0)
        self._step = 0
        self._calendar: dict[int, list[Request]] = {}

    def __len__(self) -> int:
        return len(self.rows)

    def join(self, request: Request) -> None:
        """The request decodes from the next step on."""
        request.slot = len(self.rows)
        self.rows.append(Decode(request))
        self._tokens.append(request.tokens)
        self.lanes[request.lane] += 1
        self.plan(request)

    def leave(self, request: Request) -> None:
        """The request decodes no more, or not now."""
        last = self.rows.pop()
        tokens = self._tokens.pop()
        if last.request is not request:
            self.rows[request.slot] = last
            self._tokens[request.slot] = tokens
            last.request.slot = request.slot
        self.lanes[request.lane] -= 1
        request.rest()

    def moved(self, before: Lane, after: Lane) -> None:
        """A request that decodes came into another lane."""
        self.lanes[before] -= 1
        self.lanes[after] += 1

    def plan(self, request: Request) -> None:
        """Enter into the calendar when the request needs attention next: after one token at the earliest. It has come
        or was attended to, and its blocks may be others now."""
        self.rows[request.slot].revision += 1
        length = len(request.tokens)
        # All its tokens but the last have their KV: the block is full when those reach its end.
        ahead = BLOCK_TOKENS - (length - 1) % BLOCK_TOKENS
        credit, owes = request.credit - (length - request.prompt), request.owes
        ahead = min(ahead, credit)
        if 0 < owes < ahead:
            ahead = owes
        request.due = due = self._step + ahead
        entries = self._calendar.get(due)
        if entries is None:
            self._calendar[due] = [request]
        else:
            entries.append(request)

    def advance(self, works: Sequence[Work], tokens: Sequence[int | None]) -> Iterator[Request]:
        """A step was done: all got their token. Yields those that need attention: to be planned again, or to leave."""
        if works == self.rows:
            # Nobody left: what is done for each of them alone is this, so it is done without a line of Python.
            deque(map(list.append, self._tokens, tokens), maxlen=0)  # type: ignore[arg-type]  # decodes sample
        else:
            for work, token in zip(works, tokens, strict=False):
                work.request.tokens.append(token)  # type: ignore[arg-type]  # a decode samples
        self._step = step = self._step + 1
        for request in self._calendar.pop(step, ()):
            # An entry counts only while it says when the request is due, and once.
            if request.due == step and request.slot >= 0:
                yield request
