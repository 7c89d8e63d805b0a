"""Usage and cost reports in both vendors' formats. A project's key sees its project, an admin key the whole tenant."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar
from uuid import UUID

from litestar import Request, Response, get
from litestar.handlers import HTTPRouteHandler
from msgspec.structs import asdict

from billing.reports.cost_report import CostPage, cost_buckets
from billing.reports.usage_report import InvalidReport, UsagePage, usage_buckets
from gateway.dialects.anthropic import usage as anthropic_usage
from gateway.dialects.openai import usage as openai_usage
from gateway.dialects.query_parameters import Parameters
from gateway.dialects.usage_reports import CostQuery, UsageQuery
from gateway.endpoints.report_parameters import (
    ANTHROPIC_COSTS,
    ANTHROPIC_USAGE,
    OPENAI_COSTS,
    OPENAI_USAGE,
)
from gateway.errors import InvalidField
from gateway.http.authentication import own_tenant
from gateway.http.operations import describes
from gateway.http.policies import demands
from gateway.http.responses import json_response
from gateway.request_context import request_context
from gateway.services import Gateway
from tenancy.rights.principals import Principal

Query = TypeVar("Query")
_ANTHROPIC_NAMES = {"start_time": "starting_at"}
"""Our name of a parameter -> Anthropic's, where they differ."""


def usage_routes(gateway: Gateway) -> list[HTTPRouteHandler]:
    """The routes, for one worker."""
    database, prices = gateway.services.database, gateway.services.prices

    async def usage(
        request: Request[Any, Any, Any],
        parse: Callable[[Parameters], UsageQuery | None],
        names: dict[str, str],
    ) -> UsagePage:
        principal, query = _principal_and_query(request, parse)
        if query is None:
            return UsagePage([], None)
        arguments = asdict(query) | {"project_ids": _visible(principal, query.project_ids)}
        with _invalid_report_as_request(names):
            return await usage_buckets(database, own_tenant(request.scope), **arguments)

    async def costs(
        request: Request[Any, Any, Any], parse: Callable[[Parameters], CostQuery | None], names: dict[str, str]
    ) -> CostPage:
        principal, query = _principal_and_query(request, parse)
        if query is None:
            return CostPage([], None)
        arguments = asdict(query) | {"project_ids": _visible(principal, query.project_ids)}
        with _invalid_report_as_request(names):
            return await cost_buckets(database, prices, own_tenant(request.scope), **arguments)

    @get(
        "/v1/organization/usage/completions",
        opt=demands("usage.read", dialect="openai")
        | describes(openai_usage.BucketPage[openai_usage.UsageResult], query=OPENAI_USAGE),
    )
    async def get_completions_usage(request: Request[Any, Any, Any]) -> Response[bytes]:
        """OpenAI's usage report: tokens, requests and exact cost by time."""
        return json_response(openai_usage.usage_page(await usage(request, openai_usage.parse_usage, {})))

    @get(
        "/v1/organization/costs",
        opt=demands("usage.read", dialect="openai")
        | describes(openai_usage.BucketPage[openai_usage.CostResult], query=OPENAI_COSTS),
    )
    async def get_costs(request: Request[Any, Any, Any]) -> Response[bytes]:
        """OpenAI's cost report: exact costs by day, and by line item on request."""
        return json_response(openai_usage.costs_page(await costs(request, openai_usage.parse_costs, {})))

    @get(
        "/v1/organizations/usage_report/messages",
        opt=demands("usage.read", dialect="anthropic")
        | describes(anthropic_usage.ReportPage[anthropic_usage.UsageResult], query=ANTHROPIC_USAGE),
    )
    async def get_messages_usage(request: Request[Any, Any, Any]) -> Response[bytes]:
        """Anthropic's usage report: tokens by time."""
        report = await usage(request, anthropic_usage.parse_usage, _ANTHROPIC_NAMES)
        return json_response(anthropic_usage.usage_page(report))

    @get(
        "/v1/organizations/cost_report",
        opt=demands("usage.read", dialect="anthropic")
        | describes(anthropic_usage.ReportPage[anthropic_usage.CostResult], query=ANTHROPIC_COSTS),
    )
    async def get_cost_report(request: Request[Any, Any, Any]) -> Response[bytes]:
        """Anthropic's cost report: exact costs by day."""
        report = await costs(request, anthropic_usage.parse_cost, _ANTHROPIC_NAMES)
        return json_response(anthropic_usage.cost_page(report))

    return [get_completions_usage, get_costs, get_messages_usage, get_cost_report]


def _principal_and_query(
    request: Request[Any, Any, Any], parse: Callable[[Parameters], Query]
) -> tuple[Principal, Query]:
    principal, parameters = request_context(request.scope).authenticated_principal, Parameters.of(request)
    query = parse(parameters)
    parameters.reject_unknown()
    return principal, query


@contextmanager
def _invalid_report_as_request(names: dict[str, str]) -> Iterator[None]:
    """Turn InvalidReport into InvalidRequest. `names`: our name of a parameter -> the dialect's."""
    try:
        yield
    except InvalidReport as error:
        raise InvalidField(names.get(error.parameter, error.parameter), error.problem) from error


def _visible(principal: Principal, requested: list[UUID] | None) -> list[UUID] | None:
    """The projects to report on, None for all of the tenant's. Another tenant's projects have no usage in it."""
    if principal.project_id is None:
        return requested
    return [principal.project_id] if requested is None or principal.project_id in requested else []
