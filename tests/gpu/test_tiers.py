"""KV in host memory and on disk beside a GPU: what comes back has the bits that left, whatever computes the steps."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from functools import partial
from pathlib import Path

import pytest
import torch

from engine.execution.cuda.streamed_copies import StreamedCopies
from engine.kv_cache.memory import KvLayout, host_memories
from engine.scheduling.step_work import Step
from tests.engine.conftest import Bench, Run, generate, make_bench
from tests.engine.core.tier_bench import BLOCKS, LENGTH, OUTPUT, flood, prompt, save
from tests.engine.memory_store import MemoryStore
from tests.gpu.execution.fused_bench import fused_bench, small_model
from tests.gpu.execution.test_fused_runner import assert_near, assert_same

pytestmark = pytest.mark.gpu

Make = partial[Bench]
Check = Callable[[Run, Run], None]


@pytest.fixture(params=["stock", "fused"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Make:
    """Makes engines, whose steps are computed by stock operations or by the fused kernels."""
    model = small_model(tmp_path / "model")
    if request.param == "stock":
        return partial(make_bench, model, running=4, device="cuda")
    return partial(fused_bench, model, context=512)


@pytest.fixture
def check(make: Make) -> Check:
    """Compares two runs: bit by bit, but for stock operations, whose products depend on the number of rows on a GPU."""
    return assert_same if make.func is fused_bench else assert_near


@pytest.fixture
def store() -> Iterator[MemoryStore]:
    store = MemoryStore()
    yield store
    store.gate.set()


@pytest.mark.parametrize("budget", [68, 200, 512])
def test_what_left_the_device_comes_back_from_dram(make: Make, check: Check, budget: int) -> None:
    cold = make(blocks=24, budget=512).one(generate("cold", prompt(), OUTPUT))
    bench = make(blocks=8, budget=budget, swap=16)
    check(bench.one(generate("first", prompt(), OUTPUT)), cold)
    flood(bench)
    check(bench.one(generate("warm", prompt(), OUTPUT)), cold)
    assert (bench.counts("warm").read_dram, bench.counts("warm").read_hbm) == (BLOCKS * 64, 0)
    check(bench.one(generate("again", prompt(), OUTPUT)), cold)
    assert bench.counts("again").read_hbm == BLOCKS * 64


def test_what_is_on_disk_survives_a_restart(make: Make, check: Check, store: MemoryStore) -> None:
    cold = make(blocks=24).one(generate("cold", prompt(), OUTPUT))
    save(make(blocks=24, swap=16, store=store), store)
    after = make(blocks=24, swap=16, store=store)
    check(after.one(generate("warm", prompt(), OUTPUT)), cold)
    assert after.counts("warm").read_nvme > 0
    assert after.counts("warm").prompt == LENGTH


def test_a_block_that_changed_in_dram_is_a_miss(make: Make, check: Check) -> None:
    cold = make(blocks=24).one(generate("cold", prompt(), OUTPUT))
    bench = make(blocks=8, swap=16)
    bench.one(generate("first", prompt(), OUTPUT))
    flood(bench)
    [memory] = bench.engine.runner.dram
    memory.data.view(torch.int32)[:, 0, 0, 0, 5, 3] ^= 1 << 9
    check(bench.one(generate("warm", prompt(), OUTPUT)), cold)
    assert bench.engine.scheduler.tiers.dram.damaged == BLOCKS
    assert bench.counts("warm").read_dram == 0


def test_blocks_leave_and_come_back_while_others_decode(make: Make, check: Check) -> None:
    """Steps are queued ahead then: copies come between what is computed for this step and for the next."""
    alone = [make(blocks=24).one(generate(f"{n}", prompt(70, n), 90)) for n in range(2)]
    cold = make(blocks=24).one(generate("cold", prompt(), OUTPUT))
    bench = make(blocks=14, swap=40)
    others = [bench.add(generate(f"{n}", prompt(70, n), 90, read=False)) for n in range(2)]
    for turn in range(6):
        run = bench.add(generate(f"turn {turn}", prompt(seed=5 * (turn % 2)), OUTPUT))
        while run.done is None:
            bench.step()
        if turn % 2 == 0:
            check(run, cold)
    bench.finish()
    for run, expected in zip(others, alone, strict=True):
        check(run, expected)
    assert sum(bench.counts(f"turn {turn}").read_dram for turn in range(6)) > 0
    assert bench.engine.scheduler.tiers.dram.damaged == 0


def test_the_scheduler_hears_of_copies_when_they_are_done(make: Make, check: Check) -> None:
    """And not before, however many steps that takes: from then on others read, fill and clear those blocks."""
    bench = make(blocks=8, swap=16)
    bench.one(generate("first", prompt(), 1))
    copies, seen = bench.engine.copies, bench.engine.runner.on_logits
    assert isinstance(copies, StreamedCopies)
    bench.engine.runner.on_logits = None  # to look at them is to wait for all
    begin, copied = copies.begin, bench.engine.scheduler.copied
    done: dict[Step, torch.cuda.Event] = {}
    late = 0

    def slow(step: Step) -> None:
        with torch.cuda.stream(copies._out):
            torch.cuda._sleep(1 << 26)
        begin(step)
        if step.copies:
            done[step] = copies._copying[-1].events[-1]

    def told(step: Step, bad: Collection[int]) -> None:
        assert done.pop(step).query()
        copied(step, bad)

    copies.begin = slow  # type: ignore[method-assign]
    bench.engine.scheduler.copied = told  # type: ignore[method-assign]
    bench.add(generate("flood", prompt(400, 9), 60, store="hbm"))
    while bench.engine.busy:
        bench.step()
        late += bool(done)
    assert late or bench.engine.runner.clears, "who clears blocks waits for their copies"
    assert not done
    copies.begin, bench.engine.scheduler.copied = begin, copied  # type: ignore[method-assign]
    bench.engine.runner.on_logits = seen
    check(bench.one(generate("warm", prompt(), OUTPUT)), make(blocks=24).one(generate("cold", prompt(), OUTPUT)))
    assert bench.engine.scheduler.tiers.dram.damaged == 0


def test_what_was_written_ahead_is_evicted_without_a_copy(make: Make, check: Check) -> None:
    cold = make(blocks=24).one(generate("cold", prompt(), OUTPUT))
    bench = make(blocks=12, swap=24)
    check(bench.one(generate("first", prompt(), OUTPUT)), cold)
    for seed in (1, 2):
        bench.one(generate(f"{seed}", prompt(seed=seed), OUTPUT))
        bench.finish()
    writer = bench.engine.scheduler.tiers.writer
    assert writer is not None
    assert writer.written >= 4
    assert bench.engine.scheduler.tiers.dram.entered == 0
    check(bench.one(generate("warm", prompt(), OUTPUT)), cold)
    assert bench.counts("warm").read_dram >= 4 * 64
    assert bench.engine.scheduler.tiers.dram.damaged == 0


def test_what_is_being_written_ahead_may_be_evicted(make: Make, check: Check) -> None:
    """Its place is somebody else's then, who has to wait until the copy is done."""
    cold = make(blocks=24).one(generate("cold", prompt(), OUTPUT))
    bench = make(blocks=12, swap=24)
    bench.one(generate("first", prompt(), OUTPUT))
    copies = bench.engine.copies
    assert isinstance(copies, StreamedCopies)
    begin = copies.begin

    def slow(step: Step) -> None:
        with torch.cuda.stream(copies._out):
            torch.cuda._sleep(1 << 26)
        begin(step)

    copies.begin = slow  # type: ignore[method-assign]
    for seed in (1, 2, 3):
        bench.add(generate(f"{seed}", prompt(seed=seed), 1))
    bench.finish()
    copies.begin = begin  # type: ignore[method-assign]
    writer = bench.engine.scheduler.tiers.writer
    assert writer is not None
    assert writer.written > 0
    check(bench.one(generate("warm", prompt(), OUTPUT)), cold)
    assert bench.counts("warm").read > 0
    assert bench.engine.scheduler.tiers.dram.damaged == 0


