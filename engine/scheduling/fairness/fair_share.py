"""The fair-share policy: lanes by deficit round robin, flows (tenants) of a lane by virtual counters, in engine time.

Charging. A request is charged at admission for its prompt (tokens to compute and to read) and for one block of output.
Each further block of output is charged when it is allocated; what was not used is refunded at the end. So a flow's
charge is never less than its service, and exceeds it by at most a block for each running request. Expected output is
not charged: a flow with long outputs would wait until others had caught up with service that it has not had.

Guarantees, in µs. E: the most that one request costs, with that block. C = running requests × E. Both per weight.
Q: the locality quantum. L: the sum over lanes of what a lane may reserve, or borrow.

G1  Work conservation: a waiting request is admitted by the first step that has room. No share is held back for an
    absent flow. Where others hold the room, G6 says when they give it back.
G2  Two flows that are backlogged in one lane throughout an interval get service within 2 (C + Q) of each other, per
    weight. On R replicas that hear of each other's service every T µs: within 2 (R C + Q + (R - 1) T).
G3  A flow's next request is admitted before its lane has charged more than w (2 C + Q + 2 E) µs to each other flow of
    weight w. A backlogged lane is served before its share of all charges comes to 2 L + C µs.
G4  Backlogged lanes get engine time by weight, each within 2 L + C µs of its share over any interval. An interactive
    lane that asks for less than its share does not wait, however much the others ask for.
G5  Idle flows earn nothing: a flow that comes back is served as if it were new.
G6  Slots and memory: a waiting flow that holds less than its share of both gets another slot within `CLAIM_AFTER_S` +
    `LOOK_EVERY_S` and a few steps. The slot comes from a flow that holds more, even if its requests do not end and its
    clients do not read. This holds in the lane whose turn it is, for flows within Q of the least served one. Where n
    flows share s < n slots, it is `ROTATION_S` x (1 + n / s) later. A flow has its share when every other flow of its
    lane holds, by weight, at most one request and an eighth of the flow's own holding more. Claims cost at most `LOSS`
    of all engine time, and `BURST`; beyond that the next claim waits. `slot_shares` has the rules.

Order of prefill among admitted requests. The higher lane's prompts come first, as far as its balance allows. A step in
which an interactive prompt ends is lengthened by prompts of lower lanes only every other time. Within a lane the order
is that of placement, with two exceptions:

- The prompt of a flow with less service overtakes. Remote service is extrapolated for this (`service_totals`).
- A prompt that costs at most Q passes one that costs more, unless its flow would get more than Q ahead of the other's.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from engine.scheduling.fairness.flow import MAX_OVERTAKEN, OUTPUT_GUESS
from engine.scheduling.fairness.flows import MAX_WAKE_UP_DEBT_US, FlowShares
from engine.scheduling.fairness.lanes import LANE_WEIGHTS, QUANTUM, RANK, LaneShares, RecentUse, weight_of
from engine.scheduling.fairness.service_totals import RemoteServiceEstimate, ServiceTotals
from engine.scheduling.fairness.slot_shares import SlotShares
from engine.scheduling.policy import Capacity, Claim, Matched
from engine.scheduling.request import Request
from engine.scheduling.step_costs import FixedCosts, StepCosts
from prompt_cache.kv.block_keys import BLOCK_TOKENS
from protocol.requests import LANES, Lane

LOCALITY_QUANTUM_US = 250_000.0
"""Q: µs of engine time per weight by which a flow may get ahead of another for the sake of a cached prefix."""
HASTE = 1.25
"""Batch gets this multiple of the share that its deadlines need: estimates err, and other lanes may borrow."""
BORROW_AFTER_S: Mapping[Lane, float] = {"interactive": 0.1, "standard": 0.1, "batch": math.inf}
"""How long a flow may wait for its next service until its lane may borrow for it."""
BY_FINISH_TAG: Mapping[Lane, bool] = {"interactive": True, "standard": False, "batch": False}
"""Lanes in which flows count as level up to the finish tag of the least served flow's next request."""
HEARD_S = 60.0
"""A replica that was silent for longer gets no part of Q."""
FORGOTTEN_S = 3600.0
"""The service totals of a replica that was silent for longer are dropped."""
_FORGET_EVERY = 1024
_NONE: frozenset[Lane] = frozenset()


