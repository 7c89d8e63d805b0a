"""Prefixes that so many requests want that one replica for them is not enough.

What counts is requests that go on differently after the prefix: a conversation that grows turn by turn is one reader of
its beginning, however often it comes.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence

from msgspec import Struct

from gateway.fleet.prefix_map import Name

_HALF_LIFE_S = 60.0
_HOT = 0.25
"""Seconds of prefill that a second's requests would take without a cache, from which a prefix is hot."""
_LEAST_S = 0.05
"""A prefix that is computed in less is not worth a second home."""
_LEAST = 3
_REMEMBERED = 20_000
_STRIDE = 4
"""Every so many names of a prompt are watched."""
_PAUSE_S = 30.0
"""A prefix gets another home at most so often."""


class Warming(Struct, frozen=True):
    """The first `tokens` tokens of a prompt, which have `count` names, are hot, and are to be computed at this replica
    in the batch lane; "" where they have homes enough."""

    replica: str
    tokens: int
    count: int


class HotPrefixes:
    """How often prefixes are asked for. A count halves each minute, so that homes decay when nobody asks any more."""

    def __init__(self) -> None:
        self._asked: OrderedDict[Name, tuple[float, float, Name | None]] = OrderedDict()
        """name -> requests, halved each `_HALF_LIFE_S`; when that was counted; and how the last one goes on."""
        self._warmed: OrderedDict[Name, float] = OrderedDict()
        self.gateways = 1
        """Gateways among which the requests are divided."""

    def note(
        self, names: Sequence[Name], ends: Sequence[int], token_s: float, now: float
    ) -> tuple[Name, int, int] | None:
        """A prompt was asked for: its longest hot prefix, the tokens of that, and how many homes it should have."""
        found: tuple[Name, int, int] | None = None
        for index in range(0, len(names), _STRIDE):
            name = names[index]
            goes_on = names[index + _STRIDE] if index + _STRIDE < len(names) else None
            requests = self._count(name, goes_on, now)
            seconds = ends[index] * token_s
            if seconds < _LEAST_S:
                continue
            heat = requests * self.gateways * seconds * math.log(2) / _HALF_LIFE_S
            if requests >= _LEAST and heat >= _HOT:
                found = name, ends[index], 2 + int(heat / (4 * _HOT))
        while len(self._asked) > _REMEMBERED:
            self._asked.popitem(last=False)
        return found

    def may_warm(self, name: Name, now: float) -> bool:
        """Whether this prefix may get another home now; then it may not again for a while."""
        if now - self._warmed.get(name, -math.inf) < _PAUSE_S:
            return False
        self._warmed[name] = now
        self._warmed.move_to_end(name)
        if len(self._warmed) > _REMEMBERED:
            self._warmed.popitem(last=False)
        return True

    def _count(self, name: Name, goes_on: Name | None, now: float) -> float:
        requests, at, before = self._asked.get(name, (0.0, now, None))
        requests = requests * math.exp2((at - now) / _HALF_LIFE_S) + (not requests or goes_on != before)
        self._asked[name] = requests, now, goes_on
        self._asked.move_to_end(name)
        return requests
