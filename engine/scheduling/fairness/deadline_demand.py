"""How much of the time to come is spoken for by deadlines: what waits, by when it is due.

Deadlines are kept in slots, so that looking at all of them costs no more than there are slots, however many wait; and
since the answer changes with time only slowly, it is made again once a second.
"""

from __future__ import annotations

import math

SLOT_S = 10
"""Deadlines of so many seconds count as one, the first of them."""
_FRESH_S = 1.0


class DeadlineDemand:
    """Work in µs of engine time by deadline, in seconds since the Unix epoch; None is no deadline."""

    def __init__(self) -> None:
        self._slots: dict[int, tuple[int, float]] = {}
        """How many wait that are due then, and their work."""
        self._share = 0.0
        self._looked = -math.inf

    def __len__(self) -> int:
        return sum(waiting for waiting, _ in self._slots.values())

    def add(self, deadline: float | None, cost: float) -> None:
        """So much more work is due then."""
        self._change(deadline, 1, cost)

    def remove(self, deadline: float | None, cost: float) -> None:
        """Work that was added is not waiting any more."""
        self._change(deadline, -1, -cost)

    def share(self, now: float) -> float:
        """The largest part of the time until a deadline that all work takes which is due by then; 0 if none is due."""
        if not self._slots:
            self._looked = -math.inf
            return 0.0
        if not 0 <= now - self._looked < _FRESH_S:
            self._looked, self._share = now, self._largest(now)
        return self._share

    def _largest(self, now: float) -> float:
        work, largest = 0.0, 0.0
        for slot, (_, cost) in sorted(self._slots.items()):
            work += cost / 1e6
            left = slot * SLOT_S - now
            if left <= work:
                return 1.0
            largest = max(largest, work / left)
        return largest

    def _change(self, deadline: float | None, count: int, cost: float) -> None:
        if deadline is None:
            return
        slot = int(deadline // SLOT_S)
        waiting, work = self._slots.get(slot, (0, 0.0))
        if waiting + count:
            self._slots[slot] = waiting + count, work + cost
        else:
            del self._slots[slot]
