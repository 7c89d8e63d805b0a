"""Shares between lanes: deficit round robin in engine time, after Shreedhar and Varghese (SIGCOMM '95).

Each lane has a balance in µs. The highest lane with work and a positive balance is served, and pays what it costs;
when no lane with work has one, all lanes are paid their weight in quanta. So the shares of backlogged lanes go by
weight, and capacity that a lane leaves goes to the others at once. A lane that has been idle keeps at most one round's
pay: that lets a quiet lane's burst go first, for a bounded time.
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


class LaneShares:
    """Who is served next, by lane. Over any time in which the same lanes are backlogged, each one's service is within
    one round's pay and what it has in flight of its weight's share."""

    def __init__(self, weights: Mapping[Lane, float] = WEIGHTS, quantum: float = QUANTUM) -> None:
        if quantum <= 0 or min(weights.values()) <= 0:
            raise ValueError("a lane's weight and the quantum are above 0")
        self.weights = dict(weights)
        self.quantum = quantum
        self.balance = {lane: self.weights[lane] * quantum for lane in LANES}

    def choose(self, backlogged: Collection[Lane]) -> Lane | None:
        """The lane to serve now of those that have work; None if none has."""
        if not backlogged:
            return None
        lane = self._in_credit(backlogged)
        if lane is None:
            self._pay(min(self._rounds(lane) for lane in backlogged))
            lane = self._in_credit(backlogged)
        return lane

    def charge(self, lane: Lane, cost: float) -> None:
        """The lane was given `cost` µs; negative when it is given back what it was charged too much."""
        self.balance[lane] -= cost

    def _in_credit(self, backlogged: Collection[Lane]) -> Lane | None:
        return next((lane for lane in LANES if lane in backlogged and self.balance[lane] > 0), None)

    def _rounds(self, lane: Lane) -> int:
        """After how many rounds the lane's balance is positive."""
        return int(-self.balance[lane] // (self.weights[lane] * self.quantum)) + 1

    def _pay(self, rounds: int) -> None:
        for lane in LANES:
            pay = self.weights[lane] * self.quantum
            self.balance[lane] = min(self.balance[lane] + rounds * pay, pay)
