"""What the machinery around a gateway asks: is it alive, may it be sent requests, how is it doing."""

from __future__ import annotations

from litestar import HttpMethod, MediaType, Response, route
from litestar.handlers import HTTPRouteHandler
from msgspec import Struct
from msgspec.json import encode
from prometheus_client import CONTENT_TYPE_LATEST

from gateway.http.authentication import PUBLIC
from gateway.services import Gateway
from storage.database.database import DatabaseUnavailable

_READY, _NOT_READY = 200, 503
_READ = [HttpMethod.GET, HttpMethod.HEAD]
_OPT = {PUBLIC: True}


class Readiness(Struct, frozen=True):
    """Whether requests are welcome, and what is missing if not."""

    ready: bool
    problems: list[str]


async def readiness(gateway: Gateway) -> Readiness:
    """Check the disk, the database, the spool and every model's replicas."""
    services = gateway.services
    problems = ["draining"] if gateway.requests.draining else []
    try:
        await gateway.pings.wait(services.database.ping())
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


def health_routes(gateway: Gateway) -> list[HTTPRouteHandler]:
    """GET and HEAD of /healthz and /readyz, for one worker; they need no key."""

    @route("/healthz", http_method=_READ, opt=_OPT)
    async def healthz() -> Response[bytes]:
        """The process answers."""
        return Response(b'{"status":"ok"}', media_type=MediaType.JSON)

    @route("/readyz", http_method=_READ, opt=_OPT)
    async def readyz() -> Response[bytes]:
        """Requests are welcome: 200, else 503."""
        state = await readiness(gateway)
        return Response(encode(state), status_code=_READY if state.ready else _NOT_READY, media_type=MediaType.JSON)

    return [healthz, readyz]


def metrics_route(gateway: Gateway) -> HTTPRouteHandler:
    """GET and HEAD of /metrics, for one worker; it needs no key."""

    @route("/metrics", http_method=_READ, opt=_OPT)
    async def metrics() -> Response[bytes]:
        """Prometheus metrics."""
        # As a header: Litestar adds a charset to a media type, and this one names its own.
        return Response(gateway.metrics.exposition(), headers={"content-type": CONTENT_TYPE_LATEST})

    return metrics
