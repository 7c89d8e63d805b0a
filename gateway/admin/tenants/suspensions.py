"""Suspending and resuming tenants and projects over /admin/v1, by those who run the platform."""

from __future__ import annotations

from typing import Literal
from uuid import UUID

from msgspec import Struct

from gateway.admin.keys.key_objects import key_errors
from gateway.admin.operation import Call, ProjectOfTenant, operation
from gateway.dialects.query_parameters import Parameters
from gateway.http.policies import demands
from gateway.http.shapes import Instant, Page, ProjectId, TenantId, show
from gateway.services import Gateway
from tenancy.administration.suspension import Running, Suspension
from tenancy.tables import Tenant


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
    tenant_id: TenantId
    project_id: ProjectId | None
    suspended: bool
    suspended_at: Instant | None
    running: Running | None
    reason: str


class SuspensionList(Page[SuspensionObject], frozen=True, kw_only=True):
    """Everything that is suspended."""

    has_more: bool = False


_TENANT = "/admin/v1/tenants/{tenant:str}"
_PROJECT = "/admin/v1/tenants/{tenant:str}/projects/{project:str}"
_SUSPENDING, _RESUMING = NewSuspension(running="end", reason="fraud"), Resumption(reason="cleared")


class SuspensionOperations:
    """Lists what is suspended, suspends and resumes."""

    errors = staticmethod(key_errors)

    def __init__(self, gateway: Gateway) -> None:
        self._suspensions = gateway.services.suspensions

    @operation("GET", "/admin/v1/suspensions", demands("tenants.read", platform=True))
    async def list_suspensions(self, call: Call) -> SuspensionList:
        """All tenants and projects that are suspended."""
        Parameters.of(call.request).reject_unknown()
        return SuspensionList(data=[_object(each) for each in await self._suspensions.list()])

    @operation("POST", f"{_TENANT}/suspend", demands("tenants.write"), example=_SUSPENDING, body_required=False)
    async def suspend_tenant(self, tenant: Tenant, body: NewSuspension) -> SuspensionObject:
        """Refuse all requests of a tenant's keys, at every gateway within a second."""
        return await self._suspend(body, tenant.id)

    @operation("POST", f"{_TENANT}/resume", demands("tenants.write"), example=_RESUMING, body_required=False)
    async def resume_tenant(self, tenant: Tenant, body: Resumption) -> SuspensionObject:
        """Admit the requests of a tenant again. Projects that are suspended themselves stay so."""
        return await self._resume(body, tenant.id)

    @operation("POST", f"{_PROJECT}/suspend", demands("tenants.write"), example=_SUSPENDING, body_required=False)
    async def suspend_project(self, project: ProjectOfTenant, body: NewSuspension) -> SuspensionObject:
        """Refuse all requests of a project's keys, at every gateway within a second."""
        return await self._suspend(body, project[0].id, project[1].id)

    @operation("POST", f"{_PROJECT}/resume", demands("tenants.write"), example=_RESUMING, body_required=False)
    async def resume_project(self, project: ProjectOfTenant, body: Resumption) -> SuspensionObject:
        """Admit the requests of a project again."""
        return await self._resume(body, project[0].id, project[1].id)

    async def _suspend(self, body: NewSuspension, tenant_id: UUID, project_id: UUID | None = None) -> SuspensionObject:
        await self._suspensions.suspend(tenant_id, project_id, running=body.running, reason=body.reason)
        return await self._state(tenant_id, project_id)

    async def _resume(self, body: Resumption, tenant_id: UUID, project_id: UUID | None = None) -> SuspensionObject:
        await self._suspensions.resume(tenant_id, project_id, reason=body.reason)
        return await self._state(tenant_id, project_id)

    async def _state(self, tenant_id: UUID, project_id: UUID | None) -> SuspensionObject:
        for each in await self._suspensions.list():
            if (each.tenant_id, each.project_id) == (tenant_id, project_id):
                return _object(each)
        return SuspensionObject(
            tenant_id=TenantId.of(tenant_id),
            project_id=None if project_id is None else ProjectId.of(project_id),
            suspended=False,
            suspended_at=None,
            running=None,
            reason="",
        )


def _object(suspension: Suspension) -> SuspensionObject:
    return show(SuspensionObject, suspension, suspended=True, suspended_at=suspension.since)
