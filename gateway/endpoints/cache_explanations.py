"""Why prompts missed: GET /v1/requests/{id}/cache for one request, GET /v1/usage/cache by day. The format is ours.

A project's key sees its project, an admin key the whole tenant. A request of others and one that never was are answered
alike.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, TypeAlias

from litestar import Request, Response, get
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath
from msgspec import Meta

from gateway.dialects.cache_explanation import CacheDays, CacheExplanation, cache_days, explanation_of
from gateway.dialects.query_parameters import Parameters
from gateway.errors import InvalidField, NotFound
from gateway.http.authentication import own_tenant
from gateway.http.operations import describes, query
from gateway.http.policies import demands
from gateway.http.responses import json_response
from gateway.request_context import request_context
from gateway.services import Gateway
from prompt_cache.history.store import day_of

_DAY = re.compile(r"\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])")


_Day: TypeAlias = Annotated[str, Meta(pattern=f"^{_DAY.pattern}$", examples=["2026-11-22"])]


def cache_explanation_routes(gateway: Gateway) -> list[HTTPRouteHandler]:
    """The routes, for one worker."""

    @get(
        "/v1/requests/{name:str}/cache",
        opt=demands("requests.read")
        | describes(CacheExplanation, path={"name": "req_01934f6e0d2a7b3c8e51a9c4d7f60b12"}),
    )
    async def explain_request(request: Request[Any, Any, Any], name: FromPath[str]) -> Response[bytes]:
        """What the cache did for one request, and why it missed."""
        principal = request_context(request.scope).authenticated_principal
        found = await gateway.history.finding(own_tenant(request.scope), principal.project_id, name)
        if found is None:
            raise NotFound(f"There is no explanation of a request {name[:80]!r}: none of yours, or not kept any more.")
        return json_response(explanation_of(found))

    @get(
        "/v1/usage/cache",
        opt=demands("usage.read")
        | describes(
            CacheDays,
            query=(
                query("start_date", _Day, "The first day (UTC); today without it."),
                query("end_date", _Day, "The last day (UTC); today without it."),
            ),
        ),
    )
    async def cache_usage(request: Request[Any, Any, Any]) -> Response[bytes]:
        """Missed tokens by day, project, model and cause, with what they cost beyond reads."""
        principal = request_context(request.scope).authenticated_principal
        parameters = Parameters.of(request)
        today = day_of(await gateway.services.prices.now())
        first, last = _day(parameters, "start_date", today), _day(parameters, "end_date", today)
        parameters.reject_unknown()
        rows = await gateway.history.history.days(own_tenant(request.scope), principal.project_id, first, last)
        return json_response(cache_days(rows))

    return [explain_request, cache_usage]


def _day(parameters: Parameters, name: str, default: str) -> str:
    text = parameters.text(name) or default
    if not _DAY.fullmatch(text):
        raise InvalidField(name, f"{text[:40]!r} is not a day such as 2026-11-22")
    return text
