"""The pools of several layer groups as one, against definitions so naive that they can be seen to be right (C4)."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from prompt_cache.kv.block_pool import OutOfBlocks
from prompt_cache.kv.grouped_pool import ABSENT, Block, GroupedPool
from tests.fast import examples

GROUPS = [(9, 0), (7, 100), (8, 64)]
TOKENS = 64
CHAIN = [bytes([index]) * 4 for index in range(6)]


def needed(group: int, block: int, position: int) -> bool:
    """Whether a token from `position` on sees any token of the block in this group."""
    window = GROUPS[group][1]
    return not window or position - (block * TOKENS + TOKENS - 1) < window


class Sequence:
    """An imaginary request over the one chain of keys: its table, how many of its tokens are computed, and how many of
    its blocks are laid."""

    def __init__(self, table: list[Block], tokens: int) -> None:
        self.table = table
        self.tokens = tokens
        self.laid = tokens // TOKENS

    def has(self, group: int, block: int) -> bool:
        return not GROUPS[group][1] or (block < self.laid and needed(group, block, self.tokens))


class GroupsMachine(RuleBasedStateMachine):
    """Sequences begin, go on, slide, publish and end."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = GroupedPool(GROUPS)
        self.sequences: list[Sequence] = []

    def held(self, group: int) -> set[int]:
        return {block[group] for one in self.sequences for block in one.table} - {ABSENT}

    @rule(blocks=st.integers(1, len(CHAIN)))
    def begin(self, blocks: int) -> None:
        found = self.pool.find(CHAIN[: blocks - 1])
        present = [[pool.holds(key) for key in CHAIN] for pool in self.pool.pools]
        expected = max(
            length
            for length in range(blocks)
            if all(
                present[group][index]
                for group in range(len(GROUPS))
                for index in range(length)
                if needed(group, index, length * TOKENS)
            )
        )
        assert len(found) == expected
        for index, block in enumerate(found):
            for group, number in enumerate(block):
                assert (number != ABSENT) == needed(group, index, expected * TOKENS)
        self.pool.share(found)
        if blocks - expected > self.pool.pools[0].available:
            with pytest.raises(OutOfBlocks):
                self.pool.begin(blocks - expected)
            self.pool.free(found)
            return
        one = Sequence(found + self.pool.begin(blocks - expected), expected * TOKENS)
        self.check_parts(one)
        self.sequences.append(one)

    def check_parts(self, one: Sequence) -> None:
        for index, block in enumerate(one.table):
            for group, number in enumerate(block):
                assert (number != ABSENT) == one.has(group, index)

    @precondition(lambda self: self.sequences)
    @rule(data=st.data(), count=st.integers(1, 3))
    def grow(self, data: st.DataObject, count: int) -> None:
        one = data.draw(st.sampled_from(self.sequences))
        if one.laid < len(one.table) or len(one.table) + count > len(CHAIN):
            return
        if count > self.pool.available:
            with pytest.raises(OutOfBlocks):
                self.pool.allocate(count)
            return
        one.table += self.pool.allocate(count)
        one.laid += count

    @precondition(lambda self: self.sequences)
    @rule(data=st.data(), tokens=st.integers(1, 150), publish=st.booleans())
    def compute(self, data: st.DataObject, tokens: int, publish: bool) -> None:
        one = data.draw(st.sampled_from(self.sequences))
        before = one.tokens // TOKENS
        end = min(one.tokens + tokens, len(one.table) * TOKENS)
        until = -(-end // TOKENS)
        # With nothing in a table twice, a window's group takes exactly the blocks that are new in it.
        missing = [
            sum(needed(group, index, one.tokens) for index in range(one.laid, until)) if window else 0
            for group, (_, window) in enumerate(GROUPS)
        ]
        if any(count > pool.available for count, pool in zip(missing, self.pool.pools, strict=True)):
            return
        laid = self.pool.allocate_window_blocks(one.table, one.laid, until, one.tokens)
        assert [sum(block[group] != ABSENT for block in laid) for group in range(len(GROUPS))] == missing
        one.laid = max(one.laid, until)
        self.check_parts(one)
        spans = self.pool.span(end - one.tokens)
        for group, span in enumerate(spans):
            held = sum(block[group] != ABSENT for block in one.table[:until])
            assert held + (end % TOKENS == 0) <= span or not GROUPS[group][1]
        one.tokens = end
        if publish:
            for index in range(before, one.tokens // TOKENS):
                self.pool.publish(one.table, index, CHAIN[index])
        self.pool.slide(one.table, one.tokens)
        self.check_parts(one)

    @precondition(lambda self: self.sequences)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        one = self.sequences.pop(data.draw(st.integers(0, len(self.sequences) - 1)))
        self.pool.free(one.table)

    @rule(key=st.sampled_from(CHAIN))
    def purge(self, key: bytes) -> None:
        held = sum(pool.holds(key) for pool in self.pool.pools)
        assert self.pool.purge([key]) == held

    @invariant()
    def agrees(self) -> None:
        self.pool.check()
        for group, pool in enumerate(self.pool.pools):
            assert pool.referenced_blocks == len(self.held(group))


TestGroups = GroupsMachine.TestCase
TestGroups.settings = settings(max_examples=examples(60), stateful_step_count=40, deadline=None)


def test_what_fell_out_of_the_window_can_be_used_by_others():
    pool = GroupedPool([(4, 0), (4, 64)])
    table = pool.allocate(4)
    pool.slide(table, 3 * TOKENS)
    assert [block[1] == ABSENT for block in table] == [True, True, False, False]
    assert [one.free_blocks for one in pool.pools] == [0, 2]
    pool.free(table)
    assert pool.free_blocks == 8


def test_a_prefix_needs_only_the_last_blocks_of_its_window():
    pool = GroupedPool([(6, 0), (6, 64)])
    table = pool.allocate(4)
    for index in range(4):
        pool.publish(table, index, CHAIN[index])
    pool.free(table)
    window = pool.pools[1]
    window.purge([CHAIN[0], CHAIN[1]])
    assert [block[1] == ABSENT for block in pool.find(CHAIN[:4])] == [True, True, True, False]
    window.purge([CHAIN[3]])
    assert len(pool.find(CHAIN[:4])) == 3
    window.purge([CHAIN[2]])
    assert pool.find(CHAIN[:4]) == []


def test_a_mirror_has_the_groups_that_its_blocks_have_and_takes_all_or_nothing():
    device, host = GroupedPool([(9, 0), (9, 64)]), GroupedPool([(4, 0), (2, 64)])
    table = device.allocate(3)
    device.slide(table, 192)
    kept = host.mirror(table)
    assert [block[0] != ABSENT for block in kept] == [True, True, True]
    assert [block[1] == ABSENT for block in kept] == [block[1] == ABSENT for block in table]
    assert host.referenced_blocks == 3 + sum(block[1] != ABSENT for block in table)
    with pytest.raises(OutOfBlocks):
        host.mirror(device.allocate(2))
    host.free(kept)
    host.check()
    assert host.referenced_blocks == 0
