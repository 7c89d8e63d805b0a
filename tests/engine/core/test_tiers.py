"""KV in DRAM and on disk: cold equals warm to the bit (C2), what comes back is verified (C3), no step waits for it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import msgspec
import pytest
import torch

from engine.core.metrics import engine_metrics, memory_load
from engine.execution.block_copies import BlockCopies
from engine.execution.disk_tier import SAVES, DiskTier
from engine.execution.pending_purges import MOST_BLOCKS, MOST_OF_ALL
from engine.scheduling.saving import ON_DISK_S, REFUSED_S
from engine.scheduling.step_costs import FixedCosts, Rates
from prompt_cache.placement.fetch_or_recompute import ComputeRate, FetchOrRecompute, Place, TierRate
from prompt_cache.tiers.identity import StoreIdentity
from protocol.replicas import TierLimit, TierLoad
from protocol.requests import Lost, Retain, Segment
from tests.awake import Awake
from tests.engine.conftest import SCOPES, VOCABULARY, Bench, Run, generate, make_bench
from tests.engine.memory_store import MemoryStore
from tests.fast import only_fast
from tests.prompt_cache.tiers.stores import opened, record_paths
from tests.waiting import LONG_S

LENGTH = 330
BLOCKS = (LENGTH - 1) // 64
OUTPUT = 5
HOUR = 3600.0


def prompt(length: int = LENGTH, seed: int = 0) -> list[int]:
    return [(i * i * 31 + 17 * i + seed * 7 + length) % VOCABULARY for i in range(length)]


@cache
def cold(folder: Path, length: int = LENGTH, output: int = OUTPUT, seed: int = 0) -> Run:
    """The reference: alone, cold, in one chunk."""
    return make_bench(folder, budget=512).one(generate("alone", prompt(length, seed), output))


def check(run: Run, expected: Run) -> None:
    assert run.tokens == expected.tokens
    assert len(run.logits) == len(expected.logits)
    for ours, theirs in zip(run.logits, expected.logits, strict=True):
        assert torch.equal(ours, theirs)


def _dram(bench: Bench) -> TierLoad:
    return next(load for load in memory_load(bench.engine) if load.tier == "dram")


def flood(bench: Bench, count: int = 3, length: int = 400) -> None:
    """Let other prompts take all blocks of the device."""
    for number in range(count):
        bench.one(generate(f"flood {bench.engine.steps} {number}", prompt(length, 100 + number), 1, store="hbm"))


def until(condition: Callable[[], object], bench: Bench) -> None:
    """Step until the condition holds."""
    end = time.monotonic() + LONG_S
    while not condition():
        assert time.monotonic() < end, "it does not come about"
        if not bench.engine.busy:
            time.sleep(0.001)
        bench.step()


def _fetch_all(bench: Bench) -> None:
    """Let whatever lies on disk be fetched: computing is dear."""
    fast: dict[Place, TierRate] = {"dram": TierRate(0.0, 1e12), "nvme": TierRate(0.0, 1e12)}
    bench.engine.scheduler.restores.chooser = FetchOrRecompute(fast, ComputeRate(1.0))


def keys_of(bench: Bench) -> list[bytes]:
    """The keys of the prompt's blocks."""
    return bench.engine.input_processor.accept(generate("x", prompt()), SCOPES).first.extend_keys(BLOCKS)[:BLOCKS]


def hold_up_saves(bench: Bench, store: MemoryStore) -> None:
    """Let the disk be busy with the blocks of another project."""
    store.write_gate.clear()
    before = store.writes
    for id in ("busy", "busier"):
        bench.one(generate(id, prompt(seed=9), 1, segments=(Segment(LENGTH, "other"),)))
    until(lambda: store.writes > before, bench)


def _purge(bench: Bench, how: str, keys: list[bytes]) -> None:
    """Purge the prompt in one of these ways, and let its project be known after that."""
    if how == "purge":
        bench.engine.purge("project", keys)
    elif how == "forget":
        bench.engine.forget("project")
    else:
        bench.engine.introduce(msgspec.structs.replace(SCOPES["project"], data_key=b"k" * 32, retention=60.0))
    if how == "shorten":  # which leaves what is on the device
        bench.engine.pool.forget("project")


