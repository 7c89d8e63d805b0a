"""Replicas without a model: the real scheduler, policy and block pool; fixed rates say how long a step takes."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from benchmarks.fairness_scenarios import TRACE_BLOCK, Arrival, Scenario
from engine.scheduling.fairness.fair_share import FairShare
from engine.scheduling.policy import Policy
from engine.scheduling.request import Request
from engine.scheduling.scheduler import Scheduler
from engine.scheduling.step_costs import FixedCosts, Rates, StepCosts
from engine.scheduling.token_sequence import TokenSequence
from prompt_cache.kv.block_keys import BLOCK_TOKENS
from prompt_cache.kv.grouped_pool import GroupedPool
from protocol.requests import LANES, Sampling

RATES = Rates(step=6_000.0, uncached=30.0, cached=0.3, row=60.0, batch=64)
"""Of the order of an 8B model on one H200; what is compared is the policies, under the same rates."""
BUDGET = 2048
BEAT_S = 1.0
_SAMPLE_S = 0.25


class Replica:
    """One scheduler and its clock, in seconds."""

    def __init__(self, policy: Policy, scenario: Scenario, costs: StepCosts) -> None:
        self.policy = policy
        self.scheduler = Scheduler(GroupedPool([(scenario.blocks, 0)]), BUDGET, scenario.running, policy, costs=costs)
        self.now = 0.0


@dataclass
class Outcome:
    """What a scenario came to under one policy. Times in s, gaps in s of engine time per weight."""

    ttft: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    by_flow: dict[tuple[str, str], list[float]] = field(default_factory=lambda: defaultdict(list))
    gap: float = 0.0
    most: float = 0.0
    """E: the most engine time that one request got or was charged, in s."""
    asked: dict[tuple[str, str], list[tuple[float, float]]] = field(default_factory=lambda: defaultdict(list))
    """What was asked for, by lane and flow: when, and how much engine time it took, in s."""
    read: int = 0
    computed: int = 0
    jain: float = 1.0
    ended: float = 0.0
    preemptions: int = 0


class Gaps:
    """Service of flows that wait in one lane at the same time: the largest gap, and Jain's index of their rates."""

    def __init__(self, flows: list[tuple[str, str]]) -> None:
        self.index = {flow: number for number, flow in enumerate(flows)}
        count = len(flows)
        lanes = np.array([LANES.index(lane) for lane, _ in flows])  # type: ignore[arg-type]
        self.alike = lanes[:, None] == lanes[None, :]
        self.least = np.full((count, count), np.inf)
        self.most = np.full((count, count), -np.inf)
        self.waiting = np.zeros(count, dtype=int)
        self.emptied = np.ones(count, dtype=bool)
        self.gap = 0.0
        self.before = np.zeros(count)
        self.got = np.zeros(count)
        self.waited = np.zeros(count)
        self.lanes = lanes
        self.at = 0.0

    def moved(self, request: Request, by: int) -> None:
        number = self.index[request.lane, request.flow]
        self.waiting[number] += by
        if not self.waiting[number]:
            self.emptied[number] = True

    def sample(self, now: float, service: np.ndarray) -> None:
        backlogged = (self.waiting > 0) & ~self.emptied
        both = backlogged[:, None] & backlogged[None, :] & self.alike
        gaps = service[:, None] - service[None, :]
        self.least = np.where(both, np.minimum(self.least, gaps), gaps)
        self.most = np.where(both, np.maximum(self.most, gaps), gaps)
        self.gap = max(self.gap, float((self.most - self.least).max(initial=0.0)))
        contended = backlogged & (both.sum(1) > 1)
        self.got += np.where(contended, service - self.before, 0)
        self.waited += np.where(contended, now - self.at, 0)
        self.before, self.at = service.copy(), now
        self.emptied = self.waiting == 0

    def jain(self) -> float:
        """Over the flows of a lane that competed for at least ten seconds, the mean over lanes."""
        found = []
        for lane in range(len(LANES)):
            took_part = (self.lanes == lane) & (self.waited >= 10)
            rates = self.got[took_part] / self.waited[took_part]
            if len(rates) > 1 and rates.sum() > 0:
                found.append(float(rates.sum() ** 2 / (len(rates) * (rates**2).sum())))
        return sum(found) / len(found) if found else 1.0


def simulate(scenario: Scenario, make: Callable[[StepCosts], Policy]) -> Outcome:
    """Run a scenario to its end under one policy."""
    return _Run(scenario, make).run()


