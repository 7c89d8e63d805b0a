"""Scheduling policies of other systems, which ours is measured against.

All drive the same scheduler with the same blocks, budget and costs. They differ in the order of requests. Ours also
evicts last the blocks that waiting requests will look for; the others evict the least recently used block.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence

from engine.scheduling.fairness.fair_share import FairShare
from engine.scheduling.fairness.flow import Flow
from engine.scheduling.fairness.flows import FlowShares
from engine.scheduling.fairness.lanes import RANK
from engine.scheduling.lazy_heap import LazyHeap
from engine.scheduling.policy import Capacity, Claim, Matched, Policy
from engine.scheduling.request import Request
from engine.scheduling.step_costs import StepCosts


class FirstComeFirstServed:
    """Serves in order of arrival, without shares. Preempts requests that are out of credit, then the latest arrival."""

    protects_awaited_blocks = False

    def __init__(self) -> None:
        self._waiting: dict[int, Request] = {}
        self._order: LazyHeap[tuple[int, Request]] = LazyHeap(lambda entry: self._waiting.get(entry[0]) is entry[1])

    def begin_step(self, now: float) -> bool:
        return False

    def push(self, request: Request) -> None:
        self._waiting[request.arrival] = request
        self._order.push((request.arrival, request))

    def peek(self, matched: Matched, last: bool = False) -> Request | None:
        first = self._order.first()
        return None if first is None else first[1]

    def admitted(self, request: Request) -> None:
        del self._waiting[request.arrival]

    def remove(self, request: Request) -> None:
        del self._waiting[request.arrival]

    def __len__(self) -> int:
        return len(self._waiting)

    def waiting(self) -> Iterable[Request]:
        return self._waiting.values()

    def placed(self, request: Request) -> None:
        """Nothing is charged."""

    def restored(self, request: Request) -> None:
        """Nothing is charged."""

    def grown(self, requests: Iterable[Request]) -> None:
        """Nothing is charged."""

    def charge_extra(self, request: Request, cost: float) -> None:
        """Nothing is charged."""

    def released(self, request: Request) -> None:
        """Nothing is charged."""

    def next_prefill(self, pending: Sequence[Request]) -> Request:
        return pending[0]

    def prefilled(self, request: Request, tokens: int) -> None:
        """Nothing is charged."""

    def victim(self, candidates: Iterable[Request]) -> Request | None:
        return max(candidates, key=lambda request: (request.paused, request.arrival), default=None)

    def prefills_before(self, request: Request, left: int, pending: Sequence[Request]) -> Iterable[Request]:
        return pending

    def outranks(self, request: Request, other: Request) -> bool:
        return False

    @property
    def claims_due(self) -> bool:
        return False

    def claims(self, capacity: Capacity) -> Iterable[Claim]:
        return ()

    def displaced(self, request: Request, victims: Sequence[Request]) -> None:
        """There are no claims."""


class StrictPriority(FirstComeFirstServed):
    """vLLM's `priority`: the higher lane first, always; memory is taken from the lowest and youngest."""

    def __init__(self) -> None:
        super().__init__()
        self._lanes = {lane: FirstComeFirstServed() for lane in RANK}

    def push(self, request: Request) -> None:
        self._lanes[request.lane].push(request)

    def peek(self, matched: Matched, last: bool = False) -> Request | None:
        heads = (lane.peek(matched) for lane in self._lanes.values())
        return next((head for head in heads if head is not None), None)

    def admitted(self, request: Request) -> None:
        self._lanes[request.lane].admitted(request)

    def remove(self, request: Request) -> None:
        self._lanes[request.lane].remove(request)

    def __len__(self) -> int:
        return sum(map(len, self._lanes.values()))

    def waiting(self) -> Iterable[Request]:
        for lane in self._lanes.values():
            yield from lane.waiting()

    def next_prefill(self, pending: Sequence[Request]) -> Request:
        return min(pending, key=lambda request: (RANK[request.lane], request.placement))

    def prefills_before(self, request: Request, left: int, pending: Sequence[Request]) -> Iterable[Request]:
        return [other for other in pending if RANK[other.lane] <= RANK[request.lane]]

    def victim(self, candidates: Iterable[Request]) -> Request | None:
        return max(candidates, key=lambda r: (r.paused, RANK[r.lane], r.arrival), default=None)


