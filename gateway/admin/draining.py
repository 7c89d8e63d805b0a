"""POST /admin/v1/fleet/{replica}/drain and …/resume: a replica takes no more requests, and runs on what it has.

The replica keeps it and tells every gateway in its heartbeats; it forgets it when it is started again.
"""

from __future__ import annotations

from typing import Any

import msgspec
from litestar import Request, Response, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath
from msgspec import Struct

from gateway.admin.fleet import ReplicaObject, replica_named, replica_object
from gateway.admin.refusals import refusals
from gateway.endpoints.request_body import read_management_body
from gateway.errors import Conflict
from gateway.fleet.replica_link import ReplicaLink
from gateway.http.operations import describes
from gateway.http.policies import demands
from gateway.http.responses import json_response
from gateway.services import Gateway
from protocol.replicas import DRAIN_VERSION
from storage.database.circuit_breaker import beside_the_database
from tenancy.administration.replicas import record_drain


class DrainChange(Struct, frozen=True, forbid_unknown_fields=True):
    """Why a replica is drained or resumed; kept in the audit log."""

    reason: str = ""


_CHANGE = msgspec.json.Decoder(DrainChange)


def draining_routes(gateway: Gateway) -> list[HTTPRouteHandler]:
    """The routes, for one worker."""
    services = gateway.services
    described = demands("fleet.write") | describes(
        ReplicaObject,
        body=DrainChange(reason="new driver"),
        body_required=False,
        errors={"replica_down": 409, "replica_too_old": 409},
    )

    async def change(request: Request[Any, Any, Any], name: str, *, drain: bool) -> Response[bytes]:
        link = replica_named(gateway, name)
        body = await read_management_body(request, services.options.client_timeout, _CHANGE, default=b"{}")
        _check(link)
        with refusals():
            await record_drain(services.database, link.replica, before=link.draining, drain=drain, reason=body.reason)
        try:
            with beside_the_database():
                await link.drain(drain=drain)
        except TimeoutError as error:
            raise _silent(link) from error
        return json_response(replica_object(link))

    @post("/admin/v1/fleet/{replica:str}/drain", status_code=200, opt=described)
    async def drain_replica(request: Request[Any, Any, Any], replica: FromPath[str]) -> Response[bytes]:
        """Let a replica take no more requests, from any gateway. Those that it has run to their end; when it has none
        left, it can be stopped without loss. The answer comes when the replica has confirmed it."""
        return await change(request, replica, drain=True)

    @post("/admin/v1/fleet/{replica:str}/resume", status_code=200, opt=described)
    async def resume_replica(request: Request[Any, Any, Any], replica: FromPath[str]) -> Response[bytes]:
        """Let a drained replica take requests again."""
        return await change(request, replica, drain=False)

    return [drain_replica, resume_replica]


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
