"""Counts how long each adapter had a slot, by hour: what a project that has adapters is billed for.

Durations are by the monotonic clock; which hour they belong to is by the host's clock. A count only grows within its
hour, and no count of an hour is longer than the hour.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from protocol.adapters import ResidentAdapter

HOUR_S = 3600
REPORTED_S = 60.0
"""A count is reported so long after it last grew: it may be that no heartbeat arrives for a while."""


@dataclass
class _Count:
    seconds: float = 0.0
    grown_at: float = 0.0


class AdapterResidency:
    """The adapters that have slots now, and those that had one lately. Called in the engine's thread."""

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, wall_clock: Callable[[], float] = time.time
    ) -> None:
        self._clock = clock
        self._wall_clock = wall_clock
        self._counted_until: dict[str, float] = {}
        """By the name of each adapter that has a slot."""
        self._counts: dict[tuple[str, int], _Count] = {}
        """By name and hour, which is its number since the Unix epoch."""

    def begin(self, name: str) -> None:
        """The adapter of this name has a slot from now on."""
        self._counted_until.setdefault(name, self._clock())

    def end(self, name: str) -> None:
        """It has none any more."""
        if name in self._counted_until:
            self._count(name)
            del self._counted_until[name]

    def report(self) -> tuple[ResidentAdapter, ...]:
        """The counts until now of all that have a slot, and of those whose count grew lately."""
        for name in self._counted_until:
            self._count(name)
        last, this_hour = self._clock() - REPORTED_S, int(self._wall_clock() // HOUR_S)
        # A count of this hour may grow again, and must not begin anew.
        for key in [key for key, count in self._counts.items() if count.grown_at < last and key[1] < this_hour]:
            del self._counts[key]
        return tuple(
            ResidentAdapter(name, hour * HOUR_S, int(count.seconds * 1000), name in self._counted_until)
            for (name, hour), count in self._counts.items()
            if count.grown_at >= last
        )

    def _count(self, name: str) -> None:
        """Add the time since it was last counted to the hours in which it lies, the latest first."""
        now, wall = self._clock(), self._wall_clock()
        left, self._counted_until[name] = now - self._counted_until[name], now
        hour = int(wall // HOUR_S)
        room = wall - hour * HOUR_S
        while True:
            count = self._counts.setdefault((name, hour), _Count())
            count.seconds, count.grown_at = min(count.seconds + min(left, room), HOUR_S), now
            left, hour, room = left - room, hour - 1, HOUR_S
            if left <= 0:
                return