def save(bench: Bench, store: MemoryStore) -> None:
    """Have the prompt on disk: it is read a second time."""
    bench.one(generate("first", prompt(), 1))
    bench.one(generate("second", prompt(), 1))
    until(lambda: len(store.records) == BLOCKS and bench.engine.scheduler.saver.idle, bench)


@pytest.fixture
def store() -> Iterator[MemoryStore]:
    store = MemoryStore()
    yield store
    store.gate.set()


# ------------------------------------------------------------ C2 by tier


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
    assert _dram(bench).cached == written, "they count in both tiers: they take room in both"
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


def test_a_long_lease_goes_to_disk_at_once(tiny_model: Path, store: MemoryStore):
    bench = make_bench(tiny_model, swap=16, store=store)
    bench.one(generate("leased", prompt(), 1, retain=(Retain(130, HOUR),)))
    until(lambda: bench.engine.scheduler.saver.idle, bench)
    assert len(store.records) == 130 // 64
    first, second = store.records
    assert store.before == {first: None, second: first}, "eviction on disk takes the end of a prompt first"


def test_a_lease_on_disk_is_renewed_by_who_reads_it(
    tiny_model: Path, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
):
    """No more often than once a minute, where it ends later by no more than that."""
    bench = make_bench(tiny_model, swap=16, store=store)
    saver = bench.engine.scheduler.saver
    assert saver is not None
    tell, told = saver.disk.lease, Counter[float]()

    def told_of(scope: str, key: bytes, until: float) -> None:
        told[until] += 1
        tell(scope, key, until)

    monkeypatch.setattr(saver.disk, "lease", told_of)
    leased = [("project", key) for key in keys_of(bench)[: 200 // 64]]

    def read(id: str, until_s: float) -> None:
        bench.one(generate(id, prompt(), 1, retain=(Retain(200, until_s),)))

    read("first", 300.0)
    read("second", 310.0)
    until(lambda: len(store.records) == BLOCKS and bench.engine.scheduler.saver.idle, bench)
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
    saver = bench.engine.scheduler.saver
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
    saver = bench.engine.scheduler.saver
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


def test_what_the_disk_lost_is_saved_again(tiny_model: Path, store: MemoryStore):
    """Its records were evicted, or expired: that they were there once says nothing."""
    bench = make_bench(tiny_model, swap=16, store=store)
    save(bench, store)
    store.records.clear()
    bench.now += ON_DISK_S
    bench.one(generate("later", prompt(), 1))
    until(lambda: bench.engine.scheduler.saver.idle and len(store.records) > 0, bench)
    assert len(store.records) == BLOCKS


def test_what_a_full_disk_refused_is_saved_when_it_has_room(tiny_model: Path, store: MemoryStore):
    bench = make_bench(tiny_model, swap=16, store=store)
    store.full = True
    for id in ("first", "second", "third"):
        bench.one(generate(id, prompt(), 1))
        until(lambda: bench.engine.scheduler.saver.idle, bench)
    assert store.writes == BLOCKS, "it is not asked again at once"
    store.full = False
    bench.now += REFUSED_S
    bench.one(generate("later", prompt(), 1))
    until(lambda: len(store.records) == BLOCKS, bench)


# ------------------------------------------------------------ what is told of it


def test_began_plans_what_is_to_be_fetched_and_the_first_token_tells_what_was(tiny_model: Path, store: MemoryStore):
    save(make_bench(tiny_model, swap=16, store=store), store)
    bench = make_bench(tiny_model, swap=16, store=store)
    size = bench.engine.scheduler.restores.block_bytes
    rates: dict[Place, TierRate] = {"dram": TierRate(0.0, 1e12), "nvme": TierRate(0.0, size / 0.1)}
    bench.engine.scheduler.restores.chooser = FetchOrRecompute(rates, ComputeRate(0.1 / 64))
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
    bench.engine.scheduler.restores.chooser = FetchOrRecompute(rates, ComputeRate(1e-6))
    run = bench.one(generate("warm", prompt(), OUTPUT))
    assert run.began is not None
    assert run.prompt is not None
    assert (run.began.counts.read, bench.counts("warm").read) == (0, 0)
    assert run.prompt.lost == (Lost(0, BLOCKS * 64, "late"),)


@pytest.mark.parametrize("prefetched", [False, True])
def test_a_record_that_fails_its_check_is_told(tiny_model: Path, store: MemoryStore, prefetched: bool):
    save(make_bench(tiny_model, swap=16, store=store), store)
    bench = make_bench(tiny_model, swap=16, running=1, store=store)
    restores = bench.engine.scheduler.restores
    fast: dict[Place, TierRate] = {"dram": TierRate(0.0, 1e12), "nvme": TierRate(0.0, 1e12)}
    restores.chooser = FetchOrRecompute(fast, ComputeRate(1.0))
    keys = bench.engine.input_processor.accept(generate("x", prompt()), SCOPES).first.extend_keys(BLOCKS)
    store.damaged.add(keys[2])
    if prefetched:
        before = bench.add(generate("before", prompt(64, 5), 100))
        until(lambda: before.tokens, bench)
    run = bench.add(generate("warm", prompt(), OUTPUT))
    until(lambda: restores.fetches.failed, bench)
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
    _fetch_all(bench)
    store.damaged.add(keys_of(bench)[2])
    store.gate.clear()
    runs = [bench.add(generate(id, prompt(), OUTPUT)) for id in ("one", "two", "three")]
    until(lambda: len(bench.engine.scheduler.restores.active) == len(runs), bench)
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
    _fetch_all(bench)
    key = keys_of(bench)[2]
    store.gate.clear()
    run = bench.add(generate("warm", prompt(), OUTPUT))
    until(lambda: len(bench.engine.scheduler.restores.fetches) == BLOCKS, bench)
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
        after.engine.scheduler.restores.chooser = FetchOrRecompute(fast, ComputeRate(1.0))
        run = after.one(generate("warm", prompt(), OUTPUT))
        check(run, cold(tiny_model))
        assert run.prompt is not None
        assert run.prompt.counts.read_nvme == (BLOCKS - 1) * 64
        assert [(lost.end - lost.start, lost.cause) for lost in run.prompt.lost] == [(64, "corrupted")]
        for engine in (bench.engine, after.engine):
            engine.close(LONG_S)


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


# ------------------------------------------------------------ C3, C5


def test_a_block_that_changed_in_dram_is_a_miss(tiny_model: Path):
    bench = make_bench(tiny_model, blocks=8, running=1, budget=512, swap=16)
    bench.one(generate("cold", prompt(), OUTPUT))
    flood(bench)
    [memory] = bench.engine.runner.dram
    load = _dram(bench)
    assert load.cached == BLOCKS
    words = memory.data.view(torch.int32)
    words[2, 0, 0, 0, 5, 3] ^= 1 << 9
    check(bench.one(generate("warm", prompt(), OUTPUT)), cold(tiny_model))
    assert bench.engine.scheduler.dram.damaged == 1
    counts = bench.counts("warm")
    assert (counts.read_dram, counts.computed) == ((BLOCKS - 1) * 64, LENGTH - (BLOCKS - 1) * 64)
    read = bench.runs["warm"].prompt
    assert read is not None
    assert [(lost.end - lost.start, lost.cause) for lost in read.lost] == [(64, "corrupted")]


def test_private_kv_that_changed_is_computed_again(tiny_model: Path):
    bench = make_bench(tiny_model, blocks=7, budget=200, running=4, swap=9)
    bench.add(generate("old", prompt(130), 100))
    bench.add(generate("young", prompt(130, 1), 100, read=False))
    while not bench.engine.scheduler.dram.swaps:
        bench.step()
    for memory in bench.engine.runner.dram:
        memory.data += 1.0
    bench.finish()
    expected = make_bench(tiny_model).one(generate("x", prompt(130, 1), 100))
    assert bench.runs["young"].tokens == expected.tokens
    assert bench.engine.scheduler.dram.damaged > 0
    counts = bench.counts("young")
    assert (counts.prompt, counts.computed, counts.output) == (130, 130, 100)
    assert counts.recomputed > 0


@pytest.mark.parametrize("store_policy", ["hbm", "none"])
def test_no_store_leaves_nothing_beyond_the_device(tiny_model: Path, store: MemoryStore, store_policy: str):
    bench = make_bench(tiny_model, blocks=8, running=1, budget=512, swap=16, store=store)
    bench.one(generate("a", prompt(), 1, store=store_policy, retain=(Retain(LENGTH, HOUR),)))
    bench.one(generate("b", prompt(), 1, store=store_policy))
    flood(bench)
    bench.engine.close(1.0)
    assert not store.records
    assert _dram(bench).cached == 0


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
    assert _dram(bench).cached == 0


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
    assert _dram(bench).cached > 0
    bench.engine.introduce(msgspec.structs.replace(SCOPES["project"], retention=retention, data_key=data_key))
    assert (_dram(bench).cached > 0) == kept
    bench.engine.introduce(msgspec.structs.replace(SCOPES["project"], data_key=b"k" * 32))
    assert (_dram(bench).cached > 0) == kept
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
    assert _dram(bench).cached == BLOCKS
    bench.now += 10.0
    bench.step()
    assert _dram(bench).cached == 0


@pytest.mark.parametrize("how", ["forget", "purge"])
def test_what_is_forgotten_is_gone_from_every_tier(tiny_model: Path, store: MemoryStore, how: str):
    bench = make_bench(tiny_model, blocks=8, running=1, budget=512, swap=16, store=store)
    save(bench, store)
    flood(bench)
    assert _dram(bench).cached > 0
    freed: list[int] = []
    pool = bench.engine.scheduler.dram.pool
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
    _purge(bench, how, keys)
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
    saver = bench.engine.scheduler.saver
    assert saver is not None
    until(lambda: len(saver.blocks()) == BLOCKS and store.writes == 1, bench)
    bench.one(generate("other", prompt(seed=1), 1))
    bench.one(generate("other again", prompt(seed=1), 1))
    _purge(bench, how, keys_of(bench))
    store.write_gate.set()
    until(lambda: saver.idle, bench)
    assert store.written_before_purge == 1
    assert not {("project", key) for key in keys_of(bench)} & set(store.records)
    assert not saver.dropped


def test_what_is_computed_again_after_a_purge_is_saved_again(tiny_model: Path, store: MemoryStore):
    bench = make_bench(tiny_model, blocks=16, running=1, budget=512, swap=16, store=store)
    save(bench, store)
    store.write_gate.clear()
    _purge(bench, "purge", keys_of(bench))
    for id in ("third", "fourth"):
        bench.one(generate(id, prompt(), 1))
    store.write_gate.set()
    until(lambda: store.writes == 2 * BLOCKS and bench.engine.scheduler.saver.idle, bench)
    assert set(store.records) == {("project", key) for key in keys_of(bench)}


def test_a_block_that_is_purged_while_it_is_read_is_not_used(tiny_model: Path, store: MemoryStore):
    """Nobody hears of it either: it was damaged, and is not kept any more."""
    save(make_bench(tiny_model, swap=16, store=store), store)
    bench = make_bench(tiny_model, swap=16, store=store)
    keys = keys_of(bench)
    store.damaged.add(keys[2])
    store.gate.clear()
    bench.add(generate("first", prompt(), 1))
    until(lambda: bench.engine.scheduler.restores.fetches, bench)
    _purge(bench, "purge", keys)
    store.gate.set()
    until(lambda: not bench.engine.scheduler.restores.fetches, bench)
    bench.finish()
    bench.engine.pool.purge(keys)
    again = bench.one(generate("again", prompt(), OUTPUT))
    check(again, cold(tiny_model))
    assert again.prompt is not None
    assert (again.prompt.counts.computed, again.prompt.lost) == (LENGTH, ())
    assert _dram(bench).referenced == 0


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
    assert _dram(bench).cached == BLOCKS
    due = bench.engine.next_deadline
    assert due is not None
    bench.now = due
    bench.step()
    assert _dram(bench).cached == 0


def test_a_scope_holds_no_more_of_a_memory_than_its_limit(tiny_model: Path):
    bench = make_bench(tiny_model, blocks=8, running=1, budget=512, swap=16)
    for pool in (bench.engine.pool, bench.engine.scheduler.dram.pool):
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
    assert _dram(bench).cached <= 1
    check(bench.one(generate("again", prompt(), OUTPUT)), cold(tiny_model))


# ------------------------------------------------------------ nothing waits for ever


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
    until(lambda: not bench.engine.scheduler.restores.fetches, bench)
    assert _dram(bench).referenced == 0


def test_a_disk_that_takes_no_write_delays_no_step(tiny_model: Path, store: MemoryStore):
    """So much is on its way there, and the rest waits or is dropped; what is purged meanwhile is gone after it."""
    store.write_gate.clear()
    bench = make_bench(tiny_model, blocks=48, swap=48, store=store)
    saver = bench.engine.scheduler.saver
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
    assert _dram(bench).referenced == 0


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
    bench.engine.scheduler.restores.chooser = FetchOrRecompute(rates, ComputeRate(token_s))
    store.gate.clear()
    bench.add(generate("warm", prompt(), OUTPUT))
    bench.step()
    due = bench.engine.next_deadline
    assert due is not None
    assert due == pytest.approx(max(0.05, 0.05 * BLOCKS * 64 * token_s), rel=0.1)
    store.gate.set()
    bench.finish()


def test_front_and_tail_meet(tiny_model: Path, store: MemoryStore):
    """A disk as fast as computing: some is computed, some is read, and all is counted once."""
    save(make_bench(tiny_model, swap=16, store=store), store)
    bench = make_bench(tiny_model, swap=16, budget=65, running=1, store=store)
    restores = bench.engine.scheduler.restores
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


# ------------------------------------------------------------ ends in every state


@pytest.mark.parametrize("steps", range(5))
@pytest.mark.parametrize("tier", ["dram", "nvme"])
def test_aborted_while_it_restores(tiny_model: Path, store: MemoryStore, tier: str, steps: int):
    bench = make_bench(tiny_model, blocks=8, running=1, budget=65, swap=16, store=store)
    save(bench, store)
    flood(bench)
    if tier == "nvme":
        assert bench.engine.scheduler.dram.pool is not None
        bench.engine.scheduler.dram.pool.forget("project")
        store.gate.clear()
    run = bench.add(generate("warm", prompt(), OUTPUT))
    for _ in range(steps):
        bench.step()
    bench.engine.abort("warm")
    bench.step()
    assert run.done is not None
    run.done.counts.check()
    store.gate.set()
    until(lambda: not bench.engine.scheduler.restores.fetches, bench)
    bench.finish()
    assert bench.engine.pool.referenced_blocks == 0
    assert _dram(bench).referenced == 0
    check(bench.one(generate("after", prompt(), OUTPUT)), cold(tiny_model))


def test_a_higher_lane_takes_its_place_while_it_restores(tiny_model: Path, store: MemoryStore):
    bench = make_bench(tiny_model, blocks=32, running=1, budget=65, swap=16, store=store)
    save(bench, store)
    bench.engine.scheduler.dram.pool.forget("project")  # type: ignore[union-attr]
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


def test_a_request_that_fails_takes_what_it_read_from_every_scope(tiny_model: Path, store: MemoryStore):
    """Its numbers were not finite, and what it read may be the cause: also a prefix that projects share."""
    segments = (Segment(128, "public"), Segment(LENGTH, "project"))
    bench = make_bench(tiny_model, swap=16, store=store)
    for id in ("first", "second"):
        bench.one(generate(id, prompt(), 1, segments=segments))
    until(lambda: len(store.records) == BLOCKS and bench.engine.scheduler.saver.idle, bench)
    assert {scope for scope, _ in store.records} == {"public", "project"}
    bench.engine.runner.memories[0].data[:] = float("nan")
    bench.one(generate("reader", prompt(), 1, segments=segments))
    done = bench.runs["reader"].done
    assert done is not None
    assert done.reason == "error"
    until(lambda: not store.records, bench)
