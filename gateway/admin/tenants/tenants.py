"""/admin/v1/tenants and their projects: list, create and look at them."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

import msgspec
from litestar import Request, Response, get, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath
from msgspec import UNSET, Struct, UnsetType, structs

from billing.accounts.balances import Balances
from billing.calendar import format_instant
from gateway.admin.access import (
    list_visible_projects,
    list_visible_tenants,
    partly_visible_tenant,
    principal_of,
    project_named,
    seen_tenant,
    visible_project,
    visible_tenant,
)
from gateway.admin.money.balances import BalanceObject, balance_object
from gateway.admin.refusals import refusals
from gateway.dialects.query_parameters import Parameters
from gateway.endpoints.request_body import read_management_body
from gateway.errors import InvalidField, NotFound
from gateway.http.operations import describes, page, query
from gateway.http.policies import demands
from gateway.http.responses import json_response
from gateway.http.shapes import Page
from gateway.services import Gateway
from storage.database.base import to_instant
from tenancy.directory import project_public_id, tenant_public_id
from tenancy.tables import Project, Tenant


class NewTenant(Struct, frozen=True, forbid_unknown_fields=True):
    """A new tenant. It gets a project `default` and has no money yet."""

    name: str


class NewProject(Struct, frozen=True, forbid_unknown_fields=True):
    """A new project of a tenant. It has no keys yet."""

    name: str


class TenantObject(Struct, frozen=True, kw_only=True):
    """A customer, with money and projects. `suspended_at`: since when its requests are refused, if they are.
    `balance`: in lists that were asked for it; none where your role does not allow it."""

    object: Literal["tenant"] = "tenant"
    id: str
    name: str
    created_at: str
    suspended_at: str | None
    balance: BalanceObject | UnsetType | None = UNSET


class TenantList(Page[TenantObject], frozen=True):
    """Tenants, ordered by name."""


class ProjectObject(Struct, frozen=True, kw_only=True):
    """An isolation domain of a tenant: keys, limits, cache and usage belong to a project. `suspended_at`: since when
    its requests are refused, if they are; those of a suspended tenant's projects are too."""

    object: Literal["project"] = "project"
    id: str
    tenant_id: str
    name: str
    created_at: str
    suspended_at: str | None


class ProjectList(Page[ProjectObject], frozen=True):
    """A tenant's projects, ordered by name."""


_TENANT, _PROJECT = msgspec.json.Decoder(NewTenant), msgspec.json.Decoder(NewProject)


