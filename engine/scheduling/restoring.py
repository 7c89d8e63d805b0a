"""Restoring: the KV of a request's prompt comes back from farther tiers while its front is computed.

A request with blocks restores when its prompt goes on in farther places after what was found on the device. Blocks come
from the tail: from the tiers behind host memory into that (`fetching`), from host memory into the request's own blocks
with the copies of steps, which are verified when they are done (C3). Until then nobody sees them; then the front, which
is computed from the other end, jumps over them (`join`), and they are published.

Nothing is waited for unconditionally: a restore that is slow or fails means that computing goes on. Each lane comes
before the next; within a lane flows take turns at each block (`flow_turns`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import TypeVar

from engine.scheduling.dram_tier import DramTier
from engine.scheduling.fetching import Fetches
from engine.scheduling.flow_turns import FlowTurns
from engine.scheduling.request import Request
from engine.scheduling.step_work import Step
from engine.scheduling.tier import BlockPlace, Tier
from prompt_cache.kv.block_keys import BLOCK_TOKENS
from prompt_cache.placement.fetch_or_recompute import FetchOrRecompute, Missing, Place, Plan

AnyPlace = TypeVar("AnyPlace", bound=BlockPlace)
MOST_COPIES = 4096
"""Blocks that are being copied back at once."""
PLAN_AGAIN_S = 0.005
"""A plan takes a tenth of a millisecond, a step that only copies not much more: none is made anew in each of them."""
TIMEOUT_MARGIN_S = 0.05
"""The least time that computing waits for a restore beyond the expected time. A first read may be slow, and computing a
chunk in vain costs more than waiting."""
TIMEOUT_MARGIN_PART = 0.05
"""The same margin as a part of the time that computing all the blocks would take. The longer of both applies."""


@dataclass(slots=True, eq=False)
class Restore:
    """What is on its way for one request: the blocks `first`..`end` of its table."""

    first: int
    end: int
    deadline: float = 0.0
    """Until when computing may be held back for it, in seconds since the Unix epoch."""
    late: bool = False
    """Whether that time has passed."""
    progress: bool = False
    """Whether something has come since the deadline was set."""
    pending: list[int] = field(default_factory=list)
    """Indices that are still to come. The last comes first."""
    sources: dict[int, Place] = field(default_factory=dict)
    """index -> the nearest place that had it when it was last looked for."""
    came: set[int] = field(default_factory=set)
    """Indices that came: verified, on the device, and not joined yet."""
    copying: set[int] = field(default_factory=set)
    """Indices that are being copied."""
    computing: int = 0
    """Blocks that are to be computed, from the front, by the latest plan."""
    limit: int = 0
    """Up to which token the front may be computed, by the latest plan."""
    plan_again: float = 0.0
    """When the next plan is due although nothing has come, in seconds since the Unix epoch."""
    planned: Mapping[Place, int] = field(default_factory=dict)
    """Blocks that were to be fetched from each place, in their order, when it began: the last ones of the table's."""

    @property
    def expected_tokens(self) -> int:
        """Tokens that are still expected to come, or have come and are not joined."""
        return (len(self.pending) + len(self.copying) + len(self.came)) * BLOCK_TOKENS


