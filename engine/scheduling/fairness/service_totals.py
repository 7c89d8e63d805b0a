"""The engine time that each flow got, on this replica and on others, so that a flow has one share over all replicas.

Totals only grow, so that a report that comes twice or late is harmless. Between two reports of a replica its service is
extrapolated.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping

from engine.scheduling.fairness.flow import Flow
from protocol.requests import LANES, Lane

KEPT = 4096
"""How many flows have totals. The one served least recently is dropped, and starts at 0 again."""
LATELY_S = 2.0
"""Seconds for which a replica's last report is extrapolated: two of its heartbeats."""


class ServiceTotals:
    """Total engine time in µs by `lane/flow`, of this replica and of others. Totals only grow within an epoch."""

    def __init__(self) -> None:
        self._given: dict[str, float] = {}
        self._heard: dict[str, tuple[int, dict[str, int]]] = {}
        """replica -> (epoch, `lane/flow` -> total)"""
        self.all_given = 0.0
        """µs that all flows got on this replica."""
        self.all_heard = 0.0
        """µs that they got on others, as far as reported."""

    def add(self, lane: Lane, flow: str, cost: float) -> None:
        """A flow got `cost` µs on this replica."""
        if cost > 0:
            self.all_given += cost
            name = f"{lane}/{flow}"
            # Removed and inserted again, so that the dictionary is in the order of the last service.
            self._given[name] = self._given.pop(name, 0.0) + cost
            if len(self._given) > KEPT:
                del self._given[next(iter(self._given))]

    def given(self) -> dict[str, int]:
        """The totals of this replica, for its `Heartbeat`."""
        return {name: int(cost) for name, cost in self._given.items()}

    def forget(self, replica: str) -> None:
        """Drop a replica's totals. If it reports again, its whole totals are new."""
        self._heard.pop(replica, None)

    def news(self, replica: str, epoch: int, service: Mapping[str, int]) -> Iterator[tuple[Lane, str, int]]:
        """Record a replica's report; yields (lane, flow, µs) of what it adds to earlier ones.

        A repeated or late report adds nothing, nor does an older epoch. Unknown lanes are skipped.
        """
        known_epoch, totals = self._heard.get(replica, (0, {}))
        if epoch < known_epoch:
            return
        if epoch > known_epoch:
            totals = {}
        self._heard[replica] = epoch, totals
        for name, total in service.items():
            cost = total - totals.get(name, 0)
            if cost <= 0:
                continue
            # The replica drops the flow that it served least recently, and so does this, so both start at 0 again.
            totals.pop(name, None)
            totals[name] = total
            if len(totals) > KEPT:
                del totals[next(iter(totals))]
            lane, _, flow = name.partition("/")
            if lane in LANES:
                self.all_heard += cost
                yield lane, flow, cost


class RemoteServiceEstimate:
    """Extrapolates service on other replicas: sets `expected_elsewhere` of flows.

    A flow is expected to have got, since a replica's last report, what it got between that replica's last two reports.
    Nothing is expected of a replica with one report, or without one for `LATELY_S`.
    """

    def __init__(self) -> None:
        self._reports: dict[str, tuple[float, list[tuple[Flow, int]]]] = {}
        """replica -> (time of its last report, µs that flows are expected to have got since)"""
        self._until = math.inf
        """When the first report lapses, or earlier."""

    def heard(self, replica: str, got: Iterable[tuple[Flow, int]], now: float) -> None:
        """A replica reports what flows got since its last report, in µs. `now`: seconds since the Unix epoch."""
        self.lapse(now)
        reported_before = self._withdraw(replica)
        expected = list(got) if reported_before else []
        for flow, cost in expected:
            flow.expected_elsewhere += cost
        self._reports[replica] = now, expected
        self._until = min(self._until, now + LATELY_S)

    def lapse(self, now: float) -> None:
        """Withdraw what is expected of replicas that have been silent for too long."""
        if now <= self._until:
            return
        for replica in [replica for replica, (at, _) in self._reports.items() if at < now - LATELY_S]:
            self._withdraw(replica)
        self._until = min((at for at, _ in self._reports.values()), default=math.inf) + LATELY_S

    def _withdraw(self, replica: str) -> bool:
        """Withdraw what is expected of a replica. False if it has no recent report."""
        report = self._reports.pop(replica, None)
        if report is None:
            return False
        for flow, cost in report[1]:
            flow.expected_elsewhere -= cost
        return True