class _Run:
    def __init__(self, scenario: Scenario, make: Callable[[StepCosts], Policy]) -> None:
        costs = FixedCosts(RATES)
        self.scenario = scenario
        self.replicas = [Replica(make(costs), scenario, costs) for _ in range(scenario.replicas)]
        self.outcome = Outcome()
        self.gaps = Gaps(sorted({(a.lane, a.flow) for a in scenario.arrivals}))
        self.service = np.zeros(len(self.gaps.index))
        self.arrived: dict[str, Arrival] = {}
        self.first: set[str] = set()
        for replica in self.replicas:
            self._watch(replica.policy)

    def _watch(self, policy: Policy) -> None:
        """Count who waits, by listening to what the scheduler tells the policy."""
        push, admitted, remove = policy.push, policy.admitted, policy.remove

        def heard(tell: Callable[[Request], None], by: int) -> Callable[[Request], None]:
            def told(request: Request) -> None:
                tell(request)
                self.gaps.moved(request, by)

            return told

        policy.push, policy.remove = heard(push, 1), heard(remove, -1)  # type: ignore[method-assign]
        policy.admitted = heard(admitted, -1)  # type: ignore[method-assign]

    def run(self) -> Outcome:
        arrivals = self.scenario.arrivals
        cancels = sorted((a.cancelled, n) for n, a in enumerate(arrivals) if a.cancelled is not None)
        at_arrival = at_cancel = 0
        where: dict[int, tuple[Replica, Request]] = {}
        beat = sample = 0.0
        while True:
            busy = [replica for replica in self.replicas if replica.scheduler.busy]
            next_arrival = arrivals[at_arrival].at if at_arrival < len(arrivals) else math.inf
            now = min((replica.now for replica in busy), default=next_arrival)
            if now == math.inf:
                break
            if next_arrival <= now:
                where[at_arrival] = self._arrive(at_arrival, arrivals[at_arrival])
                at_arrival += 1
                continue
            while at_cancel < len(cancels) and cancels[at_cancel][0] <= now:  # type: ignore[operator]
                self._cancel(*where[cancels[at_cancel][1]])
                at_cancel += 1
            if now >= beat:
                self._exchange()
                beat = now + BEAT_S
            if now >= sample:
                self.gaps.sample(now, self.service)
                sample = now + _SAMPLE_S
            replica = min(busy, key=lambda each: each.now)
            if replica.scheduler.busy:
                self._step(replica)
        outcome = self.outcome
        outcome.gap, outcome.jain = self.gaps.gap / 1e6, self.gaps.jain()
        outcome.ended = max(replica.now for replica in self.replicas)
        outcome.preemptions = sum(replica.scheduler.preemptions for replica in self.replicas)
        return outcome

    def _arrive(self, number: int, arrival: Arrival) -> tuple[Replica, Request]:
        replica = self._route(arrival)
        if not replica.scheduler.busy:
            replica.now = max(replica.now, arrival.at)
        request = Request(
            id=str(number),
            attempt=1,
            arrival=number,
            tokens=TokenSequence([0] * arrival.prompt),
            prompt=arrival.prompt,
            segments=((arrival.prompt, b"scope", "scope"),),
            root=b"model",
            sampling=Sampling(4096),
            max_output=max(4096, arrival.output),  # what clients ask for, not what comes
            credit=1 << 40,
            lane=arrival.lane,
            flow=arrival.flow,
            arrived_at=arrival.at,
            rates=RATES,
            keys=[
                b"%d/%d" % (arrival.hashes[block * BLOCK_TOKENS // TRACE_BLOCK], block % (TRACE_BLOCK // BLOCK_TOKENS))
                for block in range(arrival.prompt // BLOCK_TOKENS)
            ],
        )
        self.arrived[request.id] = arrival
        replica.scheduler.add(request)
        return replica, request

    def _route(self, arrival: Arrival) -> Replica:
        """A conversation's home, the first homes being the homes of most; elsewhere when that one is far behind."""
        if len(self.replicas) == 1:
            return self.replicas[0]
        share = (arrival.hashes[0] * 2654435761 % 1000 / 1000) ** 2
        home = self.replicas[int(share * len(self.replicas))]
        idlest = min(self.replicas, key=lambda each: each.scheduler.waiting + len(each.scheduler.running))
        far_behind = home.scheduler.waiting > 16 + 2 * idlest.scheduler.waiting
        return idlest if far_behind else home

    def _cancel(self, replica: Replica, request: Request) -> None:
        if request.id in self.arrived:
            replica.scheduler.remove(request)
            self._ended(request)

    def _exchange(self) -> None:
        policies = [replica.policy for replica in self.replicas]
        if len(policies) > 1 and all(isinstance(policy, FairShare) for policy in policies):
            given = [policy.service_given() for policy in policies if isinstance(policy, FairShare)]
            for here, policy in enumerate(policies):
                for there, service in enumerate(given):
                    if here != there and isinstance(policy, FairShare):
                        policy.record_remote_service(str(there), 1, service)

    def _step(self, replica: Replica) -> None:
        scheduler, index = replica.scheduler, self.gaps.index
        step = scheduler.schedule(replica.now)
        for request in step.began:
            self.service[index[request.lane, request.flow]] += RATES.cost(0, request.read_hbm, 0)
        decodes = sum(work.count == 1 for work in step.work)
        tokens = sum(work.count for work in step.work) - decodes
        replica.now += RATES.step_time(tokens, decodes) / 1e6
        before = [work.request.computed for work in step.work]
        scheduler.commit(step.work, [0 if work.samples else None for work in step.work])
        for work, computed in zip(step.work, before, strict=True):
            request = work.request
            cost = RATES.cost(request.computed - computed, 0, int(work.samples))
            self.service[index[request.lane, request.flow]] += cost
            if not work.samples:
                continue
            arrival = self.arrived[request.id]
            if request.id not in self.first:
                self.first.add(request.id)
                waited = replica.now - arrival.at
                self.outcome.ttft[request.lane].append(waited)
                self.outcome.by_flow[request.lane, request.flow].append(waited)
            if request.output >= arrival.output:
                self.outcome.most = max(self.outcome.most, request.charged / 1e6, request.spent / 1e6)
                scheduler.remove(request)
                self._ended(request)

    def _ended(self, request: Request) -> None:
        arrival = self.arrived.pop(request.id)
        self.outcome.asked[request.lane, request.flow].append((arrival.at, request.spent / 1e6))
        self.outcome.read += request.read_hbm
        self.outcome.computed += request.computed