class FairShare:
    """The policy of a replica (`Policy`).

    `quantum`: Q. `weights`: of lanes. `lane_quantum`: µs that a lane with weight 1 is paid a round. `borrow_after`:
    seconds after which a lane may borrow.
    """

    protects_awaited_blocks = True

    def __init__(
        self,
        costs: StepCosts | None = None,
        quantum: float = LOCALITY_QUANTUM_US,
        weights: Mapping[Lane, float] = LANE_WEIGHTS,
        lane_quantum: float = QUANTUM,
        borrow_after: Mapping[Lane, float] = BORROW_AFTER_S,
    ) -> None:
        self.costs: StepCosts = costs or FixedCosts()
        self.weights = dict(weights)
        self.lanes = LaneShares(weights, lane_quantum)
        self.flows = {lane: FlowShares(quantum, lane == "batch", BY_FINISH_TAG[lane]) for lane in LANES}
        self.service = ServiceTotals()
        self._use = RecentUse(self.lanes.given)
        self._remote_estimate = RemoteServiceEstimate()
        self._slots = SlotShares()
        self._backlogged: frozenset[Lane] = frozenset()
        """Lanes with waiting requests."""
        self._working: frozenset[Lane] = frozenset()
        """Backlogged lanes, and lanes with prompts to compute in the last step."""
        self._prompting: frozenset[Lane] = frozenset()
        """Lanes with prompts to compute in the last step."""
        self._prompting_now: frozenset[Lane] = frozenset()
        self._first_ends = False
        """Whether a prompt of the highest lane ends in this step."""
        self._was_short = False
        """Whether the last step left out lower lanes because such a prompt ended in it."""
        self._is_short = False
        self._quantum = quantum
        self._heard: dict[str, float] = {}
        """replica -> when it was heard last."""
        self._borrow_after = dict(borrow_after)
        self._now = 0.0
        self._clock = 0.0
        """Seconds since the first step on a clock that never goes back."""
        self._admissions = 0
        self._waiting = 0
        self._lane: Lane | None = None
        """The lane whose turn it was when last looked at."""

    # ------------------------------------------------------------ the queue

    def begin_step(self, now: float) -> bool:
        self.lanes.set_weight("batch", self._batch_weight(now))
        self._prompting, self._prompting_now = self._prompting_now, _NONE
        self._working = self._backlogged | self._prompting if self._prompting else self._backlogged
        self._was_short, self._is_short = self._is_short, False
        self._first_ends = False
        if 0.0 < self._now < now:
            self._clock += now - self._now
        self._now = now
        self._use.sample(now)
        before, self._lane = self._lane, self._turn()
        return self._lane != before

    def push(self, request: Request) -> None:
        request.estimate = self.estimate(request)
        flows = self.flows[request.lane]
        flow = flows.flow(request.flow)
        if not flow.waiting:
            flow.claimed_at = self._clock
        flows.push(request, self._now)
        self._waiting += 1
        self._backlogged |= {request.lane}
        self._working |= {request.lane}

    def peek(self, matched: Matched, last: bool = False) -> Request | None:
        self._lane = self._turn()
        return None if self._lane is None else self.flows[self._lane].choose(matched, last)

    def _turn(self) -> Lane | None:
        return self.lanes.choose(self._backlogged, self._borrow_share)

    def _borrow_share(self, lane: Lane) -> float:
        return self.flows[lane].borrow_share(self._now - self._borrow_after[lane])

    def admitted(self, request: Request) -> None:
        if not request.began:
            request.rates = self.costs.rates  # the current rates: it may have waited for long
        self._leave(request, self._now)
        self.flows[request.lane].flow(request.flow).rotate(request.sub_flow)
        self._admissions += 1
        if self._admissions % _FORGET_EVERY == 0:
            for flows in self.flows.values():
                flows.forget_idle()

    def remove(self, request: Request) -> None:
        self._leave(request, None)
        self._slots.ended(request)

    def _leave(self, request: Request, served_at: float | None) -> None:
        """Take a request out of the queue. `served_at`: when it was admitted; None if it was removed."""
        flows = self.flows[request.lane]
        flows.remove(request, served_at)
        self._waiting -= 1
        if not len(flows):
            self._backlogged -= {request.lane}
            self._working = self._backlogged | self._prompting

    def __len__(self) -> int:
        return self._waiting

    def waiting(self) -> Iterable[Request]:
        for flows in self.flows.values():
            yield from flows.waiting()

    # ------------------------------------------------------------ charging

    def placed(self, request: Request) -> None:
        self._slots.resumed(request)
        request.placed_at = self._clock
        flow = self.flows[request.lane].flow(request.flow)
        left = len(request.tokens) - request.kv
        for other in flow.running.values():
            # Who decodes has nothing left that could be overtaken.
            if other.slot < 0 and self._passes(request, left, other):
                other.times_overtaken += 1
        self.flows[request.lane].placed(request)
        self._charge(request, request.spent + self._cost_left(request, BLOCK_TOKENS) - request.charged)

    def restored(self, request: Request) -> None:
        # They were charged as if they had to be computed.
        self._charge(request, request.spent + self._cost_left(request, BLOCK_TOKENS) - request.charged)

    def grown(self, requests: Iterable[Request]) -> None:
        costs: dict[Lane, float] = {}
        for request in requests:
            cost = request.cost_ahead(BLOCK_TOKENS)
            lane = request.lane
            flows = self.flows[lane]
            flow = flows.flows[request.flow]
            flow.blocks += 1
            flows.blocks_until_claim -= 1
            if cost > 0.0:
                request.charged += cost
                flows.charge(flow, cost)
                costs[lane] = costs.get(lane, 0.0) + cost
        for lane, cost in costs.items():
            self.lanes.charge(lane, cost, self._working)

    def charge_extra(self, request: Request, cost: float) -> None:
        request.extra_cost += cost
        self._charge(request, cost)

    def released(self, request: Request) -> None:
        self.flows[request.lane].released(request).observe_output(request.output)
        self.service.add(request.lane, request.flow, request.spent - request.reported_service)
        request.reported_service = request.spent
        self._charge(request, request.spent - request.charged)

    def record_remote_service(self, replica: str, epoch: int, service: Mapping[str, int]) -> None:
        """Charge flows for new service on another replica.

        `service`: "lane/flow" -> total µs in that replica's `epoch`. One call adds at most `MAX_WAKE_UP_DEBT_US` per
        weight to a flow, as a replica that has just started hears of whole days at once. Q is divided by the number of
        replicas, so that together they let a flow get ahead by Q.
        """
        self._heard[replica] = self._now
        for name in [name for name, at in self._heard.items() if at < self._now - FORGOTTEN_S]:
            del self._heard[name]
            self.service.forget(name)
        others = sum(at >= self._now - HEARD_S for at in self._heard.values())
        for flows in self.flows.values():
            flows.quantum = self._quantum / (1 + others)
        got, heard = [], False
        for lane, name, cost in self.service.news(replica, epoch, service):
            flows = self.flows[lane]
            flow = flows.flow(name)
            flows.charge(flow, min(cost, MAX_WAKE_UP_DEBT_US * flow.weight))
            heard = True
            if not flows.by_finish_tag:  # in the lane for low latency prompts keep their order
                got.append((flow, cost))
        if heard:  # nothing is new if another gateway has sent it before
            self._remote_estimate.heard(replica, got, self._now)

    def service_given(self) -> dict[str, int]:
        """ "lane/flow" -> total µs of service on this replica, for `record_remote_service` of the others."""
        for lane, flows in self.flows.items():
            for flow in flows.flows.values():
                for request in flow.running.values():
                    self.service.add(lane, flow.name, request.spent - request.reported_service)
                    request.reported_service = request.spent
        return self.service.given()

    def estimate(self, request: Request) -> float:
        """Estimated µs of engine time that a request still needs."""
        if not request.began:
            request.rates = self.costs.rates
        flow = self.flows[request.lane].flows.get(request.flow)
        read = max(0, min(request.expected_read, request.prompt) - max(request.kv, request.max_kv))
        saved = read * (request.rates.uncached - request.rates.cached)
        return self._cost_left(request, OUTPUT_GUESS if flow is None else flow.output) - saved

    # The next three are for expected waits (`queue_limits`) alone; who is served is decided by `lanes`.

    def least_share(self, lane: Lane) -> float:
        """The lane's part of engine time by weight, among the lanes that have waiting requests and itself."""
        return self.weights[lane] / weight_of(self.weights, self._backlogged | {lane})

    def expected_share(self, lane: Lane) -> float:
        """The part of engine time that the lane will probably get: all that other lanes did not use lately, and at
        least its share by weight."""
        return max(self.least_share(lane), self._unused_by_others(lane))

    def reserved_by_higher_us(self, lane: Lane) -> float:
        """Expected µs of engine time that higher lanes get first, until their reserves are used up; 0 while other lanes
        leave this one more than its share by weight."""
        if self._unused_by_others(lane) > self.least_share(lane):
            return 0.0
        shared = weight_of(self.weights, self._backlogged | {lane})
        higher = [other for other in LANES[: RANK[lane]] if other in self._backlogged]
        # A reserve pays for what a lane gets beyond its own share (`LaneShares.charge`).
        return sum(max(0.0, self.lanes.reserve[other]) / (1 - self.weights[other] / shared) for other in higher)

    def _unused_by_others(self, lane: Lane) -> float:
        """The part of engine time that other lanes did not use in the last `SPAN_S` seconds, from 0 to 1."""
        return 1.0 - self._use.of_others(lane, self._now)

    def _charge(self, request: Request, cost: float) -> None:
        lane = request.lane
        flows = self.flows[lane]
        request.charged += cost
        flows.charge(flows.flows[request.flow], cost)
        self.lanes.charge(lane, cost, self._working)

    def _cost_left(self, request: Request, usual: float) -> float:
        """Estimated µs that the request still needs if its output has `usual` tokens, and at least one more block. It
        is what charges and `estimate` are made of. Recomputation is not counted."""
        output = min(request.max_output - request.output, max(usual - request.output, BLOCK_TOKENS))
        prompt = max(0, request.prompt - max(request.kv, request.max_kv))
        return request.rates.cost(prompt, 0, output)

    # ------------------------------------------------------------ the step

    def next_prefill(self, pending: Sequence[Request]) -> Request | None:
        lanes = frozenset(request.lane for request in pending)
        self._prompting_now |= lanes
        if self._first_ends and LANES[0] not in lanes and not self._was_short:
            self._is_short = True
            return None
        if len(pending) == 1:
            return pending[0]
        lane = self.lanes.choose(lanes, _admitted) if len(lanes) > 1 else pending[0].lane
        prompts = [request for request in pending if request.lane == lane]
        flows, ranks = self.flows[prompts[0].lane], self._ranks(prompts)
        limit = flows.quantum + min(
            ranks[request.flow] + (request.charged / request.weight if flows.by_finish_tag else 0.0)
            for request in prompts
        )
        first = next(request for request in prompts if ranks[request.flow] <= limit)
        return next((r for r in prompts if self._passes(r, r.to_compute, first)), first)

    def prefills_before(self, request: Request, left: int, pending: Sequence[Request]) -> Iterable[Request]:
        prompts = [other for other in pending if other.lane == request.lane]
        flows, ranks = self.flows[request.lane], self._ranks(prompts)
        cost = request.rates.cost(left, 0, BLOCK_TOKENS) / request.weight
        limit = ranks.get(request.flow, flows.flow(request.flow).expected_counter()) + flows.quantum
        if flows.by_finish_tag:
            limit += cost
        higher = [other for other in pending if RANK[other.lane] < RANK[request.lane]]
        return higher + [
            other for other in prompts if ranks[other.flow] <= limit and not self._passes(request, left, other, cost)
        ]

    def _passes(self, request: Request, left: int, other: Request, cost: float = 0.0) -> bool:
        """Whether a prompt with `left` tokens to compute, at most Q of work, passes one of its lane with more work.

        `cost`: µs per weight that the request's flow is still to be charged for it.
        """
        flows = self.flows[request.lane]
        quantum, rest = flows.quantum * request.weight, other.to_compute
        if not request.rates.cost(left, 0, 0) <= quantum < request.rates.cost(rest, 0, 0):
            return False
        if request.flow == other.flow:
            return other.times_overtaken < MAX_OVERTAKEN
        return (
            flows.flow(request.flow).expected_counter() + cost
            <= flows.flow(other.flow).expected_counter() + flows.quantum
        )

    def _ranks(self, prompts: Sequence[Request]) -> dict[str, float]:
        """flow -> its expected counter without the charges of these prompts: a long prompt ranks no lower."""
        self._remote_estimate.lapse(self._now)
        ranks: dict[str, float] = {}
        for request in prompts:
            flow = self.flows[request.lane].flow(request.flow)
            ranks[flow.name] = ranks.get(flow.name, flow.expected_counter()) - request.charged / flow.weight
        return ranks

    def prefilled(self, request: Request, tokens: int) -> None:
        self._first_ends |= request.lane == LANES[0] and request.kv + tokens == len(request.tokens)

    def victim(self, candidates: Iterable[Request]) -> Request | None:
        """A request without credit first; then the lowest lane's, with the least KV to lose."""
        return max(candidates, key=lambda r: (r.paused, RANK[r.lane], -r.kv, r.arrival), default=None)

    def outranks(self, request: Request, other: Request) -> bool:
        """A higher lane whose turn it is takes slots and blocks of a lower one."""
        return RANK[request.lane] < RANK[other.lane]

    @property
    def claims_due(self) -> bool:
        if self._clock < self._slots.look_at:
            return False
        return self._lane is None or self.flows[self._lane].blocks_until_claim <= 0

    def claims(self, capacity: Capacity) -> Iterable[Claim]:
        lane = self._turn()
        given = sum(self.lanes.given.values())
        return () if lane is None else self._slots.claims(lane, self.flows[lane], capacity, self._clock, given)

    def displaced(self, request: Request, victims: Sequence[Request]) -> None:
        self.flows[request.lane].flow(request.flow).claimed_at = self._clock
        self._slots.displaced(victims)

    # ------------------------------------------------------------ batch's deadlines

    def _batch_weight(self, now: float) -> float:
        """Batch's weight now: raised as far as its deadlines need it, at most to the highest lane's.

        Deadlines that its own weight keeps change nothing.
        """
        least = self.weights["batch"]
        share = HASTE * self.flows["batch"].deadline_demand.share(now)
        if not share:
            return least
        most = max(self.weights.values())
        others = sum(self.weights.values()) - least
        return most if share >= 1.0 else min(most, max(least, others * share / (1.0 - share)))


def _admitted(lane: Lane) -> float:
    """The highest lane may borrow in full for prompts that it has already admitted."""
    return 1.0 if lane == LANES[0] else 0.0
