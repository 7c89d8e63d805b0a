"""Suspending and resuming tenants and projects over /admin/v1, by those who run the platform."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from litestar import Request, Response, get, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath
from msgspec import Struct

from billing.calendar import format_instant
from gateway.admin.access import visible_project, visible_tenant
from gateway.admin.keys.key_objects import key_errors
from gateway.dialects.query_parameters import Parameters
from gateway.endpoints.request_body import read_management_body
from gateway.http.operations import describes
from gateway.http.policies import demands
from gateway.http.responses import json_response
from gateway.http.shapes import Page
from gateway.services import Gateway
from storage.database.base import to_instant
from tenancy.administration.suspension import Running, Suspension
from tenancy.directory import project_public_id, tenant_public_id


class NewSuspension(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`running`: whether the requests that run now `finish`, or `end`, billed for what was delivered. The reason is
    kept in the audit log and not shown to the tenant."""

    running: Running = "finish"
    reason: str = ""


class Resumption(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Why requests are admitted again; kept in the audit log."""

    reason: str = ""


class SuspensionObject(Struct, frozen=True, kw_only=True):
    """A tenant, or with `project_id` a project, whose requests are refused."""

    object: Literal["suspension"] = "suspension"
    tenant_id: str
    project_id: str | None
    suspended: bool
    suspended_at: str | None
    running: Running | None
    reason: str


class SuspensionList(Page[SuspensionObject], frozen=True, kw_only=True):
    """Everything that is suspended."""

    has_more: bool = False


_SUSPENSION, _RESUMPTION = msgspec.json.Decoder(NewSuspension), msgspec.json.Decoder(Resumption)
_TENANT = "/admin/v1/tenants/{tenant:str}"
_PROJECT = "/admin/v1/tenants/{tenant:str}/projects/{project:str}"


def suspension_routes(gateway: Gateway) -> list[HTTPRouteHandler]:
    """The routes, for one worker."""
    suspensions, client_timeout = gateway.services.suspensions, gateway.services.options.client_timeout
    suspending = demands("tenants.write") | describes(
        SuspensionObject, body=NewSuspension(running="end", reason="fraud"), body_required=False
    )
    resuming = demands("tenants.write") | describes(
        SuspensionObject, body=Resumption(reason="cleared"), body_required=False
    )

    async def state(tenant_id: Any, project_id: Any = None) -> Response[bytes]:
        for one in await suspensions.list():
            if (one.tenant_id, one.project_id) == (tenant_id, project_id):
                return json_response(_object(one))
        nothing = SuspensionObject(
            tenant_id=tenant_public_id(tenant_id),
            project_id=None if project_id is None else project_public_id(project_id),
            suspended=False,
            suspended_at=None,
            running=None,
            reason="",
        )
        return json_response(nothing)

    async def suspend(request: Request[Any, Any, Any], tenant_id: Any, project_id: Any = None) -> Response[bytes]:
        body = await read_management_body(request, client_timeout, _SUSPENSION, default=b"{}")
        with key_errors():
            await suspensions.suspend(tenant_id, project_id, running=body.running, reason=body.reason)
        return await state(tenant_id, project_id)

    async def resume(request: Request[Any, Any, Any], tenant_id: Any, project_id: Any = None) -> Response[bytes]:
        body = await read_management_body(request, client_timeout, _RESUMPTION, default=b"{}")
        with key_errors():
            await suspensions.resume(tenant_id, project_id, reason=body.reason)
        return await state(tenant_id, project_id)

    @get("/admin/v1/suspensions", opt=demands("tenants.read", platform=True) | describes(SuspensionList))
    async def list_suspensions(request: Request[Any, Any, Any]) -> Response[bytes]:
        """All tenants and projects that are suspended."""
        Parameters.of(request).reject_unknown()
        return json_response(SuspensionList(data=[_object(one) for one in await suspensions.list()]))

    @post(f"{_TENANT}/suspend", status_code=200, opt=suspending)
    async def suspend_tenant(request: Request[Any, Any, Any], tenant: FromPath[str]) -> Response[bytes]:
        """Refuse all requests of a tenant's keys, at every gateway within a second."""
        return await suspend(request, (await visible_tenant(gateway, request, tenant, "tenants.write")).id)

    @post(f"{_TENANT}/resume", status_code=200, opt=resuming)
    async def resume_tenant(request: Request[Any, Any, Any], tenant: FromPath[str]) -> Response[bytes]:
        """Admit the requests of a tenant again. Projects that are suspended themselves stay so."""
        return await resume(request, (await visible_tenant(gateway, request, tenant, "tenants.write")).id)

    @post(f"{_PROJECT}/suspend", status_code=200, opt=suspending)
    async def suspend_project(
        request: Request[Any, Any, Any], tenant: FromPath[str], project: FromPath[str]
    ) -> Response[bytes]:
        """Refuse all requests of a project's keys, at every gateway within a second."""
        owner, found = await visible_project(gateway, request, tenant, project, "tenants.write")
        return await suspend(request, owner.id, found.id)

    @post(f"{_PROJECT}/resume", status_code=200, opt=resuming)
    async def resume_project(
        request: Request[Any, Any, Any], tenant: FromPath[str], project: FromPath[str]
    ) -> Response[bytes]:
        """Admit the requests of a project again."""
        owner, found = await visible_project(gateway, request, tenant, project, "tenants.write")
        return await resume(request, owner.id, found.id)

    return [list_suspensions, suspend_tenant, resume_tenant, suspend_project, resume_project]


def _object(one: Suspension) -> SuspensionObject:
    return SuspensionObject(
        tenant_id=tenant_public_id(one.tenant_id),
        project_id=None if one.project_id is None else project_public_id(one.project_id),
        suspended=True,
        suspended_at=format_instant(to_instant(one.since)),
        running=one.running,
        reason=one.reason,
    )
