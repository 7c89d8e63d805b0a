"""Continuous batching with chunked prefill: each step decodes every running request and prefills with the rest.

The order of requests is the policy's (`policy`, `fairness`); this module holds the token budget, slots and KV blocks.

- Token budget: a step has at most `budget` tokens. Prefill beside decodes is limited further by measured costs
  (`step_costs`), so that the time between two tokens stays within the target of the decoding lanes.
- Admission: a request is admitted when the step has tokens left for its prefill, a slot is free, and there are blocks
  for all its tokens and one more (`block_needs`). Prefill therefore never runs out of memory; only a decoding request
  can need another block.
- Tiers: published blocks that leave the device go to host memory (`dram_tier`) and from there to disk (`saving`).
  A prompt that goes on there is restored from the tail while its front is computed (`restoring`).
- Preemption: without a free block, the policy's victim gives its blocks back. Its KV is copied to host memory or
  recomputed, whichever is cheaper (`dram_tier`). A request that has not produced a token since it got its blocks is
  not preempted, so two requests cannot preempt each other for ever.

The work of a step is proportional to what changed: decoding requests stay in one batch (`decode_batch`), and the queue
is looked at again only after a request came, ended or gave blocks back.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from engine.scheduling.block_needs import BlockNeeds
from engine.scheduling.decode_batch import DecodeBatch
from engine.scheduling.disk import Disk
from engine.scheduling.dram_tier import DramTier
from engine.scheduling.policy import Capacity, FirstComeFirstServed, Policy
from engine.scheduling.request import Request
from engine.scheduling.restoring import BLOCK_BYTES, Restorer, first_guess
from engine.scheduling.saving import Saver
from engine.scheduling.step_costs import FixedCosts, StepCosts
from engine.scheduling.step_work import Prefill, Step, Work
from prompt_cache.kv.block_keys import BLOCK_TOKENS
from prompt_cache.kv.grouped_pool import Block, GroupedPool
from prompt_cache.placement.fetch_or_recompute import FetchOrRecompute
from protocol.requests import Lane

TOKEN_TARGETS: Mapping[Lane, float] = {"interactive": 100_000.0, "standard": 200_000.0, "batch": 1_000_000.0}
"""Target of the time between two tokens by lane, in µs. A step whose decodes alone take longer misses it."""
_LEASES_EVERY_S = 1.0
_COPIES_SHARE = 0.1
"""The part of that time that copies of restored blocks may take beside decodes."""


class Scheduler:
    """Owns the queue, the running requests and their blocks. Requests come in already validated.

    `pool`: the KV blocks on the device; `dram`: blocks in host memory, None for no such tier; `disk`: the tier beyond,
    which needs `dram`. `budget`: tokens a step. `max_running`: slots. `targets`: µs between two tokens by lane.
    `chooser`: fetch or recompute, by `block_bytes` of a block in all layer groups. Raises ValueError for a budget that
    is too small.
    """

    def __init__(
        self,
        pool: GroupedPool,
        budget: int,
        max_running: int,
        policy: Policy | None = None,
        *,
        costs: StepCosts | None = None,
        targets: Mapping[Lane, float] = TOKEN_TARGETS,
        dram: GroupedPool | None = None,
        disk: Disk | None = None,
        chooser: FetchOrRecompute | None = None,
        block_bytes: int = BLOCK_BYTES,
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
        self.dram = DramTier(dram, pool)
        disk = None if self.dram.index is None else disk
        chooser = chooser or first_guess(self.costs.rates, block_bytes)
        self.restores = Restorer(self.dram, disk, self._joined, chooser, block_bytes)
        self.saver = None if disk is None else Saver(self.dram, disk)
        self.capacity = Capacity(max_running, self.needs.longest or max(group.total for group in pool.pools))
        self.batch = DecodeBatch(max_running)
        self.parked: dict[int, Request] = {}
        """arrival -> request without blocks and out of credit. It is queued when credit comes."""
        self.preemptions = 0
        self._running: dict[int, Request] = {}
        """arrival -> request with blocks. Each is in the decode batch or in one of the next three dictionaries."""
        self._prefills: dict[int, Request] = {}
        """placement -> request whose prompt is being computed."""
        self._starved: dict[int, Request] = {}
        """arrival -> decoding request whose next token needs a block."""
        self._paused: dict[int, Request] = {}
        """arrival -> decoding request that is out of credit."""
        self._now = 0.0
        self._leases_looked_at = 0.0
        self.waits = False
        """Whether the last step had nothing to do but to wait for blocks that are being restored."""
        self._placements = 0
        self._changed = False
        """Whether the queue must be looked at again: something changed since its first request was not admitted."""
        self._spare = [0] * len(pool.pools)
        """Spare blocks of each layer group when the queue's first request was not admitted."""

    # ------------------------------------------------------------ requests in and out

    def add(self, request: Request) -> None:
        """Queue a request."""
        if request.paused:
            self.parked[request.arrival] = request
        else:
            self._push(request)

    def remove(self, request: Request) -> None:
        """Remove a request wherever it is, and free its blocks at once (E4)."""
        if request.arrival in self.parked:
            del self.parked[request.arrival]
        elif request.table:
            self._release(request)
        else:
            self.queue.remove(request)
            if self.queue.protects_awaited_blocks:
                self.pool.dismiss(self._wanted(request))
            self._changed = True
        self.dram.drop(request)

    def credited(self, request: Request) -> None:
        """The request has new credit: queue it or let it decode if it was waiting for that."""
        if request.paused:
            return
        if self.parked.pop(request.arrival, None) is not None:
            self._push(request)
        elif self._paused.pop(request.arrival, None) is not None:
            self._decode(request)

    @property
    def running(self) -> Collection[Request]:
        """The requests with blocks."""
        return self._running.values()

    @property
    def waiting(self) -> int:
        """Requests without blocks."""
        return len(self.queue) + len(self.parked)

    @property
    def busy(self) -> bool:
        """Whether a step would do any work."""
        if self.batch.rows or self._starved:
            return True
        if (self._prefills or len(self.queue)) and not self.waits:
            return True
        return self.saver is not None and self.saver.pending

    @property
    def next_deadline(self) -> float | None:
        """When a step is due though nothing happens: blocks that did not come, or may stay no longer."""
        return min((at for at in (self.restores.next_deadline, self.dram.next_expiry) if at is not None), default=None)

    # ------------------------------------------------------------ a step

    def schedule(self, now: float = 0.0) -> Step:
        """Choose the next step's work and allocate the blocks for it. `now`: seconds since the Unix epoch."""
        step = Step()
        self._now = now
        if self.dram.pool is not None:
            self.dram.begin(step, now)
            if self.saver is not None:
                self.saver.begin()
        if now >= self._leases_looked_at + _LEASES_EVERY_S:
            self._leases_looked_at = now
            self.pool.expire(now)
            if self.dram.pool is not None:
                self.dram.pool.expire(now)
        next_may_differ = self.queue.begin_step(now)
        if self._starved:
            self._grow(step)
        if len(self.queue) and (next_may_differ or self._changed or self._prefills or self._has_more_blocks()):
            self._admit(step)
        elif len(self.queue) and self.queue.claims_due:
            self._admit_claimants(step)
        if self.dram.pool is not None:
            self._restore(step)
        step.work = self.batch.works()
        if self._prefills:
            self._prefill(step)
        if self.dram.pool is not None:
            if self.saver is not None and self.saver.wishes:
                self.saver.advance(self.costs.rates, alone=not step.work)
            self.dram.end()
            self.waits = not (step.work or step.back or step.out or step.began) and bool(self.restores.active)
        return step

    def copied(self, step: Step, bad: Collection[int]) -> None:
        """The step's copies are done. `bad`: indices of `step.back` whose blocks came back damaged.

        A request that would compute with such a block leaves the step, and recomputes it.
        """
        for request in self.restores.copied(step, bad) if step.returns else ():
            if request.table:
                step.work = [work for work in step.work if work.request is not request]
                self._release(request)
                self.add(request)

    def commit(self, works: Sequence[Work], tokens: list[int | None], put_off: Collection[int] = ()) -> None:
        """Account for finished work: count tokens, publish filled blocks, append sampled tokens.

        `works`: in the order of the step, without failed ones, whose requests have been removed. `tokens`: what each
        sampled, None where it samples nothing. `put_off`: arrivals of requests that could not sample yet; their last
        token is computed again in a later step.
        """
        decodes = len(self.batch)
        prefills = list(zip(works[decodes:], tokens[decodes:], strict=True)) if len(works) > decodes else []
        if prefills:
            works, tokens = works[:decodes], tokens[:decodes]
        if put_off:
            delayed = [work.request for work in works if work.request.arrival in put_off]
            sampled = [entry for entry in zip(works, tokens, strict=True) if entry[0].request.arrival not in put_off]
            works, tokens = [work for work, _ in sampled], [token for _, token in sampled]
            for request in delayed:
                self.batch.leave(request)
        # Before the finished prompts join the batch: they have their first token already.
        self._attend(self.batch.advance(works, tokens))  # type: ignore[arg-type]  # a decode samples
        for work, token in prefills:
            self._prefilled(work, token, again=work.request.arrival in put_off)
        if put_off:
            for request in delayed:
                self._decode(request)

    # ------------------------------------------------------------ decoding

    def _attend(self, due: Sequence[Request]) -> None:
        """Handle decoding requests that have filled a block, spent their credit, or repaid their preemption debt."""
        for request in due:
            length = request.tokens.flush()
            self._fill(request, length - 1)
            if not request.debt_repaid and request.has_recovered:
                self._changed = True
            if length - request.prompt >= request.credit:
                self.batch.leave(request)
                self._pause(request)
            elif len(request.table) * BLOCK_TOKENS >= length:
                self.batch.plan(request, length)
            else:
                self._starved[request.arrival] = request

    def _decode(self, request: Request) -> None:
        """Let a request whose prompt is computed decode, or wait for credit or for a block."""
        if request.paused:
            self._pause(request)
        elif self._has_room(request):
            self.batch.join(request)
        else:
            self._starved[request.arrival] = request

    def _pause(self, request: Request) -> None:
        self._paused[request.arrival] = request
        self._changed = True

    def _has_room(self, request: Request) -> bool:
        return len(request.table) * BLOCK_TOKENS >= len(request.tokens)

    def _grow(self, step: Step) -> None:
        """Give each starved request a block, the oldest first, preempting where none is left."""
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
        """Append one block to each request, which then decodes."""
        step.fresh += blocks
        self.queue.grown(requests)
        for request, block in zip(requests, blocks, strict=True):
            table = request.table
            table.append(block)
            request.blocks_laid += 1
            if request.slot >= 0:
                # All its blocks are full, and one token has none.
                self.batch.plan(request, (len(table) - 1) * BLOCK_TOKENS + 1)
            else:
                self.batch.join(request)

    def _make_way(self, request: Request, step: Step) -> bool:
        """Preempt until a block is free for the request. False if none can be freed or the request was preempted."""
        while min(self.needs.spare(self._prefills.values())) < 1:
            victim = self.queue.victim(other for other in self._running.values() if other.fresh_output > 0)
            if victim is None or (victim is request and self.queue.victim(self._running.values()) is not request):
                return False  # the proper victim has made no progress yet: wait a step for it
            self._preempt(victim, step)
            if victim is request:
                return False
        return True

    # ------------------------------------------------------------ blocks that must go

    def purge(self, scope: str, keys: Collection[bytes]) -> None:
        """Make blocks unfindable in every tier, those that are on their way too."""
        gone = set(keys)
        self.pool.purge(gone)
        self.dram.purge(gone)
        self._cancel(lambda key, _: key in gone)
        if self.restores.disk is not None:
            self.restores.disk.purge(scope, tuple(gone))

    def forget(self, scope: str) -> None:
        """Make all blocks of a scope unfindable in every tier, and zero those in host memory."""
        self.pool.forget(scope)
        self.dram.forget(scope)
        self._cancel(lambda _, of: of == scope)
        if self.restores.disk is not None:
            self.restores.disk.forget(scope)

    def _cancel(self, purged: Callable[[bytes, str], bool]) -> None:
        self.restores.cancel(purged)
        if self.saver is not None:
            self.saver.cancel(purged)

    def save_only(self, now: float) -> Step:
        """A step that only copies out what is to be saved: for a clean stop, when nothing else is done any more."""
        step = Step()
        self.dram.begin(step, now)
        if self.saver is not None:
            self.saver.begin()
            self.saver.advance(self.costs.rates, alone=True)
        self.dram.end()
        return step

    # ------------------------------------------------------------ restoring

    def _restore(self, step: Step) -> None:
        """Let blocks of farther tiers come to the requests that wait for them."""
        restores = self.restores
        if restores.active or restores.fetches:
            rates = self.costs.rates
            most = 1 << 30
            if len(self.batch):
                target = min(self.targets[lane] for lane, rows in self.batch.lanes.items() if rows)
                most = max(1, int(target * _COPIES_SHARE / max(rates.copied, 1.0)))
            restores.sharers = max(0, len(self._prefills) - 1)
            restores.advance(step, self._now, most)
            if self.saver is not None and restores.came:
                self.saver.on_disk(restores.came)

    def _joined(self, request: Request) -> None:
        """Restored blocks have joined a request's KV: publish them."""
        self._fill(request, request.kv)
        self.queue.restored(request)

    # ------------------------------------------------------------ prefill

    def _room(self) -> int:
        """How many tokens may be prefilled in this step: beside decodes at least a block, so that prompts advance."""
        decodes = len(self.batch)
        left = self.budget - decodes
        if decodes:
            target = min(self.targets[lane] for lane, rows in self.batch.lanes.items() if rows)
            left = int(min(left, max(BLOCK_TOKENS, self.costs.prefill_within(target, decodes))))
        return left

    def _prefill(self, step: Step) -> None:
        """Fill the step with prompt chunks in the policy's order. A chunk ends at a block's or the prompt's end."""
        pending = list(self._prefills.values())
        left = self._room()
        single_tokens: list[Work] = []
        chunks: list[Work] = []
        begun: set[bytes] = set()
        while pending:
            request = self.queue.next_prefill(pending)
            if request is None:
                break
            if not self._leads(request, begun):
                pending.remove(request)
                continue
            total = len(request.tokens)
            end = min(total, request.kv + min(left, self.needs.chunk))
            if request.restore is not None:
                end = min(end, self.restores.front_limit(request, self._now))
                if end <= request.kv:
                    pending.remove(request)
                    continue
            if end < total:
                end -= end % BLOCK_TOKENS
            if end <= request.kv:
                break
            self._allocate_window_blocks(request, len(request.table) if end == total else request.blocks_for(end), step)
            work = Prefill(request, request.kv, end - request.kv, samples=end == total)
            (single_tokens if work.count == 1 else chunks).append(work)
            left -= work.count
            pending.remove(request)
            self.queue.prefilled(request, work.count)
        step.work = [*step.work, *single_tokens, *chunks]

    def _leads(self, request: Request, begun: set[bytes]) -> bool:
        """Whether a prompt's next block is this request's to compute: identical prompts that come together are computed
        once. `begun`: keys of the blocks at which other prompts go on in this step; whoever waits for one of them takes
        it over when it is published, or computes it if nobody does any more.
        """
        first = request.kv // BLOCK_TOKENS
        if request.restore is not None or request.kv % BLOCK_TOKENS or self.pool.slides or request.store == "none":
            return True
        wanted = self._wanted(request)[first:]
        found = self.pool.find(wanted)
        if found:
            self._take_over(request, first, found)
        if len(found) == len(wanted):
            return True
        key = wanted[len(found)]
        leads = key not in begun
        begun.add(key)
        return leads

    def _take_over(self, request: Request, first: int, found: list[Block]) -> None:
        """Use blocks that others have published instead of the request's own."""
        self.pool.share(found)
        own = request.table[first : first + len(found)]
        request.table[first : first + len(found)] = found
        self.pool.free(own)
        for _ in found:
            request.restored("hbm")
        request.published += len(found)
        self.queue.restored(request)

    def _allocate_window_blocks(self, request: Request, until: int, step: Step) -> None:
        """Allocate the next chunk's blocks in layer groups with a window, out of those promised at admission."""
        if until > request.blocks_laid:
            step.fresh += self.pool.allocate_window_blocks(request.table, request.blocks_laid, until, request.kv)
            request.blocks_laid = until

    def _prefilled(self, work: Work, token: int | None, *, again: bool) -> None:
        """Account for a computed chunk. `again`: its last token is computed again, as nothing was sampled."""
        request = work.request
        end = work.start + work.count - again
        request.count_computed(end)
        self._fill(request, end)
        if token is not None:
            request.tokens.append(token)
            if request.restore is not None:
                self.restores.drop(request)
            del self._prefills[request.placement]
            self._decode(request)

    def _fill(self, request: Request, kv: int) -> None:
        """Publish the blocks that the first `kv` tokens fill, and free those that left the sliding window."""
        full = kv // BLOCK_TOKENS
        if full > request.published and request.store != "none":
            guarded = self.dram.index is not None
            for index in range(request.published, full):
                key, scope = request.block_key_and_scope(index)
                if guarded:
                    self.dram.publishing(request, key)
                self.pool.publish(request.table, index, key, scope)
            if request.retain:
                self._retain(request, full)
            request.published = full
        if self.pool.slides:
            self.pool.slide(request.table, kv)

    def _retain(self, request: Request, full: int) -> None:
        """Tell the tiers for how long the blocks that are published now, up to `full`, are wanted."""
        for tokens, until in request.retain:
            keys = request.keys[request.published : min(full, tokens // BLOCK_TOKENS)]
            if keys and until > self._now:
                self.pool.retain(keys, until)
        if self.saver is not None:
            self.saver.published(request, request.published, full, self._now)

    # ------------------------------------------------------------ admission

    def _push(self, request: Request) -> None:
        self.queue.push(request)
        if self.queue.protects_awaited_blocks:
            self.pool.expect(self._wanted(request))
        self._changed = True

    def _admit(self, step: Step) -> None:
        """Admit requests while they fit into the step, the slots and the memory."""
        room, full, all_but_one = self._room(), False, self.max_running - 1
        while (request := self.queue.peek(self._matched_tokens, len(self._running) >= all_but_one)) is not None:
            # A request is admitted only when its prefill would start now: until then others may overtake it.
            full = self._prefill_before(request) >= room
            if full:
                self._prefetch(request)
                break
            if not self._make_room(request, step):
                self._prefetch(request)
                self._admit_claimants(step)
                break
            self._take(request, step)
        self._changed = full  # the next step has room again, whatever else happens
        self._spare = self.needs.spare(self._prefills.values())

    def _admit_claimants(self, step: Step) -> None:
        """Admit requests for which the policy preempts others of their lane (shares of slots and memory, G6)."""
        room = self._room()
        while self.queue.claims_due and (request := self._claim(room, step)) is not None:
            self._take(request, step)

    def _prefetch(self, request: Request) -> None:
        """The first request of the queue has to wait: let what of it is on disk come nearer."""
        if self.saver is not None and request.read:
            self.restores.prefetch(request, self._wanted(request), self._now)

    def _take(self, request: Request, step: Step) -> None:
        self.queue.admitted(request)
        self._place(request, step)
        if self.queue.protects_awaited_blocks:
            self.pool.dismiss(self._wanted(request))
        self.queue.placed(request)

    def _has_more_blocks(self) -> bool:
        """Whether more blocks are available than when the queue's first request was not admitted; no prefill runs."""
        return any(pool.available > before for pool, before in zip(self.pool.pools, self._spare, strict=True))

    def _prefill_before(self, request: Request) -> int:
        """Prompt tokens of running requests that are computed before those of this waiting request."""
        if not self._prefills:
            return 0
        left = len(request.tokens) - self._cached_tokens(request)
        before = self.queue.prefills_before(request, left, list(self._prefills.values()))
        return sum(other.to_compute for other in before)

    def _make_room(self, request: Request, step: Step) -> bool:
        """Whether the request fits, after preempting requests that are out of credit or outranked."""
        while not self._fits(request):
            # A request without credit cannot decode, so its slot and memory go to those that can.
            victim = self.queue.victim(self._paused.values())
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
        """Preempt for the first claim that can be met; returns its request, None if no claim can."""
        for request, victims in self.queue.claims(self.capacity):
            if self._prefill_before(request) >= room:
                continue
            chosen: list[Request] = []
            for victim in victims:
                chosen.append(victim)
                if self._would_fit(request, chosen):
                    self.queue.displaced(request, chosen)
                    for preempted in chosen:
                        self._preempt(preempted, step)
                    # Blocks shared with others were counted as freed: if they were not, a later claim tries again.
                    return request if self._fits(request) else None
        return None

    def _cached_tokens(self, request: Request) -> int:
        """How many of its tokens have KV on the device, or in farther tiers behind that."""
        keys = self._wanted(request)
        found = len(self.pool.find(keys))
        if self.dram.index is not None and found < len(keys):
            found += self.restores.blocks_beyond(request, keys, found)
        return found * BLOCK_TOKENS

    def _matched_tokens(self, request: Request) -> int:
        return len(self._matched(request)) * BLOCK_TOKENS

    def _matched(self, request: Request) -> list[Block]:
        """The cached blocks of its longest known prefix."""
        return self.pool.find(self._wanted(request))

    def _wanted(self, request: Request) -> list[bytes]:
        """The keys of the blocks that it may read. The last token is never read: its logits are needed."""
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
        """Whether there would be a slot and enough blocks for the request if the requests `without` were preempted."""
        if len(self._running) - len(without) >= self.max_running:
            return False
        spare = self.needs.spare(other for other in self._prefills.values() if other not in without)
        return self.needs.fit(
            request, [left + more for left, more in zip(spare, self.needs.freed(without), strict=True)]
        )

    def _place(self, request: Request, step: Step) -> None:
        """Give an admitted request a slot and its blocks: cached ones, swapped ones, new ones."""
        matched = self._matched(request)
        self.pool.share(matched)
        found, tokens, copies = len(matched), len(matched) * BLOCK_TOKENS, 0.0
        if request.swapped:
            tokens = max(tokens, request.swapped_tokens)
            copies = self.dram.cost(request.swapped, self.costs.rates)
            self.pool.slide(matched, tokens)
        table = matched + self.pool.begin(request.blocks_for(len(request.tokens) + 1) - found)
        if request.swapped:
            # Blocks that had left the window were not kept in the swap space, and must not be published either.
            self.pool.allocate_window_blocks(table, found, request.blocks_for(tokens), tokens)
            self.dram.bring_back(request, table, found, step)
        request.place(table, found, tokens, copies)
        if self.dram.index is not None and request.read:
            self._begin_restore(request, found)
        step.fresh += table[found:]
        self._placements += 1
        request.placement = self._placements
        if not request.began:
            request.began = True
            step.began.append(request)
        self._running[request.arrival] = request
        self._prefills[request.placement] = request

    def _begin_restore(self, request: Request, found: int) -> None:
        """See what farther tiers have of a placed request's prompt, beyond the `found` blocks on the device."""
        wanted = self._wanted(request)
        if found:
            self.dram.reads(request, wanted[:found])
        if request.blocks_for(request.kv) < len(wanted):
            self.restores.begin(request, wanted, self._now)
        if self.saver is not None and not request.began:
            self.saver.used(request, found if request.restore is None else request.restore.end)

    # ------------------------------------------------------------ giving way

    def _preempt(self, request: Request, step: Step) -> None:
        """Take a request's blocks and queue it again. Its KV is kept in the swap space or recomputed later."""
        self.dram.keep(request, self.costs.rates, step)
        self._release(request)
        self.preemptions += 1
        self.add(request)

    def _release(self, request: Request) -> None:
        self._changed = True
        if request.slot >= 0:
            self.batch.leave(request)
        self._prefills.pop(request.placement, None)
        self._starved.pop(request.arrival, None)
        self._paused.pop(request.arrival, None)
        self.restores.drop(request)
        del self._running[request.arrival]
        self.queue.released(request)
        self.pool.free(request.table)
        request.release_blocks()

    def check(self) -> None:
        """Raise AssertionError unless every running request is in exactly one place and blocks add up. For tests."""
        places = [
            [work.request.arrival for work in self.batch.rows],
            [request.arrival for request in self._prefills.values()],
            list(self._paused),
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
            ready = request.placement not in self._prefills
            assert request.blocks_laid == len(request.table) or not ready, "a decoding request lacks blocks"
        assert min(self.needs.spare(self._prefills.values())) >= 0, "more blocks are promised than there are"
        transfers = self.restores.blocks() + ([] if self.saver is None else self.saver.blocks())
        self.dram.check([*self.queue.waiting(), *self.parked.values()], transfers)
        restoring = [request for request in self._running.values() if request.restore is not None]
        assert {request.arrival for request in restoring} == set(self.restores.active), (
            "a restore of nobody, or unknown"
        )
        assert all(request.placement in self._prefills for request in restoring), "it decodes while it restores"
        assert all(request.paused for request in self._paused.values()), "a request is paused in spite of its credit"
