"""Conversations stay with the replica that has their KV, and replicas share the work."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from uuid import UUID

import pytest

from gateway.fleet.cache_affinity import CacheAffinity, conversation_key

PROJECT = UUID(int=5)


@dataclass
class Replica:
    replica: str
    load: int = 0
    cached: set[tuple[int, ...]] = field(default_factory=set)
    tokens: int = 0

    def run(self, blocks: Sequence[int]) -> int:
        """Compute a prompt of blocks; returns how many of them were cached."""
        self.tokens += len(blocks)
        hits, prefix = 0, ()
        for block in blocks:
            prefix = (*prefix, block)
            hits += prefix in self.cached
            self.cached.add(prefix)
        return hits


def key(number: int, partition: str = "") -> bytes:
    return conversation_key(PROJECT, partition, [number] * 40, 40)


def standing_still() -> CacheAffinity:
    """Whose clock stands still. Work that was given counts less with time, and so would choices on a machine that is
    held up between two of them."""
    return CacheAffinity(lambda: 0.0)


def test_the_key_is_of_the_beginning_the_project_and_the_partition() -> None:
    assert conversation_key(PROJECT, "", [1, 2, 3], 2) == conversation_key(PROJECT, "", [1, 2, 9, 9], 2)
    others = {
        conversation_key(PROJECT, "", [1, 3, 3], 2),
        conversation_key(PROJECT, "a", [1, 2, 3], 2),
        conversation_key(UUID(int=6), "", [1, 2, 3], 2),
    }
    assert len(others | {conversation_key(PROJECT, "", [1, 2, 3], 2)}) == 4


def test_a_conversation_stays_where_it_began() -> None:
    replicas = [Replica("a"), Replica("b"), Replica("c")]
    affinity = standing_still()
    began = {number: affinity.choose(key(number), 100, replicas) for number in range(30)}
    for turn in range(1, 5):
        for number, replica in began.items():
            assert affinity.choose(key(number), 100 + turn * 50, replicas) is replica


def test_gateways_agree_without_talking() -> None:
    replicas = [Replica("a"), Replica("b"), Replica("c"), Replica("d")]
    one, other = standing_still(), standing_still()
    agreed = sum(one.choose(key(n), 10, replicas) is other.choose(key(n), 10, replicas) for n in range(200))
    assert agreed == 200, "the same requests in the same order"
    late = standing_still()
    assert sum(late.choose(key(n), 10, replicas) is one.choose(key(n), 10, replicas) for n in range(200, 400)) >= 120


def test_a_crowded_replica_is_left_and_a_lost_one_too() -> None:
    replicas = [Replica("a"), Replica("b")]
    affinity = standing_still()
    home = affinity.choose(key(1), 100, replicas)
    (other,) = [replica for replica in replicas if replica is not home]
    home.load = 8
    assert affinity.choose(key(1), 100, replicas) is home, "a few requests more are no crowd"
    home.load = 9
    assert affinity.choose(key(1), 100, replicas) is other
    assert affinity.choose(key(1), 100, [home]) is home


def test_work_that_was_given_long_ago_does_not_count() -> None:
    now = [0.0]
    replicas = [Replica("a"), Replica("b")]
    affinity = CacheAffinity(lambda: now[0])
    for number in range(100, 160):
        affinity.choose(key(number), 10, replicas)
    first = affinity.choose(key(1), 10**9, replicas)
    assert all(affinity.choose(key(n), 10, replicas) is not first for n in range(2, 30))
    now[0] = 36_000.0
    assert any(affinity.choose(key(n), 10, replicas) is first for n in range(30, 60))


@pytest.mark.parametrize("conversations", [8, 24])
@pytest.mark.parametrize("seed", range(5))
def test_two_replicas_hit_as_one_does_and_share_the_work(conversations: int, seed: int) -> None:
    def hit_share(count: int) -> tuple[float, list[Replica]]:
        rng = random.Random(seed)
        replicas = [Replica(f"replica-{number}") for number in range(count)]
        affinity, hits, total = standing_still(), 0, 0
        system = list(range(10))
        for generation in range(6):  # as many conversations at once, six times
            talks = [[*system, 1000 + generation * 100 + number] for number in range(conversations)]
            for _ in range(8):
                for number in rng.sample(range(conversations), conversations):
                    talk = talks[number]
                    chosen = affinity.choose(key(talk[10]), len(talk) * 64, replicas)
                    hits += chosen.run(talk)
                    total += len(talk)
                    talk += [rng.randrange(10**9) for _ in range(rng.randint(2, 6))]
        return hits / total, replicas

    alone, _ = hit_share(1)
    shared, replicas = hit_share(2)
    assert shared >= 0.97 * alone
    used = sorted(replica.tokens for replica in replicas)
    assert used[1] <= 1.2 * used[0]
