"""POST /admin/v1/fleet/{replica}/drain and …/resume: a replica takes no more requests, and runs on what it has.

The replica keeps it and tells every gateway in its heartbeats; it forgets it when it is started again. Prefixes that
many requests want and only this replica holds are computed at another one first. POST /admin/v1/fleet/scale-in drains
the replicas of a model that are missed least: those whose leases end soonest.
"""

from __future__ import annotations

from functools import partial
from typing import Literal

from msgspec import Struct

from billing.calendar import format_instant
from gateway.admin.fleet import ReplicaObject, replica_named, replica_objects
from gateway.admin.operation import operation
from gateway.errors import Conflict
from gateway.fleet.replica_link import ReplicaLink
from gateway.http.policies import demands
from gateway.services import Gateway
from protocol.replicas import DRAIN_VERSION, LEASED_BLOCKS, LEASES_END
from storage.database.circuit_breaker import beside_the_database
from tenancy.administration.replicas import record_drain

_HOMES_S = 20.0
"""How long a replica that leaves waits for others to compute what only it holds."""
_SECOND = 1_000_000


class ScaleIn(Struct, frozen=True, forbid_unknown_fields=True):
    """`count` replicas of a model are to be drained. `to_zero`: also the last one; requests then wait for another
    to start. `dry_run`: only say which."""

    model: str
    count: int = 1
    to_zero: bool = False
    dry_run: bool = False
    reason: str = ""


class LeavingReplica(Struct, frozen=True, kw_only=True):
    """A replica that is drained. `leased_blocks`: of its device memory under live leases, the last of which ends at
    `leases_end_at`; they stay promised, and are computed again elsewhere. `moved_prefixes`: those that others computed
    first."""

    name: str
    state: Literal["healthy", "draining"]
    requests: int
    leased_blocks: int
    leases_end_at: str | None
    moved_prefixes: int


class ScaledIn(Struct, frozen=True, kw_only=True):
    """The replicas that were drained, or would be, in this order; and how many stay."""

    object: Literal["fleet.scale_in"] = "fleet.scale_in"
    model: str
    leaving: list[LeavingReplica]
    staying: int


class DrainChange(Struct, frozen=True, forbid_unknown_fields=True):
    """Why a replica is drained or resumed; kept in the audit log."""

    reason: str = ""


_drain_operation = partial(
    operation,
    example=DrainChange(reason="new driver"),
    body_required=False,
    errors={"replica_down": 409, "replica_too_old": 409},
)


class DrainingOperations:
    """Drains and resumes replicas."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    @_drain_operation("POST", "/admin/v1/fleet/{replica:str}/drain", demands("fleet.write"))
    async def drain_replica(self, replica: str, body: DrainChange) -> ReplicaObject:
        """Let a replica take no more requests, from any gateway. Those that it has run to their end; when it has none
        left, it can be stopped without loss. The answer comes when the replica has confirmed it, and others have
        computed what many requests want and only it holds."""
        link, fleet = replica_named(self._gateway, replica), self._gateway.services.fleet
        _check(link)
        others = fleet.healthy(link.hello.model.name) if link.hello else []
        with beside_the_database():
            await fleet.routing.give_homes(link, others, _HOMES_S)
        return await self._change(replica, body, drain=True)

    @_drain_operation("POST", "/admin/v1/fleet/{replica:str}/resume", demands("fleet.write"))
    async def resume_replica(self, replica: str, body: DrainChange) -> ReplicaObject:
        """Let a drained replica take requests again."""
        return await self._change(replica, body, drain=False)

    @operation(
        "POST",
        "/admin/v1/fleet/scale-in",
        demands("fleet.write"),
        example=ScaleIn("stdlib-qa", reason="a quiet night"),
        errors={"too_few_replicas": 409, "replica_down": 409, "replica_too_old": 409},
    )
    async def scale_in(self, body: ScaleIn) -> ScaledIn:
        """Drain the replicas of a model that are missed least: those whose leases end soonest and, of these, those with
        the least work. Each is drained once others have computed what many requests want and only it holds."""
        fleet = self._gateway.services.fleet
        healthy = fleet.healthy(body.model)
        count, most = max(0, body.count), len(healthy) - (0 if body.to_zero else 1)
        if count > most:
            raise Conflict(
                f"{len(healthy)} replicas of {body.model!r} take requests, of which {max(0, most)} can be drained; "
                "`to_zero` drains the last one too.",
                code="too_few_replicas",
            )

        def missed(link: ReplicaLink) -> tuple[float, float, str]:
            return leases_end(link), fleet.routing.backlog(body.model, [link]), link.replica

        links = sorted(healthy, key=missed)
        chosen, staying = links[:count], links[count:]
        leaving = [await self._retire(link, staying, body) for link in chosen]
        return ScaledIn(model=body.model, leaving=leaving, staying=len(staying))

    async def _retire(self, link: ReplicaLink, staying: list[ReplicaLink], body: ScaleIn) -> LeavingReplica:
        moved = 0
        if not body.dry_run:
            with beside_the_database():
                moved = await self._gateway.services.fleet.routing.give_homes(link, staying, _HOMES_S)
            await self._change(link.replica, DrainChange(body.reason), drain=True)
        ends = leases_end(link)
        return LeavingReplica(
            name=link.replica,
            state="healthy" if body.dry_run else "draining",
            requests=link.load,
            leased_blocks=0 if link.beat is None else int(link.beat.metrics.get(LEASED_BLOCKS, 0)),
            leases_end_at=format_instant(int(ends * _SECOND)) if ends else None,
            moved_prefixes=moved,
        )

    async def _change(self, name: str, body: DrainChange, *, drain: bool) -> ReplicaObject:
        link, database = replica_named(self._gateway, name), self._gateway.services.database
        _check(link)
        await record_drain(database, link.replica, before=link.draining, drain=drain, reason=body.reason)
        try:
            with beside_the_database():
                await link.drain(drain=drain)
        except TimeoutError as error:
            raise _silent(link) from error
        (shown,) = await replica_objects(self._gateway, [link])
        return shown


def leases_end(link: ReplicaLink) -> float:
    """When the last lease on what a replica's device holds ends, in seconds since the Unix epoch; 0 for none."""
    return 0.0 if link.beat is None else link.beat.metrics.get(LEASES_END, 0.0)


def _check(link: ReplicaLink) -> None:
    """Raise Conflict if the replica cannot be told."""
    if not link.up or link.hello is None:
        raise _silent(link)
    if link.hello.version < DRAIN_VERSION:
        raise Conflict(
            f"The replica {link.replica!r} is of a version that cannot be drained: stop it by SIGTERM.",
            code="replica_too_old",
        )


def _silent(link: ReplicaLink) -> Conflict:
    return Conflict(f"The replica {link.replica!r} does not answer.", code="replica_down")
