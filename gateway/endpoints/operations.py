"""What the machinery around a gateway asks: is it alive, may it be sent requests, how is it doing."""

from __future__ import annotations

from litestar import MediaType, Response, get
from litestar.handlers import HTTPRouteHandler
from msgspec import Struct
from msgspec.json import encode
from prometheus_client import CONTENT_TYPE_LATEST

from gateway.authentication import PUBLIC
from gateway.services import Gateway
from storage.database import DatabaseUnavailable

_READY, _NOT_READY = 200, 503


class Readiness(Struct, frozen=True):
    """Whether requests are welcome, and what is missing if not."""

    ready: bool
    problems: list[str]


async def readiness(gateway: Gateway) -> Readiness:
    """Check the disk, the database, the spool and every model's replicas."""
    services = gateway.services
    problems = ["draining"] if gateway.requests.draining else []
    try:
        await services.database.ping()
    except DatabaseUnavailable:
        problems.append("the database is away")
    if gateway.disk.problem is not None:
        problems.append(gateway.disk.problem)
    if gateway.recorder.failing:
        problems.append("usage cannot be recorded")
    problems += [
        f"the disk of {replica}'s journal is full"
        for model in services.models
        for replica in services.fleet.disks_full(model.name)
    ]
    problems += [
        f"no healthy replica of {model.name}" for model in services.models if not services.fleet.healthy(model.name)
    ]
    return Readiness(not problems, problems)


def operation_routes(gateway: Gateway) -> list[HTTPRouteHandler]:
    """The routes, for one worker; they need no key."""
    opt = {PUBLIC: True}

    @get("/healthz", opt=opt)
    async def healthz() -> Response[bytes]:
        """The process answers."""
        return Response(b'{"status":"ok"}', media_type=MediaType.JSON)

    @get("/readyz", opt=opt)
    async def readyz() -> Response[bytes]:
        """Requests are welcome: 200, else 503."""
        state = await readiness(gateway)
        return Response(encode(state), status_code=_READY if state.ready else _NOT_READY, media_type=MediaType.JSON)

    @get("/metrics", opt=opt)
    async def metrics() -> Response[bytes]:
        """Prometheus metrics."""
        return Response(gateway.metrics.exposition(), media_type=CONTENT_TYPE_LATEST)

    return [healthz, readyz, metrics]
