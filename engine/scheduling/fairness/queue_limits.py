"""Queue limits by flow and by lane, in requests and in engine time, and the expected wait of a request."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from engine.scheduling.fairness.fair_share import FairShare
from engine.scheduling.request import Request
from protocol.requests import LANES, Lane, Refusal


@dataclass(frozen=True)
class Bound:
    """A queue limit: waiting requests, and their estimated cost in µs of engine time."""

    requests: int
    cost: float

    def exceeded(self, requests: int, cost: float) -> bool:
        """Whether a queue of this size is over the limit. A single request may have any cost: it would never fit."""
        return requests > self.requests or (requests > 1 and cost > self.cost)


def bounds(requests: Mapping[Lane, float], seconds: Mapping[Lane, float]) -> dict[Lane, Bound]:
    """lane -> Bound, from requests and seconds of engine time by lane."""
    return {lane: Bound(math.ceil(requests[lane]), seconds[lane] * 1e6) for lane in LANES}


_HOUR = 3600e6


@dataclass(frozen=True)
class QueueBounds:
    """The queue limits of one replica. Interactive queues are short, so that a long wait is refused at once.

    A full lane still takes requests of flows with less than an even part of it, since others filled it, as long as the
    replica's total limit has room beside the other lanes. A lane's limit counts requests that were never admitted:
    further choices of a request and preempted requests are not new.
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
    requests: int = 24_576
    """In all lanes."""

    def refusal(self, policy: FairShare, request: Request) -> Refusal | None:
        """Why the request may not wait, with the seconds after which to retry; None if it may."""
        flows = policy.flows[request.lane]
        flow = flows.flows.get(request.flow)
        cost = policy.estimate(request)
        if flow is not None and self.flow[request.lane].exceeded(len(flow.waiting) + 1, flow.queued + cost):
            return Refusal("flow", expected_wait(policy, request))
        lane = self.lane[request.lane]
        if lane.exceeded(flows.not_begun + 1, flows.queued + cost):
            waiting, queued = (0, 0.0) if flow is None else (len(flow.waiting), flow.queued)
            evenly = sum(bool(other.waiting) for other in flows.flows.values() if other is not flow) + 1
            more_than_even = lane.exceeded((waiting + 1) * evenly, (queued + cost) * evenly)
            beside = sum(bound.requests for other, bound in self.lane.items() if other != request.lane)
            if more_than_even or flows.not_begun + 1 > max(lane.requests, self.requests - beside):
                return Refusal("lane", expected_wait(policy, request))
        return None


def expected_wait(policy: FairShare, request: Request) -> float:
    """Estimated seconds until a request that came now would be admitted, by shares and by what waits.

    Work before it in its lane: the queue of its flow divided by the flow's share among backlogged flows, at most the
    lane's whole queue. Between lanes, the longer of two estimates counts:

    - this work at the lane's expected share, after the reserves of higher lanes;
    - this work at the lane's share by weight, at most until everything that waits is served. It is the longer one if
      the other lanes were quiet lately and have long queues now.
    """
    flows = policy.flows[request.lane]
    backlogged = [flow for flow in flows.flows.values() if flow.waiting and flow.name != request.flow]
    own = flows.flows.get(request.flow)
    before = own.queued if own is not None else 0.0
    part = request.weight / (request.weight + sum(flow.weight for flow in backlogged))
    # Even with an empty queue of its own it waits for about one request of each other flow.
    others = sum(flow.queued / len(flow.waiting) for flow in backlogged)
    in_lane = min(flows.queued, before / part + others)
    everything = sum(policy.flows[lane].queued for lane in LANES)
    lane = request.lane
    wait = in_lane / policy.expected_share(lane) + policy.reserved_by_higher_us(lane)
    return max(wait, min(everything, in_lane / policy.least_share(lane))) / 1e6
