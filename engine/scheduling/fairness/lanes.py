"""Shares between lanes: deficit round robin in engine time (Shreedhar and Varghese, SIGCOMM '95).

Each lane has a balance in µs, its distance from its share.

- When a lane is served, it pays the cost, and the cost is paid out by weight to all lanes with work, itself included.
  So a lane that is alone pays nothing, and capacity that a lane leaves goes to the others at once.
- A quiet lane is paid as if it had work. Its pay first settles its debt and then goes to its reserve, up to the pay of
  `ROUNDS` rounds.
- When it has work again, service beyond its share is taken from the reserve first. The others are not paid for it.
- The highest lane with work and with a positive balance or reserve is served.
- A lane whose next request is late may borrow. A loan lets its balance become negative, down to minus the limit of its
  reserve or a part of that (`FlowShares.borrow_share`).

Reserves and loans let a burst of a higher lane go first for a bounded time. A lower lane then waits while the reserve
and the loan last. The loan ends when the lower lane's share of the time that it waited has come to as much as the loan.
Lower lanes have small reserves. So capacity that they did not use while quiet does not delay higher lanes later.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping
from typing import TypeAlias

from protocol.requests import LANES, Lane

SPAN_S = 30.0
"""The window of `RecentUse` in seconds."""
_SAMPLE_EVERY_S = 1.0


class RecentUse:
    """How much engine time lanes used in the last `SPAN_S` seconds. `given`: lane -> total µs so far, which grows."""

    def __init__(self, given: Mapping[Lane, float]) -> None:
        self._given = given
        self._samples: deque[tuple[float, dict[Lane, float]]] = deque()

    def sample(self, now: float) -> None:
        """Record the totals once a second. Called at each step; `now` in seconds since the Unix epoch."""
        samples = self._samples
        if samples and now < samples[-1][0]:  # the clock was put back
            samples.clear()
        if not samples or now - samples[-1][0] >= _SAMPLE_EVERY_S:
            samples.append((now, dict(self._given)))
            while len(samples) > 1 and samples[1][0] <= now - SPAN_S:
                samples.popleft()

    def of_others(self, lane: Lane, now: float) -> float:
        """The part of the window that other lanes used, from 0 to 1; 0 in the first second."""
        if not self._samples:
            return 0.0
        since, before = self._samples[0]
        seconds = now - since
        if seconds < _SAMPLE_EVERY_S:
            return 0.0
        used = sum(total - before[other] for other, total in self._given.items() if other != lane)
        return min(1.0, max(0.0, used / 1e6 / seconds))


LANE_WEIGHTS: Mapping[Lane, float] = {"interactive": 8, "standard": 4, "batch": 1}
"""Default shares of engine time. What a lane may keep or borrow is ROUNDS x its weight x QUANTUM."""
RANK: Mapping[Lane, int] = {lane: rank for rank, lane in enumerate(LANES)}
QUANTUM = 250_000.0
"""µs of engine time that a lane with weight 1 is paid in a round."""
ROUNDS: Mapping[Lane, float] = {"interactive": 12, "standard": 4, "batch": 1}
"""The limit of a lane's reserve, and of its loan, in rounds' pay."""


def weight_of(weights: Mapping[Lane, float], lanes: Collection[Lane]) -> float:
    """The sum of these lanes' weights. A lane's share is its weight by that of all lanes with work and its own."""
    return sum(weights[lane] for lane in LANES if lane in lanes)


Parts: TypeAlias = tuple[float, list[tuple[Lane, float]], list[tuple[Lane, float]]]
"""How a cost is divided: the part that its lane pays, and what other lanes are paid, those with work and quiet ones."""


class LaneShares:
    """Which lane is served next, by the balances and reserves of all lanes.

    While the same lanes are backlogged, each one's service is within 2 L and the cost of one request of its share by
    weight (G4). L: the sum of the limits of all lanes' reserves.
    """

    def __init__(
        self,
        weights: Mapping[Lane, float] = LANE_WEIGHTS,
        quantum: float = QUANTUM,
        rounds: Mapping[Lane, float] = ROUNDS,
    ) -> None:
        if quantum <= 0 or min(weights.values()) <= 0:
            raise ValueError("the weights of lanes and the quantum must be above 0")
        if min(rounds.values()) < 1:
            raise ValueError("a lane's reserve must be at least one round's pay")
        self.weights = dict(weights)
        self.quantum = quantum
        self.rounds = dict(rounds)
        self.given = dict.fromkeys(LANES, 0.0)
        """lane -> total µs of service."""
        self.balance = dict.fromkeys(LANES, 0.0)
        """lane -> µs that it is owed by its share; negative when it got more."""
        self._limit = {lane: self.rounds[lane] * self.weights[lane] * self.quantum for lane in LANES}
        """lane -> the most µs of its reserve, and of its loan."""
        self.reserve = dict(self._limit)
        """lane -> µs that it may get beyond its share without paying."""
        self._parts: dict[tuple[Lane, frozenset[Lane]], Parts] = {}
        """(charged lane, lanes with work) -> how a cost is divided."""

    def choose(self, backlogged: Collection[Lane], loan: Callable[[Lane], float] = lambda _: 0.0) -> Lane | None:
        """The lane of `backlogged` to serve now; None if there is none.

        `loan`: the part of its limit that a lane may borrow for its next request, from 0 to 1.
        """
        for lane in LANES:
            if lane in backlogged:
                balance, limit = self.balance[lane], self._limit[lane]
                # `loan` costs time, so it is asked only where it can help.
                if self.reserve[lane] > 0.0 or balance > 0.0 or (balance > -limit and balance > -limit * loan(lane)):
                    return lane
        return self._least_in_debt(backlogged) if backlogged else None

    def set_weight(self, lane: Lane, weight: float) -> None:
        """Change the lane's weight from now on."""
        if weight != self.weights[lane]:
            self.weights[lane] = weight
            self._limit[lane] = self.rounds[lane] * weight * self.quantum
            self._parts.clear()

    def charge(self, lane: Lane, cost: float, backlogged: frozenset[Lane]) -> None:
        """Charge a lane `cost` µs of service while the lanes `backlogged` have work. A negative cost is a refund."""
        parts = self._parts.get((lane, backlogged))
        if parts is None:
            parts = self._parts[lane, backlogged] = self._divide(lane, backlogged)
        own, paid, quiet = parts
        self.given[lane] += cost
        balance, more = self.balance, cost * own
        if more > 0.0 and balance[lane] <= 0.0 and self.reserve[lane] > 0.0:
            self.reserve[lane] -= more
            return
        balance[lane] -= more
        for other, part in paid:
            balance[other] += cost * part
        for other, part in quiet:
            self._pay_quiet(other, cost * part)

    def _divide(self, lane: Lane, backlogged: frozenset[Lane]) -> Parts:
        """How a cost of the lane is divided while the lanes `backlogged` have work."""
        weights = self.weights
        shared = weight_of(weights, backlogged | {lane})
        others = [(other, weight) for other, weight in weights.items() if other != lane]
        return (
            1 - weights[lane] / shared,
            [(other, weight / shared) for other, weight in others if other in backlogged],
            [(other, weight / (shared + weight)) for other, weight in others if other not in backlogged],
        )

    def _pay_quiet(self, lane: Lane, pay: float) -> None:
        """Pay a quiet lane: first its debt, then its reserve."""
        rest = self.balance[lane] + pay
        self.balance[lane] = min(rest, 0.0)
        if rest > 0:
            self.reserve[lane] = min(self.reserve[lane] + rest, self._limit[lane])

    def _least_in_debt(self, backlogged: Collection[Lane]) -> Lane:
        """The lane with the least debt by weight, where all are in debt (to lanes that are quiet by now)."""
        return max(backlogged, key=lambda lane: (self.balance[lane] / self.weights[lane], -RANK[lane]))
