"""/admin/v1/tenants/{tenant}/refused-requests: what a tenant's keys asked for and did not get, and why."""

from __future__ import annotations

from typing import Any, Literal

from litestar import Request, Response, get
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath
from msgspec import Struct

from billing.calendar import format_instant
from gateway.admin.access import partly_visible_tenant
from gateway.admin.usage import project_filter
from gateway.dialects.query_parameters import Parameters
from gateway.errors import InvalidField
from gateway.generation.request_history import request_id_of
from gateway.http.operations import describes, page, query
from gateway.http.policies import demands
from gateway.http.responses import json_response
from gateway.http.shapes import Page
from gateway.request_context import public_name
from gateway.services import Gateway
from tenancy.directory import Directory, project_public_id


class RefusedRequestObject(Struct, frozen=True, kw_only=True):
    """A request that was answered with an error before it ran: it was billed nothing. `key` is the key's public id,
    `route` the method and the route's path. A key of the tenant has no project. `message` is what the client was told,
    shortened; nothing of what it sent is kept beside that."""

    object: Literal["request.refused"] = "request.refused"
    id: str
    at: str
    project_id: str | None
    project: str | None
    key: str
    route: str
    status: int
    code: str
    message: str


class RefusedRequestList(Page[RefusedRequestObject], frozen=True):
    """Refused requests, the newest first: at most the last 1,000 of a tenant, for as long as waterfalls are kept."""


def refused_request_routes(gateway: Gateway) -> list[HTTPRouteHandler]:
    """The routes, for one worker."""
    store = gateway.refused_requests.store
    directory = Directory(gateway.services.database)

    @get(
        "/admin/v1/tenants/{tenant:str}/refused-requests",
        opt=demands("requests.read")
        | describes(
            RefusedRequestList,
            query=(
                *page(),
                query("project", str, "Only of this project, by id or name.", repeated=True, example="default"),
                query("key", str, "Only of this key, by its public id.", repeated=True, example="k7WmXq2ZpR4t"),
            ),
        ),
    )
    async def list_refused_requests(request: Request[Any, Any, Any], tenant: FromPath[str]) -> Response[bytes]:
        """What a tenant's keys asked for and were refused, newest first, of the projects that you may see. Of many a
        second some are left out. Refused requests of signed-in users and operators are not among them."""
        owner, visible = await partly_visible_tenant(gateway, request, tenant, "requests.read")
        parameters = Parameters.of(request)
        limit, after = parameters.page_size(), parameters.text("after")
        projects = await project_filter(gateway, owner.id, parameters.texts("project"), visible)
        keys = parameters.texts("key")
        parameters.reject_unknown()
        newest = None if after is None else request_id_of(after)
        if after is not None and newest is None:
            raise InvalidField("after", f"{after[:80]!r} is not the id of a request")
        found = await store.page(owner.id, limit + 1, projects=projects, keys=keys, after=newest)
        shown = found[:limit]
        of_projects = {one.project_id for one in shown if one.project_id is not None}
        names = await directory.project_names(owner.id, of_projects) if of_projects else {}
        data = [
            RefusedRequestObject(
                id=public_name(one.request_id),
                at=format_instant(one.at),
                project_id=None if one.project_id is None else project_public_id(one.project_id),
                project=None if one.project_id is None else names.get(one.project_id),
                key=one.key,
                route=one.route,
                status=one.status,
                code=one.code,
                message=one.message,
            )
            for one in shown
        ]
        return json_response(RefusedRequestList(data=data, has_more=len(found) > limit))

    return [list_refused_requests]