class Restorer:
    """All restores of a replica, from host memory (`dram`) and the `tiers` behind it, the nearest first.

    `joined`: called with a request when blocks have joined its KV. `chooser`: fetch or recompute. `block_bytes`: of a
    block in all layer groups.
    """

    def __init__(
        self,
        dram: DramTier,
        tiers: Sequence[Tier],
        joined: Callable[[Request], None],
        chooser: FetchOrRecompute,
        block_bytes: int,
    ) -> None:
        self.dram = dram
        self.tiers = tiers
        self.places: Sequence[BlockPlace] = (dram, *tiers)
        self.chooser = chooser
        self.block_bytes = block_bytes
        self.prefilling: Mapping[int, Request] = {}
        """The requests whose prompts are being computed, by placement: another's to keep."""
        self._wanted = (-1.0, 0, 0)
        """When these were last counted, how many they were, and the tokens that they wanted computed."""
        self.active: dict[int, Request] = {}
        """arrival -> restoring request"""
        self.fetches = Fetches(dram, tiers, block_bytes)
        self.read_tokens = Counter[Place]()
        """Prompt tokens read from each place since the start."""
        self._copies = 0
        """Blocks that are being copied back, also for who does not wait for them any more."""
        self.late = 0
        """Restores that were no longer waited for."""
        self._joined = joined
        self._copy_turns, self._fetch_turns = FlowTurns(), FlowTurns()
        self._now = 0.0

    # ------------------------------------------------------------ a restore's life

    def begin(self, request: Request, keys: Sequence[bytes], now: float) -> None:
        """The request was placed: see what of its prompt's further blocks lies in farther tiers, by their keys."""
        first = request.blocks_for(request.kv)
        for index in range(first, len(keys)):
            if self.fetches.tell(keys[index]):
                request.lost[index] = "corrupted"
        sources = self._reach(request, keys, first)
        end = first + len(sources)
        if end == first:
            return
        request.expect_restored(first, end)
        restore = Restore(first, end, pending=[*range(first, end)], sources=dict(enumerate(sources, first)))
        plan = self._plan(request, restore, restore.pending, now)
        if not plan.fetch:
            return
        fetched = sources[-plan.fetch :]
        restore.planned = {place.name: fetched.count(place.name) for place in self.places}
        restore.deadline = now + self._timeout(restore.pending, plan)
        request.restore = restore
        self.active[request.arrival] = request

    def blocks_beyond(self, request: Request, keys: Sequence[bytes], first: int) -> int:
        """How many blocks of these keys, from the block `first` on, could be restored now."""
        return len(self._reach(request, keys, first))

    def _reach(self, request: Request, keys: Sequence[bytes], first: int) -> list[Place]:
        """The nearest place of each block from `first` up to the first that no place has."""
        sources: list[Place] = []
        for index in range(first, len(keys)):
            place = _nearest(self.places, *request.block_key_and_scope(index))
            if place is None:
                break
            sources.append(place.name)
        return sources

    def drop(self, request: Request) -> None:
        """The request restores no more. What is being read for it goes to host memory all the same."""
        if request.restore is not None:
            request.restore = None
            del self.active[request.arrival]

    def prefetch(self, request: Request, keys: Sequence[bytes], now: float) -> None:
        """The next request to be admitted has to wait: meanwhile read its blocks into host memory."""
        if not any(tier.fetch_room > 0 for tier in self.tiers):
            return
        self._now = now
        for index, key in enumerate(keys):
            scope = request.block_key_and_scope(index)[1]
            if self.dram.on_device(key) or self.dram.holds(scope, key) or key in self.fetches:
                continue
            tier = _nearest(self.tiers, key, scope)
            if tier is None or not self._fetch(tier, scope, key):
                break

    # ------------------------------------------------------------ a step

    def advance(self, step: Step, now: float, most: int) -> None:
        """Take what came, join it, and let more come: at most `most` blocks in this step.

        Twice as many may be on their way, so that copies go on while a step waits for the end of the last ones.
        """
        self._now = now
        self._take_fetched()
        if not self.active:
            return
        for request in list(self.active.values()):
            self.join(request)
        most = min(self._copies + most, 2 * most, MOST_COPIES)
        self._copy_turns.take(
            self.active.values(), lambda: self._copies < most, lambda request: self._bring_one(request, step)
        )
        self._fetch_more()

    def copied(self, step: Step, bad: Iterable[int]) -> list[Request]:
        """The step's copies back are done; `bad`: indices of those that are damaged.

        Returns the requests that would compute with a damaged block: they must leave the step.
        """
        damaged = set(bad)
        spoiled: dict[int, Request] = {}
        for at, returned in enumerate(step.returns):
            restore = returned.restore
            if restore is not None:
                self._copies -= 1
                restore.copying.remove(returned.index)
            if at in damaged:
                self.dram.reject(returned.key)
                if returned.index in returned.request.lost:
                    returned.request.lost[returned.index] = "corrupted"
                if restore is None:
                    spoiled[returned.request.arrival] = returned.request
            elif restore is not None:
                # Nobody looks at it if the request has left meanwhile: its blocks are somebody else's then.
                restore.came.add(returned.index)
                restore.progress = True
        return list(spoiled.values())

    def join(self, request: Request) -> None:
        """Let the front jump over what has come, and end the restore if nothing more comes."""
        restore = request.restore
        assert restore is not None
        moved = False
        while request.kv % BLOCK_TOKENS == 0 and (index := request.kv // BLOCK_TOKENS) in restore.came:
            restore.came.remove(index)
            before = request.read_tokens
            request.restored(restore.sources[index])
            self.read_tokens[restore.sources[index]] += request.read_tokens - before
            moved = True
        front = request.blocks_for(request.kv)
        while restore.pending and restore.pending[0] < front:
            del restore.pending[0]
        if moved:
            self._joined(request)
        if restore.came and min(restore.came) < front:
            restore.came = {index for index in restore.came if index >= front}
        if not restore.pending and not restore.came and not restore.copying:
            request.restore = None
            del self.active[request.arrival]

    def front_limit(self, request: Request, now: float) -> int:
        """Up to which token the front of a restoring request may be computed now; its KV's length to wait."""
        restore = request.restore
        assert restore is not None
        coming = min([*restore.came, *restore.copying], default=restore.end)
        most = coming * BLOCK_TOKENS if restore.came or restore.copying else len(request.tokens)
        if not restore.pending or restore.pending[0] >= coming:
            return most
        if now >= restore.deadline:
            self._wait_no_longer(restore)
        if restore.late:
            return most
        if restore.progress or now >= restore.plan_again:
            pending = [index for index in restore.pending if index < coming]
            plan = self._plan(request, restore, pending, now)
            if restore.progress:
                restore.progress = False
                restore.deadline = now + self._timeout(pending, plan)
            restore.limit = (pending[0] + plan.compute) * BLOCK_TOKENS if plan.fetch else len(request.tokens)
            restore.plan_again = now + PLAN_AGAIN_S
        return min(restore.limit, most)

    @property
    def next_deadline(self) -> float | None:
        """When computing goes on without what has not come, in seconds since the Unix epoch."""
        restores = (request.restore for request in self.active.values())
        return min((each.deadline for each in restores if each is not None and not each.late), default=None)

    def cancel(self, purged: Callable[[bytes, str], bool]) -> None:
        """What is being read or copied back of the blocks of these keys and scopes must not be found. It is as if they
        had never been kept."""
        self.fetches.cancel(purged)
        for request in list(self.active.values()):
            restore = request.restore
            assert restore is not None
            indices = (*restore.pending, *restore.copying, *restore.came)
            if any(purged(*request.block_key_and_scope(index)) for index in indices):
                for index in indices:
                    request.lost.pop(index, None)
                self.drop(request)

    # ------------------------------------------------------------ inside

    def _plan(self, request: Request, restore: Restore, pending: Sequence[int], now: float) -> Plan:
        """How many of these blocks to compute, from the front, and how many to fetch."""
        if self._wanted[:2] != (now, len(self.prefilling)):  # once for all that ask in a step
            self._wanted = now, len(self.prefilling), sum(one.wanted_tokens for one in self.prefilling.values())
        _, sharers, others = self._wanted
        if request.restore is not None:  # then it is one of them
            sharers, others = sharers - 1, others - request.wanted_tokens
        places = [restore.sources[index] for index in pending]
        runs = tuple((place, len(list(run))) for place, run in groupby(places))
        missing = Missing(pending[0] * BLOCK_TOKENS, runs, BLOCK_TOKENS, self.block_bytes)
        reading = {
            tier.name: min(len(self.chooser.pieces(tier.name)), places.count(tier.name)) * self.block_bytes
            for tier in self.tiers
        }
        plan = self.chooser.plan(missing, now, waiting_tokens=max(0, others), sharers=max(0, sharers), reading=reading)
        restore.computing = plan.compute
        return plan

    def _timeout(self, pending: Sequence[int], plan: Plan) -> float:
        """For how many seconds computing waits for these blocks. Then it goes on without those that are missing."""
        missing = Missing(pending[0] * BLOCK_TOKENS, (), BLOCK_TOKENS, self.block_bytes)
        alone = self.chooser.compute_seconds(missing, len(pending))
        return max(plan.late_s, plan.seconds + max(TIMEOUT_MARGIN_S, TIMEOUT_MARGIN_PART * alone))

    def _wait_no_longer(self, restore: Restore) -> None:
        """Computing goes on. What still comes is used where the front has not got to yet."""
        if not restore.late:
            self.late += 1
            restore.late = True

    def _bring_one(self, request: Request, step: Step) -> bool:
        """Copy the last block that lies in host memory; whether there was one."""
        restore = request.restore
        if restore is None:
            return False
        for place in range(len(restore.pending) - 1, -1, -1):
            index = restore.pending[place]
            source = self.dram.find(request.keys[index])
            if source is not None:
                del restore.pending[place]
                restore.copying.add(index)
                self._copies += 1
                self.dram.copy_back(request, index, source, step)
                return True
        return False

    def _fetch_more(self) -> None:
        """Begin to read what is in the tiers, from the tails; give up what is in no place any more."""
        gone: dict[int, list[int]] = {arrival: [] for arrival in self.active}
        further = {arrival: self._unread(request, gone[arrival]) for arrival, request in self.active.items()}
        # What is gone is looked for without room as well, up to the first block that could be read.
        unread = {arrival: next(blocks, None) for arrival, blocks in further.items()}

        def fetch(request: Request) -> bool:
            block, blocks, restore = unread[request.arrival], further[request.arrival], request.restore
            while block is not None and request.keys[block[0]] in self.fetches:  # another request's, just now
                block = next(blocks, None)
            if block is None or restore is None:
                return False
            index, tier = block
            if not self._fetch(tier, *request.block_key_and_scope(index)[::-1]):
                return False
            restore.sources[index] = tier.name
            unread[request.arrival] = next(blocks, None)
            return True

        self._fetch_turns.take(self.active.values(), lambda: any(tier.fetch_room > 0 for tier in self.tiers), fetch)
        for request in list(self.active.values()):
            restore = request.restore
            assert restore is not None
            for index in gone[request.arrival]:
                restore.pending.remove(index)
                request.lost.pop(index, None)
            if unread[request.arrival] is not None and not self.fetches and not self._copies:
                self._wait_no_longer(restore)  # nothing is on its way that will make room
            self.join(request)

    def _unread(self, request: Request, gone: list[int]) -> Iterator[tuple[int, Tier]]:
        """The blocks that are to be read from a tier (index, tier), from the tail; those that are nowhere go to
        `gone`."""
        assert request.restore is not None
        for index in request.restore.pending[::-1]:
            key, scope = request.block_key_and_scope(index)
            if key not in self.fetches and not self.dram.holds(scope, key):
                if (tier := _nearest(self.tiers, key, scope)) is not None:
                    yield index, tier
                else:
                    gone.append(index)

    def _fetch(self, tier: Tier, scope: str, key: bytes) -> bool:
        return tier.fetch_room > 0 and self.fetches.begin(tier, scope, key, self._now, self.chooser)

    def _take_fetched(self) -> None:
        """Take what was read, and let nobody wait for what did not come."""
        losses = self.fetches.end(self.chooser)
        for request in self.active.values() if losses else ():
            if (restore := request.restore) is not None:
                restore.pending = [index for index in restore.pending if request.keys[index] not in losses]
                for key in request.lose(losses):
                    self.fetches.tell(key)


def _nearest(places: Sequence[AnyPlace], key: bytes, scope: str) -> AnyPlace | None:
    """The first place that seems to have the block."""
    return next((place for place in places if place.holds(scope, key)), None)
