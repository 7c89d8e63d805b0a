"""The policy: lanes by deficit round robin, flows in a lane by virtual counters, charged in engine time.

A request is charged when it is admitted: what of its prompt must be computed and read, and a block of output. Each
further block is charged when it gets it; when it ends, what it did not use is given back. So what a flow was charged is
never less than what it got, and more by a block for each running request at most. Output that is only expected is not
charged: who writes much would wait until the others had got as much as it has yet to get. The guarantees follow (µs; E
the most that one request costs, with that block; C = running requests × E; both per weight; Q the quantum; L what all
lanes together may keep, or borrow):

G1  Whoever waits is admitted by the first step that has room: no share is held back for nobody. Where others hold the
    room, G6 says when they give it back.
G2  Two flows that wait in one lane throughout any interval get service within 2 (C + Q) of each other, per weight; on R
    replicas that hear of each other's service every T µs, within 2 (R C + Q + (R - 1) T): each has its part of Q.
G3  A request that is its flow's next is admitted after its lane has charged, to each other flow of weight w, at most
    w (2 C + Q + 2 E) µs; and a lane with work before its share of what all have been charged comes to 2 L + C µs.
G4  Backlogged lanes get engine time by weight, each within 2 L + C µs of its share over any interval. An interactive
    lane that asks for less than its share does not wait for others, however much they ask for.
G5  A flow that was silent is served as if it had just come: what it did not use is gone.
G6  A flow that waits in the lane whose turn it is, within Q of the least served there, and holds less than its part of
    slots and memory, gets another slot `CLAIM_AFTER_S` + `LOOK_EVERY_S` and a few steps later: from flows that hold
    more, whether their requests end or not, and whether their clients read or not. Where the parts of n flows are less
    than one of s slots, it is `ROTATION_S` x (1 + n / s) later. A flow has its part when it is within a request and an
    eighth of its own holding of what any other one in its lane holds, by weight. Claims cost at most `LOSS` of all
    engine time, and `BURST`; when they have cost more, the next one waits until it is within that again.

Shares are charged at admission. Among the prompts of those who are admitted the higher lane's are computed first, as
far as its balance allows; and a step in which an interactive prompt ends is not made longer by prompts of lower lanes,
but every other time. In a lane those that were placed first are, with two exceptions: the prompt of a flow that got
less overtakes (`pace`: with what it is thought to have got elsewhere by now), and what costs at most Q to compute
passes what costs more, unless that would put its flow more than Q ahead of the other's. Long prompts lose little by it,
and short ones do not stand behind them for seconds.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from engine.scheduling.fairness.flows import MAX_WAKE_UP_DEBT_US, OUTPUT_GUESS, PATIENCE, FlowShares, Matched
from engine.scheduling.fairness.lanes import QUANTUM, RANK, WEIGHTS, LaneShares, RecentUse
from engine.scheduling.fairness.service_totals import RemoteServiceEstimate, ServiceTotals
from engine.scheduling.fairness.slot_shares import SlotShares
from engine.scheduling.policy import Capacity, Claim
from engine.scheduling.request import Request
from engine.scheduling.step_costs import FixedCosts, StepCosts
from prompt_cache.kv.block_keys import BLOCK_TOKENS
from protocol.requests import LANES, Lane

LOCALITY_QUANTUM_US = 250_000.0
"""Q: µs of engine time per weight that a flow may go ahead of another for the sake of a cached prefix."""
HASTE = 1.25
"""So many times the share that deadlines need batch is given: estimates err, and lanes may go ahead of their shares."""
FIRST_TOKEN_S: Mapping[Lane, float] = {"interactive": 0.1, "standard": 0.1, "batch": math.inf}
"""How long a flow that got less than others may wait for its next service until its lane may borrow for it."""
TO_FINISH: Mapping[Lane, bool] = {"interactive": True, "standard": False, "batch": False}
"""In which lanes flows that a single request separates are level."""
HEARD_S = 60.0
"""A replica that was not heard for so long has no part of Q."""
FORGOTTEN_S = 3600.0
"""A replica that was not heard for so long will not come back under its name: what it said is dropped."""
_FORGET_EVERY = 1024
_NONE: frozenset[Lane] = frozenset()


class FairShare:
    """Lanes by weight, flows by counter. `quantum` is Q; `lane_quantum` what a lane's weight of 1 is paid a round."""

    protects_awaited_blocks = True

    def __init__(
        self,
        costs: StepCosts | None = None,
        quantum: float = LOCALITY_QUANTUM_US,
        weights: Mapping[Lane, float] = WEIGHTS,
        lane_quantum: float = QUANTUM,
        first_token: Mapping[Lane, float] = FIRST_TOKEN_S,
    ) -> None:
        self.costs: StepCosts = costs or FixedCosts()
        self.weights = dict(weights)
        self.lanes = LaneShares(weights, lane_quantum)
        self.flows = {lane: FlowShares(quantum, lane == "batch", TO_FINISH[lane]) for lane in LANES}
        self.service = ServiceTotals()
        self._use = RecentUse(self.lanes.given)
        self._remote_estimate = RemoteServiceEstimate()
        self._slots = SlotShares()
        self._backlogged: frozenset[Lane] = frozenset()
        """Lanes in which somebody waits."""
        self._working: frozenset[Lane] = frozenset()
        """Those, and the ones that had prompts to compute in the last step."""
        self._prompting: frozenset[Lane] = frozenset()
        """Lanes that had prompts to compute in the last step."""
        self._prompting_now: frozenset[Lane] = frozenset()
        self._first_ends = False
        """Whether a prompt of the highest lane ends in this step."""
        self._was_short = False
        """Whether the last step was ended for that."""
        self._is_short = False
        self._quantum = quantum
        self._heard: dict[str, float] = {}
        """When each other replica was heard last."""
        self._first_token = dict(first_token)
        self._now = 0.0
        self._clock = 0.0
        """Seconds in which the system's clock went forward since the first step."""
        self._taken = 0
        self._waiting = 0
        self._lane: Lane | None = None
        """Whose turn it was when that was last looked at."""

    # ------------------------------------------------------------ the queue

    def at(self, now: float) -> bool:
        self.lanes.weigh("batch", self._batch_weight(now))
        self._prompting, self._prompting_now = self._prompting_now, _NONE
        self._working = self._backlogged | self._prompting if self._prompting else self._backlogged
        self._was_short, self._is_short = self._is_short, False
        self._first_ends = False
        if 0.0 < self._now < now:
            self._clock += now - self._now
        self._now = now
        self._use.look(now)
        before, self._lane = self._lane, self._turn()
        return self._lane != before

    def push(self, request: Request) -> None:
        if not request.began:
            request.rates = self.costs.rates
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
        return self.lanes.choose(self._backlogged, self._late)

    def _late(self, lane: Lane) -> float:
        return self.flows[lane].late(self._now - self._first_token[lane])

    def take(self, request: Request) -> None:
        if not request.began:
            request.rates = self.costs.rates  # what things cost now: it may have waited for long
        self._leave(request, self._now)
        self.flows[request.lane].flow(request.flow).turn(request.sub_flow)
        self._taken += 1
        if self._taken % _FORGET_EVERY == 0:
            for other in self.flows.values():
                other.forget_idle()

    def remove(self, request: Request) -> None:
        self._leave(request, None)
        self._slots.ended(request)

    def _leave(self, request: Request, served: float | None) -> None:
        """A request waits no more: it is served now, or gone."""
        flows = self.flows[request.lane]
        flows.take(request, served)
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
            if self._passes(request, left, other):
                other.passed += 1
        self.flows[request.lane].placed(request)
        self._charge(request, request.spent + self._ahead(request, BLOCK_TOKENS) - request.charged)

    def grown(self, requests: Iterable[Request]) -> None:
        costs: dict[Lane, float] = {}
        for request in requests:
            cost = request.ahead(BLOCK_TOKENS)
            lane = request.lane
            flows = self.flows[lane]
            flow = flows.flows[request.flow]
            flow.blocks += 1
            flows.settled_for -= 1
            if cost > 0.0:
                request.charged += cost
                flows.charge(flow, cost)
                costs[lane] = costs.get(lane, 0.0) + cost
        for lane, cost in costs.items():
            self.lanes.charge(lane, cost, self._working)

    def worked(self, request: Request, cost: float) -> None:
        request.extra += cost
        self._charge(request, cost)

    def released(self, request: Request) -> None:
        self.flows[request.lane].released(request).learn(request.output)
        self.service.add(request.lane, request.flow, request.spent - request.served)
        request.served = request.spent
        self._charge(request, request.spent - request.charged)

    def elsewhere(self, replica: str, epoch: int, service: Mapping[str, int]) -> None:
        """Another replica says what flows got from it so far: add what is new to their counters.

        Of what is heard at once, a flow owes no more than `MAX_WAKE_UP_DEBT_US`: a replica that has just come hears of
        whole days. Each replica may let a flow go ahead by its part of Q, so that all together let it go ahead by Q.
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
            if not flows.to_finish:  # where waiting counts most, prompts keep their order
                got.append((flow, cost))
        if heard:  # else another gateway told it before
            self._remote_estimate.heard(replica, got, self._now)

    def service_given(self) -> dict[str, int]:
        """What flows got from this replica so far, as `elsewhere` of the others takes it."""
        for lane, flows in self.flows.items():
            for flow in flows.flows.values():
                for request in flow.running.values():
                    self.service.add(lane, flow.name, request.spent - request.served)
                    request.served = request.spent
        return self.service.given()

    def estimate(self, request: Request) -> float:
        """µs of engine time that a request that has not been queued yet is thought to need."""
        flow = self.flows[request.lane].flows.get(request.flow)
        return self._ahead(request, OUTPUT_GUESS if flow is None else flow.output)

    def least_share(self, lane: Lane) -> float:
        """Which part of engine time a lane gets among those that wait, it being one of them."""
        return self.weights[lane] / sum(
            weight for other, weight in self.weights.items() if other == lane or len(self.flows[other])
        )

    def share(self, lane: Lane) -> float:
        """Which part it gets if the others go on asking as they did lately, for their share or for less."""
        return max(self.least_share(lane), self._left(lane))

    def lead(self, lane: Lane) -> float:
        """µs that higher lanes go first for, if they go on as lately: what they kept, where they ask for more than
        their shares."""
        if self._left(lane) > self.least_share(lane):
            return 0.0
        higher = [other for other in LANES[: RANK[lane]] if len(self.flows[other])]
        shared = sum(self.weights[other] for other in LANES if other == lane or len(self.flows[other]))
        # They pay with it for what they get beyond their own shares.
        return sum(max(0.0, self.lanes.kept[other]) / (1 - self.weights[other] / shared) for other in higher)

    def _left(self, lane: Lane) -> float:
        """Which part of engine time other lanes left lately."""
        return 1.0 - self._use.of_others(lane, self._now)

    def _charge(self, request: Request, cost: float) -> None:
        lane = request.lane
        flows = self.flows[lane]
        request.charged += cost
        flows.charge(flows.flows[request.flow], cost)
        self.lanes.charge(lane, cost, self._working)

    def _ahead(self, request: Request, usual: float) -> float:
        """µs that the request is thought to need still, if `usual` tokens come out; what is redone is not its cost."""
        output = min(request.max_output - request.output, max(usual - request.output, BLOCK_TOKENS))
        prompt = max(0, request.prompt - max(request.kv, request.seen))
        return request.rates.cost(prompt, 0, output)

    # ------------------------------------------------------------ the step

    def prefill(self, pending: Sequence[Request]) -> Request | None:
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
            ranks[request.flow] + (request.charged / request.weight if flows.to_finish else 0.0) for request in prompts
        )
        first = next(request for request in prompts if ranks[request.flow] <= limit)
        return next((r for r in prompts if self._passes(r, len(r.tokens) - r.kv, first)), first)

    def before(self, request: Request, left: int, pending: Sequence[Request]) -> Iterable[Request]:
        prompts = [other for other in pending if other.lane == request.lane]
        flows, ranks = self.flows[request.lane], self._ranks(prompts)
        cost = request.rates.cost(left, 0, BLOCK_TOKENS) / request.weight
        limit = ranks.get(request.flow, flows.flow(request.flow).expected()) + flows.quantum
        if flows.to_finish:
            limit += cost
        higher = [other for other in pending if RANK[other.lane] < RANK[request.lane]]
        return higher + [
            other for other in prompts if ranks[other.flow] <= limit and not self._passes(request, left, other, cost)
        ]

    def _passes(self, request: Request, left: int, other: Request, cost: float = 0.0) -> bool:
        """Whether `left` tokens, at most Q of work, are computed before the rest of another prompt of their lane, which
        is more. `cost`: µs per weight that the request's flow has yet to be charged for it."""
        flows = self.flows[request.lane]
        quantum, rest = flows.quantum * request.weight, len(other.tokens) - other.kv
        if not request.rates.cost(left, 0, 0) <= quantum < request.rates.cost(rest, 0, 0):
            return False
        if request.flow == other.flow:
            return other.passed < PATIENCE
        return flows.flow(request.flow).expected() + cost <= flows.flow(other.flow).expected() + flows.quantum

    def _ranks(self, prompts: Sequence[Request]) -> dict[str, float]:
        """The counters of the flows of a lane's prompts, without what these were charged: a long one is no worse."""
        self._remote_estimate.lapse(self._now)
        ranks: dict[str, float] = {}
        for request in prompts:
            flow = self.flows[request.lane].flow(request.flow)
            ranks[flow.name] = ranks.get(flow.name, flow.expected()) - request.charged / flow.weight
        return ranks

    def prefilled(self, request: Request, tokens: int) -> None:
        self._first_ends |= request.lane == LANES[0] and request.kv + tokens == len(request.tokens)

    def victim(self, candidates: Iterable[Request]) -> Request | None:
        """Who is out of credit; else the lowest lane, there the one with the least work to lose."""
        return max(candidates, key=lambda r: (r.paused, RANK[r.lane], -r.kv, r.arrival), default=None)

    def outranks(self, request: Request, other: Request) -> bool:
        """A higher lane whose turn it is takes what a lower one holds."""
        return RANK[request.lane] < RANK[other.lane]

    @property
    def claims_due(self) -> bool:
        if self._clock < self._slots.look_at:
            return False
        return self._lane is None or self.flows[self._lane].settled_for <= 0

    def claims(self, capacity: Capacity) -> Iterable[Claim]:
        lane = self._turn()
        given = sum(self.lanes.given.values())
        return () if lane is None else self._slots.claims(lane, self.flows[lane], capacity, self._clock, given)

    def displaced(self, request: Request, victims: Sequence[Request]) -> None:
        self.flows[request.lane].flow(request.flow).claimed_at = self._clock
        self._slots.displaced(victims)

    # ------------------------------------------------------------ batch's deadlines

    def _batch_weight(self, now: float) -> float:
        """From its own weight up to the highest lane's: what it needs against all others, so that its deadlines hold.

        Deadlines that its own weight keeps change nothing, however near they are.
        """
        least = self.weights["batch"]
        share = HASTE * self.flows["batch"].deadline_demand.share(now)
        if not share:
            return least
        most = max(self.weights.values())
        others = sum(self.weights.values()) - least
        return most if share >= 1.0 else min(most, max(least, others * share / (1.0 - share)))


def _admitted(lane: Lane) -> float:
    """Whoever of the highest lane was admitted on what it borrowed is computed on it."""
    return 1.0 if lane == LANES[0] else 0.0
