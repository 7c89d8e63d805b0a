"""How much of the time lanes were given lately: what another one cannot have while they go on as they do."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from engine.protocol.requests import Lane

SPAN_S = 30.0
"""So many seconds back are looked at."""
_EVERY_S = 1.0


class RecentUse:
    """`given`: µs of engine time that each lane was given so far, which goes on growing."""

    def __init__(self, given: Mapping[Lane, float]) -> None:
        self._given = given
        self._looks: deque[tuple[float, dict[Lane, float]]] = deque()

    def look(self, now: float) -> None:
        """It is `now`, in seconds since the Unix epoch; called at each step."""
        looks = self._looks
        if looks and now < looks[-1][0]:  # the clock was put back
            looks.clear()
        if not looks or now - looks[-1][0] >= _EVERY_S:
            looks.append((now, dict(self._given)))
            while len(looks) > 1 and looks[1][0] <= now - SPAN_S:
                looks.popleft()

    def of_others(self, lane: Lane, now: float) -> float:
        """Which part of the last seconds went to other lanes, from 0 to 1; 0 while too few have passed to say."""
        if not self._looks:
            return 0.0
        since, before = self._looks[0]
        passed = now - since
        if passed < _EVERY_S:
            return 0.0
        got = sum(total - before[other] for other, total in self._given.items() if other != lane)
        return min(1.0, max(0.0, got / 1e6 / passed))
