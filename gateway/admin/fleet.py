"""/admin/v1/fleet: the replicas as this gateway worker sees them, from their heartbeats."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from msgspec import Meta, Struct
from msgspec.structs import asdict

from file_store.adapters import StoredAdapter
from gateway.adapters.resident_adapters import adapters_at
from gateway.admin.operation import Call, operation
from gateway.dialects.query_parameters import Parameters
from gateway.errors import NotFound
from gateway.fleet.bottlenecks import bottleneck
from gateway.fleet.replica_link import ReplicaLink
from gateway.http.policies import demands
from gateway.http.shapes import show
from gateway.services import Gateway
from protocol.adapters import digest_of
from protocol.replicas import Tier
from storage.database.database import DatabaseUnavailable
from storage.database.public_ids import public_id
from tenancy.directory import project_public_id, tenant_public_id

ReplicaState = Literal["healthy", "stalled", "draining", "disk_full", "engine_down", "down"]


class TierObject(Struct, frozen=True, kw_only=True):
    """KV blocks of a layer group in a tier: `free`, `referenced` and `cached` are together `total`."""

    tier: Tier
    group: int
    free: int
    referenced: int
    cached: int
    total: int


class ResidentAdapterObject(Struct, frozen=True, kw_only=True):
    """An adapter that a replica has ready. `model` is what requests ask for, null for an adapter that was deleted."""

    id: Annotated[str | None, Meta(examples=["adapter_01934f6e0d2a7b3c8e51a9c4d7f60b12"])]
    model: Annotated[str | None, Meta(examples=["tiny:support"])]
    tenant_id: str | None
    project_id: str | None
    digest: Annotated[str, Meta(examples=["9f" * 32])]


class RatesObject(Struct, frozen=True, kw_only=True):
    """A replica over the last `seconds`. `busy`: the share of them in which its steps ran. `bandwidth`, `arithmetic`:
    the shares of its device's limits that its steps used (MBU, MFU), null where a limit or the model's size is not
    known; `million_cost`: what a million of its prompt and output tokens cost, in `currency`, null where costs are not
    set or nothing was done. The others are counts per second, and `decodes_of_step` requests per step."""

    seconds: float
    busy: float
    steps: float
    computed: float
    read: float
    output: float
    recomputed: float
    preempted: float
    drafting: float
    decodes_of_step: float
    bandwidth: float | None
    arithmetic: float | None
    million_cost: float | None
    currency: str


class ReplicaObject(Struct, frozen=True, kw_only=True):
    """A replica. `stalled`: it is connected, and its heartbeats or its steps stopped. `draining`: it takes no more
    requests, and runs on what it has. `problem`: why it is down.
    `silent_s`: seconds since anything was heard from it. `requests` are those that it has, as far as is known here;
    `running` and `waiting` (by lane) are what it says itself. `metrics` are its own, by Prometheus name.
    `held_back_by`: what holds it back, in a sentence; `rates`: what it did in the last minute, null before anything is
    known."""

    object: Literal["replica"] = "replica"
    name: str
    address: str
    state: ReplicaState
    problem: str
    silent_s: float
    model: str | None
    model_digest: str | None
    epoch: int | None
    journal: str | None
    protocol: int | None
    context_tokens: int | None
    running_most: int | None
    requests: int
    steps: int | None
    running: int | None
    waiting: dict[str, int]
    memory: list[TierObject]
    service_us: dict[str, int]
    metrics: dict[str, float]
    held_back_by: str
    rates: RatesObject | None
    adapters: list[ResidentAdapterObject]


class GatewayObject(Struct, frozen=True, kw_only=True):
    """The worker that answers."""

    name: str
    epoch: str
    draining: bool
    connections: int


class FleetObject(Struct, frozen=True, kw_only=True):
    """All replicas that this worker is configured with."""

    object: Literal["fleet"] = "fleet"
    gateway: GatewayObject
    data: list[ReplicaObject]
    has_more: bool


class FleetOperations:
    """Shows the replicas."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    @operation("GET", "/admin/v1/fleet", demands("fleet.read"))
    async def show_fleet(self, call: Call) -> FleetObject:
        """The replicas, with state, load, queues by lane and KV by tier."""
        Parameters.of(call.request).reject_unknown()
        services = self._gateway.services
        worker = GatewayObject(
            name=services.name,
            epoch=services.spool.owner,
            draining=self._gateway.requests.draining,
            connections=len(self._gateway.open_connections),
        )
        links = services.fleet.links
        return FleetObject(gateway=worker, data=await replica_objects(self._gateway, links), has_more=False)

    @operation("GET", "/admin/v1/fleet/{replica:str}", demands("fleet.read"))
    async def show_replica(self, replica: str) -> ReplicaObject:
        """One replica, by its name."""
        (shown,) = await replica_objects(self._gateway, [replica_named(self._gateway, replica)])
        return shown


