"""What flows got, here and on other replicas: totals that only grow, exchanged so that a flow has one share in all."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping

from engine.scheduling.fairness.flows import Flow
from protocol.requests import LANES, Lane

LATELY_S = 2.0
"""So long what a replica said says something about what it does now: two of its beats."""


class RemoteServiceEstimate:
    """Keeps `expected_elsewhere` of flows: the µs that they got from other replicas between the last two times that
    each was heard.

    Nothing is expected of a replica that was heard once, or not for `LATELY_S`.
    """

    def __init__(self) -> None:
        self._said: dict[str, tuple[float, list[tuple[Flow, int]]]] = {}
        """By replica: when it was heard last, and what flows are thought to have got from it since."""
        self._until = math.inf
        """When the first of them will have been silent for too long, or sooner: it is looked for again then."""

    def heard(self, replica: str, got: Iterable[tuple[Flow, int]], now: float) -> None:
        """A replica gave flows so many µs since it was heard before; `now` in seconds since the Unix epoch."""
        self.lapse(now)
        goes_on = self._take_back(replica)
        expected = list(got) if goes_on else []
        for flow, cost in expected:
            flow.expected_elsewhere += cost
        self._said[replica] = now, expected
        self._until = min(self._until, now + LATELY_S)

    def lapse(self, now: float) -> None:
        """Expect nothing more of replicas that have been silent for too long."""
        if now <= self._until:
            return
        for replica in [replica for replica, (at, _) in self._said.items() if at < now - LATELY_S]:
            self._take_back(replica)
        self._until = min((at for at, _ in self._said.values()), default=math.inf) + LATELY_S

    def _take_back(self, replica: str) -> bool:
        """Whether something had been heard of it lately; what was thought to have come since counts no more."""
        said = self._said.pop(replica, None)
        if said is None:
            return False
        for flow, cost in said[1]:
            flow.expected_elsewhere -= cost
        return True


KEPT = 4096
"""Flows whose totals are kept; those that got nothing for the longest time are dropped, and begin at 0 again."""


class ServiceTotals:
    """Engine time in µs per `lane/flow`. Those of another replica grow until its next epoch."""

    def __init__(self) -> None:
        self._given: dict[str, float] = {}
        self._heard: dict[str, tuple[int, dict[str, int]]] = {}
        self.all_given = 0.0
        """µs that all flows got here."""
        self.all_heard = 0.0
        """µs that they got elsewhere, as far as it was heard."""

    def add(self, lane: Lane, flow: str, cost: float) -> None:
        """A flow got `cost` µs here."""
        if cost > 0:
            self.all_given += cost
            name = f"{lane}/{flow}"
            # Taken out and put in again, so that the dictionary's order is that of the last service.
            self._given[name] = self._given.pop(name, 0.0) + cost
            if len(self._given) > KEPT:
                del self._given[next(iter(self._given))]

    def given(self) -> dict[str, int]:
        """The totals of this replica, for its `Beat`."""
        return {name: int(cost) for name, cost in self._given.items()}

    def forget(self, replica: str) -> None:
        """Nothing more is expected from this replica; should it be heard again, all that it says is news."""
        self._heard.pop(replica, None)

    def news(self, replica: str, epoch: int, service: Mapping[str, int]) -> Iterator[tuple[Lane, str, int]]:
        """(lane, flow, µs) that flows got from this replica beyond what was heard before.

        What is told twice or late is no news, nor is an older epoch; unknown lanes are passed over.
        """
        known, totals = self._heard.get(replica, (0, {}))
        if epoch < known:
            return
        if epoch > known:
            totals = {}
        self._heard[replica] = epoch, totals
        for name, total in service.items():
            cost = total - totals.get(name, 0)
            if cost <= 0:
                continue
            # The replica drops the flow that it served least lately; so do we, and both begin at 0 again.
            totals.pop(name, None)
            totals[name] = total
            if len(totals) > KEPT:
                del totals[next(iter(totals))]
            lane, _, flow = name.partition("/")
            if lane in LANES:
                self.all_heard += cost
                yield lane, flow, cost
