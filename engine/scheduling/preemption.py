"""Preemption: who gives way to whom when slots or blocks are short.

- For admission, requests that are out of credit give way first, then those that the waiting request outranks, and
  those that the policy names because their flow holds more than its share (G6).
- For a decoding request that needs a block, the policy's victim gives way, which may be that request itself.

A request that has not produced a token since it got its blocks is not preempted, so two requests cannot preempt each
other for ever. What happens to a victim, its KV above all, is not decided here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from engine.scheduling.block_needs import BlockNeeds
from engine.scheduling.policy import Capacity, Policy
from engine.scheduling.prefilling import Prefilling
from engine.scheduling.prefix_blocks import PrefixBlocks
from engine.scheduling.request import Request
from engine.scheduling.step_work import Step
from prompt_cache.kv.grouped_pool import Block


class Preemption:
    """Sees whether requests fit, and makes others give way until they do.

    `running`: the requests with blocks, by arrival; `paused`: those of them that are out of credit. `preempt` takes a
    request's slot and blocks in this step.
    """

    def __init__(
        self,
        capacity: Capacity,
        queue: Policy,
        needs: BlockNeeds,
        blocks: PrefixBlocks,
        prefilling: Prefilling,
        *,
        running: Mapping[int, Request],
        paused: Mapping[int, Request],
        preempt: Callable[[Request, Step], None],
    ) -> None:
        self.capacity = capacity
        self.queue = queue
        self.needs = needs
        self.blocks = blocks
        self.prefilling = prefilling
        self._running = running
        self._paused = paused
        self._preempt = preempt

    def make_room(self, request: Request, step: Step) -> bool:
        """Whether the waiting request fits, after preempting requests that are out of credit or outranked.

        Nobody gives way if the request would not fit though all of them did.
        """
        while not self._fits(request):
            paused = list(self._paused.values())
            outranked = [
                other
                for other in self._running.values()
                if other.arrival not in self._paused and self.queue.outranks(request, other) and other.has_recovered
            ]
            if not self._would_fit(request, [*paused, *outranked], self.blocks.matched(request)):
                return False
            # A request without credit cannot decode, so its slot and memory go to those that can.
            victim = self.queue.victim(paused) or self.queue.victim(outranked)
            if victim is None:
                return False
            self._preempt(victim, step)
        return True

    def claim(self, room: int, step: Step) -> Request | None:
        """Preempt for the first claim that can be met; returns its request, None if no claim can.

        `room`: prompt tokens of the step; a request whose prefill would not start in it claims nothing.
        """
        for request, victims in self.queue.claims(self.capacity):
            if self.prefilling.tokens_before(request) >= room:
                continue
            chosen: list[Request] = []
            matched = self.blocks.matched(request)
            for victim in victims:
                chosen.append(victim)
                if self._would_fit(request, chosen, matched):
                    self.queue.displaced(request, chosen)
                    for preempted in chosen:
                        self._preempt(preempted, step)
                    return request if self._fits(request) else None
        return None

    def free_block(self, request: Request, step: Step) -> bool:
        """Preempt until a block is free for the decoding request.

        False if none can be freed or the request was preempted.
        """
        while min(self.prefilling.spare()) < 1:
            victim = self.queue.victim(other for other in self._running.values() if other.fresh_output > 0)
            if victim is None or (victim is request and self.queue.victim(self._running.values()) is not request):
                return False  # the proper victim has made no progress yet: wait a step for it
            self._preempt(victim, step)
            if victim is request:
                return False
        return True

    def _fits(self, request: Request) -> bool:
        if len(self._running) >= self.capacity.slots:
            return False
        spare = self.prefilling.spare()
        return self.needs.fit(request, spare) or self.needs.fit(request, spare, self.blocks.matched(request))

    def _would_fit(self, request: Request, without: Sequence[Request], matched: Sequence[Block]) -> bool:
        """Whether there would be a slot and enough blocks for the request if the requests `without` were preempted.

        `matched`: its cached blocks.
        """
        if len(self._running) - len(without) >= self.capacity.slots:
            return False
        needs, spare = self.needs, self.prefilling.spare(without)
        most = _sums(spare, needs.freed_at_most(without))
        if not (needs.fit(request, most) or needs.fit(request, most, matched)):
            return False
        given_up = needs.references_of(without)
        left = _sums(spare, needs.freed(given_up))
        return needs.fit(request, left) or needs.fit(request, left, matched, given_up)


def _sums(counts: Sequence[int], others: Sequence[int]) -> list[int]:
    return [count + other for count, other in zip(counts, others, strict=True)]
