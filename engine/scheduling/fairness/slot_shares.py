"""Shares of slots and memory between the flows of a lane (G6): who holds too little claims from who holds more.

A flow's *holding* is its dominant share divided by its weight: the larger of its parts of all slots and of all blocks
(dominant resource fairness, Ghodsi et al., NSDI '11). A *claim* is a waiting request and the running requests to be
preempted for it. A flow that waits and is among the least served may claim:

- from a flow that, after one request has changed hands, still holds as much as the claimant then does, and `SLACK` of
  the claimant's holding more. So there are no claims between nearly equal holdings, and no claim undoes another;
- if it holds nothing, from a flow with more service, whose request has held its slot for `ROTATION_S`. So flows whose
  share is less than a slot take turns.

Inside a flow, sub-flows claim from each other in the same way, counting slots alone.

Preemption costs copies or recomputation, so it is bounded in three ways. A flow waits `CLAIM_AFTER_S` before its first
claim and between two, since slots often become free by themselves. A victim has earned back its last preemption, and is
the cheapest to resume. All claims together may cost `LOSS` of the replica's engine time, and `BURST` more at once.

If every waiting flow has its share, claims are not computed. None is possible until a request comes, ends, gets its
blocks or gives them back, or until flows have grown by so many blocks that memory outweighs slots.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import itemgetter

from engine.scheduling.fairness.flow import Flow
from engine.scheduling.fairness.flows import FlowShares
from engine.scheduling.policy import Capacity, Claim
from engine.scheduling.request import Request
from protocol.requests import Lane

CLAIM_AFTER_S: Mapping[Lane, float] = {"interactive": 0.1, "standard": 0.1, "batch": 1.0}
"""Seconds from when a flow began to wait, or last claimed, until it may claim."""
ROTATION_S: Mapping[Lane, float] = {"interactive": 0.5, "standard": 1.0, "batch": 10.0}
"""Seconds for which a request keeps its slot where flows take turns."""
LOOK_EVERY_S = 0.05
"""Seconds between two computations of claims."""
SLACK = 1 / 8
"""The part of its own holding by which a flow may fall behind another without a claim."""
LOSS = 0.05
"""The part of engine time that claims may cost."""
BURST = 250_000.0
"""µs that they may cost beyond it."""


class SlotShares:
    """Computes claims, and keeps account of their costs."""

    def __init__(self) -> None:
        self.look_at = 0.0
        """When claims are computed again, in seconds of the policy's clock."""
        self._cost = 0.0
        """µs that preemptions for claims have cost so far."""
        self._expected: dict[int, float] = {}
        """arrival of a displaced request that waits -> estimated µs of its preemption, as counted in `_cost`"""

    def claims(self, lane: Lane, flows: FlowShares, capacity: Capacity, now: float, given: float) -> Iterator[Claim]:
        """The lane's claims, the least served flow's first.

        `now`: seconds of the policy's clock. `given`: total µs of engine time of the replica.
        """
        self.look_at = now + LOOK_EVERY_S
        if self._cost > LOSS * given + BURST:
            return
        flows.blocks_until_claim = _blocks_until_claim(flows, capacity)
        if flows.blocks_until_claim > 0:
            return
        least_served = flows.least_served()
        claimants = [flow for flow in least_served if now - flow.claimed_at >= CLAIM_AFTER_S[lane]]
        # If the least served flow holds nothing, it claims first, and the others wait until it may.
        if not claimants or (claimants[0] is not least_served[0] and not least_served[0].running):
            return
        holders = [(_holding(flow, capacity), flow) for flow in flows.running.values()]
        holders.sort(key=itemgetter(0), reverse=True)
        for flow in claimants:
            request = flow.neediest()
            yield request, self._victims(holders, flow, request, capacity, now - ROTATION_S[lane])

    def displaced(self, victims: Sequence[Request]) -> None:
        """The victims are about to be preempted for a claim. More claims may be possible, so look again at once."""
        self.look_at = 0.0
        # A request without credit gives way to anybody, and is not queued until credit comes.
        for victim in (victim for victim in victims if not victim.paused):
            self._expected[victim.arrival] = victim.resume_cost
            self._cost += victim.resume_cost

    def resumed(self, request: Request) -> None:
        """A request got its blocks: replace the estimated cost of its preemption by the real one."""
        expected = self._expected.pop(request.arrival, None)
        if expected is not None:
            self._cost += request.preemption_cost - expected

    def ended(self, request: Request) -> None:
        """A request ended while it waited: its preemption cost nothing, as nothing is recomputed."""
        self._cost -= self._expected.pop(request.arrival, 0.0)

    def _victims(
        self, holders: Sequence[tuple[float, Flow]], flow: Flow, request: Request, capacity: Capacity, rotated: float
    ) -> Iterator[Request]:
        """The victims for the flow's request, from the flow with the largest holding on; else of its own flow.

        `rotated`: the time before which a request must have got its slot to lose it by rotation.
        """
        held_now = _holding(flow, capacity)
        wanted = _holding(flow, capacity, 1, request.blocks_for(len(request.tokens) + 1))
        claimed = False
        for held, other in holders:
            turns = not flow.running and other.counter > flow.counter
            if held < wanted and flow.running:
                break
            if other is flow or not (turns or held >= wanted):
                continue
            slots = blocks = 0
            for victim in _by_cost(other.running.values()):
                left = _holding(other, capacity, slots - 1, blocks - len(victim.table))
                takes_turn = turns and not slots and victim.placed_at <= rotated
                if left >= wanted + held_now * SLACK or takes_turn:
                    slots, blocks, claimed = slots - 1, blocks - len(victim.table), True
                    yield victim
        if not claimed:
            yield from _of_sub_flows(flow, request, rotated)


