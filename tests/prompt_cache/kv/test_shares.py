"""A scope's reserve and limit in a pool, and what finding and inserting a prompt costs as the pool grows."""

from __future__ import annotations

import sys
from types import FrameType

import pytest

from benchmarks.cache_policies import key_of
from benchmarks.cache_traces import Trace
from benchmarks.cache_traffic import chat
from prompt_cache.kv.block_pool import BlockPool, OutOfBlocks
from prompt_cache.kv.grouped_pool import GroupedPool
from prompt_cache.placement.eviction_order import NO_PARENT


def read(pool: BlockPool, keys: list[bytes], scope: str) -> int:
    """How many blocks were cached; then all are."""
    table = pool.find(keys)
    pool.share(table)
    found = len(table)
    parent = table[-1] if table else NO_PARENT
    for key, block in zip(keys[found:], pool.allocate(len(keys) - found), strict=True):
        parent = pool.publish(block, key, scope, parent)
        table.append(parent)
    pool.free(table)
    return found


def quiet_hit_share(trace: Trace, *, flood: int, reserve: int) -> float:
    """The hit share of a project, before each of whose requests another one reads `flood` new prompts, thrice each, so
    that they look as if they were worth keeping."""
    pool = BlockPool(4000)
    pool.set_share("quiet", reserve)
    found = fresh = 0
    for prompt in trace.prompts:
        for _ in range(flood):
            fresh += 40
            for _ in range(3):
                read(pool, [key_of(-number) for number in range(fresh, fresh - 40, -1)], "noisy")
        found += read(pool, [key_of(block) for block in prompt.blocks], "quiet")
    return found * trace.block / trace.tokens


@pytest.fixture(scope="module")
def trace() -> Trace:
    return chat(3, requests=600)


@pytest.mark.slow
def test_a_noisy_neighbour_does_not_take_what_is_reserved(trace: Trace) -> None:
    alone = quiet_hit_share(trace, flood=0, reserve=0)
    assert quiet_hit_share(trace, flood=6, reserve=3200) > alone - 0.02
    assert quiet_hit_share(trace, flood=6, reserve=0) < alone - 0.03, "the flood must be able to do harm"


def test_a_scope_at_its_limit_evicts_its_own() -> None:
    pool = BlockPool(100)
    evicted: list[str] = []
    pool.on_evict = lambda block, key, scope: evicted.append(scope)
    pool.set_share("small", limit=10)
    read(pool, [b"other%d" % number for number in range(20)], "other")
    for prompt in range(5):
        read(pool, [b"%d/%d" % (prompt, number) for number in range(8)], "small")
        pool.check()
        assert pool.held_by("small") <= 10
    assert set(evicted) == {"small"}
    assert pool.held_by("other") == 20
    assert pool.free_blocks == 70


def test_a_limit_set_later_holds_at_once() -> None:
    pool = BlockPool(100)
    read(pool, [b"%d" % number for number in range(30)], "s")
    pool.set_share("s", limit=12)
    assert pool.held_by("s") == 12
    pool.set_share("s")
    read(pool, [b"x%d" % number for number in range(30)], "s")
    assert pool.held_by("s") == 42
    pool.check()


def test_a_reserve_gives_way_to_running_requests() -> None:
    pool = BlockPool(20)
    pool.set_share("s", 20)
    read(pool, [b"%d" % number for number in range(20)], "s")
    assert len(pool.allocate(20)) == 20, "a request cannot wait for ever for what is only cached"


def test_what_can_be_computed_again_takes_no_place_from_the_reserve_of_another() -> None:
    pool = BlockPool(20)
    pool.set_share("s", 12)
    read(pool, [b"s%d" % number for number in range(14)], "s")
    read(pool, [b"o%d" % number for number in range(6)], "o")
    assert len(pool.allocate_spare(7, "o")) == 7
    assert pool.held_by("s") + pool.held_by("o") == 13
    before = pool.evictions
    with pytest.raises(OutOfBlocks):
        pool.allocate_spare(2, "o")
    assert pool.evictions == before, "a block was evicted in vain"
    assert len(pool.allocate_spare(1, "o")) == 1
    with pytest.raises(OutOfBlocks):
        pool.allocate_spare(1, "o")
    assert pool.held_by("s") == 12
    assert len(pool.allocate_spare(1, "s")) == 1, "its own blocks make room for its own"
    assert pool.held_by("s") == 11
    pool.check()


def test_shares_in_bytes_are_divided_among_layer_groups() -> None:
    pool = GroupedPool([(100, 0), (100, 64)], block_bytes=[300, 100])
    pool.set_share("s", (0, 4000))
    for prompt in range(6):
        table = pool.allocate(4)
        for index in range(4):
            pool.publish(table, index, b"%d/%d" % (prompt, index), "s")
        pool.free(table)
    assert [group.held_by("s") for group in pool.pools] == [10, 10]
    pool.forget("s")
    assert [group.held_by("s") for group in pool.pools] == [0, 0]


def operations(blocks: int, prompt_blocks: int) -> dict[str, float]:
    """Calls a block, of Python's and of C's functions, for inserting into a full pool and for finding there."""
    pool = BlockPool(blocks)
    for number in range(blocks // prompt_blocks + 2):
        read(pool, [b"%d/%d" % (number, index) for index in range(prompt_blocks)], "s")
    calls = 0

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    counted = {}
    keys = [[b"new%d/%d" % (round, index) for index in range(prompt_blocks)] for round in range(8)]
    for name in ("insert", "find"):
        calls = 0
        sys.setprofile(count)
        for each in keys:
            read(pool, each, "s")
        sys.setprofile(None)
        counted[name] = calls / len(keys) / prompt_blocks
    return counted


def test_the_work_for_a_prompt_does_not_grow_with_the_pool() -> None:
    small, large = operations(4_000, 400), operations(40_000, 400)
    for name, most in (("insert", 14.0), ("find", 4.0)):
        assert large[name] < 1.15 * small[name], "it grows with what is cached"
        assert large[name] < most
