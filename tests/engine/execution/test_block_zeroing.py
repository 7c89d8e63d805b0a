"""Freed blocks of host memory are zeroed by another thread, and never once they are handed out again."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator

import pytest
import torch

from engine.execution.block_zeroing import BlockZeroing
from engine.kv_cache.memory import KvLayout, KvMemory
from prompt_cache.kv.grouped_pool import GroupedPool
from tests.waiting import LONG_S

BLOCKS = 16


def memory(heads: int) -> KvMemory:
    layout = KvLayout(torch.float32)
    layout.place(0, heads, 8)
    held = KvMemory(layout.groups()[0], BLOCKS, torch.zeros(()))
    held.data.fill_(7.0)
    return held


class Gate:
    """Overwrites when it is let, and says which addresses."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.begun = threading.Event()
        self.filled: list[int] = []

    def __call__(self, address: int, value: int, size: int) -> None:
        if threading.current_thread() is not threading.main_thread():
            self.begun.set()
            assert self.open.wait(LONG_S)
        self.filled.append(address)
        ctypes.memset(address, value, size)


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.open.set()


def pool_of(zeroing: BlockZeroing) -> GroupedPool:
    return GroupedPool([(BLOCKS, 0), (BLOCKS, 0)], on_free=zeroing.freed, on_take=zeroing.taken)


def test_what_is_freed_is_zeroed_and_nothing_else() -> None:
    memories = [memory(1), memory(2)]
    zeroing = BlockZeroing(memories)
    pool = pool_of(zeroing)
    blocks = pool.allocate(BLOCKS)
    pool.free(blocks[4:])
    zeroing.wait()
    for group, held in enumerate(memories):
        kept = [block[group] for block in blocks[:4]]
        gone = [block[group] for block in blocks[4:]]
        assert bool((held.data[kept] == 7.0).all())
        assert not held.data[gone].any()


def test_freeing_and_taking_wait_for_nothing_and_what_is_handed_out_is_left_alone(gate: Gate) -> None:
    """The thread stands still at its first block: all others can be had, and who writes there keeps it."""
    memories = [memory(1), memory(2)]
    zeroing = BlockZeroing(memories, gate)
    pool = pool_of(zeroing)
    blocks = pool.allocate(BLOCKS)
    pool.free(blocks)
    assert gate.begun.wait(LONG_S)
    assert not gate.filled, "it was zeroed by whoever freed it"
    taken = pool.allocate(BLOCKS // 2)
    assert not gate.filled, "it was zeroed by whoever took it"
    for group, held in enumerate(memories):
        held.data[[block[group] for block in taken]] = 9.0
    gate.open.set()
    zeroing.wait()
    for group, held in enumerate(memories):
        mine = [block[group] for block in taken]
        assert bool((held.data[mine] == 9.0).all())
        assert not held.data[[number for number in range(BLOCKS) if number not in mine]].any()
    pool.free(taken)
    zeroing.wait()
    assert not any(held.data.any() for held in memories)
    assert len(gate.filled) == 2 * BLOCKS


def test_a_block_that_is_being_zeroed_is_waited_for(gate: Gate) -> None:
    """Who takes it would lose what it writes there."""
    held = memory(1)
    zeroing = BlockZeroing([held], gate)
    zeroing.freed(0, 3)
    assert gate.begun.wait(LONG_S)
    returned = threading.Event()

    def take() -> None:
        zeroing.taken(0, [3])
        returned.set()

    taker = threading.Thread(target=take)
    taker.start()
    assert not returned.wait(0.05)
    gate.open.set()
    taker.join(LONG_S)
    assert returned.is_set()
    assert not held.data[3].any()
    assert bool((held.data[2] == 7.0).all())


def test_a_block_is_zeroed_each_time_that_it_is_freed() -> None:
    held = memory(1)
    zeroing = BlockZeroing([held])
    pool = GroupedPool([(BLOCKS, 0)], on_free=zeroing.freed, on_take=zeroing.taken)
    for turn in range(1, 200):
        blocks = pool.allocate(BLOCKS)
        held.data.fill_(turn)
        assert bool((held.data == turn).all())
        pool.free(blocks)
    zeroing.wait()
    assert not held.data.any()
