"""Continuous batching with chunked prefill: each step decodes every running request and prefills with the rest.

The order of requests is the policy's (`policy`, `fairness`); this module holds the token budget, slots and KV blocks.
A request that has blocks is `prefilling` until its prompt is computed, and `decoding` from then on.

- Token budget: a step has at most `budget` tokens. Prefill beside decodes is limited further by measured costs
  (`step_costs`), so that the time between two tokens stays within the target of the decoding lanes.
- Admission: a request is admitted when the step has tokens left for its prefill, a slot is free, and there are blocks
  for all its tokens and one more (`block_needs`). Prefill therefore never runs out of memory; only a decoding request
  can need another block.
- Tiers: published blocks (`prefix_blocks`) that leave the device go to host memory and from there to disk. A prompt
  that goes on there is restored from the tail while its front is computed (`farther_tiers`).
- Preemption: without a free block, the policy's victim gives its blocks back (`preemption`). Its KV is copied to host
  memory or recomputed, whichever is cheaper (`dram_tier`).

The work of a step is proportional to what changed: decoding requests stay in one batch (`decode_batch`), and the queue
is looked at again only after a request came, ended or gave blocks back.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

from engine.scheduling.adapter_slots import AdapterSlots
from engine.scheduling.block_needs import BlockNeeds
from engine.scheduling.decode_batch import DecodeBatch
from engine.scheduling.decoding import Decoding
from engine.scheduling.farther_tiers import FartherTiers
from engine.scheduling.policy import Capacity, Policy
from engine.scheduling.preemption import Preemption
from engine.scheduling.prefilling import Prefilling
from engine.scheduling.prefix_blocks import PrefixBlocks
from engine.scheduling.request import Request
from engine.scheduling.step_costs import FixedCosts, StepCosts, first_guess
from engine.scheduling.step_work import Step, Work
from engine.scheduling.tier import Tier
from prompt_cache.kv.block_keys import BLOCK_TOKENS
from prompt_cache.kv.grouped_pool import GroupedPool
from prompt_cache.placement.fetch_or_recompute import FetchOrRecompute
from protocol.requests import Lane

TOKEN_TARGETS: Mapping[Lane, float] = {"interactive": 100_000.0, "standard": 200_000.0, "batch": 1_000_000.0}
"""Target of the time between two tokens by lane, in µs. A step whose decodes alone take longer misses it."""
_LEASES_EVERY_S = 1.0
_COPIES_SHARE = 0.1
"""The part of the time between two tokens that copies of restored blocks may take beside decodes."""
_ALONE_US = 20_000.0
"""The time, in µs, that such copies may take in a step where nothing decodes. Meanwhile no message is received."""


class Scheduler:
    """Owns the queue, the running requests and their blocks. Requests come in already validated.

    `pool`: the KV blocks on the device; `dram`: blocks in host memory, None for no such tier; `tiers`: those behind it,
    the nearest first, which need `dram`. `budget`: tokens a step. `max_running`: slots. `targets`: µs between two
    tokens by lane. `chooser`: fetch or recompute, by `block_bytes` of a block in all layer groups. `clean`: blocks that
    the background writer keeps so. `most_drafts`: of a request in a step. `adapters`: slots for their weights. Raises
    ValueError for too small a budget.
    """

    def __init__(
        self,
        pool: GroupedPool,
        budget: int,
        max_running: int,
        policy: Policy,
        *,
        costs: StepCosts | None = None,
        targets: Mapping[Lane, float] = TOKEN_TARGETS,
        dram: GroupedPool | None = None,
        tiers: Sequence[Tier] = (),
        chooser: FetchOrRecompute | None = None,
        block_bytes: int = 1 << 19,
        clean: int = 0,
        most_drafts: int = 0,
        adapters: AdapterSlots | None = None,
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
        self.queue = policy
        self.costs: StepCosts = FixedCosts() if costs is None else costs
        self.targets = targets
        self.tiers = FartherTiers(
            pool,
            dram,
            tiers,
            joined=self._joined,
            chooser=chooser or first_guess(self.costs.rates, block_bytes, {tier.name: tier.rate for tier in tiers}),
            block_bytes=block_bytes,
            clean=clean,
        )
        self.blocks = PrefixBlocks(pool, self.tiers)
        self.capacity = Capacity(max_running, self.needs.longest or max(group.total for group in pool.pools))
        self.batch = DecodeBatch(max_running, most_drafts, budget - max_running - BLOCK_TOKENS)
        self.prefilling = Prefilling(self.needs, self.queue, self.blocks, self.tiers.restores)
        self.tiers.restores.prefilling = self.prefilling.requests
        self.decoding = Decoding(self.batch, self.queue, self.blocks, self.prefilling)
        self.adapters = AdapterSlots(0) if adapters is None else adapters
        self.parked: dict[int, Request] = {}
        """arrival -> request without blocks and out of credit. It is queued when credit comes."""
        self._running: dict[int, Request] = {}
        """arrival -> request with blocks: it is either prefilling or decoding."""
        self.preemption = Preemption(
            self.capacity,
            self.queue,
            self.needs,
            self.blocks,
            self.prefilling,
            running=self._running,
            paused=self.decoding.paused,
            preempt=self._preempt,
        )
        self.preemptions = 0
        self._leases_looked_at = 0.0
        self.waits = False  # whether the last step had nothing to do but to wait for blocks that are being restored
        self._placements = 0
        self._changed = False
        """Whether the queue must be looked at again: something changed since its first request was not admitted."""
        self._spare = [0] * len(pool.pools)
        """Spare blocks of each layer group when the queue's first request was not admitted."""

    # ------------------------------------------------------------ requests in and out

    def add(self, request: Request) -> None:
        """Queue a request, as soon as it has its adapter."""
        if self.adapters.delay(request):
            return
        if request.paused:
            self.parked[request.arrival] = request
        else:
            self._push(request)

    def remove(self, request: Request) -> None:
        """Remove a request wherever it is, and free its blocks at once (E4)."""
        waited = self.adapters.leave(request)
        request.weights = None  # they may lie in memory that the next adapter waits for
        if waited:
            return
        if request.arrival in self.parked:
            del self.parked[request.arrival]
        elif request.table:
            self._release(request)
        else:
            self.queue.remove(request)
            if self.queue.protects_awaited_blocks:
                self.blocks.unprotect(request)
            self._changed = True
        self.tiers.dram.drop(request)

    def credited(self, request: Request) -> None:
        """The request has new credit: queue it or let it decode if it was waiting for that."""
        if request.paused:
            return
        if self.parked.pop(request.arrival, None) is not None:
            self._push(request)
        else:
            self.decoding.credited(request)

    @property
    def running(self) -> Collection[Request]:
        """The requests with blocks."""
        return self._running.values()

    @property
    def waiting(self) -> int:
        """Requests without blocks."""
        return len(self.queue) + len(self.parked) + self.adapters.waiting

    @property
    def busy(self) -> bool:
        """Whether a step would do any work."""
        if len(self.batch) or self.decoding.starved or self.adapters.has_news:
            return True
        if (self.prefilling.requests or len(self.queue)) and not self.waits:
            return True
        return self.tiers.saves

    @property
    def next_deadline(self) -> float | None:
        """When a step is due though nothing happens: blocks that did not come, or may stay no longer."""
        return self.tiers.next_deadline

    # ------------------------------------------------------------ a step

    def schedule(self, now: float = 0.0) -> Step:
        """Choose the next step's work and allocate the blocks for it. `now`: seconds since the Unix epoch."""
        step = Step()
        for request in self.adapters.take_ready():
            self.add(request)
        self.tiers.begin(step, now)
        if now >= self._leases_looked_at + _LEASES_EVERY_S:
            self._leases_looked_at = now
            self.pool.expire(now)
        next_may_differ = self.queue.begin_step(now)
        if self.decoding.starved:
            self.decoding.grow(step, self.preemption.free_block)
        if len(self.queue) and (next_may_differ or self._may_admit()):
            self._admit(step)
        elif len(self.queue) and self.queue.claims_due:
            self._admit_claimants(step)
        if self.tiers.dram.pool is not None and self.tiers.coming:
            self.tiers.bring(step, self._copies())
        step.work = self.batch.works()
        if self.prefilling.requests:
            self.prefilling.fill(step, self._room(), now)
        if self.tiers.dram.pool is not None:
            self.tiers.end(step, self.costs)
            self.waits = bool(self.tiers.restores.active) and not (step.work or step.back or step.out or step.began)
        return step

    def save_only(self, now: float) -> Step:
        """A step that only copies out what is to be saved: for a clean stop, when nothing else is done any more."""
        return self.tiers.save_only(now, self.costs.rates)

    def copied(self, step: Step, bad: Collection[int]) -> None:
        """The step's copies are done, which may be steps later. `bad`: indices of `step.back` whose blocks came back
        damaged.

        A request that would compute with such a block leaves the step, and recomputes it.
        """
        if step.returns:
            self.waits = False  # the next step joins what came
        for request in self.tiers.copied(step, bad):
            if request.table:
                step.work = [work for work in step.work if work.request is not request]
                self._release(request)
                self.add(request)

    def commit(
        self,
        works: Sequence[Work],
        tokens: list[int | None],
        put_off: Collection[int] = (),
        accepted: Mapping[int, Sequence[int]] = {},
    ) -> None:
        """Account for finished work: count tokens, publish filled blocks, append sampled tokens.

        `works`: in step order, without failed ones, whose requests are removed. `tokens`: what each sampled last, if
        anything, and by arrival the drafts `accepted` before. `put_off`: who could not sample yet computes its last
        token again in a later step.
        """
        decodes = len(self.batch)
        prefills = list(zip(works[decodes:], tokens[decodes:], strict=True)) if len(works) > decodes else []
        if prefills:
            works, tokens = works[:decodes], tokens[:decodes]
        # Before the finished prompts join the batch: they have their first token already.
        delayed = self.decoding.computed(works, tokens, put_off, accepted)
        for work, token in prefills:
            if self.prefilling.computed(work, token, again=work.request.arrival in put_off):
                self.decoding.begin(work.request)
        for request in delayed:
            self.decoding.begin(request)

    # ------------------------------------------------------------ time beside decodes

    def _room(self) -> int:
        """How many tokens may be prefilled in this step: beside decodes at least a block, so that prompts advance."""
        decodes = len(self.batch) + self.batch.drafted
        left = self.budget - decodes
        if decodes:
            left = int(min(left, max(BLOCK_TOKENS, self.costs.prefill_within(self.token_target, decodes))))
        return left

    @property
    def prompt_room(self) -> int:
        """How many prompt tokens a step computes at most, beside what decodes now."""
        return self._room()

    def _copies(self) -> int:
        """How many restored blocks may set out in this step."""
        if not len(self.batch):
            return max(1, int(_ALONE_US / max(self.costs.rates.copied, 1.0)))
        return max(1, int(self.token_target * _COPIES_SHARE / max(self.costs.rates.copied, 1.0)))

    @property
    def token_target(self) -> float:
        """The least time between two tokens that a decoding lane is to have, in µs; infinite if none decodes."""
        return min((self.targets[lane] for lane, rows in self.batch.lanes.items() if rows), default=math.inf)

    # ------------------------------------------------------------ blocks that came, or must go

    def _joined(self, request: Request) -> None:
        """Restored blocks have joined a request's KV: publish them."""
        self.blocks.publish(request, request.kv)
        self.queue.restored(request)

    def purge(self, scope: str, keys: Collection[bytes]) -> None:
        """Make blocks unfindable in every tier, those that are on their way too."""
        self.waits = False
        gone = set(keys)
        self.pool.purge(gone)
        self.tiers.purge(scope, gone)

    def forget(self, scope: str, *, device: bool = True) -> None:
        """Make all blocks of a scope unfindable in every tier, and zero those in host memory. `device`: those of the
        device too."""
        self.waits = False
        if device:
            self.pool.forget(scope)
        self.tiers.forget(scope)

    # ------------------------------------------------------------ admission

    def _push(self, request: Request) -> None:
        self.waits = False  # it may begin although others wait for the disk
        self.queue.push(request)
        if self.queue.protects_awaited_blocks:
            self.blocks.protect(request)
        self._changed = True

    def _admit(self, step: Step) -> None:
        """Admit requests while they fit into the step, the slots and the memory."""
        room, full, all_but_one = self._room(), False, self.max_running - 1
        while (request := self.queue.peek(self.blocks.matched_tokens, len(self._running) >= all_but_one)) is not None:
            # A request is admitted only when its prefill would start now: until then others may overtake it.
            full = self.prefilling.tokens_before(request) >= room
            if full:
                self._prefetch(request)
                break
            if not self.preemption.make_room(request, step):
                self._prefetch(request)
                self._admit_claimants(step)
                break
            self._take(request, step)
        self._changed = full  # the next step has room again, whatever else happens
        self.decoding.more_victims = False
        self._spare = self.prefilling.spare()

    def _admit_claimants(self, step: Step) -> None:
        """Admit requests for which the policy preempts others of their lane (shares of slots and memory, G6)."""
        room = self._room()
        while self.queue.claims_due and (request := self.preemption.claim(room, step)) is not None:
            self._take(request, step)

    def _prefetch(self, request: Request) -> None:
        """The first request of the queue has to wait: meanwhile read its blocks on disk into host memory."""
        if self.tiers.savers and request.read:
            self.tiers.restores.prefetch(request, self.blocks.wanted(request), self.tiers.now)

    def _take(self, request: Request, step: Step) -> None:
        self.queue.admitted(request)
        self._place(request, step)
        if self.queue.protects_awaited_blocks:
            self.blocks.unprotect(request)
        self.queue.placed(request)

    def _may_admit(self) -> bool:
        """Whether the queue's first request, which was not admitted, may be admitted now."""
        if self._changed or self.decoding.more_victims or self.prefilling.requests:
            return True
        return any(pool.available > before for pool, before in zip(self.pool.pools, self._spare, strict=True))

    def _place(self, request: Request, step: Step) -> None:
        """Give an admitted request a slot and its blocks: cached ones, swapped ones, new ones."""
        matched = self.blocks.matched(request)
        self.pool.share(matched)
        found, tokens, copies = len(matched), len(matched) * BLOCK_TOKENS, 0.0
        if request.swapped:
            tokens = max(tokens, request.swapped_tokens)
            copies = self.tiers.dram.cost(request.swapped, self.costs.rates)
            self.pool.slide(matched, tokens)
        table = matched + self.pool.begin(request.blocks_for(len(request.tokens) + 1) - found)
        if request.swapped:
            # Blocks that had left the window were not kept in the swap space, and must not be published either.
            self.pool.allocate_window_blocks(table, found, request.blocks_for(tokens), tokens)
            self.tiers.dram.bring_back(request, table, found, step)
        request.place(table, found, tokens, copies)
        if self.tiers.dram.index is not None and request.read:
            self.tiers.placed(request, self.blocks.wanted(request), found)
        self.blocks.retain(request, 0, found)
        step.fresh += table[found:]
        self._placements += 1
        request.placement = self._placements
        if not request.began:
            request.began = True
            step.began.append(request)
        self._running[request.arrival] = request
        self.prefilling.begin(request)

    # ------------------------------------------------------------ giving way

    def _preempt(self, request: Request, step: Step) -> None:
        """Take a request's blocks and queue it again. Its KV is kept in the swap space or recomputed later."""
        self.tiers.dram.keep(request, self.costs.rates, step)
        self._release(request)
        self.preemptions += 1
        request.preemptions += 1
        self.add(request)

    def _release(self, request: Request) -> None:
        self._changed = True
        self.decoding.leave(request)
        self.prefilling.leave(request)
        self.tiers.restores.drop(request)
        del self._running[request.arrival]
        self.queue.released(request)
        self.pool.free(request.table)
        request.release_blocks()

    def check(self) -> None:
        """Raise AssertionError unless every running request is in exactly one place and blocks add up. For tests."""
        places = self.decoding.check() + [request.arrival for request in self.prefilling.requests.values()]
        assert sorted(places) == sorted(self._running), "in no or two places"
        for request in self._running.values():
            prefilling = request.placement in self.prefilling.requests
            assert request.blocks_laid == len(request.table) or prefilling, "a decoding request lacks blocks"
            assert request.restore is None or prefilling, "it decodes while it restores"
        assert min(self.prefilling.spare()) >= 0, "more blocks are promised than there are"
        self.tiers.check([*self.queue.waiting(), *self.parked.values()], self.running)
