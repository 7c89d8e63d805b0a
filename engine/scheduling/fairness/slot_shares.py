"""Shares of slots and memory between the flows of a lane: who holds more than its part gives way to who holds less.

A flow's holding is the larger of its parts of all slots and of all blocks, divided by its weight (dominant resource
fairness, Ghodsi et al., NSDI '11). A flow that waits, and got no more service than others that wait, may claim:

- from a flow that still holds as much as it after one request has changed hands, and a part of its own holding more
  (`SLACK`). No such claim is left when holdings are nearly equal, and none undoes another;
- where it holds nothing, from a flow that got more service, if the victim has held its slot for `ROTATION_S`: flows
  whose parts are less than a slot take turns.

Inside a flow, sub-flows claim from each other in the same way, counting slots alone.

Preempting costs copies, or tokens that are computed again, so that it is bounded three times. A flow waits for
`CLAIM_AFTER_S` before its first claim and between two: slots often become free by themselves. Who gives way has earned
what its last preemption cost, and is the request that is resumed most cheaply. All claims together may cost `LOSS` of
the engine time that the replica gives, and `BURST` at once.

Where everybody who waits has its part, nobody can have a claim until a request comes, ends or changes places, or until
flows have grown by so many blocks that memory counts for more than slots: so long nothing is looked for.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from engine.scheduling.fairness.flows import Flow, FlowShares
from engine.scheduling.policy import Capacity, Claim
from engine.scheduling.request import Request
from protocol.requests import Lane

CLAIM_AFTER_S: Mapping[Lane, float] = {"interactive": 0.1, "standard": 0.1, "batch": 1.0}
"""How long a flow waits, since its waiting began or its last claim, until others give way to it."""
ROTATION_S: Mapping[Lane, float] = {"interactive": 0.5, "standard": 1.0, "batch": 10.0}
"""For how long a request holds its slot until its flow's turn is over."""
LOOK_EVERY_S = 0.05
"""After how long claims are looked for again."""
SLACK = 1 / 8
"""The part of its own holding by which a flow may fall behind another before it claims more."""
LOSS = 0.05
"""The part of engine time that claims may cost."""
BURST = 250_000.0
"""µs that they may cost beyond it."""


class SlotShares:
    """Finds claims, and keeps account of what they cost."""

    def __init__(self) -> None:
        self.look_at = 0.0
        """When claims are looked for again, in seconds of the policy's clock."""
        self._cost = 0.0
        """µs that preemptions for claims have cost so far."""
        self._expected: dict[int, float] = {}
        """By arrival: what the preemption of a request that waits was thought to cost."""

    def claims(self, lane: Lane, flows: FlowShares, capacity: Capacity, now: float, given: float) -> Iterator[Claim]:
        """The lane's claims, the least served flow's first. `now`: seconds of the policy's clock; `given`: µs of engine
        time that the replica gave in all."""
        self.look_at = now + LOOK_EVERY_S
        if self._cost > LOSS * given + BURST:
            return
        flows.settled_for = _settled_for(flows, capacity)
        if flows.settled_for > 0:
            return
        level = flows.level()
        claimants = [flow for flow in level if now - flow.claimed_at >= CLAIM_AFTER_S[lane]]
        # Nobody takes before the least, if that holds nothing, what that will claim in a moment.
        if not claimants or (claimants[0] is not level[0] and not level[0].running):
            return
        holders = [(_holding(flow, capacity), flow) for flow in flows.running.values()]
        holders.sort(key=_first, reverse=True)
        for flow in claimants:
            request = flow.neediest()
            yield request, self._victims(holders, flow, request, capacity, now - ROTATION_S[lane])

    def displaced(self, victims: Sequence[Request]) -> None:
        """These are preempted for a claim. Others may have claims as well: it is looked again at once."""
        self.look_at = 0.0
        # Who is out of credit would give way to anybody, and is not in the queue until credit comes.
        for victim in (victim for victim in victims if not victim.paused):
            self._expected[victim.arrival] = victim.resume_cost
            self._cost += victim.resume_cost

    def resumed(self, request: Request) -> None:
        """A request got its blocks, and it is known what its preemption cost."""
        expected = self._expected.pop(request.arrival, None)
        if expected is not None:
            self._cost += request.lost - expected

    def ended(self, request: Request) -> None:
        """A request ended while it waited: nothing is computed again."""
        self._cost -= self._expected.pop(request.arrival, 0.0)

    def _victims(
        self, holders: Sequence[tuple[float, Flow]], flow: Flow, request: Request, capacity: Capacity, rotated: float
    ) -> Iterator[Request]:
        """Who gives way to the request: of other flows, the one that holds the most first, or else of its own."""
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


def _settled_for(flows: FlowShares, capacity: Capacity) -> int:
    """How many blocks the flows may get, whichever of them, before one that waits can have a claim; at most 0 where one
    may have it now, or have it by time alone."""
    least = math.inf
    for flow in flows.backlogged():
        if not flow.running or flow.has_sub_flows():
            return 0
        # What it would hold with one request more, of a block or of many, for a claim to another one's.
        least = min(least, _holding(flow, capacity, 1, 1) + _holding(flow, capacity) * SLACK)
    room = math.inf
    for flow in flows.running.values():
        if _holding(flow, capacity, -1, -1) >= least:
            return 0
        room = min(room, least * flow.weight * capacity.blocks - flow.blocks + 1)
    return int(room) if room < math.inf else 0


def _of_sub_flows(flow: Flow, request: Request, rotated: float) -> Iterator[Request]:
    """One request of another sub-flow, if that has more slots."""
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
    """The larger of a flow's parts of slots and of memory, by weight."""
    slots, blocks = len(flow.running) + more_slots, flow.blocks + more_blocks
    return max(slots / capacity.slots, blocks / capacity.blocks) / flow.weight


def _first(holder: tuple[float, Flow]) -> float:
    return holder[0]


def _by_cost(requests: Iterable[Request]) -> list[Request]:
    """Those of the requests that may be preempted: whose clients do not read first, then the cheapest to resume."""
    found = [request for request in requests if request.has_recovered]
    return sorted(found, key=lambda request: (not request.paused, request.resume_cost, -request.arrival))
