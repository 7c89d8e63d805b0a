"""Shares between the flows of one lane: a virtual counter each, after VTC (Sheng et al., OSDI '24) and DLPM (2025).

A flow's counter grows by what it is charged, divided by its weight; the flow with the least is served next. A flow that
wakes up is lifted to what the least of those that wait, or else that run, has got, so that silence earns nothing. Among
flows within the quantum Q of the least, the one whose next request has the least left to compute goes first, having its
prefix in memory or being short: Q bounds what fairness gives up for cache hits and short waits. Where waiting counts
most, flows are level up to where the least will be when its next request is served (the finish tag of weighted fair
queueing; counters are start tags): so far ahead it will be in any case. Elsewhere nobody takes the last slot from the
least for the sake of less to compute while that one has nothing running: Q bounds what is charged at once, and not how
long the slot is kept. Inside a flow its sub-flows take turns; inside a sub-flow the least left to compute goes first,
and else who came first: a tenant's long prompts do not hold up its short ones, which costs the others nothing. Each
request lets at most `PATIENCE` others pass.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import Counter, deque
from collections.abc import Callable, Iterator

from engine.scheduling.fairness.deadline_demand import DeadlineDemand
from engine.scheduling.lazy_heap import LazyHeap
from engine.scheduling.request import Request

Matched = Callable[[Request], int]
"""How many tokens of a request are in memory already."""

CANDIDATES = 8
"""How many flows within Q are looked at for the least to compute."""
AHEAD = 32
"""How many requests of a sub-flow are looked at for the least to compute."""
PATIENCE = 32
"""How many later requests of its sub-flow may be served before a request."""
MAX_WAKE_UP_DEBT_US = 30_000_000.0
"""µs per weight that a flow that wakes up may owe at most: what it got elsewhere while nobody wanted it is forgiven."""
OUTPUT_GUESS = 128.0
"""Tokens that a flow's requests are thought to put out before one has ended."""
LATE_BORROW_SHARE = 0.5
"""Which part of what a lane may borrow is for whoever is late; all of it is for those who got less than another."""
RUN_PART = 0.1
"""Which part of the time from its coming to its deadline a request is left for running."""
IDLE = 4096
"""How many flows that have no requests are remembered for having got more than others."""
_MEAN_WEIGHT = 1 / 8


