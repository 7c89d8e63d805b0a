"""What may not be stored, or no longer: retention (C5), limits, what is forgotten and purged in every tier."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from engine.core.metrics import memory_load
from engine.execution.disk_tier import DiskTier
from engine.execution.pending_purges import MOST_BLOCKS, MOST_OF_ALL
from protocol.replicas import TierLimit
from protocol.requests import Retain, Segment
from tests.engine.conftest import SCOPES, Run, generate, make_bench
from tests.engine.core.tier_bench import (
    BLOCKS,
    HOUR,
    LENGTH,
    OUTPUT,
    check,
    cold,
    dram_load,
    flood,
    hold_up_saves,
    keys_of,
    prompt,
    purge_by,
    save,
    until,
)
from tests.engine.memory_store import MemoryStore
from tests.waiting import LONG_S


@pytest.mark.parametrize("store_policy", ["hbm", "none"])
def test_no_store_leaves_nothing_beyond_the_device(tiny_model: Path, store: MemoryStore, store_policy: str):
    bench = make_bench(tiny_model, blocks=8, running=1, budget=512, swap=16, store=store)
    bench.one(generate("a", prompt(), 1, store=store_policy, retain=(Retain(LENGTH, HOUR),)))
    bench.one(generate("b", prompt(), 1, store=store_policy))
    flood(bench)
    bench.engine.close(1.0)
    assert not store.records
    assert dram_load(bench).cached == 0


def test_without_retention_nothing_leaves_the_device(tiny_model: Path, store: MemoryStore):
    bench = make_bench(tiny_model, blocks=8, running=1, budget=512, swap=16, store=store)
    scopes = {name: msgspec.structs.replace(scope, retention=0.0) for name, scope in SCOPES.items()}
    for id in "ab":
        bench.runs[id] = Run()
        bench.engine.add(generate(id, prompt(), 1), scopes)
        bench.finish()
    flood(bench)
    bench.engine.close(1.0)
    assert not store.records
    assert dram_load(bench).cached == 0


@pytest.mark.parametrize(
    ("retention", "data_key", "kept"),
    [(0.0, b"k" * 32, False), (60.0, b"k" * 32, False), (3600.0, b"k" * 32, True), (0.0, b"", True)],
    ids=["none", "shorter", "as before", "unknown"],
)
def test_a_shorter_retention_reaches_what_is_stored(
    tiny_model: Path, store: MemoryStore, retention: float, data_key: bytes, kept: bool
):
    """At once, without a request (C5). A gateway that cannot read the project's key knows nothing of its retention."""
    bench = make_bench(tiny_model, blocks=8, running=1, budget=512, swap=16, store=store)
    save(bench, store)
    flood(bench)
    assert dram_load(bench).cached > 0
    bench.engine.introduce(msgspec.structs.replace(SCOPES["project"], retention=retention, data_key=data_key))
    assert (dram_load(bench).cached > 0) == kept
    bench.engine.introduce(msgspec.structs.replace(SCOPES["project"], data_key=b"k" * 32))
    assert (dram_load(bench).cached > 0) == kept
    bench.engine.close(LONG_S)
    assert bool(store.records) == kept


def test_what_an_earlier_start_wrote_is_shortened(tiny_model: Path, store: MemoryStore):
    bench = make_bench(tiny_model, swap=16, store=store)
    bench.engine.introduce(msgspec.structs.replace(SCOPES["other"], data_key=b""))
    bench.engine.introduce(msgspec.structs.replace(SCOPES["project"], retention=7.0))
    bench.engine.close(LONG_S)
    assert store.shortened == {"project": 7.0}


def test_a_block_that_comes_again_stays_as_long_as_is_allowed_now(tiny_model: Path):
    bench = make_bench(tiny_model, blocks=8, running=1, budget=512, swap=16)
    bench.one(generate("cold", prompt(), 1))
    flood(bench)
    scopes = {name: msgspec.structs.replace(scope, retention=10.0) for name, scope in SCOPES.items()}
    bench.runs["again"] = Run()
    bench.engine.add(generate("again", prompt(), 1), scopes)
    bench.finish()
    bench.runs["flood"] = Run()
    bench.engine.add(generate("flood", prompt(500, 100), 1, store="hbm"), scopes)
    bench.finish()
    assert dram_load(bench).cached == BLOCKS
    bench.now += 10.0
    bench.step()
    assert dram_load(bench).cached == 0


