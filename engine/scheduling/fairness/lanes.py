"""Shares between lanes: deficit round robin in engine time, after Shreedhar and Varghese (SIGCOMM '95).

Each lane has a balance in µs. What a lane is given it pays, and all lanes that have work are paid by weight out of it:
so balances say how far lanes are from their shares, a lane that is alone pays nothing, and capacity that a lane leaves
goes to the others at once. A quiet lane is paid as if it had work, and that it keeps, up to `ROUNDS` rounds' pay: when
it comes back, what it gets beyond its share is taken from that first, and the others are not paid for it; alone it
spends nothing. So what it kept lasts the longer, the less it asks for beyond its share. The highest lane with
work is served that is owed something or has kept something; one whose next request is late may go into debt, up to as
much again or a part of it, and pays that back out of the shares to come. Both let a burst go first, for a bounded time:
a lower lane waits for what is kept, and for what is borrowed until its own share of that time has come to as much. A
lower lane keeps little, so that what it did not want while it was quiet does not hold up the higher ones later.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping
from typing import TypeAlias

from protocol.requests import LANES, Lane

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


WEIGHTS: Mapping[Lane, float] = {"interactive": 8, "standard": 4, "batch": 1}
RANK: Mapping[Lane, int] = {lane: rank for rank, lane in enumerate(LANES)}
QUANTUM = 250_000.0
"""µs of engine time that a weight of 1 is paid in a round."""
ROUNDS: Mapping[Lane, float] = {"interactive": 12, "standard": 4, "batch": 1}
"""How many rounds' pay a lane may keep, and how many it may borrow."""

Parts: TypeAlias = tuple[float, list[tuple[Lane, float]], list[tuple[Lane, float]]]
"""The part of a cost that its lane pays; and the part that each other lane is paid, first those with work and then the
quiet ones."""


class LaneShares:
    """Who is served next, by lane. Over any time in which the same lanes are backlogged, each one's service is within
    2 L, and what one request costs, of its weight's share; L: what all lanes together may keep, or borrow."""

    def __init__(
        self,
        weights: Mapping[Lane, float] = WEIGHTS,
        quantum: float = QUANTUM,
        rounds: Mapping[Lane, float] = ROUNDS,
    ) -> None:
        if quantum <= 0 or min(weights.values()) <= 0:
            raise ValueError("a lane's weight and the quantum are above 0")
        if min(rounds.values()) < 1:
            raise ValueError("a lane keeps at least a round's pay")
        self.weights = dict(weights)
        self.quantum = quantum
        self.rounds = dict(rounds)
        self.given = dict.fromkeys(LANES, 0.0)
        """What each lane was given so far."""
        self.balance = dict.fromkeys(LANES, 0.0)
        """What each lane is owed, by its share; negative when it got more."""
        self._most = {lane: self.rounds[lane] * self.weights[lane] * self.quantum for lane in LANES}
        """What a lane may keep, or borrow."""
        self.kept = dict(self._most)
        """What it may have beyond that."""
        self._parts: dict[tuple[Lane, frozenset[Lane]], Parts] = {}
        """By the lane that is charged, and who has work."""

    def choose(self, backlogged: Collection[Lane], late: Callable[[Lane], float] = lambda _: 0.0) -> Lane | None:
        """The lane to serve now of those that have work; None if none has.

        `late` says which part of all that it may borrow a lane may borrow for its next request, from 0 to 1.
        """
        for lane in LANES:
            if lane in backlogged:
                balance, most = self.balance[lane], self._most[lane]
                # Whether it is late is asked only where that may help: all of `most` is lent at most.
                if self.kept[lane] > 0.0 or balance > 0.0 or (balance > -most and balance > -most * late(lane)):
                    return lane
        return self._least_in_debt(backlogged) if backlogged else None

    def weigh(self, lane: Lane, weight: float) -> None:
        """From now on the lane has this weight."""
        if weight != self.weights[lane]:
            self.weights[lane] = weight
            self._most[lane] = self.rounds[lane] * weight * self.quantum
            self._parts.clear()

    def charge(self, lane: Lane, cost: float, backlogged: frozenset[Lane]) -> None:
        """The lane was given `cost` µs while these had work, it being one of them or not.

        `cost` is negative when it is given back what it was charged too much.
        """
        parts = self._parts.get((lane, backlogged))
        if parts is None:
            parts = self._parts[lane, backlogged] = self._divided(lane, backlogged)
        own, paid, quiet = parts
        self.given[lane] += cost
        balance, more = self.balance, cost * own
        if more > 0.0 and balance[lane] <= 0.0 and self.kept[lane] > 0.0:
            self.kept[lane] -= more
            return
        balance[lane] -= more
        for other, part in paid:
            balance[other] += cost * part
        for other, part in quiet:
            self._keep(other, cost * part)

    def _divided(self, lane: Lane, backlogged: frozenset[Lane]) -> Parts:
        """How what the lane is given is divided while these have work."""
        weights = self.weights
        shared = sum(weights[other] for other in LANES if other in backlogged or other == lane)
        others = [(other, weight) for other, weight in weights.items() if other != lane]
        return (
            1 - weights[lane] / shared,
            [(other, weight / shared) for other, weight in others if other in backlogged],
            [(other, weight / (shared + weight)) for other, weight in others if other not in backlogged],
        )

    def _keep(self, lane: Lane, pay: float) -> None:
        """Pay a quiet lane: its debt first."""
        rest = self.balance[lane] + pay
        self.balance[lane] = min(rest, 0.0)
        if rest > 0:
            self.kept[lane] = min(self.kept[lane] + rest, self._most[lane])

    def _least_in_debt(self, backlogged: Collection[Lane]) -> Lane:
        """By weight, where all are: to lanes that are quiet by now."""
        return max(backlogged, key=lambda lane: (self.balance[lane] / self.weights[lane], -RANK[lane]))
