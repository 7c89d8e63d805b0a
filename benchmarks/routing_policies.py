"""Policies of routing for `benchmarks.routing`: the product's, the same with exact knowledge, those of others."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from benchmarks.routing_simulator import Job, Replica, World
from gateway.fleet.hot_prefixes import Warming
from gateway.fleet.replica_work import ReplicaFigures
from gateway.fleet.router import Choice, Routed, Router
from protocol.replicas import Tier
from protocol.requests import LANES

BEAT_S, LOAD_S = 1.0, 0.1
"""How often a replica tells its figures; and, when its queue has changed, its queue at most."""
PREFIX_BLOCKS = 2
"""First blocks that policies by hash go by: all requests of a trace may share the very first one."""
SLO_S = 5.0


class Policy(Protocol):
    """Chooses a replica for each request of one gateway, and hears what becomes of it."""

    def choose(self, job: Job) -> Replica: ...


class RoundRobin:
    """One after the other."""

    def __init__(self, world: World, gateway: int) -> None:
        self._next = itertools.cycle(world.replicas)

    def choose(self, job: Job) -> Replica:
        return next(self._next)


class LeastWork:
    """The replica with the least prompt tokens to compute and, among these, the fewest decodes; it is told exactly."""

    def __init__(self, world: World, gateway: int) -> None:
        self._replicas = world.replicas

    def choose(self, job: Job) -> Replica:
        return min(self._replicas, key=lambda replica: (replica.queued_tokens, len(replica.decodes), replica.number))


class PrefixHash:
    """By a hash of the first blocks, whatever the load."""

    def __init__(self, world: World, gateway: int) -> None:
        self._replicas = world.replicas

    def choose(self, job: Job) -> Replica:
        return max(self._replicas, key=lambda replica: _hash(_beginning(job), replica.number))


class DualMap:
    """Two candidates by two hashes of the first blocks: the one with more of the prompt while its first token is
    expected within `SLO_S`, else the less loaded one. It is told load and caches exactly."""

    def __init__(self, world: World, gateway: int) -> None:
        self._replicas = world.replicas

    def choose(self, job: Job) -> Replica:
        beginning = _beginning(job)
        one, other = sorted(self._replicas, key=lambda replica: _hash(beginning, replica.number), reverse=True)[:2]
        matches = {replica: replica.expected_match(job.blocks)[0] for replica in (one, other)}
        cached, second = sorted((one, other), key=lambda replica: -matches[replica])
        if matches[cached] > matches[second]:
            uncached = job.tokens - matches[cached] * cached.machine.block
            if (cached.queued_tokens + uncached) * cached.machine.token_s <= SLO_S:
                return cached
        return min((one, other), key=lambda replica: (replica.queued_tokens, len(replica.decodes)))


class Turnpike:
    """The product's router, which hears heartbeats each second, and its own requests."""

    router_class: type[Router] = Router

    def __init__(self, world: World, gateway: int, gateways: int = 1) -> None:
        self._world = world
        self._replicas = {replica.replica: replica for replica in world.replicas}
        self.router = self._new_router()
        self.router.hot.gateways = gateways
        self.reasons: dict[str, int] = {}
        self.warmed = 0

    def _new_router(self) -> Router:
        return self.router_class(lambda: self._world.now)

    def choose(self, job: Job) -> Replica:
        routed = routed_of(job, self._world.replicas[0].machine.block)
        choice = self.router.choose(routed, self._world.replicas)
        job.state = (self, routed, choice)
        self.reasons[choice.why] = self.reasons.get(choice.why, 0) + 1
        warming = choice.warming
        if warming is not None and warming.replica:
            self.warmed += 1
            blocks = job.blocks[: warming.tokens // choice.replica.machine.block]
            warm = Job(self._world.now, warming.tokens, blocks, 0, "batch", state=(self, routed, warming))
            self._replicas[warming.replica].submit(warm, self._world.now)
        return choice.replica

    def hear_beat(self, replica: Replica) -> None:
        """The replica's heartbeat."""
        room: Mapping[Tier, int] = {"hbm": replica.machine.hbm, "dram": replica.machine.dram}
        self.router.hear(replica.replica, replica.epoch, figures_of(replica), room)

    def hear_others(self, job: Job, replica: Replica) -> None:
        """The heartbeat names a request of another gateway."""
        routed = routed_of(job, replica.machine.block)
        self.router.hear_prefix(replica.replica, routed.names, routed.ends, 0.0, 0)


class _ExactRouter(Router):
    """The router with what only replicas know: their caches and queues as they are."""

    replicas: dict[str, Replica]

    def _held(self, routed: Routed, replica: str) -> tuple[int, Tier]:
        held, host = self.replicas[replica].expected_match([int(str(name)) for name in routed.names])
        return min(routed.tokens - 1, held * self.replicas[replica].machine.block), "dram" if host else "hbm"

    def _wait(self, routed: Routed, replica: str, now: float) -> float:
        there = self.replicas[replica]
        return there.queued_tokens * there.machine.token_s * self._work_of(replica).pressure


class Exact(Turnpike):
    """The product's router, told everything."""

    router_class = _ExactRouter

    def _new_router(self) -> Router:
        router = _ExactRouter(lambda: self._world.now)
        router.replicas = self._replicas
        return router

    def choose(self, job: Job) -> Replica:
        for replica in self._world.replicas:
            self.hear_beat(replica)
        return super().choose(job)


POLICIES: Mapping[str, Callable[[World, int], Policy]] = {
    "round_robin": RoundRobin,
    "least_work": LeastWork,
    "prefix_hash": PrefixHash,
    "dualmap": DualMap,
    "turnpike": Turnpike,
    "exact": Exact,
}


def routed_of(job: Job, block: int) -> Routed:
    """What the router is told of a request."""
    ends = [block * (index + 1) for index in range(len(job.blocks))]
    key = _beginning(job)
    return Routed(key=key, tokens=job.tokens, names=job.blocks, ends=ends, lane=job.lane)


def figures_of(replica: Replica) -> ReplicaFigures:
    """What a replica's heartbeat says."""
    machine = replica.machine
    return ReplicaFigures(
        token_s=machine.token_s,
        step_s=machine.step_s,
        row_s=machine.row_s,
        chunk=machine.budget,
        fetch_s={"dram": machine.fetch_s},
        queued={lane: replica.queued_in(lane) for lane in LANES},
        decodes=len(replica.decodes),
    )


def _beginning(job: Job) -> bytes:
    blocks: Sequence[int] = job.blocks[:PREFIX_BLOCKS] or (id(job),)
    return hashlib.blake2b(repr(blocks).encode(), digest_size=16).digest()


def _hash(key: bytes, number: int) -> bytes:
    return hashlib.blake2b(str(number).encode(), digest_size=8, key=key).digest()


def hear_events(replica: Replica, changed: Callable[[Replica], None]) -> None:
    """Let the product's policies hear what becomes of their requests at this replica. `changed`: its queue did."""

    def begun(job: Job) -> None:
        match job.state:
            case (policy, _, Choice() as choice):
                read = job.tokens - job.computed
                policy.router.begin(replica.replica, choice.estimate, choice.credit, job.computed, read)

    def first(job: Job, now: float) -> None:
        changed(replica)
        match job.state:
            case (policy, _, Choice() as choice):
                policy.router.end_prefill(replica.replica, choice.credit)

    def ended(job: Job) -> None:
        match job.state:
            case (policy, _, Choice() as choice):
                policy.router.end(replica.replica, choice.credit)
            case (policy, routed, Warming(count=count)):
                policy.router.hear_warmed(replica.replica, routed.names[:count], routed.ends[:count])

    replica.on_begin, replica.on_first, replica.on_end = begun, first, ended
