"""Routes of one tenant below /admin/v1, which names it in the path."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from litestar import Request

from gateway.admin.access import visible_tenant
from gateway.endpoints.tenant_scope import TenantScope
from gateway.http.policies import demands
from gateway.services import Gateway
from tenancy.rights.permissions import Permission


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
