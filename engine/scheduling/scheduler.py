"""The token-budget scheduler: each step decodes every running request, and fills the rest of its budget with prefill.

A request is admitted when there are blocks for all tokens that it has and one more, after reading what is already in
memory; so prefill never runs out of memory half way, and only a decoding request can need another block. When none is
left, the youngest request that has made progress since it was admitted gives its blocks back and is recomputed later.
Whoever has not yet made progress cannot be preempted, so no two requests preempt each other for ever.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.scheduling.policy import FirstComeFirstServed, Policy
from engine.scheduling.request import Request
from prompt_cache.blocks import BlockPool
from prompt_cache.keys import BLOCK_TOKENS


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
    fresh: list[int] = field(default_factory=list)


class Scheduler:
    """Owns the queue, the running requests and their blocks. Requests come in already validated."""

    def __init__(self, pool: BlockPool, budget: int, max_running: int, policy: Policy | None = None) -> None:
        if budget < max_running + BLOCK_TOKENS:
            raise ValueError(
                f"a budget of {budget} tokens a step is too small for {max_running} running requests:"
                f" at least {max_running + BLOCK_TOKENS} are needed"
            )
        self.pool = pool
        self.budget = budget
        self.max_running = max_running
        self.queue: Policy = FirstComeFirstServed() if policy is None else policy
        self.running: list[Request] = []
        """In the order of arrival."""
        self.parked: dict[str, Request] = {}
        """Without blocks and out of credit: not in the queue until credit comes."""
        self.preemptions = 0

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

    def schedule(self) -> Step:
        """Choose the next step's work and give its requests their blocks."""
        step = Step()
        self._grow(step)
        self._admit(step)
        left = self.budget
        prefills: list[Request] = []
        for request in self.running:
            if request.paused:
                continue
            if len(request.tokens) - request.kv > 1:
                prefills.append(request)
            elif len(request.table) * BLOCK_TOKENS >= len(request.tokens):
                step.work.append(Work(request, request.kv, 1, samples=True))
                left -= 1
        chunks: list[Work] = []
        for request in prefills:
            total = len(request.tokens)
            end = min(total, request.kv + left)
            if end < total:
                end -= end % BLOCK_TOKENS
            if end <= request.kv:
                break
            work = Work(request, request.kv, end - request.kv, samples=end == total)
            (step.work if work.count == 1 else chunks).append(work)
            left -= work.count
        step.work += chunks
        return step

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
                if victim is None or (victim is request and self.running[-1] is not request):
                    break  # younger ones have yet to make progress: this one waits a step
                self._preempt(victim)
                if victim is request:
                    break
            if request.table and self.pool.available:
                blocks = self.pool.allocate(1)
                request.table += blocks
                step.fresh += blocks

    def _admit(self, step: Step) -> None:
        while (request := self.queue.peek()) is not None:
            while not self._fits(request):
                # Those who cannot go on for want of credit hold neither slots nor memory against those who can.
                paused = self.queue.victim(other for other in self.running if other.paused)
                if paused is None:
                    return
                self._preempt(paused)
            self.queue.pop()
            self._place(request, step)

    def _matched(self, request: Request) -> list[int]:
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
        request.account_read(len(matched) * BLOCK_TOKENS)
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
        self.running.remove(request)
        self._release(request)
        self.preemptions += 1
        self.add(request)

    def _release(self, request: Request) -> None:
        self.pool.free(request.table)
        request.table = []
        request.kv = 0
        request.published = 0
