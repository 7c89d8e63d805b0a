"""Says in one sentence what holds a replica back: the first of these that is true of its last minute.

It cannot be used; nothing is known; it is not busy; its memory for KV is full; all its places are taken while others
wait; KV comes from farther tiers; drafts; the device's bandwidth; its arithmetic; prompts; small batches.
"""

from __future__ import annotations

from gateway.fleet.replica_rates import ReplicaRates
from protocol.replicas import Heartbeat, Hello

_IDLE = 0.25
_MUCH = 0.6
"""A share of a device's limit that leaves little to win."""
_OFTEN = 0.02
"""Preemptions a second: more than one a minute."""
_DRAFTING = 0.2
_FULL = 0.02
"""The share of blocks that is free where memory is full."""

UNUSABLE = {
    "down": "It cannot be reached",
    "stalled": "It is connected, and makes no steps or sends no heartbeats",
    "draining": "An operator drains it: it takes no more requests",
    "disk_full": "The disk of its journal is full: it takes no more requests",
    "engine_down": "The engine behind it, which is not ours, does not answer",
}


def bottleneck(state: str, hello: Hello | None, beat: Heartbeat | None, rates: ReplicaRates | None) -> str:
    """The sentence. `state`: as in UNUSABLE, or any other for a replica that takes requests."""
    if (unusable := UNUSABLE.get(state)) is not None:
        return f"{unusable}."
    if rates is None or hello is None or beat is None:
        return "Nothing is known yet: two samples of its counters are needed, five seconds apart."
    held = _of_places(hello, beat, rates)
    if held is None and rates.busy < _IDLE:
        return f"Nothing: it is at work {_per_cent(rates.busy)} of the time."
    return held or _of_steps(rates)


def _of_places(hello: Hello, beat: Heartbeat, rates: ReplicaRates) -> str | None:
    """What keeps requests from running at all, if something does."""
    waiting, most = sum(beat.waiting.values()), hello.capacity.running
    restoring, free = beat.metrics.get("turnpike_engine_restoring_requests", 0.0), _free_share(beat)
    if free < _FULL and (waiting or rates.preempted >= _OFTEN):
        return (
            f"Its memory for KV is full: {_per_cent(free)} of the blocks can be had, {waiting} requests wait, and "
            f"{rates.preempted * 60:.0f} a minute are preempted. More memory, a smaller KV format or another replica "
            "helps."
        )
    if waiting and beat.running >= most:
        return (
            f"All its {most} places are taken and {waiting} requests wait: raise --max-running if there is memory for "
            "KV, or add a replica."
        )
    if waiting and restoring >= waiting:
        return f"{restoring:.0f} requests wait for KV from host memory or disk: a quicker tier helps, or less of it."
    return None


def _of_steps(rates: ReplicaRates) -> str:
    """What its steps are held back by."""
    if rates.drafting >= _DRAFTING:
        return f"Drafters: they hold up steps {_per_cent(rates.drafting)} of the time. Try --speculation off."
    bandwidth, arithmetic = rates.bandwidth, rates.arithmetic
    if bandwidth is not None and bandwidth >= _MUCH and bandwidth >= (arithmetic or 0.0):
        return (
            f"The bandwidth of its memory: {_per_cent(bandwidth)} of it goes to weights and KV. Larger batches, shared "
            "prefixes or weights of fewer bits help."
        )
    if arithmetic is not None and arithmetic >= _MUCH:
        return f"The device's arithmetic: {_per_cent(arithmetic)} of it is used. More cache hits or devices help."
    if rates.recomputed > rates.output:
        return f"Preemptions: {rates.recomputed:.0f} tokens a second are computed again. More memory for KV helps."
    if rates.computed > 8 * rates.output:
        return (
            f"Prompts: it computes {rates.computed:.0f} of their tokens a second, and reads {rates.read:.0f} from the "
            "cache. More cache hits help, or another replica."
        )
    known = ""
    if bandwidth is not None:
        known = f", with {_per_cent(bandwidth)} of the bandwidth used"
    return (
        f"What a step costs whatever it does: {rates.decodes_of_step:.1f} requests decode in one{known}. More requests "
        "at once would be nearly free."
    )


def _free_share(beat: Heartbeat) -> float:
    """The share of the device's blocks that is free, or only cached, in the layer group that has the least."""
    groups = [load for load in beat.memory if load.tier == "hbm" and load.total]
    return min(((load.free + load.cached) / load.total for load in groups), default=1.0)


def _per_cent(share: float) -> str:
    return f"{100 * share:.0f} %"
