"""Sends requests that continue one another to the replica that has their KV, within bounds of load.

A conversation is known by its beginning: what comes before its second turn does not change while it grows. The key of
a beginning is looked up first. A new one goes to the winner of a rendezvous of its key with the replicas' names, so
that several gateways mostly agree without talking; unless that replica was given much more than another of late.

A beginning alone is what several conversations share only if they ask the same. A system prompt that all share is not
a key, which would send all of them to one replica: each replica computes it once.
"""

from __future__ import annotations

import hashlib
import math
import time
from array import array
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar
from uuid import UUID

MOST_KEY_TOKENS = 32_768
"""Tokens of a beginning that are hashed."""
RAW_KEY_TOKENS = 512
"""Tokens of a beginning without turns: a client continues its own text."""
_REMEMBERED = 50_000
_HALF_LIFE_S = 60.0
_AHEAD = 1.05
"""How much more than the idlest replica the winner of the rendezvous may have been given, beside this request."""
_WEIGHT = 0.99
"""How much of what was learned of earlier conversations each new one leaves."""
_CROWDED, _CROWD = 2.0, 8
"""A replica is left by its conversations when it runs more than `_CROWDED` times what another runs, and `_CROWD`."""


class Loaded(Protocol):
    """What is asked of a replica."""

    @property
    def replica(self) -> str:
        """Its name."""
        ...

    @property
    def load(self) -> int:
        """Requests that it has."""
        ...


ReplicaT = TypeVar("ReplicaT", bound=Loaded)


def conversation_key(project: UUID, partition: str, tokens: Sequence[int], beginning: int) -> bytes:
    """The key of a conversation of this project whose first `beginning` tokens stay as they are.

    `partition`: a client's own name for what belongs together.
    """
    first = array("I", tokens[: min(beginning, MOST_KEY_TOKENS)])
    return hashlib.blake2b(first.tobytes(), digest_size=16, key=project.bytes, salt=_salt(partition)).digest()


def _salt(partition: str) -> bytes:
    return hashlib.blake2b(partition.encode(), digest_size=16).digest() if partition else b""


class CacheAffinity:
    """Where conversations went. Not shared between gateways; forgets those that were longest unused.

    A replica is charged for a whole conversation of usual length when one begins there, and later for what exceeds
    that: its first turn says little of what will follow. `clock` gives seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._went: OrderedDict[bytes, tuple[str, float]] = OrderedDict()
        """key -> its replica, and prompt tokens that it was charged for in advance."""
        self._given: dict[str, tuple[float, float]] = {}
        """replica -> prompt tokens that it was charged for, halved each `_HALF_LIFE_S`; and when that was counted."""
        self._tokens = self._begun = 0.0
        """Prompt tokens of late, and conversations that began."""

    def choose(self, key: bytes, tokens: int, replicas: Sequence[ReplicaT]) -> ReplicaT:
        """The replica for a request of `tokens` prompt tokens, of at least one. Remembers the choice."""
        went, advance = self._went.get(key, ("", 0.0))
        if not went:
            self._tokens, self._begun = self._tokens * _WEIGHT, self._begun * _WEIGHT + 1
        self._tokens += tokens
        usual = max(float(tokens), self._tokens / self._begun)
        chosen = self._choose(key, went, tokens, replicas) if len(replicas) > 1 else replicas[0]
        if chosen.replica == went:
            charge, advance = max(0.0, tokens - advance), max(0.0, advance - tokens)
        else:
            charge, advance = usual, usual - tokens
        self._went[key] = (chosen.replica, advance)
        self._went.move_to_end(key)
        if len(self._went) > _REMEMBERED:
            self._went.popitem(last=False)
        self._given[chosen.replica] = (self._work(chosen.replica) + charge, self._clock())
        return chosen

    def _choose(self, key: bytes, went: str, tokens: int, replicas: Sequence[ReplicaT]) -> ReplicaT:
        least = min(replica.load for replica in replicas)
        open_ones = [replica for replica in replicas if replica.load <= max(least * _CROWDED, least + _CROWD)]
        for replica in open_ones:
            if replica.replica == went:
                return replica
        winner = max(open_ones, key=lambda replica: _rendezvous(key, replica.replica))
        idlest = min(open_ones, key=lambda replica: (self._work(replica.replica), replica.load))
        within = self._work(winner.replica) <= self._work(idlest.replica) * _AHEAD + tokens
        return winner if within else idlest

    def _work(self, replica: str) -> float:
        given, at = self._given.get(replica, (0.0, 0.0))
        return given * math.exp2((at - self._clock()) / _HALF_LIFE_S) if given else 0.0


def _rendezvous(key: bytes, replica: str) -> bytes:
    return hashlib.blake2b(replica.encode(), digest_size=8, key=key).digest()
