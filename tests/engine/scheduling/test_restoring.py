"""The scheduler with all its tiers, whatever may happen: blocks add up, counts are exact, work comes to an end."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from engine.scheduling.fairness.fair_share import FairShare
from engine.scheduling.request import Request
from engine.scheduling.scheduler import Scheduler
from engine.scheduling.step_costs import FixedCosts, Rates
from engine.scheduling.step_work import Step
from engine.scheduling.tier import Tier, Transfer
from engine.scheduling.token_sequence import TokenSequence
from prompt_cache.kv.block_keys import block_key
from prompt_cache.kv.grouped_pool import GroupedPool
from prompt_cache.placement.fetch_or_recompute import ComputeRate, FetchOrRecompute, Place, TierRate
from prompt_cache.tiers.identity import ScopeAccess
from protocol.requests import LANES, Sampling
from tests.fast import examples

SCOPES = {"a": b"root of a", "b": b"root of b"}


class ManualDisk(Tier):
    """A disk whose transfers end, and whose purges are made, when the test says so. It holds keys alone."""

    name: Place = "nvme"
    rate = TierRate(0.0005, 1e9)

    def __init__(self) -> None:
        self.keys: set[tuple[str, bytes]] = set()
        self.purges: list[tuple[str, set[bytes] | None]] = []
        """Scope and keys of those that were not made yet; None for all of a scope."""
        self.leased: set[tuple[str, bytes]] = set()
        self.fetching: list[Transfer] = []
        self.saving: list[Transfer] = []
        self._fetched: list[Transfer] = []
        self._saved: list[Transfer] = []

    @property
    def fetch_room(self) -> int:
        return 6 - len(self.fetching)

    @property
    def save_room(self) -> int:
        return 6 - len(self.saving)

    def holds(self, scope: str, key: bytes) -> bool:
        return (scope, key) in self.keys and not self._awaits_purge(scope, key)

    def _awaits_purge(self, scope: str, key: bytes) -> bool:
        return any(scope == purged and (keys is None or key in keys) for purged, keys in self.purges)

    def fetch(self, transfer: Transfer) -> None:
        assert self.holds(transfer.access.scope, transfer.key), "it reads what is gone, or will be purged"
        self.fetching.append(transfer)

    def lease(self, scope: str, key: bytes, until: float) -> None:
        assert not self._awaits_purge(scope, key), "it leases what will be purged"
        self.leased.add((scope, key))

    def save(self, transfer: Transfer) -> None:
        self.saving.append(transfer)

    def fetched(self) -> Sequence[Transfer]:
        ended, self._fetched = self._fetched, []
        return ended

    def saved(self) -> Sequence[Transfer]:
        ended, self._saved = self._saved, []
        return ended

    def purge(self, scope: str, keys: Collection[bytes]) -> None:
        self.purges.append((scope, set(keys)))

    def forget(self, scope: str) -> None:
        self.purges.append((scope, None))

    def make_purges(self) -> None:
        self.keys = {entry for entry in self.keys if self.holds(*entry)}
        self.purges = []

    def end_fetch(self, at: int, ok: bool) -> None:
        transfer = self.fetching.pop(at % len(self.fetching))
        transfer.ok = ok and (transfer.access.scope, transfer.key) in self.keys
        if not ok:
            self.keys.discard((transfer.access.scope, transfer.key))
            transfer.loss = "corrupted"
        self._fetched.append(transfer)

    def end_save(self, ok: bool) -> None:
        transfer = self.saving.pop(0)
        self.make_purges()  # they come before all that is saved
        transfer.ok = ok and not transfer.cancelled
        if transfer.ok:
            self.keys.add((transfer.access.scope, transfer.key))
        self._saved.append(transfer)


@dataclass
class Copying:
    """A step's copies, on their way."""

    step: Step
    bad: list[int] | None = None
    """Which came back damaged, once they were made."""

    def touches(self, blocks: set[int]) -> bool:
        """Whether these blocks of the device are among those copied."""
        out, back = self.step.out, self.step.back
        return self.bad is None and bool(
            blocks & {block[0] for block, _ in out} | blocks & {block[0] for _, block in back}
        )


