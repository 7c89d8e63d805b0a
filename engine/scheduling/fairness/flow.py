"""One flow (tenant) of a lane: its virtual counter, its waiting requests by sub-flow, and its running requests."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter, deque

from engine.scheduling.policy import Matched
from engine.scheduling.request import Request

AHEAD = 32
"""How many requests of a sub-flow are compared by tokens to compute."""
MAX_OVERTAKEN = 32
"""The most times that a request is overtaken by later ones of its sub-flow."""
OUTPUT_GUESS = 128.0
"""Expected output tokens of a flow's requests before one has ended."""
_MEAN_WEIGHT = 1 / 8


class Flow:
    """One tenant in one lane. `counter`: µs of engine time per weight. `queued`: estimated µs of waiting requests."""

    __slots__ = (
        "_queues", "_turns", "blocks", "charge_serial", "claimed_at", "counter", "entry", "expected_elsewhere", "name",
        "output", "queued", "running", "unserved_since", "waiting", "weight",
    )  # fmt: skip

    def __init__(self, name: str, counter: float) -> None:
        self.name = name
        self.weight = 1.0
        self.counter = counter
        self.charge_serial = 0
        """Serial number of the last change of its counter."""
        self.entry: tuple[float, int, Flow] | None = None
        """Its current entry in the lane's order: (counter, serial number, itself). None while nothing waits."""
        self.expected_elsewhere = 0
        """Estimated µs of service on other replicas since they were last heard; not in the counter."""
        self.output = OUTPUT_GUESS
        """Mean output tokens of its requests."""
        self.queued = 0.0
        self.waiting: dict[int, Request] = {}
        """arrival -> request"""
        self.running: dict[int, Request] = {}
        """arrival -> request"""
        self.blocks = 0
        """Blocks of the running requests; a shared block counts for each."""
        self.claimed_at = 0.0
        """When it began to wait or last claimed a slot, in seconds of the policy's clock."""
        self.unserved_since = 0.0
        """When it was last served or began to wait, in seconds since the Unix epoch."""
        self._queues: dict[str, list[tuple[float, int, Request]]] = {}
        """sub-flow -> sorted (urgency, arrival, request)"""
        self._turns: deque[str] = deque()
        """Sub-flows with waiting requests, in the order of their turns."""

    def push(self, request: Request, urgency: float) -> None:
        """Queue a request. `urgency`: its deadline, where the lane goes by deadlines."""
        queue = self._queues.get(request.sub_flow)
        if queue is None:
            queue = self._queues[request.sub_flow] = []
            self._turns.append(request.sub_flow)
        insort(queue, (urgency, request.arrival, request))
        self.waiting[request.arrival] = request
        self.queued += request.estimate

    def remove(self, request: Request, urgency: float, *, served: bool) -> None:
        """Take a waiting request out. `served`: it is admitted, so it overtakes the requests before it."""
        del self.waiting[request.arrival]
        self.queued = self.queued - request.estimate if self.waiting else 0.0
        queue = self._queues[request.sub_flow]
        at = bisect_left(queue, (urgency, request.arrival))
        del queue[at]
        if served:
            for _, _, overtaken in queue[:at]:
                overtaken.times_overtaken += 1
        if not queue:
            del self._queues[request.sub_flow]
            self._turns.remove(request.sub_flow)

    def head(self) -> Request:
        """The next request of the sub-flow whose turn it is."""
        return self._queues[self._turns[0]][0][2]

    def has_sub_flows(self) -> bool:
        """Whether its requests are of several sub-flows; some must be waiting."""
        if len(self._turns) > 1:
            return True
        return any(request.sub_flow != self._turns[0] for request in self.running.values())

    def neediest(self) -> Request:
        """The next request of the sub-flow with the fewest running requests, the next in turn among equals."""
        running = Counter(request.sub_flow for request in self.running.values())
        return self._queues[min(self._turns, key=running.__getitem__)][0][2]

    def nearest(self, matched: Matched) -> tuple[Request, int]:
        """The request with the fewest tokens to compute among the next ones of the sub-flow in turn, and how many.

        It is not searched for beyond a request that may not be overtaken, or that is less urgent.
        """
        queue = self._queues[self._turns[0]]
        best, least = queue[0][2], -1
        for urgency, _, request in queue[:AHEAD]:
            if urgency != queue[0][0]:
                break
            left = len(request.tokens) - max(matched(request), request.swapped_tokens)
            if least < 0 or left < least:
                best, least = request, left
            if request.times_overtaken >= MAX_OVERTAKEN:
                break
        return best, least

    def rotate(self, sub_flow: str) -> None:
        """Move a sub-flow that was served behind the others."""
        if self._turns and self._turns[0] == sub_flow:
            self._turns.rotate(-1)

    def outstanding(self) -> float:
        """µs charged for output that running requests have not produced yet: at most a block each."""
        # Asked at every admission, with hundreds running: so without `Request.output` and `Rates.cost`.
        total = 0.0
        for request in self.running.values():
            prompt, read, rates = request.prompt, request.read_tokens, request.rates
            output = len(request.tokens) - prompt
            total += request.charged - (prompt - read) * rates.uncached - read * rates.cached - output * rates.decoded
        return total

    def service_counter(self) -> float:
        """The counter as VTC has it: prompts charged at admission, output when it is produced."""
        return self.counter - self.outstanding() / self.weight

    def spent_counter(self) -> float:
        """The counter without any charge ahead of service, not even for prompts."""
        return self.counter - sum(request.charged - request.spent for request in self.running.values()) / self.weight

    def expected_counter(self) -> float:
        """The counter with the estimated service on other replicas."""
        return self.counter + self.expected_elsewhere / self.weight

    def observe_output(self, output: int) -> None:
        """A request ended with `output` tokens: update the mean."""
        self.output += (output - self.output) * _MEAN_WEIGHT
