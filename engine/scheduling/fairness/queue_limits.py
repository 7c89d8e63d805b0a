"""How much may wait, by flow and by lane, and how long it would: bounds in requests and in engine time."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from engine.scheduling.fairness.fair_share import FairShare
from engine.scheduling.request import Request
from protocol.requests import LANES, Lane, Refusal


@dataclass(frozen=True)
class Bound:
    """The most that may wait: requests, and µs of engine time that they are thought to cost."""

    requests: int
    cost: float

    def passed(self, requests: int, cost: float) -> bool:
        """Whether one more is too many. One request alone is never too dear: it would fit on no day."""
        return requests > self.requests or (requests > 1 and cost > self.cost)


def bounds(requests: Mapping[Lane, float], seconds: Mapping[Lane, float]) -> dict[Lane, Bound]:
    """Bounds by lane, from requests and seconds of engine time by lane."""
    return {lane: Bound(math.ceil(requests[lane]), seconds[lane] * 1e6) for lane in LANES}


_HOUR = 3600e6


@dataclass(frozen=True)
class QueueBounds:
    """Bounds of one replica's queue. Interactive queues are short: who would wait long is told so at once.

    A lane that is full still takes from flows that have less than an even part of it, since others filled it, as far as
    what may wait in all has room beside the other lanes. What a lane has are requests that have not begun: choices that
    wait for a slot, and whoever gave up its own, are not new ones.
    """

    flow: Mapping[Lane, Bound] = field(
        default_factory=lambda: {
            "interactive": Bound(256, 60e6),
            "standard": Bound(1024, 600e6),
            "batch": Bound(4096, 24 * _HOUR),
        }
    )
    lane: Mapping[Lane, Bound] = field(
        default_factory=lambda: {
            "interactive": Bound(1024, 300e6),
            "standard": Bound(4096, _HOUR),
            "batch": Bound(16384, 48 * _HOUR),
        }
    )

    def refusal(self, policy: FairShare, request: Request, most: int) -> Refusal | None:
        """Why the request may not wait, with an estimate of when to come again; None if it may. `most`: how many may
        wait in all."""
        flows = policy.flows[request.lane]
        flow = flows.flows.get(request.flow)
        cost = policy.estimate(request)
        if flow is not None and self.flow[request.lane].passed(len(flow.waiting) + 1, flow.queued + cost):
            return Refusal("flow", expected_wait(policy, request))
        lane = self.lane[request.lane]
        if lane.passed(flows.fresh + 1, flows.queued + cost):
            waiting, queued = (0, 0.0) if flow is None else (len(flow.waiting), flow.queued)
            evenly = sum(bool(other.waiting) for other in flows.flows.values() if other is not flow) + 1
            more_than_even = lane.passed((waiting + 1) * evenly, (queued + cost) * evenly)
            beside = sum(bound.requests for other, bound in self.lane.items() if other != request.lane)
            if more_than_even or flows.fresh + 1 > max(lane.requests, most - beside):
                return Refusal("lane", expected_wait(policy, request))
        return None


def expected_wait(policy: FairShare, request: Request) -> float:
    """Seconds until a request that came now would be admitted, as far as shares and what waits tell.

    What waits before it in its own flow, at the share of its flow among those that wait, but never longer than all that
    its lane has waiting; and that at the share that the lane gets if the others go on as they did lately, after what
    they may use before. If they did little and many of theirs wait now, these are served by weight, and are over when
    all that waits was served.
    """
    flows = policy.flows[request.lane]
    backlogged = [flow for flow in flows.flows.values() if flow.waiting and flow.name != request.flow]
    own = flows.flows.get(request.flow)
    before = own.queued if own is not None else 0.0
    part = request.weight / (request.weight + sum(flow.weight for flow in backlogged))
    # Even an empty queue of its own waits for one request of each other flow, on average.
    others = sum(flow.queued / len(flow.waiting) for flow in backlogged)
    in_lane = min(flows.queued, before / part + others)
    everything = sum(policy.flows[lane].queued for lane in LANES)
    lane = request.lane
    wait = in_lane / policy.share(lane) + policy.lead(lane)
    return max(wait, min(everything, in_lane / policy.least_share(lane))) / 1e6