class Flow:
    """One tenant in one lane. `counter` is µs of engine time per weight; `queued` µs of requests that wait."""

    __slots__ = (
        "_queues",
        "_turns",
        "blocks",
        "charged",
        "claimed_at",
        "counter",
        "entry",
        "expected_elsewhere",
        "name",
        "output",
        "queued",
        "running",
        "since",
        "waiting",
        "weight",
    )

    def __init__(self, name: str, counter: float) -> None:
        self.name = name
        self.weight = 1.0
        self.counter = counter
        self.charged = 0
        """When its counter changed last, as a serial number."""
        self.entry: tuple[float, int, Flow] | None = None
        """Its place in the order of those that wait: counter, serial number, itself. None while it does not wait."""
        self.expected_elsewhere = 0
        """µs that it is thought to have got elsewhere since the others were heard, which its counter does not say."""
        self.output = OUTPUT_GUESS
        self.queued = 0.0
        self.waiting: dict[int, Request] = {}
        """By arrival."""
        self.running: dict[int, Request] = {}
        self.blocks = 0
        """How many blocks the running requests have, shared ones counted for each."""
        self.claimed_at = 0.0
        """When it began to wait, or others gave way to it last: seconds of the policy's clock, never put back."""
        self.since = 0.0
        """When it was served last, or began to wait: seconds since the Unix epoch."""
        self._queues: dict[str, list[tuple[float, int, Request]]] = {}
        """By sub-flow: (urgency, arrival, request) in order."""
        self._turns: deque[str] = deque()

    def push(self, request: Request, urgency: float) -> None:
        queue = self._queues.get(request.sub_flow)
        if queue is None:
            queue = self._queues[request.sub_flow] = []
            self._turns.append(request.sub_flow)
        insort(queue, (urgency, request.arrival, request))
        self.waiting[request.arrival] = request
        self.queued += request.estimate

    def take(self, request: Request, urgency: float, *, served: bool) -> None:
        """Take a waiting request out; where it was `served`, those before it have let it pass."""
        del self.waiting[request.arrival]
        self.queued = self.queued - request.estimate if self.waiting else 0.0
        queue = self._queues[request.sub_flow]
        at = bisect_left(queue, (urgency, request.arrival))
        del queue[at]
        if served:
            for _, _, passed in queue[:at]:
                passed.passed += 1
        if not queue:
            del self._queues[request.sub_flow]
            self._turns.remove(request.sub_flow)

    def head(self) -> Request:
        """The next request of the sub-flow whose turn it is."""
        return self._queues[self._turns[0]][0][2]

    def has_sub_flows(self) -> bool:
        """Whether its requests, of which some wait, are of several sub-flows."""
        if len(self._turns) > 1:
            return True
        return any(request.sub_flow != self._turns[0] for request in self.running.values())

    def neediest(self) -> Request:
        """The next request of the sub-flow with the fewest running ones, and of equals of the next in turn."""
        running = Counter(request.sub_flow for request in self.running.values())
        return self._queues[min(self._turns, key=running.__getitem__)][0][2]

    def nearest(self, matched: Matched) -> tuple[Request, int]:
        """The one of the sub-flow's first with the fewest tokens to compute, if all before it can wait; and those."""
        queue = self._queues[self._turns[0]]
        best, least = queue[0][2], -1
        for urgency, _, request in queue[:AHEAD]:
            if urgency != queue[0][0]:
                break
            left = len(request.tokens) - max(matched(request), request.kept)
            if least < 0 or left < least:
                best, least = request, left
            if request.passed >= PATIENCE:
                break
        return best, least

    def turn(self, sub_flow: str) -> None:
        """The sub-flow was served: the others come first."""
        if self._turns and self._turns[0] == sub_flow:
            self._turns.rotate(-1)

    def outstanding(self) -> float:
        """µs that running requests were charged for output that they have not yet put out: a block each at most."""
        return sum(
            request.charged - request.rates.cost(request.prompt - request.read_hbm, request.read_hbm, request.output)
            for request in self.running.values()
        )

    def got(self) -> float:
        """The counter without what was charged ahead, as VTC has it: prompts when admitted, output when it is there."""
        return self.counter - self.outstanding() / self.weight

    def received(self) -> float:
        """The counter without anything that was charged ahead, of prompts too."""
        return self.counter - sum(request.charged - request.spent for request in self.running.values()) / self.weight

    def expected(self) -> float:
        """The counter as it is thought to be by now."""
        return self.counter + self.expected_elsewhere / self.weight

    def learn(self, output: int) -> None:
        """A request ended after so many output tokens."""
        self.output += (output - self.output) * _MEAN_WEIGHT


