"""Shares between lanes: deficit round robin in engine time, after Shreedhar and Varghese (SIGCOMM '95).

Each lane has a balance in µs. The highest lane with work and a positive balance is served, and pays what it costs;
when no lane with work has one, all lanes are paid their weight in quanta. So the shares of backlogged lanes go by
weight, and capacity that a lane leaves goes to the others at once. What a quiet lane did not use it keeps, up to
`ROUNDS` rounds' pay, and a lane whose next request is late may go as far into debt, or a part as far: both let a burst
go first, for a bounded time, and what was borrowed is paid back out of the shares to come.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from engine.protocol import Lane

LANES: tuple[Lane, ...] = ("interactive", "standard", "batch")
"""From the highest to the lowest."""
WEIGHTS: Mapping[Lane, float] = {"interactive": 8, "standard": 4, "batch": 1}
RANK: Mapping[Lane, int] = {lane: rank for rank, lane in enumerate(LANES)}
QUANTUM = 250_000.0
"""µs of engine time that a weight of 1 is paid in a round."""
ROUNDS: Mapping[Lane, float] = {"interactive": 16, "standard": 16, "batch": 1}
"""How many rounds' pay a lane may keep, and how many it may borrow."""


class LaneShares:
    """Who is served next, by lane. Over any time in which the same lanes are backlogged, each one's service is within
    what `rounds` rounds pay, kept and borrowed, and what it has in flight of its weight's share."""

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
        self.balance = {lane: self._pay_of(lane) for lane in LANES}

    def choose(self, backlogged: Collection[Lane], late: Mapping[Lane, float] | None = None) -> Lane | None:
        """The lane to serve now of those that have work; None if none has.

        `late`: which part of all that it may borrow a lane may borrow for its next request, from 0 to 1.
        """
        late = late or {}
        if not backlogged:
            return None
        lane = self._able(backlogged, late)
        if lane is None:
            self._pay(min(self._rounds_to_credit(lane) for lane in backlogged))
            lane = self._able(backlogged, late)
        return lane

    def charge(self, lane: Lane, cost: float) -> None:
        """The lane was given `cost` µs; negative when it is given back what it was charged too much."""
        self.balance[lane] -= cost

    def _able(self, backlogged: Collection[Lane], late: Mapping[Lane, float]) -> Lane | None:
        for lane in LANES:
            least = -self.rounds[lane] * self._pay_of(lane) * late.get(lane, 0.0)
            if lane in backlogged and self.balance[lane] > least:
                return lane
        return None

    def _pay_of(self, lane: Lane) -> float:
        return self.weights[lane] * self.quantum

    def _rounds_to_credit(self, lane: Lane) -> int:
        """After how many rounds the lane's balance is positive."""
        return int(-self.balance[lane] // self._pay_of(lane)) + 1

    def _pay(self, rounds: int) -> None:
        for lane in LANES:
            pay = self._pay_of(lane)
            self.balance[lane] = min(self.balance[lane] + rounds * pay, self.rounds[lane] * pay)
