"""GET /v1/organization/usage/completions: a project's key sees its project, an admin key its tenant."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import msgspec
from litestar import MediaType, Request, Response, get
from litestar.handlers import HTTPRouteHandler

from billing.reports import InvalidReport, usage_buckets
from gateway.dialects import openai_usage
from gateway.failures import InvalidRequest
from gateway.request_scope import of
from gateway.services import Gateway
from gateway.tenancy.authenticator import Principal


def completions_usage(gateway: Gateway) -> HTTPRouteHandler:
    """The route, for one worker."""
    database = gateway.services.database

    @get("/v1/organization/usage/completions")
    async def get_completions_usage(request: Request[Any, Any, Any]) -> Response[bytes]:
        """Tokens, requests and exact cost by bucket of time."""
        principal = of(request.scope).known_principal
        query = openai_usage.parse(request.query_params.dict())
        try:
            found = await usage_buckets(
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
        except InvalidReport as error:
            raise InvalidRequest(f"{error}.", path=error.parameter, code="invalid_value") from error
        return Response(msgspec.json.encode(openai_usage.page(found)), media_type=MediaType.JSON)

    return get_completions_usage


def _visible(principal: Principal, asked: list[UUID] | None) -> list[UUID] | None:
    """The projects to report on, None for all of the tenant's. Foreign ones are as good as unused."""
    if principal.project_id is None:
        return asked
    return [principal.project_id] if asked is None or principal.project_id in asked else []
