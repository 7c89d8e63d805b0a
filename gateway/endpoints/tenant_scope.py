"""Where routes of a tenant lie, and how a request says which tenant: the same handlers serve /v1 and /admin/v1."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any
from uuid import UUID

from litestar import Request

from gateway.http.authentication import own_tenant
from gateway.http.policies import demands
from tenancy.rights.permissions import Permission


class TenantScope(ABC):
    """Routes begin with `base`."""

    base: str

    @abstractmethod
    def demands(self, permission: Permission) -> dict[str, Any]:
        """A handler's `opt` with the policy of this permission."""

    @abstractmethod
    async def tenant(self, request: Request[Any, Any, Any], permission: Permission) -> UUID:
        """The tenant that a request concerns, where it has this permission. Raises NotFound, NotAllowed."""


class OwnTenant(TenantScope):
    """/v1: the tenant is that of the admin key."""

    base = "/v1"

    def demands(self, permission: Permission) -> dict[str, Any]:
        return demands(permission, "admin_key")

    async def tenant(self, request: Request[Any, Any, Any], permission: Permission) -> UUID:
        return own_tenant(request.scope)