def replica_named(gateway: Gateway, name: str) -> ReplicaLink:
    """This worker's link to the replica of this name. Raises NotFound."""
    for link in gateway.services.fleet.links:
        if link.replica == name:
            return link
    raise NotFound(f"There is no replica {name[:80]!r}.")


async def replica_objects(gateway: Gateway, links: Sequence[ReplicaLink]) -> list[ReplicaObject]:
    """Replicas as answers have them. While the database is away their adapters have digests alone."""
    try:
        adapters = await adapters_at(gateway.adapters, links)
    except DatabaseUnavailable:
        adapters = await adapters_at(None, links)
    return [
        _replica_object(gateway, link, [_resident_adapter(*one) for one in adapters[link.replica]]) for link in links
    ]


def _resident_adapter(name: str, adapter: StoredAdapter | None) -> ResidentAdapterObject:
    if adapter is None:
        return ResidentAdapterObject(id=None, model=None, tenant_id=None, project_id=None, digest=digest_of(name))
    return ResidentAdapterObject(
        id=public_id("adapter", adapter.id),
        model=adapter.full_name,
        tenant_id=tenant_public_id(adapter.tenant_id),
        project_id=project_public_id(adapter.project_id),
        digest=adapter.digest,
    )


def _replica_object(gateway: Gateway, link: ReplicaLink, adapters: list[ResidentAdapterObject]) -> ReplicaObject:
    hello, beat, state = link.hello, link.beat, _state(link)
    rates, currency = gateway.fleet_rates.of(link), gateway.fleet_rates.costs.currency
    return ReplicaObject(
        name=link.replica,
        address=link.address.text,
        state=state,
        problem=link.problem,
        silent_s=round(link.silent_for, 3),
        model=None if hello is None else hello.model.name,
        model_digest=None if hello is None else hello.model.digest,
        epoch=None if hello is None else hello.epoch,
        journal=None if hello is None else link.journal,
        protocol=None if hello is None else hello.version,
        context_tokens=None if hello is None else hello.capacity.context_tokens,
        running_most=None if hello is None else hello.capacity.running,
        requests=link.load,
        steps=None if beat is None else beat.steps,
        running=None if beat is None else beat.running,
        waiting={} if beat is None else beat.waiting,
        memory=[] if beat is None else [show(TierObject, load) for load in beat.memory],
        service_us={} if beat is None else _by_lane(beat.service),
        metrics={} if beat is None else beat.metrics,
        held_back_by=bottleneck(state, hello, beat, rates),
        rates=None if rates is None else RatesObject(**asdict(rates), currency=currency),
        adapters=adapters,
    )


def _state(link: ReplicaLink) -> ReplicaState:
    if not link.up:
        return "down"
    if link.disk_full:
        return "disk_full"
    if link.draining:
        return "draining"
    if link.engine_down:
        return "engine_down"
    return "healthy" if link.healthy() else "stalled"


def _by_lane(service: dict[str, int]) -> dict[str, int]:
    """Engine time by lane: flows are named by what requests share a queue, and there may be very many."""
    lanes: dict[str, int] = {}
    for flow, micros in service.items():
        lane = flow.partition("/")[0]
        lanes[lane] = lanes.get(lane, 0) + micros
    return lanes
