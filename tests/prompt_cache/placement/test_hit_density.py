"""The shipped eviction order against what any order has to keep, and what it is to learn."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from prompt_cache.kv.block_pool import BlockPool
from prompt_cache.placement.eviction_order import NO_PARENT
from prompt_cache.placement.hit_density import HitDensity
from tests.fast import examples

TOTAL = 12
SCOPES = ["", "reserved", "limited"]
RESERVE, LIMIT = 3, 4


class OrderMachine(RuleBasedStateMachine):
    """Entries with their parents, who uses them, and who waits for them."""

    def __init__(self) -> None:
        super().__init__()
        self.order = HitDensity(TOTAL, attention_tokens=100.0)
        self.order.set_share("reserved", RESERVE, None, [])
        self.order.set_share("limited", 0, LIMIT, [])
        self.keys = iter(range(1 << 20))
        self.parent: dict[int, int] = {}
        self.scope: dict[int, str] = {}
        self.in_use: set[int] = set()
        self.expected: set[int] = set()
        self.duplicates: set[int] = set()
        self.now = 0.0

    def followed(self, entry: int) -> bool:
        return entry in self.parent.values()

    def held(self, scope: str) -> int:
        return sum(own == scope for own in self.scope.values())

    def drop(self, entry: int) -> None:
        del self.parent[entry], self.scope[entry]
        self.expected.discard(entry)
        self.duplicates.discard(entry)
        self.in_use.discard(entry)

    def free(self) -> list[int]:
        return [entry for entry in range(TOTAL) if entry not in self.parent]

    @precondition(lambda self: self.free())
    @rule(data=st.data(), scope=st.sampled_from(SCOPES), again=st.booleans())
    def insert(self, data: st.DataObject, scope: str, again: bool) -> None:
        entry = self.free()[0]
        using = [NO_PARENT, *sorted(self.in_use & self.parent.keys())]
        parent = data.draw(st.sampled_from(using))
        key = (data.draw(st.integers(0, 30)) if again else next(self.keys)).to_bytes(8, "big")
        self.order.insert(entry, parent, key, scope)
        self.parent[entry], self.scope[entry] = parent, scope
        self.in_use.add(entry)

    def path(self, entry: int) -> list[int]:
        path = [entry]
        while self.parent.get(path[0], NO_PARENT) >= 0:
            path.insert(0, self.parent[path[0]])
        return path

    @precondition(lambda self: self.parent)
    @rule(data=st.data())
    def touch(self, data: st.DataObject) -> None:
        path = self.path(data.draw(st.sampled_from(sorted(self.parent))))
        self.order.touch(path)
        self.in_use |= set(path)

    @precondition(lambda self: self.in_use)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        path = self.path(data.draw(st.sampled_from(sorted(self.in_use))))
        # Whoever uses an entry uses those before it: only what nobody uses after it may rest.
        needed = {before for entry in self.in_use - set(path) for before in self.path(entry)}
        resting = [entry for entry in path if entry in self.in_use and entry not in needed]
        if resting:
            self.order.release(resting)
            self.in_use -= set(resting)

    @precondition(lambda self: self.parent)
    @rule(data=st.data())
    def expect(self, data: st.DataObject) -> None:
        for entry in self.path(data.draw(st.sampled_from(sorted(self.parent)))):
            self.order.expect(entry)
            self.expected.add(entry)

    @precondition(lambda self: self.expected)
    @rule(data=st.data())
    def dismiss(self, data: st.DataObject) -> None:
        entry = data.draw(st.sampled_from(sorted(self.expected)))
        self.order.dismiss(entry)
        self.expected.discard(entry)

    @precondition(lambda self: self.parent)
    @rule(data=st.data())
    def duplicated(self, data: st.DataObject) -> None:
        entry = data.draw(st.sampled_from(sorted(self.parent)))
        self.order.duplicated(entry)
        if self.scope[entry] != "reserved":
            self.duplicates.add(entry)

    @precondition(lambda self: self.duplicates)
    @rule(data=st.data())
    def sole(self, data: st.DataObject) -> None:
        entry = data.draw(st.sampled_from(sorted(self.duplicates)))
        self.order.sole(entry)
        self.duplicates.discard(entry)

    @precondition(lambda self: self.parent)
    @rule(data=st.data(), lasts=st.integers(1, 5))
    def retain(self, data: st.DataObject, lasts: int) -> None:
        self.order.retain(self.path(data.draw(st.sampled_from(sorted(self.parent)))), self.now + lasts)

    @rule()
    def expire(self) -> None:
        self.now += 2
        self.order.expire(self.now)

    @precondition(lambda self: self.parent)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        entry = data.draw(st.sampled_from(sorted(self.parent)))
        for follower in [other for other, parent in self.parent.items() if parent == entry]:
            self.parent[follower] = NO_PARENT
        self.order.remove(entry)
        self.drop(entry)

    @rule(scope=st.sampled_from(SCOPES))
    def excess(self, scope: str) -> None:
        over = scope == "limited" and self.held(scope) > LIMIT
        entry = self.order.excess(scope)
        assert over or entry is None
        if entry is not None:
            assert self.scope[entry] == scope
            self.check_given_up(entry)

    def check_given_up(self, entry: int) -> None:
        assert entry not in self.in_use, "what is in use is given up"
        assert not self.followed(entry), "a beginning is given up before its end"
        self.drop(entry)

    @rule(count=st.integers(1, 4))
    def victims(self, count: int) -> None:
        resting = len(self.parent) - len(self.in_use)
        coming = self.order.coming(count)
        self.check_coming(coming, count)
        victims = self.order.victims(count)
        assert len(victims) == min(count, resting), "what rests can be given up, whatever it is"
        if count == 1 and coming:
            assert victims == coming
        for entry in victims:
            first = [other for other in self.duplicates - self.in_use - self.expected if not self.followed(other)]
            assert entry in first or not first, "what a nearer tier has as well is kept for longer"
            open_to_all = [
                other
                for other, scope in self.scope.items()
                if other not in self.in_use and not self.followed(other) and other not in self.expected
                if scope != "reserved" or self.held(scope) > RESERVE
            ]
            if entry not in open_to_all:
                assert not open_to_all, "a reserve, or what somebody waits for, is given up before the rest"
            self.check_given_up(entry)

    @rule(count=st.integers(1, 4), scope=st.sampled_from(SCOPES))
    def spare_victims(self, count: int, scope: str) -> None:
        victims = self.order.spare_victims(count, scope)
        for entry in victims:
            assert entry not in self.expected, "somebody waits for it"
            assert scope == "reserved" or self.scope[entry] != "reserved" or self.held("reserved") > RESERVE
            self.check_given_up(entry)
        if len(victims) < count:
            assert not [
                entry
                for entry, of in self.scope.items()
                if entry not in self.in_use | self.expected and not self.followed(entry)
                if scope == "reserved" or of != "reserved" or self.held("reserved") > RESERVE
            ], "more could be given up"

    def check_coming(self, coming: list[int], count: int) -> None:
        """They could be given up in this order, before all that somebody waits for, and out of no reserve."""
        assert len(set(coming)) == len(coming) <= count
        for at, entry in enumerate(coming):
            assert entry not in self.in_use | self.expected
            followers = {other for other, parent in self.parent.items() if parent == entry}
            assert followers <= set(coming[:at])
        reserved = sum(self.scope[entry] == "reserved" for entry in coming)
        assert not reserved or self.held("reserved") - reserved >= RESERVE
        if len(coming) < count:
            assert not [
                entry
                for entry, scope in self.scope.items()
                if entry not in self.in_use | self.expected | set(coming) and scope != "reserved"
                if not {other for other, parent in self.parent.items() if parent == entry} - set(coming)
            ], "more could be given up"

    @invariant()
    def remembers_little(self) -> None:
        assert self.order.remembered <= 3 * TOTAL


TestOrder = OrderMachine.TestCase
TestOrder.settings = settings(max_examples=examples(100), stateful_step_count=60, deadline=None)


def read(pool: BlockPool, prompt: list[str]) -> int:
    """How many blocks of a prompt were cached; then all of it is."""
    keys = [f"{'/'.join(prompt[: index + 1])}".encode() for index in range(len(prompt))]
    table = pool.find(keys)
    pool.share(table)
    found = len(table)
    parent = table[-1] if table else NO_PARENT
    for key, block in zip(keys[found:], pool.allocate(len(keys) - found), strict=True):
        parent = pool.publish(block, key, "", parent)
        table.append(parent)
    pool.free(table)
    return found


@pytest.mark.parametrize("attention_tokens", [None, 64.0])
@pytest.mark.parametrize("shares", [False, True])
def test_what_comes_next_is_what_is_evicted(attention_tokens: float | None, shares: bool) -> None:
    """In almost all cases: a tick that passes, or a reserve that gives way, may change it."""
    random, total = Random(7), 300
    pool = BlockPool(total, order=HitDensity(total, 64, attention_tokens))
    if shares:
        pool.set_share("reserved", total // 5)
        pool.set_share("limited", 0, total // 6)
    asked: list[tuple[list[bytes], str]] = []
    foretold = evicted = 0
    for number in range(300):
        keys, scope = [b"%d.%d" % (number, at) for at in range(random.randrange(1, 50))], ""
        if shares:
            scope = random.choice(["", "", "reserved", "limited"])
        if asked and random.random() < 0.5:
            earlier, scope = random.choice(asked[-30:])
            keys = earlier[: random.randrange(1, len(earlier) + 1)] + keys[:20]
        asked.append((keys, scope))
        if random.random() < 0.1:
            pool.retain(keys, number + 5.0)
        pool.expire(float(number))
        table = pool.find(keys)
        pool.share(table)
        found = len(table)
        before = pool.free_blocks
        coming = {key for _, key, _ in pool.coming(max(0, len(keys) - found - before))}
        table += pool.allocate(len(keys) - found)
        foretold += sum(not pool.holds(key) for key in coming)
        evicted += max(0, len(keys) - found - before)
        for at in range(found, len(keys)):
            table[at] = pool.publish(table[at], keys[at], scope, table[at - 1] if at else NO_PARENT)
        pool.free(table)
    assert evicted > 1000
    assert foretold / evicted > (0.9 if shares else 0.98)


def prompts(name: str, count: int) -> Iterator[list[str]]:
    """Prompts that nobody asks again."""
    for number in range(count):
        yield [f"{name}{number}"] * 10


def test_without_evidence_the_least_recently_used_goes_first() -> None:
    pool = BlockPool(30)
    for name in "abc":
        read(pool, [name] * 10)
    assert read(pool, ["a"] * 10) == 10
    read(pool, ["d"] * 10)
    assert [read(pool, [name] * 10) for name in "ac"] == [10, 10]


def test_prompts_asked_once_do_not_take_the_place_of_those_asked_again() -> None:
    pool = BlockPool(200)
    found = 0
    for number, once in enumerate(prompts("once", 400)):
        read(pool, once)
        if number % 10 == 0:  # between two turns of one of these, more than the pool holds comes by
            found = read(pool, [f"regular{number // 10 % 4}"] * 10)
    assert found == 10


def test_a_scan_that_is_repeated_and_does_not_fit_is_cached_in_part() -> None:
    pool = BlockPool(200)
    shares = [sum(read(pool, prompt) for prompt in prompts("scan", 30)) / 300 for _ in range(12)]
    assert shares[0] == 0.0
    assert shares[-1] > 0.4, "200 of 300 blocks fit; the least recently used one is always the next"


def test_a_lease_keeps_its_blocks_longer_and_no_longer_than_it_lasts() -> None:
    def survivors(lease: Callable[[BlockPool], None]) -> int:
        pool = BlockPool(64)
        for name in "abcd":
            read(pool, [name] * 8)
        lease(pool)
        for once in prompts("once", 4):
            read(pool, once)
        return len(pool.find([b"a", *(b"/".join([b"a"] * length) for length in range(2, 9))]))

    keys = [b"/".join([b"a"] * length) for length in range(1, 9)]

    def ended(pool: BlockPool) -> None:
        pool.retain(keys, 10.0)
        pool.expire(10.0)

    assert survivors(lambda pool: None) < 8
    assert survivors(lambda pool: pool.retain(keys, 10.0)) == 8
    assert survivors(ended) < 8


@pytest.mark.parametrize("attention_tokens", [None, 64.0])
def test_where_attention_is_dear_the_deep_prompt_stays(attention_tokens: float | None) -> None:
    pool = BlockPool(300, order=HitDensity(300, 64, attention_tokens))
    read(pool, ["deep"] * 200)
    read(pool, ["flat"] * 50)
    for once in prompts("once", 6):
        read(pool, once)
    deep = len(pool.find([b"/".join([b"deep"] * length) for length in range(1, 201)]))
    assert (deep == 200) == (attention_tokens is not None)
