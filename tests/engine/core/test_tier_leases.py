"""Leases and tiers: what is kept longer for them on the device and on disk, and who renews it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from engine.execution.disk_tier import SAVES
from engine.scheduling.saving import ON_DISK_S
from protocol.requests import Retain
from tests.engine.conftest import generate, make_bench
from tests.engine.core.tier_bench import (
    BLOCKS,
    HOUR,
    LENGTH,
    flood,
    hold_up_saves,
    keys_of,
    prompt,
    save,
    until,
)
from tests.engine.memory_store import MemoryStore


def test_a_long_lease_goes_to_disk_at_once(tiny_model: Path, store: MemoryStore):
    bench = make_bench(tiny_model, swap=16, store=store)
    bench.one(generate("leased", prompt(), 1, retain=(Retain(130, HOUR),)))
    until(lambda: bench.engine.scheduler.tiers.savers[0].idle, bench)
    assert len(store.records) == 130 // 64
    first, second = store.records
    assert store.before == {first: None, second: first}, "eviction on disk takes the end of a prompt first"


def test_a_lease_on_disk_is_renewed_by_who_reads_it(
    tiny_model: Path, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
):
    """No more often than once a minute, where it ends later by no more than that."""
    bench = make_bench(tiny_model, swap=16, store=store)
    saver = bench.engine.scheduler.tiers.savers[0]
    assert saver is not None
    tell, told = saver.tier.lease, Counter[float]()

    def told_of(scope: str, key: bytes, until: float) -> None:
        told[until] += 1
        tell(scope, key, until)

    monkeypatch.setattr(saver.tier, "lease", told_of)
    leased = [("project", key) for key in keys_of(bench)[: 200 // 64]]

    def read(id: str, until_s: float) -> None:
        bench.one(generate(id, prompt(), 1, retain=(Retain(200, until_s),)))

    read("first", 300.0)
    read("second", 310.0)
    until(lambda: len(store.records) == BLOCKS and bench.engine.scheduler.tiers.savers[0].idle, bench)
    assert {store.leases[block] for block in leased} == {310.0}
    assert [end for block, end in store.leases.items() if block not in leased] == [0.0] * (BLOCKS - len(leased))
    bench.now = 1.0 + ON_DISK_S
    read("third", 400.0)
    until(lambda: {store.leases[block] for block in leased} == {400.0}, bench)
    read("fourth", 401.0)
    until(lambda: not saver.wishes, bench)
    bench.now = 2 * (1.0 + ON_DISK_S)
    read("fifth", 500.0)
    until(lambda: {store.leases[block] for block in leased} == {500.0}, bench)
    assert store.writes == BLOCKS
    assert told == dict.fromkeys((310.0, 400.0, 500.0), len(leased))


@pytest.mark.parametrize("lease_s", [400.0, 24 * HOUR])
@pytest.mark.parametrize("room", [None, SAVES, 1])
def test_a_longer_lease_is_told_to_the_disk_whoever_read_before(
    tiny_model: Path, store: MemoryStore, monkeypatch: pytest.MonkeyPatch, room: int | None, lease_s: float
):
    """The first readers of the minute had none. The blocks are on disk, or on their way (`room`: so many at once), and
    nobody reads them again."""
    monkeypatch.setattr("engine.execution.disk_tier.SAVES", room or SAVES)
    bench = make_bench(tiny_model, swap=16, store=store)
    saver = bench.engine.scheduler.tiers.savers[0]
    assert saver is not None
    if room is None:
        save(bench, store)
    else:
        store.write_gate.clear()
        bench.one(generate("first", prompt(), 1))
        bench.one(generate("second", prompt(), 1))
        until(lambda: store.writes == 1 and len(saver.blocks()) == min(room, BLOCKS), bench)
    for id, end in (("leases", lease_s), ("shorter", 300.0)):
        bench.one(generate(id, prompt(), 1, retain=(Retain(LENGTH, end),)))
        until(lambda: room == 1 or not saver.wishes, bench)
    store.write_gate.set()
    until(lambda: saver.idle, bench)
    until(lambda: set(store.leases.values()) == {lease_s}, bench)
    assert store.writes == BLOCKS


def test_of_leases_that_wait_to_be_told_the_longest_is(tiny_model: Path, store: MemoryStore):
    bench = make_bench(tiny_model, blocks=24, swap=24, store=store)
    saver = bench.engine.scheduler.tiers.savers[0]
    assert saver is not None
    save(bench, store)
    hold_up_saves(bench, store)
    for id, end in (("day", 24 * HOUR), ("minutes", 400.0)):
        bench.now += ON_DISK_S
        bench.one(generate(id, prompt(), 1, retain=(Retain(LENGTH, end),)))
        until(lambda: not saver.wishes, bench)
    store.write_gate.set()
    until(lambda: saver.idle, bench)
    until(lambda: {store.leases["project", key] for key in keys_of(bench)} == {24 * HOUR}, bench)


@pytest.mark.parametrize("how", ["found", "taken over", "restored"])
def test_who_reads_renews_the_lease_on_the_device(tiny_model: Path, how: str):
    """Its blocks outlive those that were read later without a lease, after the end of the first lease."""
    bench = make_bench(tiny_model, blocks=16, running=2, budget=512, swap=32)
    if how == "restored":
        bench.one(generate("leased", prompt(), 1))
        flood(bench)
    elif how == "found":
        bench.one(generate("leased", prompt(), 1, retain=(Retain(LENGTH, 300.0),)))
    else:
        bench.add(generate("leased", prompt(), 1))
    bench.now += 200.0
    bench.one(generate("renewed", prompt(), 1, retain=(Retain(LENGTH, 500.0),)))
    if how == "restored":
        assert bench.counts("renewed").read_dram == BLOCKS * 64
    else:
        assert bench.counts("renewed").read_hbm == BLOCKS * 64
    bench.now += 200.0
    bench.one(generate("other", prompt(seed=1), 1))
    bench.one(generate("other again", prompt(seed=1), 1))
    bench.one(generate("flood", prompt(640, 9), 1, store="hbm"))
    assert bench.engine.pool.evictions >= BLOCKS
    assert len(bench.engine.pool.find(keys_of(bench))) == BLOCKS
