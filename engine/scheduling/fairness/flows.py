"""Shares between the flows of one lane by virtual counters (VTC: Sheng et al., OSDI '24; DLPM: Cao et al. 2025).

- A flow's counter grows by its charges divided by its weight. The flow with the least counter is served next.
- A flow that wakes up is lifted to the service of the least backlogged flow, else of the least running one: idle time
  earns nothing (G5). Counters are start tags in the sense of start-time fair queueing (Goyal et al., SIGCOMM '96).
- Locality: among flows within the quantum Q of the least, the one whose next request has the fewest tokens to compute
  goes first, because its prefix is cached or it is short. Q bounds what fairness gives up for this.
- By finish tag (lanes for low latency): flows count as level up to the counter that the least flow will have after its
  next request (the finish tag of weighted fair queueing), since it gets that far ahead in any case.
- In the other lanes the last slot goes to the least flow if that has nothing running: Q bounds what is charged at once,
  not how long a slot is held.
- Inside a flow, sub-flows (API keys) take turns. Inside a sub-flow the request with the fewest tokens to compute goes
  first, else the earliest; so a tenant's long prompts do not hold up its short ones.
- A request is overtaken at most `MAX_OVERTAKEN` times by others of its sub-flow (`flow`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from engine.scheduling.fairness.deadline_demand import DeadlineDemand
from engine.scheduling.fairness.flow import Flow
from engine.scheduling.lazy_heap import LazyHeap
from engine.scheduling.policy import Matched
from engine.scheduling.request import Request

CANDIDATES = 8
"""How many flows within Q are compared by tokens to compute."""
MAX_WAKE_UP_DEBT_US = 30_000_000.0
"""The most µs per weight by which a waking flow's counter may exceed the least. More remote service is forgiven."""
LATE_BORROW_SHARE = 0.5
"""The part of its loan that a lane may use for a late flow that is not behind another by more than Q."""
RUN_PART = 0.1
"""The part of the time from arrival to deadline that is left for running."""
IDLE = 4096
"""How many idle flows with counters above the virtual time are remembered."""


