"""The requests that decode: one token each, step after step, and nothing else to be done for most of them.

A decoding request needs attention only now and then: when its last block is full, when its credit ends, when it has
earned what its last preemption cost. Each of these is a number of tokens ahead, and each step adds one token to every
request here; so a calendar by steps says who needs it, and all others cost nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from engine.scheduling.request import Request
from engine.scheduling.step_work import Decode, Work
from engine.scheduling.token_sequence import LatestTokens
from prompt_cache.kv.block_keys import BLOCK_TOKENS
from protocol.requests import LANES, Lane


class DecodeBatch:
    """Requests whose next token has room in their blocks, `most` at a time. `lanes` counts them by lane."""

    def __init__(self, most: int) -> None:
        self.rows: list[Decode] = []
        self.lanes: dict[Lane, int] = dict.fromkeys(LANES, 0)
        self._latest = LatestTokens(most)
        """Column by column what the rows' requests drew."""
        self._calendar: defaultdict[int, list[Request]] = defaultdict(list)
        self._works: Sequence[Work] | None = None

    def __len__(self) -> int:
        return len(self.rows)

    def join(self, request: Request) -> None:
        """The request decodes from the next step on."""
        request.slot = len(self.rows)
        self.rows.append(Decode(request))
        self._works = None
        request.tokens.follow(self._latest, request.slot)
        self.lanes[request.lane] += 1
        self.plan(request, len(request.tokens))

    def leave(self, request: Request) -> None:
        """The request decodes no more, or not now."""
        request.tokens.settle()
        last = self.rows.pop()
        self._works = None
        if last.request is not request:
            self.rows[request.slot] = last
            last.request.slot = request.slot
            last.request.tokens.follow(self._latest, request.slot)
        self.lanes[request.lane] -= 1
        request.rest()

    def works(self) -> Sequence[Work]:
        """The rows, for a step: the same object until somebody comes or leaves."""
        if self._works is None:
            self._works = list(self.rows)
        return self._works

    def moved(self, before: Lane, after: Lane) -> None:
        """A request that decodes came into another lane."""
        self.lanes[before] -= 1
        self.lanes[after] += 1

    def plan(self, request: Request, length: int) -> None:
        """Enter into the calendar when the request, of `length` tokens, needs attention next: after one token at the
        earliest. It has come or was attended to, and its blocks may be others now."""
        self.rows[request.slot].revision += 1
        # All its tokens but the last have their KV: the block is full when those reach its end.
        ahead = BLOCK_TOKENS - (length - 1) % BLOCK_TOKENS
        credit = request.credit - (length - request.prompt)
        ahead = credit if credit < ahead else ahead
        if not request.debt_repaid and 0 < request.tokens_to_recover < ahead:
            ahead = request.tokens_to_recover
        request.due = due = self._latest.steps + ahead
        self._calendar[due].append(request)

    def advance(self, works: Sequence[Work], tokens: list[int]) -> list[Request]:
        """A step was done: all got their token, `works` being the rows in any order. Returns those that need
        attention, to be planned again or to leave; each takes what it drew now, before that is written over."""
        if works is self._works or works == self.rows:
            self._latest.write(tokens)
        else:  # somebody left, and somebody else has the row
            row = [0] * len(self.rows)
            for work, token in zip(works, tokens, strict=True):
                row[work.request.slot] = token
            self._latest.write(row)
        step = self._latest.steps
        due = []
        for request in self._calendar.pop(step, ()):
            # An entry counts only while it says when the request is due, and once.
            if request.due == step and request.slot >= 0:
                request.due = 0
                due.append(request)
        return due