def tenant_routes(gateway: Gateway) -> list[HTTPRouteHandler]:
    """The routes, for one worker."""
    tenancy, client_timeout = gateway.services.tenancy, gateway.services.options.client_timeout
    balances = Balances(gateway.services.database)

    @get(
        "/admin/v1/tenants",
        opt=demands("tenants.read")
        | describes(
            TenantList,
            query=(*page(), query("expand", Literal["balance"], "Each with its balance.")),
        ),
    )
    async def list_tenants(request: Request[Any, Any, Any]) -> Response[bytes]:
        """The tenants that you may see, ordered by name."""
        parameters = Parameters.of(request)
        limit, after = parameters.page_size(), parameters.text("after")
        expands = parameters.choice("expand", ("balance",)) is not None
        parameters.reject_unknown()
        if after is not None:
            after = (await _last_tenant(gateway, request, after)).name
        found, more = await list_visible_tenants(gateway, request, "tenants.read", limit, after)
        objects = [tenant_object(tenant) for tenant in found]
        if expands:
            money = await balances.of_tenants([tenant.id for tenant in found])
            principal = principal_of(request)
            objects = [
                structs.replace(
                    shown,
                    balance=balance_object(money[tenant.id]) if principal.may("balance.read", tenant.id) else None,
                )
                for tenant, shown in zip(found, objects, strict=True)
            ]
        return json_response(TenantList(data=objects, has_more=more))

    @post(
        "/admin/v1/tenants",
        status_code=201,
        opt=demands("tenants.write")
        | describes(TenantObject, status=201, body=NewTenant(name="acme"), errors={"name_taken": 409}),
    )
    async def create_tenant(request: Request[Any, Any, Any]) -> Response[bytes]:
        """Create a tenant with a project `default`."""
        body = await read_management_body(request, client_timeout, _TENANT)
        with refusals():
            tenant, _ = await tenancy.open_tenant(body.name)
        return json_response(tenant_object(tenant), 201)

    @get("/admin/v1/tenants/{tenant:str}", opt=demands("tenants.read") | describes(TenantObject))
    async def retrieve_tenant(request: Request[Any, Any, Any], tenant: FromPath[str]) -> Response[bytes]:
        """One tenant, by its id or name."""
        return json_response(tenant_object(await visible_tenant(gateway, request, tenant, "tenants.read")))

    @get("/admin/v1/tenants/{tenant:str}/projects", opt=demands("projects.read") | describes(ProjectList, query=page()))
    async def list_projects(request: Request[Any, Any, Any], tenant: FromPath[str]) -> Response[bytes]:
        """The tenant's projects that you may see, ordered by name."""
        owner, projects = await partly_visible_tenant(gateway, request, tenant, "projects.read")
        parameters = Parameters.of(request)
        limit, after = parameters.page_size(), parameters.text("after")
        parameters.reject_unknown()
        if after is not None:
            last = await project_named(gateway, owner.id, after)
            if last is None or (projects is not None and last.id not in projects):
                raise InvalidField("after", "there is no such project")
            after = last.name
        found, more = await list_visible_projects(gateway, owner.id, projects, limit, after)
        return json_response(ProjectList(data=[project_object(project) for project in found], has_more=more))

    @post(
        "/admin/v1/tenants/{tenant:str}/projects",
        status_code=201,
        opt=demands("projects.write")
        | describes(ProjectObject, status=201, body=NewProject(name="search"), errors={"name_taken": 409}),
    )
    async def create_project(request: Request[Any, Any, Any], tenant: FromPath[str]) -> Response[bytes]:
        """Create a project of the tenant."""
        owner = await visible_tenant(gateway, request, tenant, "projects.write")
        body = await read_management_body(request, client_timeout, _PROJECT)
        with refusals():
            project = await tenancy.create_project(owner.id, body.name)
        return json_response(project_object(project), 201)

    @get(
        "/admin/v1/tenants/{tenant:str}/projects/{project:str}",
        opt=demands("projects.read") | describes(ProjectObject),
    )
    async def retrieve_project(
        request: Request[Any, Any, Any], tenant: FromPath[str], project: FromPath[str]
    ) -> Response[bytes]:
        """One project of the tenant, by its id or name."""
        _, found = await visible_project(gateway, request, tenant, project, "projects.read")
        return json_response(project_object(found))

    return [list_tenants, create_tenant, retrieve_tenant, list_projects, create_project, retrieve_project]


async def _last_tenant(gateway: Gateway, request: Request[Any, Any, Any], reference: str) -> Tenant:
    """The tenant of a cursor. Raises InvalidField."""
    try:
        return await seen_tenant(gateway, request, reference)
    except NotFound as error:
        raise InvalidField("after", "there is no such tenant") from error


def tenant_object(tenant: Tenant) -> TenantObject:
    """A tenant as answers have it."""
    return TenantObject(
        id=tenant_public_id(tenant.id),
        name=tenant.name,
        created_at=format_instant(to_instant(tenant.created_at)),
        suspended_at=_instant(tenant.suspended_at),
    )


def project_object(project: Project) -> ProjectObject:
    """A project as answers have it."""
    return ProjectObject(
        id=project_public_id(project.id),
        tenant_id=tenant_public_id(project.tenant_id),
        name=project.name,
        created_at=format_instant(to_instant(project.created_at)),
        suspended_at=_instant(project.suspended_at),
    )


def _instant(moment: datetime | None) -> str | None:
    return None if moment is None else format_instant(to_instant(moment))
