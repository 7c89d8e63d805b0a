"""The block pool against a model so naive that it can be seen to be right (C4)."""

from collections import OrderedDict

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from prompt_cache.kv.block_pool import BlockPool, OutOfBlocks
from tests.fast import examples

TOTAL = 7
KEYS = [bytes([i]) * 4 for i in range(10)]
SCOPES = ["a", "b"]


class PoolMachine(RuleBasedStateMachine):
    """Tables (lists of blocks) held by imaginary requests, and what each cached key must still be found as."""

    def __init__(self) -> None:
        super().__init__()
        self.freed: list[int] = []
        self.free_before = set(range(TOTAL))
        self.pool = BlockPool(TOTAL, on_free=self.freed.append)
        self.tables: list[list[int]] = []
        self.published: dict[bytes, tuple[int, str]] = {}
        self.cached: OrderedDict[int, None] = OrderedDict()
        self.expected: list[list[bytes]] = []

    def awaited(self, block: int) -> bool:
        keys = {key for keys in self.expected for key in keys}
        return any(block == b for key, (b, _) in self.published.items() if key in keys)

    def reorder(self, keys: list[bytes], before: set[int]) -> None:
        for key in reversed(keys):
            block, _ = self.published.get(key, (-1, ""))
            if block in self.cached and self.awaited(block) != (block in before):
                self.cached.move_to_end(block)

    def references(self, block: int) -> int:
        return sum(table.count(block) for table in self.tables)

    def release(self, block: int) -> None:
        if self.references(block) == 0 and any(block == b for b, _ in self.published.values()):
            self.cached[block] = None

    @rule(count=st.integers(0, TOTAL + 1))
    def allocate(self, count: int) -> None:
        available = TOTAL - sum(1 for block in range(TOTAL) if self.references(block))
        if count > available:
            with pytest.raises(OutOfBlocks):
                self.pool.allocate(count)
            return
        free = available - len(self.cached)
        evicted = sorted(self.cached, key=self.awaited)[: max(0, count - free)]
        for block in evicted:
            del self.cached[block]
        self.published = {key: value for key, value in self.published.items() if value[0] not in evicted}
        blocks = self.pool.allocate(count)
        assert len(set(blocks)) == count
        assert all(self.references(block) == 0 and block not in self.cached for block in blocks)
        assert set(evicted) <= set(blocks)
        self.tables.append(blocks)

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        table = self.tables.pop(data.draw(st.integers(0, len(self.tables) - 1)))
        self.pool.free(table)
        for block in reversed(table):
            self.release(block)

    @precondition(lambda self: any(self.tables))
    @rule(data=st.data(), key=st.sampled_from(KEYS), scope=st.sampled_from(SCOPES))
    def publish(self, data: st.DataObject, key: bytes, scope: str) -> None:
        table = data.draw(st.sampled_from([table for table in self.tables if table]))
        at = data.draw(st.integers(0, len(table) - 1))
        block = table[at]
        other = next((k for k, (b, _) in self.published.items() if b == block), None)
        if key not in self.published and other is not None:
            with pytest.raises(ValueError, match="two keys"):
                self.pool.publish(block, key, scope)
            return
        result = self.pool.publish(block, key, scope)
        if key in self.published:
            assert result == self.published[key][0]
            self.cached.pop(result, None)
            table[at] = result
            self.release(block)
        else:
            assert result == block
            self.published[key] = (block, scope)

    @rule(keys=st.lists(st.sampled_from(KEYS), max_size=4))
    def match(self, keys: list[bytes]) -> None:
        expected = []
        for key in keys:
            if key not in self.published:
                break
            expected.append(self.published[key][0])
        found = self.pool.find(keys)
        assert found == expected
        self.pool.share(found)
        for block in found:
            self.cached.pop(block, None)
        self.tables.append(found)

    @rule(keys=st.lists(st.sampled_from(KEYS), max_size=4, unique=True))
    def expect(self, keys: list[bytes]) -> None:
        before = set(filter(self.awaited, self.cached))
        self.pool.expect(keys)
        self.expected.append(keys)
        self.reorder(keys, before)

    @precondition(lambda self: self.expected)
    @rule(data=st.data())
    def dismiss(self, data: st.DataObject) -> None:
        before = set(filter(self.awaited, self.cached))
        keys = self.expected.pop(data.draw(st.integers(0, len(self.expected) - 1)))
        self.pool.dismiss(keys)
        self.reorder(keys, before)

    @rule(keys=st.lists(st.sampled_from(KEYS), max_size=3, unique=True))
    def purge(self, keys: list[bytes]) -> None:
        assert self.pool.purge(keys) == sum(key in self.published for key in keys)
        for key in keys:
            block, _ = self.published.pop(key, (-1, ""))
            self.cached.pop(block, None)

    @rule(scope=st.sampled_from(SCOPES))
    def forget(self, scope: str) -> None:
        gone = {key: block for key, (block, s) in self.published.items() if s == scope}
        assert self.pool.forget(scope) == len(gone)
        for key, block in gone.items():
            del self.published[key]
            self.cached.pop(block, None)

    @invariant()
    def agrees(self) -> None:
        self.pool.check()
        referenced = {block for table in self.tables for block in table}
        assert self.pool.referenced_blocks == len(referenced)
        assert self.pool.cached_blocks == len(self.cached)
        assert self.pool.free_blocks + self.pool.cached_blocks == self.pool.available
        assert self.pool.free_blocks + len(referenced) + len(self.cached) == TOTAL
        free_now = set(range(TOTAL)) - referenced - self.cached.keys()
        assert sorted(self.freed) == sorted(free_now - self.free_before), "poisoned is what becomes free, once"
        self.freed.clear()
        self.free_before = free_now
        for key in KEYS:
            expected = [self.published[key][0]] if key in self.published else []
            assert self.pool.find([key]) == expected


TestPool = PoolMachine.TestCase
TestPool.settings = settings(max_examples=examples(60), stateful_step_count=40, deadline=None)


def _three_cached(pool: BlockPool) -> list[int]:
    """Blocks of the first three keys that nobody uses any more."""
    table = pool.allocate(3)
    for block, key in zip(table, KEYS, strict=False):
        pool.publish(block, key)
    pool.free(table)
    return table


def test_least_recently_used_is_evicted_first_and_tails_before_heads():
    pool = BlockPool(4)
    table = _three_cached(pool)
    assert pool.allocate(1) not in ([block] for block in table)  # the free block goes first
    assert pool.allocate(1) == [table[2]]
    assert pool.find(KEYS[:3]) == table[:2]
    assert pool.evictions == 1


def test_what_somebody_waits_for_is_evicted_last():
    pool = BlockPool(3)
    table = _three_cached(pool)
    pool.expect(KEYS[1:3])
    pool.expect(KEYS[2:3])
    pool.dismiss(KEYS[1:3])
    assert pool.allocate(3) == [table[0], table[1], table[2]]
    assert pool.evictions == 3


def test_a_block_freed_twice_is_an_error():
    pool = BlockPool(2)
    table = pool.allocate(1)
    pool.free(table)
    with pytest.raises(ValueError, match="not referenced"):
        pool.free(table)


def test_a_purged_block_in_use_lives_on_but_is_not_found():
    freed: list[int] = []
    pool = BlockPool(2, on_free=freed.append)
    table = pool.allocate(1)
    pool.publish(table[0], KEYS[0], "s")
    assert pool.forget("s") == 1
    assert pool.find([KEYS[0]]) == []
    assert pool.referenced_blocks == 1
    assert freed == []
    pool.free(table)
    assert freed == table
