"""How much of the coming engine time waiting requests need to meet their deadlines.

Deadlines are grouped into slots of `SLOT_S`, so that the cost does not depend on how many requests wait. The answer
changes slowly, so it is computed once a second.
"""

from __future__ import annotations

import math

SLOT_S = 10
"""Seconds of deadlines that count as the first of them."""
_FRESH_S = 1.0


class DeadlineDemand:
    """Waiting work in µs of engine time by deadline, in seconds since the Unix epoch; None is no deadline."""

    def __init__(self) -> None:
        self._slots: dict[int, tuple[int, float]] = {}
        """slot -> (waiting requests, their µs)"""
        self._share = 0.0
        self._computed_at = -math.inf

    def __len__(self) -> int:
        return sum(waiting for waiting, _ in self._slots.values())

    def add(self, deadline: float | None, cost: float) -> None:
        """A request with this deadline and estimated cost waits."""
        self._change(deadline, 1, cost)

    def remove(self, deadline: float | None, cost: float) -> None:
        """A request that was added no longer waits."""
        self._change(deadline, -1, -cost)

    def share(self, now: float) -> float:
        """The part of all engine time that is needed to meet all deadlines, from 0 to 1; 0 without deadlines.

        It is the largest, over deadlines, of the work due by then divided by the time until then.
        """
        if not self._slots:
            self._computed_at = -math.inf
            return 0.0
        if not 0 <= now - self._computed_at < _FRESH_S:
            self._computed_at, self._share = now, self._largest(now)
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
