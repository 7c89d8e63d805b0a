"""What flows got, here and on other replicas: totals that only grow, exchanged so that a flow has one share in all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from engine.protocol import Lane
from engine.scheduling.lanes import LANES

KEPT = 4096
"""Flows whose totals are kept; those that got nothing for the longest time are dropped, and begin at 0 again."""


class ServiceTotals:
    """Engine time in µs per `lane/flow`. Totals of another replica may begin again: it restarted, or dropped a flow."""

    def __init__(self) -> None:
        self._given: dict[str, float] = {}
        self._heard: dict[str, dict[str, int]] = {}

    def add(self, lane: Lane, flow: str, cost: float) -> None:
        """A flow got `cost` µs here."""
        if cost > 0:
            name = f"{lane}/{flow}"
            # Taken out and put in again, so that the dictionary's order is that of the last service.
            self._given[name] = self._given.pop(name, 0.0) + cost
            if len(self._given) > KEPT:
                del self._given[next(iter(self._given))]

    def given(self) -> dict[str, int]:
        """The totals of this replica, for its `Beat`."""
        return {name: int(cost) for name, cost in self._given.items()}

    def news(self, replica: str, service: Mapping[str, int]) -> Iterator[tuple[Lane, str, int]]:
        """(lane, flow, µs) that flows got from this replica since it last said so; unknown lanes are passed over."""
        before = self._heard.get(replica, {})
        self._heard[replica] = dict(service)
        for name, total in service.items():
            lane, _, flow = name.partition("/")
            known = before.get(name, 0)
            cost = total - known if total >= known else total
            if cost > 0 and lane in LANES:
                yield lane, flow, cost