@pytest.mark.parametrize("how", ["forget", "purge"])
def test_what_is_forgotten_is_gone_from_every_tier(tiny_model: Path, store: MemoryStore, how: str):
    bench = make_bench(tiny_model, blocks=8, running=1, budget=512, swap=16, store=store)
    save(bench, store)
    flood(bench)
    assert dram_load(bench).cached > 0
    freed: list[int] = []
    pool = bench.engine.scheduler.tiers.dram.pool
    assert pool is not None
    pool.pools[0]._on_free = freed.append
    if how == "forget":
        bench.engine.forget("project")
    else:
        keys = bench.engine.input_processor.accept(generate("x", prompt()), SCOPES).first.extend_keys(BLOCKS)
        bench.engine.purge("project", keys)
    assert len(freed) == BLOCKS
    until(lambda: not store.records, bench)
    check(bench.one(generate("again", prompt(), OUTPUT)), cold(tiny_model))
    assert bench.counts("again").read == 0


@pytest.mark.parametrize("how", ["purge", "forget", "shorten"])
def test_what_is_purged_is_found_nowhere_from_then_on(tiny_model: Path, store: MemoryStore, how: str):
    """Also while the disk has not heard of it yet, as it is still busy with what was to be saved before."""
    bench = make_bench(tiny_model, blocks=16, running=1, budget=512, swap=16, store=store)
    save(bench, store)
    keys = keys_of(bench)
    hold_up_saves(bench, store)
    purge_by(bench, how, keys)
    assert set(store.records) >= {("project", key) for key in keys}, "the disk has not purged it yet"
    for id in ("again", "and again"):
        bench.one(generate(id, prompt(), 1, read=id == "again", store="hbm"))
        assert (bench.counts(id).read_nvme, bench.counts(id).read_dram) == (0, 0)
    assert bench.counts("again").computed == LENGTH
    store.write_gate.set()
    until(lambda: not {("project", key) for key in keys} & set(store.records), bench)
    flood(bench)
    check(bench.one(generate("later", prompt(), OUTPUT)), cold(tiny_model))
    assert bench.counts("later").computed == LENGTH


@pytest.mark.parametrize("how", ["purge", "forget"])
def test_a_purge_is_on_the_disk_before_what_waits_to_be_saved(tiny_model: Path, store: MemoryStore, how: str):
    """A process that dies until then forgets it. What was to be saved of it is not written any more."""
    bench = make_bench(tiny_model, blocks=16, running=1, budget=512, swap=16, store=store)
    store.write_gate.clear()
    for id in ("first", "second"):
        bench.one(generate(id, prompt(), 1))
    saver = bench.engine.scheduler.tiers.savers[0]
    assert saver is not None
    until(lambda: len(saver.blocks()) == BLOCKS and store.writes == 1, bench)
    bench.one(generate("other", prompt(seed=1), 1))
    bench.one(generate("other again", prompt(seed=1), 1))
    purge_by(bench, how, keys_of(bench))
    store.write_gate.set()
    until(lambda: saver.idle, bench)
    assert store.written_before_purge == 1
    assert not {("project", key) for key in keys_of(bench)} & set(store.records)
    assert not saver.dropped


def test_what_is_computed_again_after_a_purge_is_saved_again(tiny_model: Path, store: MemoryStore):
    bench = make_bench(tiny_model, blocks=16, running=1, budget=512, swap=16, store=store)
    save(bench, store)
    store.write_gate.clear()
    purge_by(bench, "purge", keys_of(bench))
    for id in ("third", "fourth"):
        bench.one(generate(id, prompt(), 1))
    store.write_gate.set()
    until(lambda: store.writes == 2 * BLOCKS and bench.engine.scheduler.tiers.savers[0].idle, bench)
    assert set(store.records) == {("project", key) for key in keys_of(bench)}


def test_a_block_that_is_purged_while_it_is_read_is_not_used(tiny_model: Path, store: MemoryStore):
    """Nobody hears of it either: it was damaged, and is not kept any more."""
    save(make_bench(tiny_model, swap=16, store=store), store)
    bench = make_bench(tiny_model, swap=16, store=store)
    keys = keys_of(bench)
    store.damaged.add(keys[2])
    store.gate.clear()
    bench.add(generate("first", prompt(), 1))
    until(lambda: bench.engine.scheduler.tiers.restores.fetches, bench)
    purge_by(bench, "purge", keys)
    store.gate.set()
    until(lambda: not bench.engine.scheduler.tiers.restores.fetches, bench)
    bench.finish()
    bench.engine.pool.purge(keys)
    again = bench.one(generate("again", prompt(), OUTPUT))
    check(again, cold(tiny_model))
    assert again.prompt is not None
    assert (again.prompt.counts.computed, again.prompt.lost) == (LENGTH, ())
    assert dram_load(bench).referenced == 0


