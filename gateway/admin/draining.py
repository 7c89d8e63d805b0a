"""POST /admin/v1/fleet/{replica}/drain and …/resume: a replica takes no more requests, and runs on what it has.

The replica keeps it and tells every gateway in its heartbeats; it forgets it when it is started again.
"""

from __future__ import annotations

from functools import partial

from msgspec import Struct

from gateway.admin.fleet import ReplicaObject, replica_named, replica_objects
from gateway.admin.operation import operation
from gateway.errors import Conflict
from gateway.fleet.replica_link import ReplicaLink
from gateway.http.policies import demands
from gateway.services import Gateway
from protocol.replicas import DRAIN_VERSION
from storage.database.circuit_breaker import beside_the_database
from tenancy.administration.replicas import record_drain


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
        left, it can be stopped without loss. The answer comes when the replica has confirmed it."""
        return await self._change(replica, body, drain=True)

    @_drain_operation("POST", "/admin/v1/fleet/{replica:str}/resume", demands("fleet.write"))
    async def resume_replica(self, replica: str, body: DrainChange) -> ReplicaObject:
        """Let a drained replica take requests again."""
        return await self._change(replica, body, drain=False)

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
