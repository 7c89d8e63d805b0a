"""/admin/v1/tenants and their projects: list, create and look at them."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

from billing.accounts.balances import Balances
from gateway.admin.access import (
    PartOfTenant,
    list_visible_projects,
    list_visible_tenants,
    project_named,
    seen_tenant,
)
from gateway.admin.money.balances import BalanceObject, balance_object
from gateway.admin.operation import Call, ProjectOfTenant, Query, operation
from gateway.errors import InvalidField, NotFound
from gateway.http.policies import demands
from gateway.http.shapes import Instant, Page, PageQuery, ProjectId, TenantId, show
from gateway.services import Gateway
from tenancy.tables import Tenant


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
    id: TenantId
    name: str
    created_at: Instant
    suspended_at: Instant | None
    balance: BalanceObject | UnsetType | None = UNSET


class TenantList(Page[TenantObject], frozen=True):
    """Tenants, ordered by name."""


class ProjectObject(Struct, frozen=True, kw_only=True):
    """An isolation domain of a tenant: keys, limits, cache and usage belong to a project. `suspended_at`: since when
    its requests are refused, if they are; those of a suspended tenant's projects are too."""

    object: Literal["project"] = "project"
    id: ProjectId
    tenant_id: TenantId
    name: str
    created_at: Instant
    suspended_at: Instant | None


class ProjectList(Page[ProjectObject], frozen=True):
    """A tenant's projects, ordered by name."""


_TENANTS = "/admin/v1/tenants"
_PROJECTS = f"{_TENANTS}/{{tenant:str}}/projects"
_TAKEN = {"name_taken": 409}


class TenantOperations:
    """Lists and creates tenants and their projects."""

    def __init__(self, gateway: Gateway) -> None:
        self._tenancy, self._balances = gateway.services.tenancy, Balances(gateway.services.database)

    @operation("GET", _TENANTS, demands("tenants.read"))
    async def list_tenants(
        self,
        call: Call,
        page: PageQuery,
        expand: Annotated[Literal["balance"] | None, Query("Each with its balance.")] = None,
    ) -> TenantList:
        """The tenants that you may see, ordered by name."""
        after = None if page.after is None else (await _last_tenant(call, page.after)).name
        tenants, more = await list_visible_tenants(call.gateway, call.request, "tenants.read", page.limit, after)
        objects = [show(TenantObject, tenant) for tenant in tenants]
        if expand is not None:
            money = await self._balances.of_tenants([tenant.id for tenant in tenants])
            may = call.principal.may
            objects = [
                replace(whole, balance=balance_object(money[tenant.id]) if may("balance.read", tenant.id) else None)
                for tenant, whole in zip(tenants, objects, strict=True)
            ]
        return TenantList(data=objects, has_more=more)

    @operation("POST", _TENANTS, demands("tenants.write"), status=201, example=NewTenant(name="acme"), errors=_TAKEN)
    async def create_tenant(self, body: NewTenant) -> TenantObject:
        """Create a tenant with a project `default`."""
        tenant, _ = await self._tenancy.open_tenant(body.name)
        return show(TenantObject, tenant)

    @operation("GET", f"{_TENANTS}/{{tenant:str}}", demands("tenants.read"))
    async def retrieve_tenant(self, tenant: Tenant) -> TenantObject:
        """One tenant, by its id or name."""
        return show(TenantObject, tenant)

    @operation("GET", _PROJECTS, demands("projects.read"))
    async def list_projects(self, call: Call, tenant: PartOfTenant, page: PageQuery) -> ProjectList:
        """The tenant's projects that you may see, ordered by name."""
        owner, visible = tenant
        after = page.after
        if after is not None:
            last = await project_named(call.gateway, owner.id, after)
            if last is None or (visible is not None and last.id not in visible):
                raise InvalidField("after", "there is no such project")
            after = last.name
        projects, more = await list_visible_projects(call.gateway, owner.id, visible, page.limit, after)
        return ProjectList(data=[show(ProjectObject, project) for project in projects], has_more=more)

    @operation("POST", _PROJECTS, demands("projects.write"), status=201, example=NewProject("search"), errors=_TAKEN)
    async def create_project(self, tenant: Tenant, body: NewProject) -> ProjectObject:
        """Create a project of the tenant."""
        return show(ProjectObject, await self._tenancy.create_project(tenant.id, body.name))

    @operation("GET", f"{_PROJECTS}/{{project:str}}", demands("projects.read"))
    async def retrieve_project(self, project: ProjectOfTenant) -> ProjectObject:
        """One project of the tenant, by its id or name."""
        return show(ProjectObject, project[1])


async def _last_tenant(call: Call, reference: str) -> Tenant:
    """The tenant of a cursor. Raises InvalidField."""
    try:
        return await seen_tenant(call.gateway, call.request, reference)
    except NotFound as error:
        raise InvalidField("after", "there is no such tenant") from error
