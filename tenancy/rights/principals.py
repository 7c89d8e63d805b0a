"""Who asks, and what they may do: the holder of a key, a signed-in user, or a command on this machine."""

from __future__ import annotations

from typing import Literal, TypeAlias
from uuid import UUID

from msgspec import Struct

from audit_log.actors import person_of
from tenancy.rights.key_limits import NO_LIMITS, KeyLimits
from tenancy.rights.permissions import PLATFORM_ONLY, PROJECT_KEY_PERMISSIONS, ROLE_PERMISSIONS, Permission, Role

PrincipalKind: TypeAlias = Literal["project_key", "admin_key", "operator_key", "session", "command"]


class Membership(Struct, frozen=True):
    """A role at a scope: a project of a tenant, a whole tenant, or without either the platform."""

    role: Role
    tenant_id: UUID | None = None
    project_id: UUID | None = None


class Principal(Struct, frozen=True):
    """Who asks. `id` is the key's or the session's; `public_id` may be logged; `name` is for people to read.

    `tenant_id` and `project_id` are those that a tenant's key belongs to, with their names; a session or an operator's
    key has neither. `permissions` narrows what the memberships allow: a key's scopes; None: no narrowing. `limits` are
    the key's, with the same scopes; `expires_at` is when it ends (microseconds since the Unix epoch). `old_secret`: the
    key was rotated, and the secret from before was presented. `user`: the public id of the user who is signed in, or
    whose an operator's key is.
    """

    kind: PrincipalKind
    id: UUID
    public_id: str
    name: str = ""
    memberships: tuple[Membership, ...] = ()
    tenant_id: UUID | None = None
    tenant: str | None = None
    project_id: UUID | None = None
    project: str | None = None
    permissions: frozenset[Permission] | None = None
    limits: KeyLimits = NO_LIMITS
    expires_at: int | None = None
    old_secret: bool = False
    user: str = ""

    @property
    def person(self) -> str:
        """Who that is, by what stays (`audit_log.actors.person_of`)."""
        return person_of(self.name, self.user)

    def may(self, permission: Permission, tenant_id: UUID | None = None, project_id: UUID | None = None) -> bool:
        """Whether it may do this to what belongs to this project, this tenant or, without either, the platform."""
        if self.permissions is not None and permission not in self.permissions:
            return False
        return any(self._gives(one, permission, tenant_id, project_id) for one in self.memberships)

    def may_anywhere(self, permission: Permission) -> bool:
        """Whether there is anything that it may do this to."""
        return any(self.may(permission, one.tenant_id, one.project_id) for one in self.memberships)

    def _gives(self, one: Membership, permission: Permission, tenant_id: UUID | None, project_id: UUID | None) -> bool:
        if self.kind == "project_key":
            allowed = permission in PROJECT_KEY_PERMISSIONS
        else:
            allowed = one.role in ROLE_PERMISSIONS[permission]
        if not allowed or (permission in PLATFORM_ONLY and one.tenant_id is not None):
            return False
        return one.tenant_id in (None, tenant_id) and one.project_id in (None, project_id)
