"""Usage and cost reports in both vendors' shapes: a project's key sees its project, an admin key its tenant."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar
from uuid import UUID

from litestar import MediaType, Request, Response, get
from litestar.handlers import HTTPRouteHandler

from billing.reports.cost_report import cost_buckets
from billing.reports.usage_report import InvalidReport, usage_buckets
from gateway.dialects.anthropic import usage_api as anthropic_usage_api
from gateway.dialects.openai import usage_api as openai_usage_api
from gateway.dialects.query_parameters import Parameters
from gateway.errors import InvalidRequest
from gateway.http.error_responses import SURFACE
from gateway.request_context import of
from gateway.services import Gateway
from tenancy.authenticator import Principal

Query = TypeVar("Query")


def usage_routes(gateway: Gateway) -> list[HTTPRouteHandler]:
    """The routes, for one worker."""
    database, prices = gateway.services.database, gateway.services.prices
    wait = gateway.patience.reports.wait

    @get("/v1/organization/usage/completions")
    async def get_completions_usage(request: Request[Any, Any, Any]) -> Response[bytes]:
        """Tokens, requests and exact cost by bucket of time."""
        principal = of(request.scope).known_principal
        query = _query(request, openai_usage_api.parse_usage)
        with _refusing({}):
            found = await wait(
                usage_buckets(
                    database,
                    principal.tenant_id,
                    start_at=query.start_at,
                    end_at=query.end_at,
                    width=query.width,
                    project_ids=_visible(principal, query.project_ids),
                    key_ids=query.key_ids,
                    models=query.models,
                    group_by=query.group_by,
                    batch=query.batch,
                    limit=query.limit,
                    page=query.page,
                )
            )
        return _answer(openai_usage_api.usage_page(found))

    @get("/v1/organization/costs")
    async def get_costs(request: Request[Any, Any, Any]) -> Response[bytes]:
        """Exact costs by day, and by line item if so asked."""
        principal = of(request.scope).known_principal
        query = _query(request, openai_usage_api.parse_costs)
        with _refusing({}):
            found = await wait(
                cost_buckets(
                    database,
                    prices,
                    principal.tenant_id,
                    start_at=query.start_at,
                    end_at=query.end_at,
                    project_ids=_visible(principal, query.project_ids),
                    key_ids=query.key_ids,
                    line_items=query.line_items,
                    group_by=query.group_by,
                    limit=query.limit,
                    page=query.page,
                )
            )
        return _answer(openai_usage_api.costs_page(found))

    @get("/v1/organizations/usage_report/messages", opt={SURFACE: "anthropic"})
    async def get_messages_usage(request: Request[Any, Any, Any]) -> Response[bytes]:
        """Tokens by bucket of time, as Anthropic has them."""
        principal = of(request.scope).known_principal
        query = _query(request, anthropic_usage_api.parse_usage)
        if query.empty:
            return _answer(anthropic_usage_api.no_page())
        with _refusing(_ANTHROPIC_NAMES):
            found = await wait(
                usage_buckets(
                    database,
                    principal.tenant_id,
                    start_at=query.start_at,
                    end_at=query.end_at,
                    width=query.width,
                    project_ids=_visible(principal, query.project_ids),
                    key_ids=query.key_ids,
                    models=query.models,
                    lanes=query.lanes,
                    group_by=query.group_by,
                    limit=query.limit,
                    page=query.page,
                )
            )
        return _answer(anthropic_usage_api.usage_page(found))

    @get("/v1/organizations/cost_report", opt={SURFACE: "anthropic"})
    async def get_cost_report(request: Request[Any, Any, Any]) -> Response[bytes]:
        """Exact costs by day, as Anthropic has them."""
        principal = of(request.scope).known_principal
        query = _query(request, anthropic_usage_api.parse_cost)
        if query.empty:
            return _answer(anthropic_usage_api.no_page())
        with _refusing(_ANTHROPIC_NAMES):
            found = await wait(
                cost_buckets(
                    database,
                    prices,
                    principal.tenant_id,
                    start_at=query.start_at,
                    end_at=query.end_at,
                    project_ids=_visible(principal, None),
                    group_by=query.group_by,
                    limit=query.limit,
                    limits=anthropic_usage_api.COST_LIMITS,
                    page=query.page,
                )
            )
        return _answer(anthropic_usage_api.cost_page(found))

    return [get_completions_usage, get_costs, get_messages_usage, get_cost_report]


_ANTHROPIC_NAMES = {"start_time": "starting_at"}


def _query(request: Request[Any, Any, Any], parse: Callable[[Parameters], Query]) -> Query:
    given = Parameters(request.query_params.dict())
    query = parse(given)
    given.nothing_else()
    return query


@contextmanager
def _refusing(names: dict[str, str]) -> Iterator[None]:
    """A report that cannot be becomes an invalid request; `names` are what the surface calls some parameters."""
    try:
        yield
    except InvalidReport as error:
        path = names.get(error.parameter, error.parameter)
        raise InvalidRequest(f"{path}: {error.problem}.", path=path, code="invalid_value") from error


def _answer(body: bytes) -> Response[bytes]:
    return Response(body, media_type=MediaType.JSON)


def _visible(principal: Principal, asked: list[UUID] | None) -> list[UUID] | None:
    """The projects to report on, None for all of the tenant's. Foreign ones are as good as unused."""
    if principal.project_id is None:
        return asked
    return [principal.project_id] if asked is None or principal.project_id in asked else []