class RoundRobin(FirstComeFirstServed):
    """llm-d's flow control: flows take turns, one request each, whatever it costs."""

    def __init__(self) -> None:
        super().__init__()
        self._flows: dict[str, FirstComeFirstServed] = {}
        self._turns: deque[str] = deque()

    def push(self, request: Request) -> None:
        if request.flow not in self._flows:
            self._flows[request.flow] = FirstComeFirstServed()
            self._turns.append(request.flow)
        self._flows[request.flow].push(request)

    def peek(self, matched: Matched, last: bool = False) -> Request | None:
        while self._turns:
            head = self._flows[self._turns[0]].peek(matched)
            if head is not None:
                return head
            del self._flows[self._turns.popleft()]
        return None

    def admitted(self, request: Request) -> None:
        self._flows[request.flow].admitted(request)
        if self._turns[0] == request.flow:
            self._turns.rotate(-1)

    def remove(self, request: Request) -> None:
        self._flows[request.flow].remove(request)

    def __len__(self) -> int:
        return sum(map(len, self._flows.values()))

    def waiting(self) -> Iterable[Request]:
        for flow in self._flows.values():
            yield from flow.waiting()


class DeficitByPrefill(RoundRobin):
    """Dynamo's router queue: deficit round robin over flows in uncached prefill tokens; decode is not charged."""

    QUANTUM = 4096

    def __init__(self) -> None:
        super().__init__()
        self._deficit: dict[str, int] = {}
        self._paid: str | None = None
        """The flow that has had its quantum in this turn of its."""

    def peek(self, matched: Matched, last: bool = False) -> Request | None:
        while (head := super().peek(matched)) is not None:
            flow, cost = head.flow, len(head.tokens) - matched(head)
            if self._paid != flow:
                self._paid = flow
                self._deficit[flow] = self._deficit.get(flow, 0) + self.QUANTUM
            if self._deficit[flow] >= cost:
                return head
            self._paid = None
            self._turns.rotate(-1)
        self._deficit.clear()
        self._paid = None
        return None

    def admitted(self, request: Request) -> None:
        self._flows[request.flow].admitted(request)

    def placed(self, request: Request) -> None:
        self._deficit[request.flow] -= len(request.tokens) - request.kv
        if not len(self._flows[request.flow]):
            self._deficit[request.flow] = 0


class PlainShares(FlowShares):
    """VTC's own lift: to the least counter of those that wait."""

    def _level(self, flow: Flow) -> float:
        least = self._least()
        return self._floor if least is None else least.counter


class PlainVtc(FairShare):
    """VTC (OSDI '24): the flows of all lanes in one, no locality, output charged as it is made and not ahead."""

    protects_awaited_blocks = False

    def __init__(self, costs: StepCosts) -> None:
        super().__init__(costs, quantum=0.0)
        self._all: FlowShares = PlainShares(0.0)
        self.flows = dict.fromkeys(self.flows, self._all)

    def peek(self, matched: Matched, last: bool = False) -> Request | None:
        return self._all.choose(matched)

    def __len__(self) -> int:
        return len(self._all)

    def waiting(self) -> Iterable[Request]:
        return self._all.waiting()

    def next_prefill(self, pending: Sequence[Request]) -> Request:
        return pending[0]

    def prefills_before(self, request: Request, left: int, pending: Sequence[Request]) -> Iterable[Request]:
        return pending

    def outranks(self, request: Request, other: Request) -> bool:
        return False

    @property
    def claims_due(self) -> bool:
        return False

    def victim(self, candidates: Iterable[Request]) -> Request | None:
        return max(candidates, key=lambda request: (request.paused, request.arrival), default=None)

    def _ahead(self, request: Request, usual: float) -> float:
        return request.rates.cost(max(0, request.prompt - max(request.kv, request.max_kv)), 0, 0)


POLICIES: dict[str, Callable[[StepCosts], Policy]] = {
    "fcfs": lambda costs: FirstComeFirstServed(),
    "strict_priority": lambda costs: StrictPriority(),
    "round_robin": lambda costs: RoundRobin(),
    "drr_prefill": lambda costs: DeficitByPrefill(),
    "vtc": PlainVtc,
    "turnpike": FairShare,
}