def test_who_leaves_while_blocks_come_back_leaves_nothing_behind(make: Make, check: Check) -> None:
    """Its blocks are somebody else's at once; what was on its way to them must not arrive later."""
    cold = make(blocks=24).one(generate("cold", prompt(seed=3), OUTPUT))
    for steps in range(1, 4):
        bench = make(blocks=8, swap=16)
        bench.one(generate("first", prompt(), OUTPUT))
        flood(bench)
        bench.add(generate("leaves", prompt(), OUTPUT))
        torch.cuda._sleep(1 << 26)
        for _ in range(steps):
            bench.step()
        bench.engine.abort("leaves")
        check(bench.one(generate("next", prompt(seed=3), OUTPUT)), cold)
        assert bench.engine.scheduler.tiers.dram.damaged == 0


@pytest.mark.parametrize("captured", [False, True])
def test_page_locked_memory_may_be_given_up_at_any_time(captured: bool) -> None:
    """Also while a graph is captured, when the driver would not unlock it."""
    layout = KvLayout(torch.float16)
    layout.place(0, 2, 64)
    like = torch.zeros((), dtype=torch.float16, device="cuda")
    for _ in range(20):
        memories = host_memories(layout.groups(), [300], like)
        assert memories[0].data.is_pinned()
        if captured:
            graph, ones = torch.cuda.CUDAGraph(), torch.ones(8, device="cuda")
            torch.cuda.synchronize()
            with torch.cuda.graph(graph):
                ones += 1
                memories.clear()
            graph.replay()
            assert ones.tolist() == [2.0] * 8
        del memories


def test_host_memory_is_page_locked_and_no_larger_than_asked() -> None:
    layout = KvLayout(torch.float16)
    layout.place(0, 2, 64)
    before = torch.cuda.host_memory_stats()["allocated_bytes.current"]
    for _ in range(3):  # what is given back can be had again
        [memory] = host_memories(layout.groups(), [33], torch.zeros((), dtype=torch.float16, device="cuda"))
        assert memory.data.is_pinned()
        assert memory.data.is_contiguous()
        memory.data.fill_(1)
        del memory
    assert torch.cuda.host_memory_stats()["allocated_bytes.current"] == before
