"""KV in DRAM and on disk: cold equals warm to the bit (C2), what comes back is verified (C3)."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch

from engine.core.metrics import engine_metrics
from engine.execution.block_copies import BlockCopies
from engine.scheduling.saving import ON_DISK_S, REFUSED_S
from prompt_cache.placement.fetch_or_recompute import ComputeRate, FetchOrRecompute, Place, TierRate
from protocol.requests import Retain
from tests.engine.conftest import SCOPES, generate, make_bench
from tests.engine.core.tier_bench import (
    BLOCKS,
    LENGTH,
    OUTPUT,
    check,
    cold,
    dram_load,
    flood,
    prompt,
    save,
    until,
)
from tests.engine.memory_store import MemoryStore
from tests.fast import only_fast


@pytest.mark.parametrize("budget", only_fast(65, 512, of=[65, 130, 200, 300, 512]))
def test_what_left_the_device_comes_back_from_dram(tiny_model: Path, budget: int):
    bench = make_bench(tiny_model, blocks=8, running=1, budget=budget, swap=16)
    check(bench.one(generate("cold", prompt(), OUTPUT)), cold(tiny_model))
    flood(bench)
    check(bench.one(generate("warm", prompt(), OUTPUT)), cold(tiny_model))
    counts = bench.counts("warm")
    assert (counts.read_dram, counts.computed, counts.read_hbm) == (BLOCKS * 64, LENGTH - BLOCKS * 64, 0)
    began = bench.runs["warm"].began
    assert began is not None
    assert began.counts.read_dram == counts.read_dram
    check(bench.one(generate("again", prompt(), OUTPUT)), cold(tiny_model))
    assert bench.counts("again").read_hbm == BLOCKS * 64


def test_what_was_written_ahead_is_evicted_without_a_copy(tiny_model: Path, monkeypatch: pytest.MonkeyPatch):
    assert make_bench(tiny_model, swap=24).engine.scheduler.tiers.writer is None, "a step would take longer for it"
    monkeypatch.setattr(BlockCopies, "beside", True)
    bench = make_bench(tiny_model, blocks=12, running=1, swap=24)
    check(bench.one(generate("first", prompt(), OUTPUT)), cold(tiny_model))
    for seed in (1, 2):
        bench.one(generate(f"{seed}", prompt(seed=seed), OUTPUT))
        bench.finish()
    assert bench.engine.pool.evictions >= 4
    metrics = engine_metrics(bench.engine)
    assert metrics["turnpike_engine_dram_blocks_entered_total"] == 0
    assert metrics["turnpike_engine_dram_blocks_written_ahead_total"] >= 4
    written = metrics["turnpike_engine_dram_blocks_written_ahead_total"]
    assert dram_load(bench).cached == written, "they count in both tiers: they take room in both"
    check(bench.one(generate("warm", prompt(), OUTPUT)), cold(tiny_model))
    assert bench.counts("warm").read_dram >= 4 * 64
    assert bench.counts("warm").read == BLOCKS * 64, "each token is read once"


@pytest.mark.parametrize("budget", only_fast(65, of=[65, 130, 200, 300, 512]))
def test_a_prompt_that_was_read_twice_survives_a_restart(tiny_model: Path, store: MemoryStore, budget: int):
    save(make_bench(tiny_model, swap=16, store=store), store)
    after = make_bench(tiny_model, swap=16, running=1, budget=budget, store=store)
    check(after.one(generate("warm", prompt(), OUTPUT)), cold(tiny_model))
    counts = after.counts("warm")
    assert counts.read_nvme > 0
    assert (counts.read_hbm, counts.read_dram) == (0, 0)
    assert counts.prompt == LENGTH


def test_a_prompt_that_is_read_once_does_not_go_to_disk(tiny_model: Path, store: MemoryStore):
    bench = make_bench(tiny_model, swap=16, store=store)
    bench.one(generate("once", prompt(), 1, retain=(Retain(LENGTH, 60.0),)))
    bench.finish()
    assert not store.records
    bench.engine.close(5.0)
    assert len(store.records) == BLOCKS, "what is retained is saved at a clean stop"
    assert store.closed


def test_what_the_disk_lost_is_saved_again(tiny_model: Path, store: MemoryStore):
    """Its records were evicted, or expired: that they were there once says nothing."""
    bench = make_bench(tiny_model, swap=16, store=store)
    save(bench, store)
    store.records.clear()
    bench.now += ON_DISK_S
    bench.one(generate("later", prompt(), 1))
    until(lambda: bench.engine.scheduler.tiers.savers[0].idle and len(store.records) > 0, bench)
    assert len(store.records) == BLOCKS


def test_what_a_full_disk_refused_is_saved_when_it_has_room(tiny_model: Path, store: MemoryStore):
    bench = make_bench(tiny_model, swap=16, store=store)
    store.full = True
    for id in ("first", "second", "third"):
        bench.one(generate(id, prompt(), 1))
        until(lambda: bench.engine.scheduler.tiers.savers[0].idle, bench)
    assert store.writes == BLOCKS, "it is not asked again at once"
    store.full = False
    bench.now += REFUSED_S
    bench.one(generate("later", prompt(), 1))
    until(lambda: len(store.records) == BLOCKS, bench)


@pytest.mark.parametrize("missing", only_fast(0, 2, of=range(BLOCKS)))
def test_with_any_block_gone_or_damaged(tiny_model: Path, store: MemoryStore, missing: int):
    save(make_bench(tiny_model, swap=16, store=store), store)
    bench = make_bench(tiny_model, swap=16, store=store)
    keys = bench.engine.input_processor.accept(generate("x", prompt()), SCOPES).first.extend_keys(BLOCKS)
    store.damaged.add(keys[missing])
    check(bench.one(generate("warm", prompt(), OUTPUT)), cold(tiny_model))
    assert 0 < bench.counts("warm").read_nvme < BLOCKS * 64
    assert engine_metrics(bench.engine)["turnpike_engine_nvme_fetches_failed_total"] <= 1


def test_beside_eight_requests_that_decode(tiny_model: Path, store: MemoryStore):
    save(make_bench(tiny_model, swap=16, store=store), store)
    bench = make_bench(tiny_model, blocks=64, budget=200, running=16, swap=16, store=store)
    others = [bench.add(generate(f"other {n}", prompt(70, n), 60, read=False)) for n in range(8)]
    until(lambda: all(len(run.tokens) > 1 for run in others), bench)
    check(bench.one(generate("warm", prompt(), OUTPUT)), cold(tiny_model))
    assert bench.counts("warm").read_nvme > 0
    for number, run in enumerate(others):
        check(run, cold(tiny_model, 70, 60, number))


def test_a_block_that_changed_in_dram_is_a_miss(tiny_model: Path):
    bench = make_bench(tiny_model, blocks=8, running=1, budget=512, swap=16)
    bench.one(generate("cold", prompt(), OUTPUT))
    flood(bench)
    [memory] = bench.engine.runner.dram
    load = dram_load(bench)
    assert load.cached == BLOCKS
    words = memory.data.view(torch.int32)
    words[2, 0, 0, 0, 5, 3] ^= 1 << 9
    check(bench.one(generate("warm", prompt(), OUTPUT)), cold(tiny_model))
    assert bench.engine.scheduler.tiers.dram.damaged == 1
    counts = bench.counts("warm")
    assert (counts.read_dram, counts.computed) == ((BLOCKS - 1) * 64, LENGTH - (BLOCKS - 1) * 64)
    read = bench.runs["warm"].prompt
    assert read is not None
    assert [(lost.end - lost.start, lost.cause) for lost in read.lost] == [(64, "corrupted")]


def test_private_kv_that_changed_is_computed_again(tiny_model: Path):
    bench = make_bench(tiny_model, blocks=7, budget=200, running=4, swap=9)
    bench.add(generate("old", prompt(130), 100))
    bench.add(generate("young", prompt(130, 1), 100, read=False))
    while not bench.engine.scheduler.tiers.dram.swaps:
        bench.step()
    for memory in bench.engine.runner.dram:
        memory.data += 1.0
    bench.finish()
    expected = make_bench(tiny_model).one(generate("x", prompt(130, 1), 100))
    assert bench.runs["young"].tokens == expected.tokens
    assert bench.engine.scheduler.tiers.dram.damaged > 0
    counts = bench.counts("young")
    assert (counts.prompt, counts.computed, counts.output) == (130, 130, 100)
    assert counts.recomputed > 0


def test_front_and_tail_meet(tiny_model: Path, store: MemoryStore):
    """A disk as fast as computing: some is computed, some is read, and all is counted once."""
    save(make_bench(tiny_model, swap=16, store=store), store)
    bench = make_bench(tiny_model, swap=16, budget=65, running=1, store=store)
    restores = bench.engine.scheduler.tiers.restores
    rates: dict[Place, TierRate] = {
        "dram": TierRate(0.0, 1e12),
        "nvme": TierRate(0.0, restores.block_bytes / 0.002),
    }
    restores.chooser = FetchOrRecompute(rates, ComputeRate(0.002 / 64))
    store.gate.clear()
    run = bench.add(generate("warm", prompt(), OUTPUT))
    bench.step()
    bench.step()
    store.gate.set()
    while run.done is None:
        time.sleep(0.002)
        bench.step()
    check(run, cold(tiny_model))
    counts = bench.counts("warm")
    assert counts.computed > LENGTH - BLOCKS * 64
    assert counts.read_nvme > 0
    assert counts.prompt == LENGTH


@pytest.mark.parametrize("steps", range(5))
@pytest.mark.parametrize("tier", ["dram", "nvme"])
def test_aborted_while_it_restores(tiny_model: Path, store: MemoryStore, tier: str, steps: int):
    bench = make_bench(tiny_model, blocks=8, running=1, budget=65, swap=16, store=store)
    save(bench, store)
    flood(bench)
    if tier == "nvme":
        assert bench.engine.scheduler.tiers.dram.pool is not None
        bench.engine.scheduler.tiers.dram.pool.forget("project")
        store.gate.clear()
    run = bench.add(generate("warm", prompt(), OUTPUT))
    for _ in range(steps):
        bench.step()
    bench.engine.abort("warm")
    bench.step()
    assert run.done is not None
    run.done.counts.check()
    store.gate.set()
    until(lambda: not bench.engine.scheduler.tiers.restores.fetches, bench)
    bench.finish()
    assert bench.engine.pool.referenced_blocks == 0
    assert dram_load(bench).referenced == 0
    check(bench.one(generate("after", prompt(), OUTPUT)), cold(tiny_model))


def test_a_higher_lane_takes_its_place_while_it_restores(tiny_model: Path, store: MemoryStore):
    bench = make_bench(tiny_model, blocks=32, running=1, budget=65, swap=16, store=store)
    save(bench, store)
    bench.engine.scheduler.tiers.dram.pool.forget("project")  # type: ignore[union-attr]
    bench.engine.pool.forget("project")
    store.gate.clear()
    run = bench.add(generate("warm", prompt(), OUTPUT, lane="batch"))
    for _ in range(3):
        bench.step()
    bench.add(generate("high", prompt(64, 9), 2, lane="interactive"))
    for _ in range(6):
        bench.now += 0.05
        bench.step()
    store.gate.set()
    bench.finish()
    check(run, cold(tiny_model))
    counts = bench.counts("warm")
    assert counts.prompt == LENGTH == counts.computed + counts.read
