"""/healthz, /readyz and /metrics: whether a gateway worker lives, takes requests, and its metrics."""

from __future__ import annotations

from typing import Any, Literal

from litestar import HttpMethod, Request, Response, route
from litestar.handlers import HTTPRouteHandler
from msgspec import Struct
from prometheus_client import CONTENT_TYPE_LATEST
from prometheus_client.openmetrics.exposition import CONTENT_TYPE_LATEST as OPEN_METRICS

from gateway.http.operations import describes, files
from gateway.http.policies import public
from gateway.http.responses import json_response
from gateway.services import Gateway
from storage.database.database import DatabaseUnavailable

_READY, _NOT_READY = 200, 503
_READ = [HttpMethod.GET, HttpMethod.HEAD]
_OPT = public()
_METRICS = 'turnpike_requests_total{model="tiny",status="200"} 7.0\n'


class Alive(Struct, frozen=True):
    """The process answers."""

    status: Literal["ok"] = "ok"


class Readiness(Struct, frozen=True):
    """Whether the worker takes requests, and the problems if it does not."""

    ready: bool
    problems: list[str]


async def readiness(gateway: Gateway) -> Readiness:
    """Check the database, the disk, the spool and the replicas of every model."""
    services = gateway.services
    problems = ["draining"] if gateway.requests.draining else []
    if gateway.start_problem is not None:
        problems.append(gateway.start_problem)
    try:
        await gateway.pings.wait(services.database.ping())
    except DatabaseUnavailable:
        problems.append("the database is unavailable")
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
    """GET and HEAD of /healthz and /readyz, for one worker, without authentication."""

    @route("/healthz", http_method=_READ, opt=_OPT | describes(Alive()))
    async def healthz() -> Response[bytes]:
        """The process answers: 200."""
        return json_response(Alive())

    @route("/readyz", http_method=_READ, opt=_OPT | describes({200: Readiness(True, []), 503: Readiness}))
    async def readyz() -> Response[bytes]:
        """The worker takes requests: 200, else 503."""
        state = await readiness(gateway)
        return json_response(state, _READY if state.ready else _NOT_READY)

    return [healthz, readyz]


def metrics_route(gateway: Gateway) -> HTTPRouteHandler:
    """GET and HEAD of /metrics, for one worker, without authentication."""

    @route(
        "/metrics",
        http_method=_READ,
        opt=_OPT | describes(files("text/plain", description="Metrics.", example=_METRICS)),
    )
    async def metrics(request: Request[Any, Any, Any]) -> Response[bytes]:
        """Prometheus metrics."""
        examples = gateway.traces is not None and not gateway.metrics.shared
        if examples and "application/openmetrics-text" in request.headers.get("accept", ""):
            content = gateway.metrics.exposition_with_exemplars()
            return Response(content, headers={"content-type": OPEN_METRICS})
        # As a header, because Litestar adds a charset to a media type and this one names its own.
        return Response(gateway.metrics.exposition(), headers={"content-type": CONTENT_TYPE_LATEST})

    return metrics
