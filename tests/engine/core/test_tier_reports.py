"""What is told of tiers: what was read where, what was planned, and why a block was missing."""

from __future__ import annotations

from pathlib import Path

import pytest

from prompt_cache.placement.fetch_or_recompute import ComputeRate, FetchOrRecompute, Place, TierRate
from prompt_cache.tiers.identity import StoreIdentity
from protocol.requests import Lost
from tests.engine.conftest import SCOPES, generate, make_bench
from tests.engine.core.tier_bench import (
    BLOCKS,
    LENGTH,
    OUTPUT,
    check,
    cold,
    fetch_all,
    keys_of,
    prompt,
    save,
    until,
)
from tests.engine.memory_store import MemoryStore
from tests.prompt_cache.tiers.stores import opened, record_paths
from tests.waiting import LONG_S


def test_began_plans_what_is_to_be_fetched_and_the_first_token_tells_what_was(tiny_model: Path, store: MemoryStore):
    save(make_bench(tiny_model, swap=16, store=store), store)
    bench = make_bench(tiny_model, swap=16, store=store)
    size = bench.engine.scheduler.tiers.restores.block_bytes
    rates: dict[Place, TierRate] = {"dram": TierRate(0.0, 1e12), "nvme": TierRate(0.0, size / 0.1)}
    bench.engine.scheduler.tiers.restores.chooser = FetchOrRecompute(rates, ComputeRate(0.1 / 64))
    store.gate.clear()  # and then the disk is throttled
    run = bench.add(generate("warm", prompt(), OUTPUT))
    bench.step()
    assert run.began is not None
    planned = run.began.counts
    assert planned.read == planned.read_nvme
    assert 64 <= planned.read_nvme < BLOCKS * 64, "the front is computed"
    while not run.tokens:
        bench.now += 0.5
        bench.step()
    assert run.prompt is not None
    assert (run.prompt.counts.read, run.prompt.counts.computed) == (0, LENGTH)
    assert run.prompt.lost == (Lost(0, BLOCKS * 64, "late"),)
    store.gate.set()
    bench.finish()


def test_what_computing_is_quicker_for_is_planned_so(tiny_model: Path, store: MemoryStore):
    save(make_bench(tiny_model, swap=16, store=store), store)
    bench = make_bench(tiny_model, swap=16, store=store)
    rates: dict[Place, TierRate] = {"dram": TierRate(0.0, 1.0), "nvme": TierRate(0.0, 1.0)}
    bench.engine.scheduler.tiers.restores.chooser = FetchOrRecompute(rates, ComputeRate(1e-6))
    run = bench.one(generate("warm", prompt(), OUTPUT))
    assert run.began is not None
    assert run.prompt is not None
    assert (run.began.counts.read, bench.counts("warm").read) == (0, 0)
    assert run.prompt.lost == (Lost(0, BLOCKS * 64, "late"),)


@pytest.mark.parametrize("prefetched", [False, True])
def test_a_record_that_fails_its_check_is_told(tiny_model: Path, store: MemoryStore, prefetched: bool):
    save(make_bench(tiny_model, swap=16, store=store), store)
    bench = make_bench(tiny_model, swap=16, running=1, store=store)
    restores = bench.engine.scheduler.tiers.restores
    fast: dict[Place, TierRate] = {"dram": TierRate(0.0, 1e12), "nvme": TierRate(0.0, 1e12)}
    restores.chooser = FetchOrRecompute(fast, ComputeRate(1.0))
    keys = bench.engine.input_processor.accept(generate("x", prompt()), SCOPES).first.extend_keys(BLOCKS)
    store.damaged.add(keys[2])
    if prefetched:
        before = bench.add(generate("before", prompt(64, 5), 100))
        until(lambda: before.tokens, bench)
    run = bench.add(generate("warm", prompt(), OUTPUT))
    until(lambda: restores.fetches.failed["nvme"], bench)
    bench.finish()
    check(run, cold(tiny_model))
    assert run.prompt is not None
    assert run.prompt.lost == (Lost(128, 192, "corrupted"),)
    again = bench.one(generate("again", prompt(), 1))
    assert again.prompt is not None
    assert again.prompt.lost == ()


def test_each_that_waits_for_a_damaged_block_is_told(tiny_model: Path, store: MemoryStore):
    save(make_bench(tiny_model, swap=16, store=store), store)
    bench = make_bench(tiny_model, swap=16, store=store)
    fetch_all(bench)
    store.damaged.add(keys_of(bench)[2])
    store.gate.clear()
    runs = [bench.add(generate(id, prompt(), OUTPUT)) for id in ("one", "two", "three")]
    until(lambda: len(bench.engine.scheduler.tiers.restores.active) == len(runs), bench)
    store.gate.set()
    bench.finish()
    for run in runs:
        check(run, cold(tiny_model))
        assert run.prompt is not None
        assert run.prompt.lost == (Lost(128, 192, "corrupted"),)


@pytest.mark.parametrize(("what", "lost"), [("gone", ()), ("late", (Lost(128, 192, "late"),))])
def test_what_is_not_damaged_is_not_called_so(tiny_model: Path, store: MemoryStore, what: str, lost: tuple[Lost, ...]):
    """It was evicted, or it expired, before it was read; or the disk took too long."""
    save(make_bench(tiny_model, swap=16, store=store), store)
    bench = make_bench(tiny_model, swap=16, store=store)
    fetch_all(bench)
    key = keys_of(bench)[2]
    store.gate.clear()
    run = bench.add(generate("warm", prompt(), OUTPUT))
    until(lambda: len(bench.engine.scheduler.tiers.restores.fetches) == BLOCKS, bench)
    if what == "gone":
        del store.records["project", key]
    else:
        store.late.add(key)
    store.gate.set()
    bench.finish()
    check(run, cold(tiny_model))
    assert run.prompt is not None
    assert run.prompt.lost == lost


def test_a_bit_that_flipped_on_disk_is_told(tiny_model: Path, tmp_path: Path):
    groups = tuple(memory.group for memory in make_bench(tiny_model).engine.runner.memories)
    identity = StoreIdentity("model", "numerics", groups)
    with opened(tmp_path, identity=identity) as store:
        bench = make_bench(tiny_model, swap=16, store=store)
        bench.one(generate("first", prompt(), 1))
        bench.one(generate("second", prompt(), 1))
        keys = bench.engine.input_processor.accept(generate("x", prompt()), SCOPES).first.extend_keys(BLOCKS)
        until(lambda: all(store.holds("project", key, (0,)) for key in keys), bench)
        record = record_paths(tmp_path, identity)[0]
        sealed = bytearray(record.read_bytes())
        sealed[-1] ^= 1
        record.write_bytes(sealed)
        after = make_bench(tiny_model, swap=16, store=store)
        fast: dict[Place, TierRate] = {"dram": TierRate(0.0, 1e12), "nvme": TierRate(0.0, 1e12)}
        after.engine.scheduler.tiers.restores.chooser = FetchOrRecompute(fast, ComputeRate(1.0))
        run = after.one(generate("warm", prompt(), OUTPUT))
        check(run, cold(tiny_model))
        assert run.prompt is not None
        assert run.prompt.counts.read_nvme == (BLOCKS - 1) * 64
        assert [(lost.end - lost.start, lost.cause) for lost in run.prompt.lost] == [(64, "corrupted")]
        for engine in (bench.engine, after.engine):
            engine.close(LONG_S)
