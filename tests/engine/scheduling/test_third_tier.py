"""A third tier, kept in a dict as another machine's memory might be: one class in the list of tiers, and nothing else.

No module of the product knows its name. It is saved to, matched, read, purged and made to forget as the disk is.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from engine.scheduling.fairness.fair_share import FairShare
from engine.scheduling.request import Request
from engine.scheduling.saving import ON_DISK_S
from engine.scheduling.scheduler import Scheduler
from engine.scheduling.step_costs import FixedCosts, Rates
from engine.scheduling.tier import Tier, Transfer, look_in
from prompt_cache.kv.grouped_pool import GroupedPool
from prompt_cache.placement.fetch_or_recompute import TierRate
from prompt_cache.tiers.identity import ScopeAccess
from tests.engine.scheduling.replica_without_model import request

BLOCKS = 5
PROMPT = BLOCKS * 64 + 1


class DictTier(Tier):
    """Blocks by scope and key. Transfers end at once; no more are begun than there is room for."""

    def __init__(self, name: str, room: int = 4) -> None:
        self.name: Any = name
        self.rate = TierRate(0.0, 1e12)
        self.room = room
        self.kept: dict[tuple[str, bytes], Transfer] = {}
        self.reads = 0
        self._fetched: list[Transfer] = []
        self._saved: list[Transfer] = []

    @property
    def fetch_room(self) -> int:
        return self.room - len(self._fetched)

    @property
    def save_room(self) -> int:
        return 4 - len(self._saved)

    def holds(self, scope: str, key: bytes) -> bool:
        return (scope, key) in self.kept

    def fetch(self, transfer: Transfer) -> None:
        transfer.ok = self.holds(transfer.access.scope, transfer.key)
        self.reads += 1
        self._fetched.append(transfer)

    def save(self, transfer: Transfer) -> None:
        transfer.ok = True
        self.kept[transfer.access.scope, transfer.key] = transfer
        self._saved.append(transfer)

    def fetched(self) -> Sequence[Transfer]:
        ended, self._fetched = self._fetched, []
        return ended

    def saved(self) -> Sequence[Transfer]:
        ended, self._saved = self._saved, []
        return ended

    def purge(self, scope: str, keys: Collection[bytes]) -> None:
        self.kept = {block: kept for block, kept in self.kept.items() if block[0] != scope or block[1] not in keys}

    def forget(self, scope: str) -> None:
        self.kept = {block: kept for block, kept in self.kept.items() if block[0] != scope}


class ThreeTiers:
    """A scheduler with host memory, a disk and a remote tier behind it."""

    def __init__(self) -> None:
        self.disk, self.remote = DictTier("nvme"), DictTier("remote")
        costs = FixedCosts(Rates(step=100.0, uncached=1000.0, copied=1.0, batch=4))
        self.pool, self.dram = GroupedPool([(40, 0)]), GroupedPool([(40, 0)])
        self.scheduler = Scheduler(
            *(self.pool, 1000, 4, FairShare(costs)), costs=costs, dram=self.dram, tiers=(self.disk, self.remote)
        )
        self.scheduler.tiers.dram.introduce(ScopeAccess("scope", b"k" * 32, 1000.0))
        self.now, self.number = 1.0, 0

    def run(self) -> Request:
        """The prompt, from its queue to its end."""
        self.number += 1
        asked = request(self.number, PROMPT, 1, prefix="same")
        self.scheduler.add(asked)
        self.steps(lambda: asked.output >= 1)
        self.scheduler.remove(asked)
        self.steps(lambda: not self.scheduler.busy and all(saver.idle for saver in self.scheduler.tiers.savers))
        return asked

    def steps(self, until: Any) -> None:
        for _ in range(200):
            if until():
                return
            self.now += 0.01
            step = self.scheduler.schedule(self.now)
            self.scheduler.copied(step, [])
            self.scheduler.commit(step.work, [1 if work.samples else None for work in step.work])
            self.scheduler.check()
        raise AssertionError("it does not come to an end")

    def empty(self, *pools: GroupedPool) -> None:
        for pool in pools:
            pool.forget("scope")

    def saved(self) -> ThreeTiers:
        """A prompt that was read twice lies in every place."""
        self.run()
        self.run()
        assert len(self.disk.kept) == len(self.remote.kept) == BLOCKS
        return self


def test_blocks_are_read_from_the_nearest_place_that_has_them() -> None:
    bench = ThreeTiers().saved()
    for pools, name, tier in (
        ((bench.pool,), "dram", None),
        ((bench.pool, bench.dram), "nvme", bench.disk),
        ((bench.pool, bench.dram), "remote", bench.remote),
    ):
        bench.empty(*pools)
        if tier is bench.remote:
            bench.disk.kept.clear()
        asked = bench.run()
        assert asked.reads == {name: BLOCKS * 64}
        assert asked.computed + asked.read_tokens == PROMPT
        assert tier is None or tier.reads == BLOCKS
    assert bench.scheduler.tiers.restores.read_tokens == dict.fromkeys(("dram", "nvme", "remote"), BLOCKS * 64)
    bench.now += ON_DISK_S  # by then it is looked up again what the nearer tier has
    bench.run()
    bench.run()
    assert len(bench.disk.kept) == BLOCKS


def test_a_prompt_whose_blocks_lie_in_several_tiers_takes_each_from_its_own() -> None:
    bench = ThreeTiers().saved()
    bench.empty(bench.pool, bench.dram)
    asked_keys = request(0, PROMPT, 1, prefix="same").extend_keys(BLOCKS)
    bench.disk.purge("scope", asked_keys[:2])
    assert bench.run().reads == {"remote": 2 * 64, "nvme": 3 * 64}


def test_a_tier_without_room_keeps_nobody_waiting() -> None:
    bench = ThreeTiers().saved()
    bench.empty(bench.pool, bench.dram)
    bench.disk.kept.clear()
    bench.remote.room = 0
    asked = bench.run()
    assert (asked.reads, asked.computed) == ({}, PROMPT)


def test_a_purge_and_a_forget_reach_every_tier() -> None:
    bench = ThreeTiers().saved()
    keys = request(0, PROMPT, 1, prefix="same").extend_keys(BLOCKS)
    bench.scheduler.purge("scope", keys[-1:])
    assert len(bench.disk.kept) == len(bench.remote.kept) == BLOCKS - 1
    bench.scheduler.forget("scope")
    assert not bench.disk.kept
    assert not bench.remote.kept
    assert bench.run().computed == PROMPT


def test_prompts_are_looked_for_in_one_tier_after_the_other() -> None:
    """A tier that knows all that it holds is passed over; the last one says that all have looked."""

    class Looking(DictTier):
        def look(self, blocks: Any, looked: Any) -> bool:
            asked.append((self.name, looked))
            return True

    asked: list[tuple[str, Any]] = []
    done: list[bool] = []
    tiers = Looking("first"), DictTier("known"), Looking("last")
    assert look_in(tiers, lambda: [], lambda: done.append(True))
    assert [name for name, _ in asked] == ["first"]
    asked[0][1]()
    assert [name for name, _ in asked] == ["first", "last"]
    assert not done
    asked[1][1]()
    assert done == [True]
    assert not look_in((DictTier("known"),), lambda: [], lambda: done.append(True))
    assert done == [True]
