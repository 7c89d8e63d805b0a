"""The token-budget scheduler: each step decodes every running request, and fills the rest of its budget with prefill.

How much prefill goes beside decodes comes from what steps were measured to cost, so that the time between two tokens
stays within what the decoding lanes are promised. A request is admitted when the step has room for its prefill, and
there are blocks for all tokens that it has and one more, after reading what is already in memory; so prefill never runs
out of memory half way, and only a decoding request can need another block. When none is left, the policy's victim gives
its blocks back and is recomputed later. Whoever has not yet made progress cannot be preempted, so no two requests
preempt each other for ever.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from engine.protocol import Lane
from engine.scheduling.costs import FixedCosts, StepCosts
from engine.scheduling.policy import FirstComeFirstServed, Policy
from engine.scheduling.request import Request
from prompt_cache.block_groups import Block, GroupedPool
from prompt_cache.keys import BLOCK_TOKENS

TOKEN_TARGETS: Mapping[Lane, float] = {"interactive": 100_000.0, "standard": 200_000.0, "batch": 1_000_000.0}
"""µs between two tokens of a decoding request, at most, as far as the decodes alone allow it."""


@dataclass(slots=True)
class Work:
    """Compute the KV of `count` tokens of a request from `start`; `samples` when they reach its last token."""

    request: Request
    start: int
    count: int
    samples: bool


@dataclass
class Step:
    """What one step does: requests with one token first. `fresh` blocks must be cleared before use."""

    work: list[Work] = field(default_factory=list)
    began: list[Request] = field(default_factory=list)
    fresh: list[Block] = field(default_factory=list)


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
    ) -> None:
        if budget < max_running + BLOCK_TOKENS:
            raise ValueError(
                f"a budget of {budget} tokens a step is too small for {max_running} running requests:"
                f" at least {max_running + BLOCK_TOKENS} are needed"
            )
        self.pool = pool
        self.budget = budget
        self.max_running = max_running
        self.queue: Policy = FirstComeFirstServed() if policy is None else policy
        self.costs: StepCosts = FixedCosts() if costs is None else costs
        self.targets = targets
        self.running: list[Request] = []
        """In the order of arrival."""
        self.parked: dict[str, Request] = {}
        """Without blocks and out of credit: not in the queue until credit comes."""
        self.preemptions = 0
        self._placed = 0

    # ------------------------------------------------------------ requests in and out

    def add(self, request: Request) -> None:
        """Queue a request."""
        if request.paused:
            self.parked[request.id] = request
        else:
            self.queue.push(request)

    def remove(self, request: Request) -> None:
        """Take a request out wherever it is, and free its blocks at once (E4)."""
        if request.id in self.parked:
            del self.parked[request.id]
        elif request.table:
            self.running.remove(request)
            self.queue.released(request)
            self._release(request)
        else:
            self.queue.remove(request)

    def credited(self, request: Request) -> None:
        """Credit has come: queue the request if it was parked."""
        if not request.paused and self.parked.pop(request.id, None) is not None:
            self.queue.push(request)

    @property
    def waiting(self) -> int:
        """Requests without blocks."""
        return len(self.queue) + len(self.parked)

    @property
    def busy(self) -> bool:
        """Whether a step would do something."""
        return len(self.queue) > 0 or any(not request.paused for request in self.running)

    # ------------------------------------------------------------ a step

    def schedule(self, now: float = 0.0) -> Step:
        """Choose the next step's work and give its requests their blocks. `now`: seconds since the Unix epoch."""
        step = Step()
        self.queue.at(now)
        self._grow(step)
        self._admit(step)
        prefills: list[Request] = []
        decoding: set[Lane] = set()
        for request in self.running:
            if request.paused:
                continue
            if len(request.tokens) - request.kv > 1:
                prefills.append(request)
            elif len(request.table) * BLOCK_TOKENS >= len(request.tokens):
                step.work.append(Work(request, request.kv, 1, samples=True))
                decoding.add(request.lane)
        self._prefill(step, prefills, self._room(len(step.work), decoding))
        return step

    def _room(self, decodes: int, decoding: Collection[Lane]) -> int:
        """How many tokens may be prefilled beside these decodes: always a block, so that all come to their end."""
        left = self.budget - decodes
        if decoding:
            target = min(self.targets[lane] for lane in decoding)
            left = int(min(left, max(BLOCK_TOKENS, self.costs.prefill_within(target, decodes))))
        return left

    def _prefill(self, step: Step, pending: list[Request], left: int) -> None:
        """Fill the step with chunks, whole blocks but for a prompt's end, in the policy's order."""
        pending.sort(key=lambda request: request.placed)
        chunks: list[Work] = []
        while pending:
            request = self.queue.prefill(pending)
            total = len(request.tokens)
            end = min(total, request.kv + left)
            if end < total:
                end -= end % BLOCK_TOKENS
            if end <= request.kv:
                break
            work = Work(request, request.kv, end - request.kv, samples=end == total)
            (step.work if work.count == 1 else chunks).append(work)
            left -= work.count
            pending.remove(request)
            self.queue.prefilled(request, work.count)
        step.work += chunks

    def computed(self, work: Work) -> None:
        """A work is done: count it and publish the blocks that it filled."""
        request = work.request
        request.account(work.start + work.count)
        self._publish(request)

    def sampled(self, request: Request, token: int) -> None:
        """The request's next token is known."""
        request.tokens.append(token)
        request.fresh_output += 1

    # ------------------------------------------------------------ inside

    def _grow(self, step: Step) -> None:
        """Give each decoding request the block that its next token needs, by preemption if it must be."""
        for request in list(self.running):
            if request.paused or not request.table or len(request.table) * BLOCK_TOKENS >= len(request.tokens):
                continue  # without a table it was preempted just now
            while not self.pool.available:
                victim = self.queue.victim(other for other in self.running if other.fresh_output > 0)
                if victim is None or (victim is request and self.queue.victim(self.running) is not request):
                    break  # one that should give way first has yet to make progress: this one waits a step
                self._preempt(victim)
                if victim is request:
                    break
            if request.table and self.pool.available:
                blocks = self.pool.allocate(1)
                request.table += blocks
                step.fresh += blocks
                self.queue.grown(request)

    def _admit(self, step: Step) -> None:
        if not len(self.queue):
            return
        decoding = {r.lane for r in self.running if not r.paused and len(r.tokens) - r.kv <= 1}
        room = self._room(len(self.running), decoding)
        while (request := self.queue.peek(self._matched_tokens)) is not None:
            # Admitted when the step comes to it: who is admitted sooner could not be overtaken any more.
            if self._prefill_before(request) >= room or not self._make_room(request):
                return
            self.queue.take(request)
            self._place(request, step)
            self.queue.placed(request)

    def _prefill_before(self, request: Request) -> int:
        """Tokens to prefill of running requests that this one would not overtake."""
        return sum(
            len(other.tokens) - other.kv
            for other in self.running
            if not other.paused and len(other.tokens) - other.kv > 1 and not self.queue.overtakes(request, other)
        )

    def _make_room(self, request: Request) -> bool:
        """Whether the request fits, after those gave way who must: out of credit, or outranked."""
        while not self._fits(request):
            # Those who cannot go on for want of credit hold neither slots nor memory against those who can.
            victim = self.queue.victim(other for other in self.running if other.paused)
            if victim is None:
                outranked = [other for other in self.running if self.queue.outranks(request, other)]
                freed = sum(len(other.table) for other in outranked)
                if not outranked or request.blocks_for(len(request.tokens) + 1) > self.pool.available + freed:
                    return False
                victim = self.queue.victim(outranked)
                assert victim is not None
            self._preempt(victim)
        return True

    def _matched_tokens(self, request: Request) -> int:
        return len(self._matched(request)) * BLOCK_TOKENS

    def _matched(self, request: Request) -> list[Block]:
        """The blocks already in memory. At least the last token is always computed: its logits are wanted."""
        if not request.read:
            return []
        return self.pool.find(request.extend_keys((len(request.tokens) - 1) // BLOCK_TOKENS))

    def _fits(self, request: Request) -> bool:
        if len(self.running) >= self.max_running:
            return False
        needed = request.blocks_for(len(request.tokens) + 1)
        if needed <= self.pool.available:
            return True
        # Matched blocks that others hold cost nothing.
        held = sum(self.pool.is_referenced(block) for block in self._matched(request))
        return needed - held <= self.pool.available

    def _place(self, request: Request, step: Step) -> None:
        matched = self._matched(request)
        self.pool.share(matched)
        fresh = self.pool.allocate(request.blocks_for(len(request.tokens) + 1) - len(matched))
        step.fresh += fresh
        request.table = matched + fresh
        request.published = len(matched)
        request.fresh_output = 0
        request.redone = max(0, request.seen - len(matched) * BLOCK_TOKENS)
        request.account_read(len(matched) * BLOCK_TOKENS)
        self._placed += 1
        request.placed = self._placed
        if not request.began:
            request.began = True
            step.began.append(request)
        at = len(self.running)
        while at and self.running[at - 1].arrival > request.arrival:
            at -= 1
        self.running.insert(at, request)

    def _publish(self, request: Request) -> None:
        if request.store == "none":
            return
        full = request.kv // BLOCK_TOKENS
        if full <= request.published:
            return
        keys = request.extend_keys(full)
        for index in range(request.published, full):
            scope = request.segment_at(index * BLOCK_TOKENS)[2]
            request.table[index] = self.pool.publish(request.table[index], keys[index], scope)
        request.published = full

    def _preempt(self, request: Request) -> None:
        """Take a request's blocks; it is computed again later. (To swap them out instead is decided here.)"""
        self.running.remove(request)
        self.queue.released(request)
        self._release(request)
        self.preemptions += 1
        self.add(request)

    def _release(self, request: Request) -> None:
        self.pool.free(request.table)
        request.table = []
        request.kv = 0
        request.published = 0