class Tiers(RuleBasedStateMachine):
    """What is in a block of a tier is modelled by its number alone: `device` and `host` say what was written there.

    Copies are made as late as they may: when the scheduler is told, or when a step is about to write to their blocks.
    """

    def __init__(self) -> None:
        super().__init__()
        self.disk = ManualDisk()
        self.begin(24, 16, 0)

    @initialize(
        blocks=st.sampled_from([13, 20, 24]), host=st.sampled_from([6, 16, 40]), clean=st.sampled_from([0, 3, 40])
    )
    def begin(self, blocks: int, host: int, clean: int) -> None:
        self.disk = ManualDisk()
        self.pool = GroupedPool([(blocks, 0)])
        self.dram = GroupedPool([(host, 0)])
        costs = FixedCosts(Rates(step=100.0, uncached=10.0, copied=30.0, batch=4))
        self.scheduler = Scheduler(
            self.pool, 200, 4, FairShare(costs), costs=costs, dram=self.dram, tiers=(self.disk,), clean=clean
        )
        for scope in SCOPES:
            self.scheduler.tiers.dram.introduce(ScopeAccess(scope, scope.encode() * 32, 1000.0))
        self.now = 1.0
        self.alive: dict[int, Request] = {}
        self.number = 0
        self.damage: list[int] = []
        self.device: dict[int, tuple[int, ...]] = {}
        """Block of the device -> the tokens up to its end, whose KV it holds; likewise the host's."""
        self.host: dict[int, tuple[int, ...]] = {}
        self.records: dict[bytes, tuple[int, ...]] = {}
        self.storable: dict[str, list[Request]] = {}
        """Those that allow that their KV is stored, by scope."""
        self.copying: deque[Copying] = deque()
        self.lag = 0
        """Steps whose copies may still be on their way when a step ends."""

    # ------------------------------------------------------------ what comes

    @rule(
        prefix=st.integers(0, 1),
        length=st.sampled_from([1, 65, 129, 200, 330, 500, 500]),
        output=st.sampled_from([1, 2, 70, 130]),
        lane=st.sampled_from(LANES),
        scope=st.sampled_from("aaab"),
        store=st.sampled_from(["all", "all", "all", "hbm", "none"]),
        retain=st.sampled_from([0.0, 60.0, 4000.0]),
    )
    def add(self, prefix: int, length: int, output: int, lane: str, scope: str, store: str, retain: float) -> None:
        self.number += 1
        self.scheduler.tiers.dram.introduce(ScopeAccess(scope, scope.encode() * 32, 1000.0))
        self.alive[self.number] = request = Request(
            id=str(self.number),
            attempt=1,
            arrival=self.number,
            tokens=TokenSequence([prefix] * length),
            prompt=length,
            segments=((length, SCOPES[scope], scope),),
            root=b"model",
            sampling=Sampling(output),
            max_output=output,
            credit=1 << 30,
            lane=lane,  # type: ignore[arg-type]
            flow=scope,
            store=store,  # type: ignore[arg-type]
            retain=((length, self.now + retain),) if retain else (),
        )
        if store == "all":
            self.storable.setdefault(scope, []).append(request)
        self.scheduler.add(request)

    @precondition(lambda self: self.alive)
    @rule(at=st.integers(0, 99))
    def abort(self, at: int) -> None:
        request = self.alive.pop(sorted(self.alive)[at % len(self.alive)])
        self.scheduler.remove(request)
        self.counted(request)

    @precondition(lambda self: self.disk.fetching)
    @rule(at=st.integers(0, 9), ok=st.booleans())
    def read(self, at: int, ok: bool) -> None:
        transfer = self.disk.fetching[at % len(self.disk.fetching)]
        self.disk.end_fetch(at, ok)
        self.host[transfer.block[0]] = self.records.get(transfer.key, ()) if transfer.ok else (-1,)

    @precondition(lambda self: self.disk.saving)
    @rule(ok=st.booleans())
    def written(self, ok: bool) -> None:
        transfer = self.disk.saving[0]
        self.records[transfer.key] = self.host[transfer.block[0]]
        self.disk.end_save(ok)

    @rule(scope=st.sampled_from(sorted(SCOPES)))
    def forget(self, scope: str) -> None:
        self.scheduler.forget(scope)
        assert not self.dram.pools[0].held_by(scope)

    @precondition(lambda self: self.alive)
    @rule(at=st.integers(0, 99), first=st.integers(0, 7), count=st.integers(1, 4))
    def purge(self, at: int, first: int, count: int) -> None:
        """Also of what is on its way, either way."""
        request = self.alive[sorted(self.alive)[at % len(self.alive)]]
        keys = request.keys[first : first + count]
        self.scheduler.purge(request.segments[0][2], keys)
        assert not any(pool.find([key]) for pool in (self.pool, self.dram) for key in keys)

    @rule()
    def purge_on_disk(self) -> None:
        self.disk.make_purges()

    @rule(at=st.integers(0, 99))
    def damage_something(self, at: int) -> None:
        self.damage.append(at)

    @rule(seconds=st.sampled_from([0.001, 0.1, 3.0, 1500.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule(prefix=st.integers(0, 1), scope=st.sampled_from("aaab"), blocks=st.integers(1, 7))
    def left_by_an_earlier_start(self, prefix: int, scope: str, blocks: int) -> None:
        key = b"model"
        for index in range(blocks):
            tokens = [prefix] * 64
            key = block_key(SCOPES[scope], key, tokens)
            self.disk.make_purges()
            self.disk.keys.add((scope, key))
            self.records[key] = (scope, *tokens * (index + 1))  # type: ignore[assignment]

    @rule(times=st.integers(1, 40), answers=st.booleans(), lag=st.integers(0, 3))
    def steps(self, times: int, answers: bool, lag: int) -> None:
        self.lag = lag
        for _ in range(times):
            self.step()
            if answers and self.disk.fetching:
                self.read(0, True)
            if answers and self.disk.saving:
                self.written(True)

    # ------------------------------------------------------------ a step

    def step(self) -> None:
        self.now += 0.001
        step = self.scheduler.schedule(self.now)
        for _, host in step.out:
            self.host[host[0]] = (-3,)
        if step.copies:
            self.copying.append(Copying(step))
        while self.copying and (len(self.copying) > self.lag or not step.work or step.needs_copies):
            done = self.copying.popleft()
            self.copy(done)
            self.scheduler.copied(done.step, done.bad or [])
        for work in step.work:
            self.compute(work.request, work.start, work.count)
        self.scheduler.commit(step.work, [1 if work.samples else None for work in step.work])
        for work in step.work:
            if work.samples and work.request.output >= work.request.max_output:
                del self.alive[work.request.arrival]
                self.scheduler.remove(work.request)
                self.counted(work.request)
                assert work.request.counts().prompt == work.request.prompt
        self.scheduler.check()
        self.pool.check()
        for copying in self.copying:
            hosts = [host for _, host in copying.step.out] + [host for host, _ in copying.step.back]
            assert all(self.dram.pools[0].references(host[0]) for host in hosts), "freed while it is copied"
        if any(request.restore is not None and request.restore.came for request in self.scheduler.running):
            assert self.scheduler.busy, "nobody takes what came"

    def copy(self, copying: Copying) -> None:
        if copying.bad is not None:
            return
        copying.bad = []
        for device, host in copying.step.out:
            self.host[host[0]] = held = self.device.get(device[0], ())
            may_leave = any(
                tuple(request.tokens[: len(held) - 1]) == held[1:] for request in self.storable.get(str(held[0]), ())
            )
            assert may_leave, "it leaves the device, which nobody allowed"
        for index, (host, device) in enumerate(copying.step.back):
            if self.damage and self.damage.pop() % 2:
                copying.bad.append(index)
            self.device[device[0]] = (-2,) if index in copying.bad else self.host[host[0]]

    def compute(self, request: Request, start: int, count: int) -> None:
        """All that is read is the KV of the tokens before, in the request's own scope (C1, C2); then write."""
        tokens = tuple(request.tokens[: start + count])
        scope = request.segments[0][2]
        for index in range(start // 64):
            held = self.device[request.table[index][0]]
            assert held == (scope, *tokens[: (index + 1) * 64]), "it reads what is not its own prefix"  # type: ignore[comparison-overlap]
        written = range(start // 64, -(-(start + count) // 64))
        touched = {request.table[index][0] for index in written}
        while any(copying.touches(touched) for copying in self.copying):
            self.copy(next(copying for copying in self.copying if copying.bad is None))
        for index in written:
            self.device[request.table[index][0]] = (scope, *tokens[: min((index + 1) * 64, start + count)])  # type: ignore[assignment]

    def counted(self, request: Request) -> None:
        counts = request.counts()
        counts.check()
        assert counts.prompt <= request.prompt

    def teardown(self) -> None:
        self.lag = 0
        for _ in range(3000):
            if not self.alive and not self.disk.fetching and not self.disk.saving and not self.scheduler.busy:
                break
            self.now += 0.01
            while self.disk.fetching:
                self.read(0, True)
            while self.disk.saving:
                self.written(True)
            self.step()
        else:
            raise AssertionError("the work does not come to an end")
        self.step()
        assert self.pool.referenced_blocks == 0
        self.step()
        assert self.dram.referenced_blocks == 0


TestTiers = Tiers.TestCase
TestTiers.settings = settings(max_examples=examples(200), stateful_step_count=50, deadline=None)


def test_what_host_memory_has_no_room_for_is_not_waited_for():
    """A reserve that others fill is not taken for blocks that come from disk, and nothing makes room."""
    tiers = Tiers()
    tiers.pool = GroupedPool([(24, 0)])
    tiers.dram = GroupedPool([(6, 0)], block_bytes=[1])
    costs = FixedCosts(Rates(step=100.0, uncached=10.0, copied=30.0, batch=4))
    tiers.scheduler = Scheduler(
        tiers.pool, 1000, 4, FairShare(costs), costs=costs, dram=tiers.dram, tiers=(tiers.disk,)
    )
    tiers.dram.set_share("b", (6, 6))
    table = tiers.dram.allocate(6)
    for index in range(6):
        tiers.dram.publish(table, index, b"%d" % index, "b")
    tiers.dram.free(table)
    tiers.left_by_an_earlier_start(0, "a", 7)
    tiers.add(0, 500, 1, "standard", "a", "all", 0.0)
    tiers.step()
    assert not tiers.alive, "it waits for what cannot come"
    assert not tiers.disk.fetching
    assert tiers.dram.pools[0].held_by("b") == 6


def _with_a_disk(block_s: float, running: int = 20) -> Tiers:
    """Tiers whose disk reads a block in so many seconds; computing it takes 0.64 ms."""
    tiers = Tiers()
    costs = FixedCosts(Rates(step=100.0, uncached=10.0, copied=30.0, batch=running))
    rates: dict[Place, TierRate] = {"dram": TierRate(0.0, 1e15), "nvme": TierRate(0.0, (1 << 19) / block_s)}
    tiers.pool, tiers.dram = GroupedPool([(400, 0)]), GroupedPool([(100, 0)])
    tiers.scheduler = Scheduler(
        *(tiers.pool, 100_000, running, FairShare(costs)),
        costs=costs,
        dram=tiers.dram,
        tiers=(tiers.disk,),
        chooser=FetchOrRecompute(rates, ComputeRate(10e-6)),
    )
    return tiers


def test_restores_that_begin_together_count_on_each_others_computing() -> None:
    """The disk reads a block in half the time of its computation: one prompt alone computes a third, four do not."""
    for prompts, computes in ((1, True), (4, False)):
        tiers = _with_a_disk(320e-6)
        for prompt in range(prompts):
            tiers.left_by_an_earlier_start(prompt, "a", 7)
            tiers.add(prompt, 500, 1, "standard", "a", "all", 0.0)
        first = tiers.scheduler.schedule(tiers.now)
        assert any(work.count > 64 for work in first.work) == computes, prompts


def test_a_restore_counts_on_prompts_that_were_computed_before_it_came() -> None:
    """The disk takes twelve times as long as computing: fetching pays only beside others, who were there first."""
    for others, fetches in ((0, False), (12, True)):
        tiers = _with_a_disk(12 * 640e-6)
        for number in range(others):
            tiers.add(50 + number, 1500, 1, "standard", "b", "none", 0.0)
        if others:
            tiers.scheduler.schedule(tiers.now)
        tiers.left_by_an_earlier_start(1, "a", 7)
        tiers.add(1, 500, 1, "standard", "a", "all", 0.0)
        tiers.scheduler.schedule(tiers.now + 1)
        assert bool(tiers.disk.fetching) == fetches, others