class FlowShares:
    """The flows of one lane, in the order of their counters.

    `quantum`: Q in µs per weight. `by_deadline`: inside a sub-flow the earliest deadline goes first. `by_finish_tag`:
    flows count as level up to the finish tag of the least one.
    """

    def __init__(self, quantum: float, by_deadline: bool = False, by_finish_tag: bool = False) -> None:
        self.quantum = quantum
        self.by_deadline = by_deadline
        self.by_finish_tag = by_finish_tag
        self.flows: dict[str, Flow] = {}
        self.running: dict[str, Flow] = {}
        """name -> flow with running requests"""
        self.blocks_until_claim = 0
        """Blocks that may be allocated before any waiting flow can have a claim (`slot_shares`).

        0 means unknown: a request came, left, or got or gave back its blocks.
        """
        self.queued = 0.0
        self._order: LazyHeap[tuple[float, int, Flow]] = LazyHeap(_is_current)
        """Backlogged flows by counter, among equals by who was charged first. Only a flow's current entry is valid; one
        that is below the flow's counter is corrected when it comes to the top."""
        self._serial = 0
        self._virtual_time = 0.0
        """The largest service that the least backlogged flow has had: where new flows start."""
        self._largest = 0.0
        """The largest counter so far."""
        self._waiting = 0
        self.not_begun = 0
        """How many waiting requests were never admitted."""
        self.deadline_demand = DeadlineDemand()
        """Waiting work by deadline, where `by_deadline`."""

    def __len__(self) -> int:
        return self._waiting

    def waiting(self) -> Iterator[Request]:
        """All waiting requests."""
        for flow in self.flows.values():
            yield from flow.waiting.values()

    def flow(self, name: str) -> Flow:
        """The flow with this name, created if there is none."""
        flow = self.flows.get(name)
        if flow is None:
            flow = self.flows[name] = Flow(name, self._virtual_time)
        return flow

    def push(self, request: Request, now: float = 0.0) -> None:
        """Queue a request at `now`. A flow that was idle is lifted."""
        self.blocks_until_claim = 0
        flow = self.flow(request.flow)
        flow.weight = request.weight
        if not flow.waiting:
            level = self._wake_up_counter(flow)
            flow.counter = min(max(flow.counter, level), level + MAX_WAKE_UP_DEBT_US)
            flow.unserved_since = max(now, request.arrived_at)
            self._serial += 1
            flow.charge_serial = self._serial
            self._enter(flow)
        flow.push(request, self._urgency(request))
        if self.by_deadline:
            self.deadline_demand.add(_due(request), request.estimate)
        self.queued += request.estimate
        self._waiting += 1
        self.not_begun += not request.began

    def choose(self, matched: Matched, last: bool = False) -> Request | None:
        """The request to serve next; None if none waits. `last`: it would take the last slot."""
        least = self._least()
        if least is None:
            return None
        if self.quantum <= 0:
            return least.head()
        nearest = self._candidates(least, matched)
        slot_is_least_flows = last and not self.by_finish_tag and not least.running
        # Among equals: by finish tag the earliest request, else the first candidate, that of the least counter.
        return min(
            nearest,
            key=lambda candidate: (
                self._urgency(candidate[0]),
                slot_is_least_flows and candidate[0].flow != least.name,
                candidate[1],
                candidate[0].arrival if self.by_finish_tag else 0,
            ),
        )[0]

    def _candidates(self, least: Flow, matched: Matched) -> list[tuple[Request, int]]:
        """The next request of each flow that is level with the least, and how many tokens it has to compute."""
        nearest: list[tuple[Request, int]] = []
        limit = math.inf if self.by_finish_tag else least.counter + self.quantum
        for flow in self._within(limit):
            if flow.counter > limit:
                break
            request, left = flow.nearest(matched)
            nearest.append((request, left))
            if self.by_finish_tag:
                limit = min(limit, flow.counter + request.rates.cost(left, 0, 0) / flow.weight + self.quantum)
        return nearest

    def borrow_share(self, before: float) -> float:
        """The part of its loan that the lane may use for its next flow, from 0 to 1.

        | the next flow | part |
        |---|---|
        | was served after `before` (seconds since the Unix epoch): it is not late | 0 |
        | is late, and another flow got more than Q beyond it | 1 |
        | is late, and none did | `LATE_BORROW_SHARE` |
        """
        least = self._least()
        if least is None or least.unserved_since >= before:
            return 0.0
        return 1.0 if least.counter + self.quantum < self._largest else LATE_BORROW_SHARE

    def remove(self, request: Request, now: float | None = None) -> None:
        """Take a waiting request out: admitted at `now`, or ended if `now` is None."""
        self.blocks_until_claim = 0
        flow = self.flows[request.flow]
        if now is not None and (least := self._least()) is not None:
            self._virtual_time = max(self._virtual_time, least.service_counter())
            flow.unserved_since = now
        flow.remove(request, self._urgency(request), served=now is not None)
        if self.by_deadline:
            self.deadline_demand.remove(_due(request), request.estimate)
        if not flow.waiting:
            flow.entry = None  # entry and flow refer to each other: without this only the cycle collector frees them
        self._waiting -= 1
        self.not_begun -= not request.began
        self.queued = self.queued - request.estimate if self._waiting else 0.0

    def backlogged(self) -> Iterator[Flow]:
        """The flows with waiting requests, in no order."""
        return (entry[2] for entry in self._order.standing())

    def least_served(self) -> list[Flow]:
        """The least served backlogged flow, and then others within Q of it; at most `CANDIDATES`."""
        least = self._least()
        return [] if least is None else self._within(least.counter + self.quantum)

    def placed(self, request: Request) -> Flow:
        """A request got its blocks; returns its flow."""
        self.blocks_until_claim = 0
        flow = self.flow(request.flow)
        flow.running[request.arrival] = request
        flow.blocks += len(request.table)
        self.running[flow.name] = flow
        return flow

    def released(self, request: Request) -> Flow:
        """A running request is about to give its blocks back; returns its flow."""
        self.blocks_until_claim = 0
        flow = self.flow(request.flow)
        del flow.running[request.arrival]
        flow.blocks -= len(request.table)
        if not flow.running:
            del self.running[flow.name]
        return flow

    def charge(self, flow: Flow, cost: float) -> None:
        """Add `cost` µs to a flow's counter; a negative cost is a refund."""
        if cost:
            flow.counter = counter = flow.counter + cost / flow.weight
            self._largest = counter if counter > self._largest else self._largest
            self._serial = flow.charge_serial = self._serial + 1
            # A counter that rises is corrected when its entry comes to the top; one that falls might never come there.
            if cost < 0.0 and flow.waiting:
                self._enter(flow)

    def check(self) -> None:
        """Raise AssertionError unless the kept counts are right. For tests."""
        waiting = list(self.waiting())
        assert self._waiting == len(waiting), "more or fewer wait than are counted"
        assert self.not_begun == sum(not request.began for request in waiting), "others have begun than are counted"
        due = sum(_due(request) is not None for request in waiting) if self.by_deadline else 0
        assert len(self.deadline_demand) == due, "more or fewer are due than wait"
        assert self.running == {name: flow for name, flow in self.flows.items() if flow.running}, "others run"
        for flow in self.running.values():
            held = sum(len(request.table) for request in flow.running.values())
            assert flow.blocks == held, "a flow holds more or fewer blocks than are counted"

    def forget_idle(self) -> None:
        """Drop idle flows that would start as new ones do, and of the others all but the `IDLE` largest counters.

        The bound is needed: while nobody waits the virtual time does not rise, and every flow stays above it.
        """
        idle = [flow for flow in self.flows.values() if not flow.waiting and not flow.running]
        above = sorted((flow.counter, flow.name) for flow in idle if flow.counter > self._virtual_time)
        remembered = {name for _, name in above[-IDLE:]}
        for flow in idle:
            if flow.name not in remembered:
                del self.flows[flow.name]

    def _wake_up_counter(self, flow: Flow) -> float:
        """The least counter of a flow that wakes up: the service of the least backlogged flow.

        Counters are ahead of service by the charged output to come, more so for a flow with many requests in flight.
        They are compared without it, and the flow's own is added again.
        """
        least = self._least()
        if least is None:
            # If nobody waits, virtual time follows the running flows, which used what nobody else wanted.
            others = [other for other in self.running.values() if other is not flow]
            least_running = min(others, key=_counter, default=None)
            level = self._virtual_time
            if least_running is not None:
                level = max(level, least_running.spent_counter())
        else:
            level = least.service_counter()
        return level + flow.outstanding() / flow.weight

    def _urgency(self, request: Request) -> float:
        if not self.by_deadline:
            return 0.0
        return float("inf") if request.deadline is None else request.deadline

    def _enter(self, flow: Flow) -> None:
        flow.entry = entry = flow.counter, flow.charge_serial, flow
        self._order.push(entry)

    def _least(self) -> Flow | None:
        order = self._order
        while (entry := order.first()) is not None:
            flow = entry[2]
            if flow.charge_serial == entry[1]:
                return flow
            flow.entry = entry = flow.counter, flow.charge_serial, flow
            order.replace(entry)
        return None

    def _within(self, limit: float) -> list[Flow]:
        """At most `CANDIDATES` backlogged flows with counters up to `limit`, the least first."""
        entries: list[tuple[float, int, Flow]] = []
        while len(entries) < CANDIDATES and (flow := self._least()) is not None and flow.counter <= limit:
            entries.append(self._order.pop())
        for entry in entries:
            self._order.push(entry)
        return [flow for _, _, flow in entries]


def _counter(flow: Flow) -> float:
    return flow.counter


def _is_current(entry: tuple[float, int, Flow]) -> bool:
    """Whether the entry is its flow's current one, and the flow is backlogged."""
    return entry[2].entry is entry


def _due(request: Request) -> float | None:
    """When it must be served to end by its deadline, `RUN_PART` being left for running; None for no deadline."""
    if request.deadline is None or math.isinf(request.deadline):
        return None
    return request.deadline - RUN_PART * max(0.0, request.deadline - request.arrived_at)
