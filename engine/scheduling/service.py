"""What flows got, here and on other replicas: totals that only grow, exchanged so that a flow has one share in all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from engine.protocol.requests import Lane
from engine.scheduling.lanes import LANES

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
