"""Which tenants and projects a request may see, and what it may do there.

A tenant or project that the principal has no role in answers 404, as one that does not exist, so that nobody learns
names. One that it may see, but where it may not do this, answers 403.
"""

from __future__ import annotations

from typing import Any, TypeAlias
from uuid import UUID

from litestar import Request

from billing.platform_settings import APPROVALS, PlatformSettings
from gateway.endpoints.tenant_scope import TenantScope
from gateway.errors import NotAllowed, NotFound
from gateway.http.authentication import check_not_suspended
from gateway.http.policies import SAFE_METHODS, demands
from gateway.request_context import request_context
from gateway.services import Gateway
from tenancy.directory import Directory
from tenancy.rights.permissions import Permission
from tenancy.rights.principals import Principal
from tenancy.tables import Project, Tenant

PartOfTenant: TypeAlias = tuple[Tenant, frozenset[UUID] | None]
"""A tenant, and those of its projects that are meant; None: the whole tenant."""
_SHOWN = 80
"""Characters of an unknown name that an error message repeats."""


def principal_of(request: Request[Any, Any, Any]) -> Principal:
    """Who sent an authenticated request."""
    return request_context(request.scope).authenticated_principal


async def visible_tenant(
    gateway: Gateway, request: Request[Any, Any, Any], reference: str, permission: Permission
) -> Tenant:
    """The tenant of a path, which is its name or `tenant_<hex>`, where the principal has this permission for the whole
    tenant. Raises NotFound, NotAllowed, DatabaseUnavailable."""
    tenant = await seen_tenant(gateway, request, reference)
    if not principal_of(request).may(permission, tenant.id):
        raise refusal(permission)
    return tenant


class NamedTenant(TenantScope):
    """/admin/v1/tenants/{tenant}: whoever has a role there that allows it, or one on the platform."""

    base = "/admin/v1/tenants/{tenant:str}"

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    def demands(self, permission: Permission) -> dict[str, Any]:
        return demands(permission)

    async def tenant(self, request: Request[Any, Any, Any], permission: Permission) -> UUID:
        owner = await visible_tenant(self._gateway, request, request.path_params["tenant"], permission)
        return owner.id


async def partly_visible_tenant(
    gateway: Gateway, request: Request[Any, Any, Any], reference: str, permission: Permission
) -> PartOfTenant:
    """As `visible_tenant`, but the permission may be for some projects only: their ids; None: the whole tenant."""
    tenant = await seen_tenant(gateway, request, reference)
    projects = allowed_projects(principal_of(request), permission, tenant.id)
    if projects is not None and not projects:
        raise refusal(permission)
    return tenant, projects


async def visible_project(
    gateway: Gateway, request: Request[Any, Any, Any], tenant_reference: str, reference: str, permission: Permission
) -> tuple[Tenant, Project]:
    """The project of a path, which is its name or `project_<hex>`, with its tenant, where the principal has this
    permission. Raises NotFound, NotAllowed, DatabaseUnavailable."""
    tenant = await seen_tenant(gateway, request, tenant_reference)
    principal = principal_of(request)
    project = await project_named(gateway, tenant.id, reference)
    if project is None or not _sees(principal, tenant.id, project.id):
        raise NotFound(f"There is no project {reference[:_SHOWN]!r}.")
    if not principal.may(permission, tenant.id, project.id):
        raise refusal(permission)
    return tenant, project


async def seen_tenant(gateway: Gateway, request: Request[Any, Any, Any], reference: str) -> Tenant:
    """The tenant of a path, if the principal has any role in it. Raises NotFound, SuspendedError (where the request
    would change something), DatabaseUnavailable."""
    tenant = await _directory(gateway).tenant(reference)
    if tenant is None or not _sees(principal_of(request), tenant.id):
        raise NotFound(f"There is no tenant {reference[:_SHOWN]!r}.")
    check_may_change(gateway, request, tenant.id)
    return tenant


def check_may_change(gateway: Gateway, request: Request[Any, Any, Any], tenant_id: UUID) -> None:
    """Raise SuspendedError if the request would change something of a tenant that is suspended. Whoever has a role at
    the platform may; the tenant's own people only read."""
    if request.method not in SAFE_METHODS and not any(
        one.tenant_id is None for one in principal_of(request).memberships
    ):
        check_not_suspended(gateway.services.suspensions, tenant_id, None)


async def project_named(gateway: Gateway, tenant_id: UUID, reference: str) -> Project | None:
    """The tenant's project of this name or `project_<hex>`. Raises DatabaseUnavailable."""
    return await _directory(gateway).project(tenant_id, reference)


def allowed_projects(principal: Principal, permission: Permission, tenant_id: UUID) -> frozenset[UUID] | None:
    """The projects of a tenant where the principal has this permission; None: in all of them."""
    if principal.may(permission, tenant_id):
        return None
    return frozenset(
        one.project_id
        for one in principal.memberships
        if one.project_id is not None
        and one.tenant_id == tenant_id
        and principal.may(permission, tenant_id, one.project_id)
    )


def allowed_tenants(principal: Principal, permission: Permission) -> frozenset[UUID] | None:
    """The tenants where the principal has this permission, there or in a project; None: everywhere."""
    if principal.may(permission):
        return None
    return frozenset(
        one.tenant_id
        for one in principal.memberships
        if one.tenant_id is not None and principal.may(permission, one.tenant_id, one.project_id)
    )


async def list_visible_tenants(
    gateway: Gateway, request: Request[Any, Any, Any], permission: Permission, limit: int, after: str | None = None
) -> tuple[list[Tenant], bool]:
    """The tenants where the principal has this permission, there or in a project, ordered by name, and whether there
    are more. `after`: only those of later names. Raises DatabaseUnavailable."""
    ids = allowed_tenants(principal_of(request), permission)
    return await _directory(gateway).tenants(limit, after, ids)


async def list_visible_projects(
    gateway: Gateway, tenant_id: UUID, projects: frozenset[UUID] | None, limit: int, after: str | None = None
) -> tuple[list[Project], bool]:
    """A tenant's projects, of those that `partly_visible_tenant` allows, ordered by name, and whether there are more.
    Raises DatabaseUnavailable."""
    return await _directory(gateway).projects(tenant_id, limit, after, projects)


def refusal(permission: Permission) -> NotAllowed:
    """What answers a principal that may see the object, but not do this."""
    return NotAllowed(f"You may see this, but your role does not allow this here ({permission}).")


async def check_second_operator(gateway: Gateway, what: str) -> None:
    """Raise NotAllowed while approvals are on: nobody alone makes somebody who has a role at the platform, or becomes
    one, since they could then approve what they proposed. `what` begins the message."""
    platform = PlatformSettings(gateway.services.database)
    if await platform.value(APPROVALS) == "on":
        raise NotAllowed(
            f"{what} takes two operators while approvals are on: `turnpike keys …` or `turnpike users …` with "
            "--operator-key-file and --second-operator-key-file.",
            code="second_operator_required",
        )


def _sees(principal: Principal, tenant_id: UUID, project_id: UUID | None = None) -> bool:
    """Whether the principal has a role in the tenant, or one that reaches this project of it."""
    return any(
        one.tenant_id in (None, tenant_id) and (project_id is None or one.project_id in (None, project_id))
        for one in principal.memberships
    )


def _directory(gateway: Gateway) -> Directory:
    return Directory(gateway.services.database)
