"""No step waits for a tier: disks that do not answer, deadlines, an engine that sleeps meanwhile."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.core.metrics import engine_metrics
from engine.execution.disk_tier import SAVES
from engine.scheduling.step_costs import FixedCosts, Rates
from prompt_cache.placement.fetch_or_recompute import ComputeRate, FetchOrRecompute, Place, TierRate
from tests.awake import Awake
from tests.engine.conftest import generate, make_bench
from tests.engine.core.tier_bench import (
    BLOCKS,
    OUTPUT,
    check,
    cold,
    dram_load,
    prompt,
    save,
    until,
)
from tests.engine.memory_store import MemoryStore


def test_a_disk_that_never_answers_delays_no_step(tiny_model: Path, store: MemoryStore):
    """Everything is computed; reads that never come back leave no block but their own in use."""
    save(make_bench(tiny_model, swap=16, store=store), store)
    bench = make_bench(tiny_model, swap=16, store=store)
    store.gate.clear()
    run = bench.add(generate("warm", prompt(), OUTPUT))
    beside = bench.add(generate("beside", prompt(100, 3), 30))
    longest = 0.0
    with Awake() as awake:
        while run.done is None:
            before = awake.seconds
            bench.step()
            longest = max(longest, awake.seconds - before)
            bench.now += 0.01
    assert longest < 1.0
    check(run, cold(tiny_model))
    bench.finish()
    check(beside, cold(tiny_model, 100, 30, 3))
    assert bench.counts("warm").read == 0
    store.gate.set()
    until(lambda: not bench.engine.scheduler.tiers.restores.fetches, bench)
    assert dram_load(bench).referenced == 0


def test_a_disk_that_takes_no_write_delays_no_step(tiny_model: Path, store: MemoryStore):
    """So much is on its way there, and the rest waits or is dropped; what is purged meanwhile is gone after it."""
    store.write_gate.clear()
    bench = make_bench(tiny_model, blocks=48, swap=48, store=store)
    saver = bench.engine.scheduler.tiers.savers[0]
    assert saver is not None
    longest = 0.0
    with Awake() as awake:
        for number in range(16):  # each prompt for the second time: its blocks are to be saved
            run = bench.add(generate(str(number), prompt(130, number // 2), 2))
            while run.done is None:
                before = awake.seconds
                bench.step()
                longest = max(longest, awake.seconds - before)
    assert longest < 1.0
    until(lambda: store.writes, bench)
    assert len(saver.blocks()) == SAVES
    assert not saver.dropped
    bench.engine.forget("project")
    store.write_gate.set()
    until(lambda: saver.idle, bench)
    until(lambda: not store.records, bench)
    assert dram_load(bench).referenced == 0


def test_while_it_waits_the_engine_sleeps_and_the_deadline_wakes_it(tiny_model: Path, store: MemoryStore):
    save(make_bench(tiny_model, swap=16, store=store), store)
    bench = make_bench(tiny_model, swap=16, store=store)
    # Computing is so dear that the front is left alone while the disk is waited for.
    bench.engine.scheduler.costs = bench.engine.fairness.costs = FixedCosts(Rates(uncached=1e4))
    store.gate.clear()
    run = bench.add(generate("warm", prompt(), OUTPUT))
    for _ in range(3):
        bench.step()
    assert not bench.engine.busy
    due = bench.engine.next_deadline
    assert due is not None
    assert due < 10.0
    bench.now = due
    bench.step()
    assert bench.engine.busy or run.tokens
    assert engine_metrics(bench.engine)["turnpike_engine_restores_late_total"] <= 1
    bench.finish()
    check(run, cold(tiny_model))
    store.gate.set()


@pytest.mark.parametrize("token_s", [1e-4, 1.0])
def test_the_dearer_computing_is_the_longer_the_disk_is_waited_for(
    tiny_model: Path, store: MemoryStore, token_s: float
):
    """A chunk computed in vain costs more than waiting a small part of what computing all would take."""
    save(make_bench(tiny_model, swap=16, store=store), store)
    bench = make_bench(tiny_model, swap=16, store=store)
    rates: dict[Place, TierRate] = {"dram": TierRate(0.0, 1e12), "nvme": TierRate(0.0, 1e12)}
    bench.engine.scheduler.tiers.restores.chooser = FetchOrRecompute(rates, ComputeRate(token_s))
    store.gate.clear()
    bench.add(generate("warm", prompt(), OUTPUT))
    bench.step()
    due = bench.engine.next_deadline
    assert due is not None
    assert due == pytest.approx(max(0.05, 0.05 * BLOCKS * 64 * token_s), rel=0.1)
    store.gate.set()
    bench.finish()
