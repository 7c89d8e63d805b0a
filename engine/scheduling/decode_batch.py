"""The batch of decoding requests, kept from step to step so that a step costs nothing for most of its rows.

A decoding request needs attention when its last block is full, when its credit ends, and when it has earned back its
preemption cost. Each is a known number of tokens ahead, and each step adds one token to every row; so a calendar
(step -> requests) says which rows to look at.
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
    """Requests whose next token has room in their blocks. `most`: rows; `lanes`: how many rows each lane has."""

    def __init__(self, most: int) -> None:
        self.rows: list[Decode] = []
        self.lanes: dict[Lane, int] = dict.fromkeys(LANES, 0)
        self._latest = LatestTokens(most)
        """The tokens sampled last, a column for each row."""
        self._calendar: defaultdict[int, list[Request]] = defaultdict(list)
        """step -> requests to look at after it. An entry counts while it is the request's `due`."""
        self._works: Sequence[Work] | None = None

    def __len__(self) -> int:
        return len(self.rows)

    def join(self, request: Request) -> None:
        """Add a row: the request decodes from the next step on."""
        request.slot = len(self.rows)
        self.rows.append(Decode(request))
        self._works = None
        request.tokens.follow(self._latest, request.slot)
        self.lanes[request.lane] += 1
        self.plan(request, len(request.tokens))

    def leave(self, request: Request) -> None:
        """Remove the request's row; the last row takes its place."""
        request.tokens.detach()
        last = self.rows.pop()
        self._works = None
        if last.request is not request:
            self.rows[request.slot] = last
            last.request.slot = request.slot
            last.request.tokens.follow(self._latest, request.slot)
        self.lanes[request.lane] -= 1
        request.stop_decoding()

    def works(self) -> Sequence[Work]:
        """The rows as a step's work: the same object until a row is added or removed."""
        if self._works is None:
            self._works = list(self.rows)
        return self._works

    def plan(self, request: Request, length: int) -> None:
        """Enter the step after which the request, of `length` tokens, needs attention, the next one at the earliest.

        Its block table may have changed, so its revision grows.
        """
        self.rows[request.slot].revision += 1
        # All tokens but the last have KV: the block is full when those reach its end.
        ahead = BLOCK_TOKENS - (length - 1) % BLOCK_TOKENS
        credit = request.credit - (length - request.prompt)
        ahead = credit if credit < ahead else ahead
        if not request.debt_repaid and 0 < request.tokens_to_recover < ahead:
            ahead = request.tokens_to_recover
        request.due = due = self._latest.steps + ahead
        self._calendar[due].append(request)

    def advance(self, works: Sequence[Work], tokens: list[int]) -> list[Request]:
        """A step is done: `tokens` are the samples of `works`, which are all rows in any order.

        Returns the requests that need attention. The caller must flush the tokens of each, and plan it or let it leave.
        """
        if works is self._works or works == self.rows:
            self._latest.write(tokens)
        else:  # a row was removed, so another request has its place
            row = [0] * len(self.rows)
            for work, token in zip(works, tokens, strict=True):
                row[work.request.slot] = token
            self._latest.write(row)
        step = self._latest.steps
        due = []
        for request in self._calendar.pop(step, ()):
            if request.due == step and request.slot >= 0:
                request.due = 0
                due.append(request)
        return due