def _blocks_until_claim(flows: FlowShares, capacity: Capacity) -> int:
    """How many blocks may be allocated, to any flow, before a waiting flow can have a claim.

    At most 0 if a flow may have a claim now, or after some time alone.
    """
    least = math.inf
    for flow in flows.backlogged():
        if not flow.running or flow.has_sub_flows():
            return 0
        # A claim needs a flow that still holds this much: the claimant's holding with a request of one block more.
        least = min(least, _holding(flow, capacity, 1, 1) + _holding(flow, capacity) * SLACK)
    room = math.inf
    for flow in flows.running.values():
        if _holding(flow, capacity, -1, -1) >= least:
            return 0
        room = min(room, least * flow.weight * capacity.blocks - flow.blocks + 1)
    return int(room) if room < math.inf else 0


def _of_sub_flows(flow: Flow, request: Request, rotated: float) -> Iterator[Request]:
    """A victim of another sub-flow that has more slots, if there is one."""
    held = Counter(running.sub_flow for running in flow.running.values())
    if len(held) > (request.sub_flow in held):
        wanted = held[request.sub_flow] + 1
        for victim in _by_cost(flow.running.values()):
            if victim.sub_flow == request.sub_flow:
                continue
            left = held[victim.sub_flow] - 1
            if left >= wanted + (wanted - 1) * SLACK or (wanted == 1 and victim.placed_at <= rotated):
                yield victim
                return


def _holding(flow: Flow, capacity: Capacity, more_slots: int = 0, more_blocks: int = 0) -> float:
    """A flow's dominant share by weight: the larger of its parts of slots and of blocks."""
    slots, blocks = len(flow.running) + more_slots, flow.blocks + more_blocks
    return max(slots / capacity.slots, blocks / capacity.blocks) / flow.weight


def _by_cost(requests: Iterable[Request]) -> list[Request]:
    """The requests that may be preempted: first those without credit, then the cheapest to resume."""
    recovered = [request for request in requests if request.has_recovered]
    return sorted(recovered, key=lambda request: (not request.paused, request.resume_cost, -request.arrival))