class FlowShares:
    """The flows of one lane, by name. `quantum` is Q in µs per weight; `to_finish`: flows are level up to where the
    least will be when its next request is served."""

    def __init__(self, quantum: float, by_deadline: bool = False, to_finish: bool = False) -> None:
        self.quantum = quantum
        self.by_deadline = by_deadline
        self.to_finish = to_finish
        self.flows: dict[str, Flow] = {}
        self.running: dict[str, Flow] = {}
        """The flows that have running requests."""
        self.settled_for = 0
        """How many blocks the flows may still get before anybody who waits can be short of its part of slots and
        memory; unknown, and 0, after a request has come, left, or changed places."""
        self.queued = 0.0
        self._order: LazyHeap[tuple[float, int, Flow]] = LazyHeap(_is_last)
        """Backlogged flows by counter, among equals who was charged first. An entry counts while it is its flow's last;
        one that says less than the counter is put right when it comes to the top."""
        self._serial = 0
        self._floor = 0.0
        """The most that the least of those that waited had got so far."""
        self._most = 0.0
        """The largest counter so far."""
        self._waiting = 0
        self.fresh = 0
        """How many of those that wait have not begun."""
        self.deadline_demand = DeadlineDemand()
        """What waits by its deadline, where the order is by deadline."""

    def __len__(self) -> int:
        return self._waiting

    def waiting(self) -> Iterator[Request]:
        """All waiting requests."""
        for flow in self.flows.values():
            yield from flow.waiting.values()

    def flow(self, name: str) -> Flow:
        """The flow of this name, made if there is none."""
        flow = self.flows.get(name)
        if flow is None:
            flow = self.flows[name] = Flow(name, self._floor)
        return flow

    def push(self, request: Request, now: float = 0.0) -> None:
        """Queue a request. A flow that did not wait is lifted."""
        self.settled_for = 0
        flow = self.flow(request.flow)
        flow.weight = request.weight
        if not flow.waiting:
            level = self._wake_up_counter(flow)
            flow.counter = min(max(flow.counter, level), level + MAX_WAKE_UP_DEBT_US)
            flow.since = max(now, request.arrived_at)
            self._serial += 1
            flow.charged = self._serial
            self._enter(flow)
        flow.push(request, self._urgency(request))
        if self.by_deadline:
            self.deadline_demand.add(_due(request), request.estimate)
        self.queued += request.estimate
        self._waiting += 1
        self.fresh += not request.began

    def choose(self, matched: Matched, last: bool = False) -> Request | None:
        """The request to serve next; None when nobody waits. `last`: it would take the last slot."""
        least = self._least()
        if least is None:
            return None
        if self.quantum <= 0:
            return least.head()
        nearest = self._candidates(least, matched)
        kept_out = last and not self.to_finish and not least.running
        # Of equals the first to come where waiting counts most, else the first here: the one with the least counter.
        return min(
            nearest,
            key=lambda found: (
                self._urgency(found[0]),
                kept_out and found[0].flow != least.name,
                found[1],
                found[0].arrival if self.to_finish else 0,
            ),
        )[0]

    def _candidates(self, least: Flow, matched: Matched) -> list[tuple[Request, int]]:
        """The next requests of the flows that may go before the least, it among them, and what each has to compute."""
        nearest: list[tuple[Request, int]] = []
        limit = math.inf if self.to_finish else least.counter + self.quantum
        for flow in self._within(limit):
            if flow.counter > limit:
                break
            request, left = flow.nearest(matched)
            nearest.append((request, left))
            if self.to_finish:
                limit = min(limit, flow.counter + request.rates.cost(left, 0, 0) / flow.weight + self.quantum)
        return nearest

    def late(self, before: float) -> float:
        """Which part of what its lane may borrow is for the flow that is next: none unless it has waited for its
        service since `before`, all if another got more than it meanwhile."""
        least = self._least()
        if least is None or least.since >= before:
            return 0.0
        return 1.0 if least.counter + self.quantum < self._most else LATE_BORROW_SHARE

    def take(self, request: Request, now: float | None = None) -> None:
        """Take a waiting request out: served at `now`, or gone."""
        self.settled_for = 0
        flow = self.flows[request.flow]
        if now is not None and (least := self._least()) is not None:
            self._floor = max(self._floor, least.got())
            flow.since = now
        flow.take(request, self._urgency(request), served=now is not None)
        if self.by_deadline:
            self.deadline_demand.remove(_due(request), request.estimate)
        if not flow.waiting:
            flow.entry = None  # the entry has the flow: of a cycle nothing is freed until all memory is searched
        self._waiting -= 1
        self.fresh -= not request.began
        self.queued = self.queued - request.estimate if self._waiting else 0.0

    def backlogged(self) -> Iterator[Flow]:
        """The flows that wait, in no order."""
        return (entry[2] for entry in self._order.standing())

    def level(self) -> list[Flow]:
        """The first of the flows that wait and are within Q of the least, that one first."""
        least = self._least()
        return [] if least is None else self._within(least.counter + self.quantum)

    def placed(self, request: Request) -> Flow:
        """A request got its blocks."""
        self.settled_for = 0
        flow = self.flow(request.flow)
        flow.running[request.arrival] = request
        flow.blocks += len(request.table)
        self.running[flow.name] = flow
        return flow

    def released(self, request: Request) -> Flow:
        """A running request is about to give its blocks back."""
        self.settled_for = 0
        flow = self.flow(request.flow)
        del flow.running[request.arrival]
        flow.blocks -= len(request.table)
        if not flow.running:
            del self.running[flow.name]
        return flow

    def charge(self, flow: Flow, cost: float) -> None:
        """Add `cost` µs to a flow's counter; negative to correct it."""
        if cost:
            flow.counter = counter = flow.counter + cost / flow.weight
            self._most = counter if counter > self._most else self._most
            self._serial = flow.charged = self._serial + 1
            # One that rises is looked at again when it comes to the top, one that falls might never come there.
            if cost < 0.0 and flow.waiting:
                self._enter(flow)

    def check(self) -> None:
        """Count what is kept count of, for tests. Raises AssertionError."""
        waiting = list(self.waiting())
        assert self._waiting == len(waiting), "more or fewer wait than are counted"
        assert self.fresh == sum(not request.began for request in waiting), "others have begun than are counted"
        due = sum(_due(request) is not None for request in waiting) if self.by_deadline else 0
        assert len(self.deadline_demand) == due, "more or fewer are due than wait"
        assert self.running == {name: flow for name, flow in self.flows.items() if flow.running}, "others run"
        for flow in self.running.values():
            held = sum(len(request.table) for request in flow.running.values())
            assert flow.blocks == held, "a flow holds more or fewer blocks than are counted"

    def forget_idle(self) -> None:
        """Drop flows that would come back as they would come new, and of the others those beyond `IDLE` that got the
        least: where nobody waits for long the floor does not rise, and whoever came once stays above it."""
        idle = [flow for flow in self.flows.values() if not flow.waiting and not flow.running]
        ahead = sorted((flow.counter, flow.name) for flow in idle if flow.counter > self._floor)
        kept = {name for _, name in ahead[-IDLE:]}
        for flow in idle:
            if flow.name not in kept:
                del self.flows[flow.name]

    def _wake_up_counter(self, flow: Flow) -> float:
        """What a flow that wakes up is lifted to: where it has got as much as the least of those that wait.

        Counters are ahead by the output to come, and by different amounts: a flow with many answers in flight must not
        put them on the bill of one that has none. So without them they are compared, and its own are put on top.
        """
        least = self._least()
        if least is None:
            # Where nobody waits, time goes on with those that run: they had what nobody else wanted.
            others = [other for other in self.running.values() if other is not flow]
            runs = min(others, key=_counter, default=None)
            level = self._floor if runs is None else max(self._floor, runs.received())
        else:
            level = least.got()
        return level + flow.outstanding() / flow.weight

    def _urgency(self, request: Request) -> float:
        if not self.by_deadline:
            return 0.0
        return float("inf") if request.deadline is None else request.deadline

    def _enter(self, flow: Flow) -> None:
        flow.entry = entry = flow.counter, flow.charged, flow
        self._order.push(entry)

    def _least(self) -> Flow | None:
        order = self._order
        while (entry := order.first()) is not None:
            flow = entry[2]
            if flow.charged == entry[1]:
                return flow
            flow.entry = entry = flow.counter, flow.charged, flow
            order.replace(entry)
        return None

    def _within(self, limit: float) -> list[Flow]:
        """The first flows with counters up to `limit`, the least first."""
        found: list[Flow] = []
        entries = []
        while len(found) < CANDIDATES and (flow := self._least()) is not None and flow.counter <= limit:
            found.append(flow)
            entries.append(self._order.pop())
        for entry in entries:
            self._order.push(entry)
        return found


def _counter(flow: Flow) -> float:
    return flow.counter


def _is_last(entry: tuple[float, int, Flow]) -> bool:
    """Whether an entry of the order is its flow's last, and the flow waits."""
    return entry[2].entry is entry


def _due(request: Request) -> float | None:
    """By when it should be served, to end by its deadline: it has yet to run then, and to wait for a slot."""
    if request.deadline is None or math.isinf(request.deadline):
        return None
    return request.deadline - RUN_PART * max(0.0, request.deadline - request.arrived_at)
