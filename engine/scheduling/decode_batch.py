"""The batch of decoding requests, kept from step to step so that a step costs nothing for most of them.

A decoding request needs attention when its last block is full, when its credit ends, and when it has earned back its
preemption cost. Each is a known number of tokens ahead, and a step adds a token to every request; so a calendar
(step -> requests) says which ones to look at. A step that adds more to a request, since drafts were accepted, has it
looked at at once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import takewhile

from engine.scheduling.request import Request
from engine.scheduling.step_work import Decode, StepPipeline, Work
from engine.scheduling.token_sequence import LatestTokens
from prompt_cache.kv.block_keys import BLOCK_TOKENS
from protocol.requests import LANES, Lane


class DecodeBatch:
    """Requests whose next token has room in their blocks, `most` of them; `lanes`: how many each lane has.

    `drafted`: how many drafts the next step verifies, `most_drafts` of a request and `all_drafts` of all together. Its
    rows are so many more than the requests. `pipeline`: the runner's.
    """

    def __init__(self, most: int, most_drafts: int = 0, all_drafts: int = 0) -> None:
        self.most_drafts = most_drafts
        self.all_drafts = all_drafts
        self.pipeline = StepPipeline()
        self.decodes: list[Decode] = []
        """By slot."""
        self.drafted = 0
        self.lanes: dict[Lane, int] = dict.fromkeys(LANES, 0)
        self._latest = LatestTokens(most)
        """The tokens sampled last, a column for each slot."""
        self._calendar: defaultdict[int, list[Request]] = defaultdict(list)
        """step -> requests to look at after it. An entry counts while it is the request's `due`."""
        self._works: Sequence[Work] | None = None

    def __len__(self) -> int:
        return len(self.decodes)

    def join(self, request: Request) -> None:
        """Add a request: it decodes from the next step on."""
        request.slot = len(self.decodes)
        self.decodes.append(Decode(request))
        self._works = None
        request.tokens.follow(self._latest, request.slot)
        self.lanes[request.lane] += 1
        self.plan(request, len(request.tokens))

    def leave(self, request: Request) -> None:
        """Remove the request; the last one takes its slot."""
        request.tokens.detach()
        self.drafted -= len(self.decodes[request.slot].drafts)
        last = self.decodes.pop()
        self._works = None
        if last.request is not request:
            self.decodes[request.slot] = last
            last.request.slot = request.slot
            last.request.tokens.follow(self._latest, request.slot)
        self.lanes[request.lane] -= 1
        request.stop_decoding()

    def works(self) -> Sequence[Work]:
        """The requests as a step's work: the same object until one is added or removed."""
        if self._works is None:
            self._works = list(self.decodes)
        return self._works

    def draft(self, request: Request, tokens: Sequence[int]) -> int:
        """Let the next step verify these tokens behind the request's last one, as many of them as there is room for.

        Returns how many. All rows have room in its blocks, and what they sample has credit and stays within its limit.
        None from a token that ends the output on; none if the request does not decode now.
        """
        if request.slot < 0:
            return 0
        work = self.decodes[request.slot]
        stops = request.sampling.stop_tokens
        fitting = tuple(takewhile(lambda token: token not in stops, tokens[: self.draft_room(request)]))
        if fitting or work.drafts:
            self.drafted += len(fitting) - len(work.drafts)
            work.draft(fitting)
        return len(fitting)

    def draft_room(self, request: Request) -> int:
        """How many drafts the next step may verify for a request that decodes."""
        if request.row is not None and not request.row.draftable:
            return 0
        room = min(
            len(request.table) * BLOCK_TOKENS - len(request.tokens),
            min(request.credit, request.max_output) - request.output - 1,
            self.most_drafts,
            self.all_room - self.drafted + len(self.decodes[request.slot].drafts),
        )
        return max(0, room)

    @property
    def all_room(self) -> int:
        """How many drafts the next step may verify of all requests together."""
        return min(self.all_drafts, self.pipeline.most_rows - len(self.decodes))

    def plan(self, request: Request, length: int) -> None:
        """Enter the step after which the request, of `length` tokens, needs attention, the next one at the earliest.

        Its block table may have changed, so its revision grows.
        """
        self.decodes[request.slot].revision += 1
        # All tokens but the last have KV: the block is full when those reach its end.
        ahead = BLOCK_TOKENS - (length - 1) % BLOCK_TOKENS
        credit = request.credit - (length - request.prompt)
        ahead = credit if credit < ahead else ahead
        if not request.debt_repaid and 0 < request.tokens_to_recover < ahead:
            ahead = request.tokens_to_recover
        request.due = due = self._latest.steps + ahead
        self._calendar[due].append(request)

    def advance(
        self, works: Sequence[Work], tokens: list[int], accepted: Mapping[int, Sequence[int]] = {}
    ) -> list[Request]:
        """A step is done: `tokens` are the last samples of `works`, which are all requests in any order.

        `accepted`: by arrival the drafts before them, where some were accepted. Returns the requests that need
        attention. The caller must flush the tokens of each, and plan it or let it leave.
        """
        due = self._end_drafts(accepted) if self.drafted else []
        if works is self._works or works == self.decodes:
            self._latest.write(tokens)
        else:  # a request was removed, so another one has its slot
            row = [0] * len(self.decodes)
            for work, token in zip(works, tokens, strict=True):
                row[work.request.slot] = token
            self._latest.write(row)
        step = self._latest.steps
        for request in self._calendar.pop(step, ()):
            if request.due == step and request.slot >= 0:
                request.due = 0
                due.append(request)
        return due

    def _end_drafts(self, accepted: Mapping[int, Sequence[int]]) -> list[Request]:
        """Append the accepted drafts and forget the others; returns the requests that got some."""
        longer = []
        for work in self.decodes:
            if work.drafts:
                work.draft(())
                request = work.request
                if drafts := accepted.get(request.arrival):
                    request.tokens.extend(drafts)
                    request.due = 0
                    longer.append(request)
        self.drafted = 0
        return longer