def test_more_purges_than_are_remembered_hide_the_whole_scope(store: MemoryStore):
    """Until they were made, which deletes it. Another scope does not notice."""
    disk = DiskTier(store, (), ())
    for scope in ("purged", "other"):
        store.records |= {(scope, b"%d" % number): {} for number in range(MOST_BLOCKS + 2)}
    disk.close(LONG_S)  # the writer is away
    disk.purge("purged", [b"%d" % number for number in range(MOST_BLOCKS)])
    assert [disk.holds("purged", b"%d" % number) for number in (0, MOST_BLOCKS - 1, MOST_BLOCKS)] == [
        False,
        False,
        True,
    ]
    disk.purge("purged", [b"%d" % MOST_BLOCKS])
    assert not disk.holds("purged", b"%d" % (MOST_BLOCKS + 1))
    assert disk.holds("other", b"0")


def test_purges_of_one_scope_hide_no_other(store: MemoryStore):
    """A scope that is purged as a whole is one that has the most blocks to be purged."""
    disk = DiskTier(store, (), ())
    disk.close(LONG_S)  # the writer is away
    keys = [b"%d" % number for number in range(MOST_BLOCKS)]
    scopes = [str(number) for number in range(MOST_OF_ALL // MOST_BLOCKS)]
    store.records |= {(scope, b"kept"): {} for scope in (*scopes, "small")}
    disk.purge(scopes[0], keys[1:])
    disk.purge("small", keys[:2])
    assert all(disk.holds(scope, b"kept") for scope in (scopes[0], "small"))
    for scope in scopes[1:]:
        disk.purge(scope, keys)
    assert [disk.holds(scope, b"kept") for scope in scopes].count(False) == 1
    assert disk.holds("small", b"kept")
    disk.purge("small", keys[2:4])
    assert disk.holds("small", b"kept")


def test_dram_is_kept_no_longer_than_its_retention(tiny_model: Path):
    bench = make_bench(tiny_model, blocks=8, running=1, budget=512, swap=16)
    bench.one(generate("cold", prompt(), 1))
    flood(bench)
    assert dram_load(bench).cached == BLOCKS
    due = bench.engine.next_deadline
    assert due is not None
    bench.now = due
    bench.step()
    assert dram_load(bench).cached == 0


def test_a_scope_holds_no_more_of_a_memory_than_its_limit(tiny_model: Path):
    bench = make_bench(tiny_model, blocks=8, running=1, budget=512, swap=16)
    for pool in (bench.engine.pool, bench.engine.scheduler.tiers.dram.pool):
        assert pool is not None
        pool._block_bytes = [memory.group.block_bytes for memory in bench.engine.runner.memories]
    size = bench.engine.runner.memories[0].group.block_bytes
    limits = (TierLimit("hbm", 0, 2 * size), TierLimit("dram", 0, size))
    scopes = {name: msgspec.structs.replace(scope, limits=limits) for name, scope in SCOPES.items()}
    bench.runs["limited"] = Run()
    bench.engine.add(generate("limited", prompt(), OUTPUT), scopes)
    bench.finish()
    check(bench.runs["limited"], cold(tiny_model))
    bench.step()
    assert memory_load(bench.engine)[0].cached <= 2
    assert dram_load(bench).cached <= 1
    check(bench.one(generate("again", prompt(), OUTPUT)), cold(tiny_model))


def test_a_request_that_fails_takes_what_it_read_from_every_scope(tiny_model: Path, store: MemoryStore):
    """Its numbers were not finite, and what it read may be the cause: also a prefix that projects share."""
    segments = (Segment(128, "public"), Segment(LENGTH, "project"))
    bench = make_bench(tiny_model, swap=16, store=store)
    for id in ("first", "second"):
        bench.one(generate(id, prompt(), 1, segments=segments))
    until(lambda: len(store.records) == BLOCKS and bench.engine.scheduler.tiers.savers[0].idle, bench)
    assert {scope for scope, _ in store.records} == {"public", "project"}
    bench.engine.runner.memories[0].data[:] = float("nan")
    bench.one(generate("reader", prompt(), 1, segments=segments))
    done = bench.runs["reader"].done
    assert done is not None
    assert done.reason == "error"
    until(lambda: not store.records, bench)
