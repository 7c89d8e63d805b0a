"""The token-budget scheduler: each step decodes every running request, and fills the rest of its budget with prefill.

How much prefill goes beside decodes comes from what steps were measured to cost, so that the time between two tokens
stays within what the decoding lanes are promised. A request is admitted when the step has room for its prefill, and
there are blocks for all tokens that it has and one more, after reading what is already in memory (`block_needs`); so
prefill never runs out of memory half way, and only a decoding request can need another block. When none is left, the
policy's victim gives
its blocks back; its KV is copied out or computed again later, by cost (`swap_space`). Whoever has not yet made progress
cannot be preempted, so no two requests preempt each other for ever.

A step costs what changed since the last one: requests that only decode on are a batch that is kept (`decode_batch`),
and while nothing came, ended or gave way, nobody is looked at who could not be admitted before.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from engine.scheduling.block_needs import BlockNeeds
from engine.scheduling.decode_batch import DecodeBatch
from engine.scheduling.policy import Capacity, FirstComeFirstServed, Policy
from engine.scheduling.request import Request
from engine.scheduling.step_costs import FixedCosts, StepCosts
from engine.scheduling.step_work import Prefill, Step, Work
from engine.scheduling.swap_space import SwapSpace
from prompt_cache.kv.block_keys import BLOCK_TOKENS
from prompt_cache.kv.grouped_pool import Block, GroupedPool
from protocol.requests import Lane

TOKEN_TARGETS: Mapping[Lane, float] = {"interactive": 100_000.0, "standard": 200_000.0, "batch": 1_000_000.0}
"""µs between two tokens of a decoding request, at most, as far as the decodes alone allow it."""


class Scheduler:
    """Owns the queue, the running requests and their blocks. Requests come in already validated."""

    def __init__(
        self,
        pool: GroupedPool,
        budget: int,
        max_running: int,
        policy: Policy | None = None,
        *,
        costs: StepCosts | None = None,
        targets: Mapping[Lane, float] = TOKEN_TARGETS,
        swap: GroupedPool | None = None,
    ) -> None:
        if budget < max_running + BLOCK_TOKENS:
            raise ValueError(
                f"a budget of {budget} tokens a step is too small for {max_running} running requests:"
                f" at least {max_running + BLOCK_TOKENS} are needed"
            )
        self.pool = pool
        self.needs = BlockNeeds(pool, budget)
        self.budget = budget
        self.max_running = max_running
        self.queue: Policy = FirstComeFirstServed() if policy is None else policy
        self.costs: StepCosts = FixedCosts() if costs is None else costs
        self.targets = targets
        self.swap = SwapSpace(swap)
        self.capacity = Capacity(max_running, self.needs.longest or max(group.total for group in pool.pools))
        self.batch = DecodeBatch(max_running)
        self.parked: dict[int, Request] = {}
        """Without blocks and out of credit: not in the queue until credit comes."""
        self.preemptions = 0
        self._running: dict[int, Request] = {}
        """All that have blocks, by arrival. Each decodes in the batch, or is in one of the next three."""
        self._prefills: dict[int, Request] = {}
        """By place."""
        self._starved: dict[int, Request] = {}
        """By arrival: those whose next token needs a block."""
        self._held: dict[int, Request] = {}
        """By arrival: out of credit."""
        self._placed = 0
        self._changed = False
        """Whether something changed since the first of the queue could not be admitted."""
        self._spare = [0] * len(pool.pools)
        """How many blocks of each group could be had then."""

    # ------------------------------------------------------------ requests in and out

    def add(self, request: Request) -> None:
        """Queue a request."""
        if request.paused:
            self.parked[request.arrival] = request
        else:
            self._push(request)

    def remove(self, request: Request) -> None:
        """Take a request out wherever it is, and free its blocks at once (E4)."""
        if request.arrival in self.parked:
            del self.parked[request.arrival]
        elif request.table:
            self._release(request)
        else:
            self.queue.remove(request)
            if self.queue.protects_awaited_blocks:
                self.pool.dismiss(self._wanted(request))
            self._changed = True
        self.swap.drop(request)

    def change(self, request: Request, lane: Lane, deadline: float | None) -> None:
        """Give a request another lane and deadline, with all that it holds; what it got stays charged to the old lane.

        The queue is in order of both, so that a request which waits is queued anew.
        """
        before = request.lane
        if (lane, deadline) == (before, request.deadline):
            return
        queued = request.arrival not in self.parked and not request.table
        if queued:
            self.queue.remove(request)
        elif request.table and lane != before:
            self.queue.released(request)
            if request.slot >= 0:
                self.batch.moved(before, lane)
        request.lane, request.deadline = lane, deadline
        if queued:
            self.queue.push(request)
        elif request.table and lane != before:
            self.queue.placed(request)
        self._changed = True

    def credited(self, request: Request) -> None:
        """Credit has come: the request goes on if that is what it waited for."""
        if request.paused:
            return
        if self.parked.pop(request.arrival, None) is not None:
            self._push(request)
        elif self._held.pop(request.arrival, None) is not None:
            self._decode(request)

    @property
    def running(self) -> Collection[Request]:
        """The requests that have blocks."""
        return self._running.values()

    @property
    def waiting(self) -> int:
        """Requests without blocks."""
        return len(self.queue) + len(self.parked)

    @property
    def busy(self) -> bool:
        """Whether a step would do something."""
        return bool(self.batch.rows or self._prefills or self._starved or len(self.queue))

    # ------------------------------------------------------------ a step

    def schedule(self, now: float = 0.0) -> Step:
        """Choose the next step's work and give its requests their blocks. `now`: seconds since the Unix epoch."""
        step = Step()
        self.swap.settle()
        moved = self.queue.at(now)
        if self._starved:
            self._grow(step)
        if len(self.queue) and (moved or self._changed or self._prefills or self._gained()):
            self._admit(step)
        elif len(self.queue) and self.queue.claims_due:
            self._admit_claimants(step)
        step.work = self.batch.works()
        if self._prefills:
            self._prefill(step)
        return step

    def commit(self, works: Sequence[Work], tokens: list[int | None], put_off: Collection[int] = ()) -> None:
        """These works are done: count them, publish the blocks that they filled, take the sampled tokens.

        In the order of the step; works that failed are not among them, and their requests have been removed. Of those
        whose arrival is in `put_off` the last token is to be computed again, since nothing could be sampled yet.
        """
        decodes = len(self.batch)
        prefills = list(zip(works[decodes:], tokens[decodes:], strict=True)) if len(works) > decodes else []
        if prefills:
            works, tokens = works[:decodes], tokens[:decodes]
        if put_off:
            waiting = [work.request for work in works if work.request.arrival in put_off]
            kept = [entry for entry in zip(works, tokens, strict=True) if entry[0].request.arrival not in put_off]
            works, tokens = [work for work, _ in kept], [token for _, token in kept]
            for request in waiting:
                self.batch.leave(request)
        # Before the prompts that end now join the batch: they have their first token already.
        self._attend(self.batch.advance(works, tokens))  # type: ignore[arg-type]  # a decode samples
        for work, token in prefills:
            self._prefilled(work, token, again=work.request.arrival in put_off)
        if put_off:
            for request in waiting:
                self._decode(request)

    # ------------------------------------------------------------ decoding

    def _attend(self, due: Sequence[Request]) -> None:
        """Decoding requests that have filled a block, spent their credit, or repaid their preemption."""
        for request in due:
            length = request.tokens.take()
            self._fill(request, length - 1)
            if not request.debt_repaid and request.has_recovered:
                self._changed = True
            if length - request.prompt >= request.credit:
                self.batch.leave(request)
                self._hold(request)
            elif len(request.table) * BLOCK_TOKENS >= length:
                self.batch.plan(request, length)
            else:
                self._starved[request.arrival] = request

    def _decode(self, request: Request) -> None:
        """A request whose prompt is done goes on, or waits for what it needs."""
        if request.paused:
            self._hold(request)
        elif self._has_room(request):
            self.batch.join(request)
        else:
            self._starved[request.arrival] = request

    def _hold(self, request: Request) -> None:
        self._held[request.arrival] = request
        self._changed = True

    def _has_room(self, request: Request) -> bool:
        return len(request.table) * BLOCK_TOKENS >= len(request.tokens)

    def _grow(self, step: Step) -> None:
        """Give each request the block that its next token needs, by preemption if it must be; the oldest first."""
        if min(self.needs.spare(self._prefills.values())) >= len(self._starved):
            starved, self._starved = self._starved.values(), {}
            self._extend(starved, self.pool.allocate(len(starved)), step)
            return
        for request in sorted(self._starved.values(), key=lambda request: request.arrival):
            if request.table and self._make_way(request, step):
                self._extend([request], self.pool.allocate(1), step)
                del self._starved[request.arrival]
            elif request.slot >= 0:
                self.batch.leave(request)

    def _extend(self, requests: Collection[Request], blocks: Sequence[Block], step: Step) -> None:
        """Give each of these its block: they decode on."""
        step.fresh += blocks
        self.queue.grown(requests)
        for request, block in zip(requests, blocks, strict=True):
            table = request.table
            table.append(block)
            request.laid += 1
            if request.slot >= 0:
                # All its blocks are full, and one token has none.
                self.batch.plan(request, (len(table) - 1) * BLOCK_TOKENS + 1)
            else:
                self.batch.join(request)

    def _make_way(self, request: Request, step: Step) -> bool:
        """Preempt until there is a block for the next token of this one. False if there is none, or it gave way."""
        while min(self.needs.spare(self._prefills.values())) < 1:
            victim = self.queue.victim(other for other in self._running.values() if other.fresh_output > 0)
            if victim is None or (victim is request and self.queue.victim(self._running.values()) is not request):
                return False  # one that should give way first has yet to make progress: this one waits a step
            self._preempt(victim, step)
            if victim is request:
                return False
        return True

    # ------------------------------------------------------------ prefill

    def _room(self) -> int:
        """How many tokens may be prefilled beside the decodes: always a block, so that all come to their end."""
        decodes = len(self.batch)
        left = self.budget - decodes
        if decodes:
            target = min(self.targets[lane] for lane, rows in self.batch.lanes.items() if rows)
            left = int(min(left, max(BLOCK_TOKENS, self.costs.prefill_within(target, decodes))))
        return left

    def _prefill(self, step: Step) -> None:
        """Fill the step with chunks, whole blocks but for a prompt's end, in the policy's order."""
        pending = list(self._prefills.values())
        left = self._room()
        ones: list[Work] = []
        chunks: list[Work] = []
        while pending:
            request = self.queue.prefill(pending)
            if request is None:
                break
            total = len(request.tokens)
            end = min(total, request.kv + min(left, self.needs.chunk))
            if end < total:
                end -= end % BLOCK_TOKENS
            if end <= request.kv:
                break
            self._allocate_window_blocks(request, len(request.table) if end == total else request.blocks_for(end), step)
            work = Prefill(request, request.kv, end - request.kv, samples=end == total)
            (ones if work.count == 1 else chunks).append(work)
            left -= work.count
            pending.remove(request)
            self.queue.prefilled(request, work.count)
        step.work = [*step.work, *ones, *chunks]

    def _allocate_window_blocks(self, request: Request, until: int, step: Step) -> None:
        """Take the blocks of groups with windows that the next chunk needs, out of what was promised."""
        if until > request.laid:
            step.fresh += self.pool.lay(request.table, request.laid, until, request.kv)
            request.laid = until

    def _prefilled(self, work: Work, token: int | None, *, again: bool) -> None:
        """`again`: its last token is left for a later step."""
        request = work.request
        end = work.start + work.count - again
        request.account(end)
        self._fill(request, end)
        if token is not None:
            request.tokens.append(token)
            del self._prefills[request.placed]
            self._decode(request)

    def _fill(self, request: Request, kv: int) -> None:
        """Publish the blocks that its first `kv` tokens fill, and give back those that fell out of the window."""
        full = kv // BLOCK_TOKENS
        if full > request.published and request.store != "none":
            for index in range(request.published, full):
                key, scope = request.name(index)
                self.pool.publish(request.table, index, key, scope)
            request.published = full
        if self.pool.slides:
            self.pool.slide(request.table, kv)

    # ------------------------------------------------------------ admission

    def _push(self, request: Request) -> None:
        self.queue.push(request)
        if self.queue.protects_awaited_blocks:
            self.pool.expect(self._wanted(request))
        self._changed = True

    def _admit(self, step: Step) -> None:
        room, full, all_but_one = self._room(), False, self.max_running - 1
        while (request := self.queue.peek(self._matched_tokens, len(self._running) >= all_but_one)) is not None:
            # Admitted when the step comes to it: who is admitted sooner could not be overtaken any more.
            full = self._prefill_before(request) >= room
            if full:
                break
            if not self._make_room(request, step):
                self._admit_claimants(step)
                break
            self._take(request, step)
        self._changed = full  # the next step has room again, whatever else happens
        self._spare = self.needs.spare(self._prefills.values())

    def _admit_claimants(self, step: Step) -> None:
        """Admit those for whom others of their lane give way, by the policy's shares of slots and memory."""
        room = self._room()
        while self.queue.claims_due and (request := self._claim(room, step)) is not None:
            self._take(request, step)

    def _take(self, request: Request, step: Step) -> None:
        self.queue.take(request)
        self._place(request, step)
        if self.queue.protects_awaited_blocks:
            self.pool.dismiss(self._wanted(request))
        self.queue.placed(request)

    def _gained(self) -> bool:
        """Whether there are more blocks than when the first of the queue could not be admitted; nothing prefills."""
        return any(pool.available > before for pool, before in zip(self.pool.pools, self._spare, strict=True))

    def _prefill_before(self, request: Request) -> int:
        """Tokens to prefill of running requests that this one would not overtake."""
        if not self._prefills:
            return 0
        left = len(request.tokens) - self._matched_tokens(request)
        before = self.queue.before(request, left, list(self._prefills.values()))
        return sum(len(other.tokens) - other.kv for other in before)

    def _make_room(self, request: Request, step: Step) -> bool:
        """Whether the request fits, after those gave way who must: out of credit, or outranked."""
        while not self._fits(request):
            # Those who cannot go on for want of credit hold neither slots nor memory against those who can.
            victim = self.queue.victim(self._held.values())
            if victim is None:
                outranked = [
                    other
                    for other in self._running.values()
                    if self.queue.outranks(request, other) and other.has_recovered
                ]
                if not outranked or not self._would_fit(request, outranked):
                    return False
                victim = self.queue.victim(outranked)
                assert victim is not None
            self._preempt(victim, step)
        return True

    def _claim(self, room: int, step: Step) -> Request | None:
        """A request that fits since others have given way; None if nobody's claim holds now."""
        for request, victims in self.queue.claims(self.capacity):
            if self._prefill_before(request) >= room:
                continue
            chosen: list[Request] = []
            for victim in victims:
                chosen.append(victim)
                if self._would_fit(request, chosen):
                    self.queue.displaced(request, chosen)
                    for each in chosen:
                        self._preempt(each, step)
                    # Blocks that others share were counted as free: then it comes to its place at a later look.
                    return request if self._fits(request) else None
        return None

    def _matched_tokens(self, request: Request) -> int:
        return len(self._matched(request)) * BLOCK_TOKENS

    def _matched(self, request: Request) -> list[Block]:
        """The blocks already in memory."""
        return self.pool.find(self._wanted(request))

    def _wanted(self, request: Request) -> list[bytes]:
        """What it looks for when it is admitted. At least the last token is always computed: its logits are wanted."""
        if not request.read:
            return []
        blocks = (len(request.tokens) - 1) // BLOCK_TOKENS
        return request.extend_keys(blocks)[:blocks]

    def _fits(self, request: Request) -> bool:
        if len(self._running) >= self.max_running:
            return False
        spare = self.needs.spare(self._prefills.values())
        return self.needs.fit(request, spare) or self.needs.fit(request, spare, self._matched(request))

    def _would_fit(self, request: Request, without: Sequence[Request]) -> bool:
        """Whether there could be a slot and blocks enough for the request if these gave theirs back."""
        if len(self._running) - len(without) >= self.max_running:
            return False
        spare = self.needs.spare(other for other in self._prefills.values() if other not in without)
        return self.needs.fit(
            request, [left + more for left, more in zip(spare, self.needs.freed(without), strict=True)]
        )

    def _place(self, request: Request, step: Step) -> None:
        matched = self._matched(request)
        self.pool.share(matched)
        found, tokens, copies = len(matched), len(matched) * BLOCK_TOKENS, 0.0
        if request.swapped:
            tokens = max(tokens, request.kept)
            copies = self.swap.cost(request.swapped, self.costs.rates)
            self.pool.slide(matched, tokens)
        table = matched + self.pool.begin(request.blocks_for(len(request.tokens) + 1) - found)
        if request.swapped:
            # What had left the window was not kept, and must not be published either.
            self.pool.lay(table, found, request.blocks_for(tokens), tokens)
            self.swap.bring_back(request, table, found, step)
        request.place(table, found, tokens, copies)
        step.fresh += table[found:]
        self._placed += 1
        request.placed = self._placed
        if not request.began:
            request.began = True
            step.began.append(request)
        self._running[request.arrival] = request
        self._prefills[request.placed] = request

    # ------------------------------------------------------------ giving way

    def _preempt(self, request: Request, step: Step) -> None:
        """Take a request's blocks; its KV is kept elsewhere, or computed again later."""
        self.swap.keep(request, self.costs.rates, step)
        self._release(request)
        self.preemptions += 1
        self.add(request)

    def _release(self, request: Request) -> None:
        self._changed = True
        if request.slot >= 0:
            self.batch.leave(request)
        self._prefills.pop(request.placed, None)
        self._starved.pop(request.arrival, None)
        self._held.pop(request.arrival, None)
        del self._running[request.arrival]
        self.queue.released(request)
        self.pool.free(request.table)
        request.release_blocks()

    def check(self) -> None:
        """Raise AssertionError unless every running request is where it belongs. For tests."""
        places = [
            [work.request.arrival for work in self.batch.rows],
            [request.arrival for request in self._prefills.values()],
            list(self._held),
            [arrival for arrival, request in self._starved.items() if request.slot < 0],
        ]
        assert sorted(arrival for place in places for arrival in place) == sorted(self._running), "in no or two places"
        for row, work in enumerate(self.batch.rows):
            request = work.request
            assert request.slot == row, "a row has another number"
            assert not request.paused, "a row is out of credit"
            assert self._has_room(request) or request.arrival in self._starved, "a row has no room"
            assert request.kv // BLOCK_TOKENS == request.published or request.store == "none", "a full block is hidden"
        for request in self._starved.values():
            assert len(request.tokens) == len(request.table) * BLOCK_TOKENS + 1, "it wants more than one block, or none"
        for request in self._running.values():
            ready = request.placed not in self._prefills
            assert request.laid == len(request.table) or not ready, "a decoding request lacks blocks"
        assert min(self.needs.spare(self._prefills.values())) >= 0, "more blocks are promised than there are"
        self.swap.check([*self.queue.waiting(), *self.parked.values()])
        assert all(request.paused for request in self._held.values()), "somebody is held in spite of credit"
