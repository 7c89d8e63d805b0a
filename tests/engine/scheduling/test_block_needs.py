"""Groups with windows: a prompt costs a window and a chunk, however long it is, and is never stuck half way."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.fairness_policies import FirstComeFirstServed
from engine.errors import StartError
from engine.scheduling.block_needs import BlockNeeds
from engine.scheduling.fairness.fair_share import FairShare
from engine.scheduling.request import Request
from engine.startup.kv_size import block_counts
from engine.startup.options import ReplicaOptions
from prompt_cache.kv.grouped_pool import ABSENT, GroupedPool
from protocol.replicas import LayerGroup
from protocol.requests import LANES
from tests.engine.conftest import Families, generate, make_bench
from tests.engine.scheduling.replica_without_model import Replica, request
from tests.fast import examples

WINDOW = 200


def held(one: Request, group: int) -> int:
    return sum(block[group] != ABSENT for block in one.table)


@pytest.mark.parametrize("chunk", [64, 128, 256])
def test_a_long_prompt_holds_a_window_and_a_chunk(chunk: int):
    replica = Replica(FirstComeFirstServed(), running=1, budget=chunk + 64, windows=[(40, WINDOW)])
    long = request(1, 64 * 100, 130)
    replica.add(long)
    most = 0
    while not replica.finished:
        step = replica.scheduler.schedule()
        most = max(most, held(long, 1))
        assert all(work.count <= chunk + 64 for work in step.work)
        replica.scheduler.commit(step.work, [1 if work.samples else None for work in step.work])
        replica.scheduler.check()
        if long.output == 130:
            replica.scheduler.remove(long)
            break
    window, last = -(-(WINDOW - 1) // 64), 1
    assert most <= window + (chunk + 64) // 64 + last
    assert replica.pool.pools[1].free_blocks + replica.pool.pools[1].cached_blocks == 40


def test_a_prompt_that_fits_is_run_in_the_smallest_group_that_can_hold_it():
    """One block beside the window is enough for any prompt, in chunks of one block then."""
    least = GroupedPool([(8, WINDOW)]).span(64)[0]
    replica = Replica(FirstComeFirstServed(), running=3, blocks=200, windows=[(least, WINDOW)])
    assert replica.scheduler.needs.longest == 200
    assert replica.scheduler.needs.chunk == 64
    replica.add(*(request(number, 64 * 50 + number, 200, prefix=number % 2) for number in range(4)))
    replica.finish()
    assert len(replica.finished) == 4
    # One block less, and a sequence is bounded by the group, as if it had no window.
    assert BlockNeeds(GroupedPool([(200, 0), (least - 1, WINDOW)]), 512).longest == least - 1
    assert BlockNeeds(GroupedPool([(least, WINDOW)]), 512).longest is None


@settings(max_examples=examples(60), deadline=None)
@given(data=st.data())
def test_whatever_comes_and_goes_nobody_is_stuck_and_nothing_is_promised_twice(data: st.DataObject):
    """Prompts that share prefixes, in groups that can barely hold one of them; `check` holds the promise each step."""
    windows = [
        (GroupedPool([(1, window)]).span(64)[0] + data.draw(st.integers(0, 12), "more"), window)
        for window in data.draw(st.lists(st.sampled_from([60, 64, 130, 300]), min_size=1, max_size=2), "windows")
    ]
    policy = data.draw(st.sampled_from([FirstComeFirstServed, FairShare]))()
    replica = Replica(policy, blocks=30, running=5, budget=data.draw(st.sampled_from([70, 200, 512])), windows=windows)
    ends = set()
    for number in range(data.draw(st.integers(2, 9), "requests")):
        one = request(
            number,
            data.draw(st.sampled_from([1, 64, 300, 1000, 1500]), "prompt"),
            data.draw(st.sampled_from([1, 70, 200]), "output"),
            prefix=data.draw(st.integers(0, 1)),
            lane=data.draw(st.sampled_from(LANES)),
            store=data.draw(st.sampled_from(["all", "none"])),
        )
        replica.add(one)
        ends.add(number)
        for _ in range(data.draw(st.integers(0, 12))):
            replica.step()
        running = [other for other in replica.scheduler.running if other not in replica.finished]
        if running and data.draw(st.integers(0, 3)) == 0:
            victim = data.draw(st.sampled_from(sorted(running, key=lambda other: other.arrival)))
            replica.scheduler.remove(victim)
            ends.discard(victim.arrival)
    replica.finish(20_000)
    assert {one.arrival for one in replica.finished} == ends
    assert replica.pool.referenced_blocks == 0


@pytest.mark.slow
@pytest.mark.parametrize("family", ["gemma3", "gpt-oss"])
def test_logits_are_the_same_in_little_memory_for_windows(family_folders: Families, family: str):
    folder = family_folders(family)
    tokens = [(7 * i * i + 3 * i) % 131 for i in range(450)]
    expected = make_bench(folder, budget=512).one(generate("x", tokens, 40, temperature=1.0, seed=1))
    bench = make_bench(folder, budget=512, window_blocks=3)
    for name in ("cold", "warm"):
        run = bench.one(generate(name, tokens, 40, temperature=1.0, seed=1))
        assert run.tokens == expected.tokens
        assert all(torch.equal(ours, theirs) for ours, theirs in zip(run.logits, expected.logits, strict=True))
    pool = bench.engine.pool
    assert {one.total for one, window in zip(pool.pools, pool.windows, strict=True) if window} == {3}


def test_memory_is_shared_out_by_what_windows_reach(tmp_path: Path):
    """Five layers of six have a window of 1,024 tokens, as in Gemma 3: they must not take five sixths of the memory."""
    full = LayerGroup("full", (5,), 1, 64, 0, "float32", 1 << 15)
    window = LayerGroup("window", (0, 1, 2, 3, 4), 1, 64, 1024, "float32", 5 << 15)
    cpu = torch.device("cpu")

    def counts(memory: int, *groups: LayerGroup, context: int = 1 << 17) -> tuple[int, ...]:
        options = ReplicaOptions(tmp_path, "unix:x", tmp_path, "r", b"", kv_memory=memory, max_running=4)
        return block_counts(options, groups, cpu, context)

    whole, reached = counts(1 << 30, window, full)[::-1]
    assert (1 << 30) - 6 * (1 << 15) < (whole + 5 * reached) << 15 <= 1 << 30
    assert reached == whole * 17 // 32
    # Where there is little, running requests come first; and a group never has more than is of use.
    assert counts(200 << 15, full, window)[1] <= counts(200 << 15, full, window)[0]
    assert counts(1000 << 15, full, window)[1] >= 4 * 17 + 8
    assert counts(1 << 25, full) == (1 << 10,)
    assert counts(5 << 25, window) == (1 << 10,)
    with pytest.raises(StartError, match="kv_memory: 100 bytes hold 0 blocks"):
        counts(100, full, window)
