"""Who may give whom which role: none that allows more than the giver's own, and a scope keeps an owner."""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from storage.database.database import Database
from tenancy.rights.delegation import covers_role
from tenancy.rights.key_limits import NO_LIMITS
from tenancy.rights.permissions import Role
from tenancy.rights.principals import Membership, Principal
from tenancy.users.tables import MembershipRow, UserAccount


def may_give(principal: Principal, role: Role, tenant_id: UUID | None, project_id: UUID | None) -> bool:
    """Whether the principal may give this role at this scope. A key with limits may not: whom it lets in would not have
    them."""
    limited = principal.permissions is not None or principal.expires_at is not None or principal.limits != NO_LIMITS
    return not limited and may_take(principal, role, tenant_id, project_id)


def may_take(principal: Principal, role: Role, tenant_id: UUID | None, project_id: UUID | None) -> bool:
    """Whether the principal may take away this role at this scope: it takes a role that allows as much."""
    return principal.may("members.write", tenant_id, project_id) and covers_role(principal, role, tenant_id, project_id)


def may_take_over(principal: Principal, memberships: Iterable[Membership]) -> bool:
    """Whether the principal may reset the password of a user with these roles, or disable it.

    That gives whatever the user may do, so the principal must be able to give all of it: a tenant's owner may do it to
    those who belong to the tenant alone.
    """
    roles = tuple(memberships)
    if not roles:
        return principal.may("members.write")
    return all(may_give(principal, one.role, one.tenant_id, one.project_id) for one in roles)


async def other_owners(session: AsyncSession, database: Database, user_id: UUID, tenant_id: UUID | None) -> bool:
    """Whether the platform, or this tenant, has an owner beside this user who may sign in. The owners' rows are locked,
    so that of two owners who leave at once one stays."""
    at_scope = MembershipRow.project_id.is_(None) & (
        MembershipRow.tenant_id.is_(None) if tenant_id is None else MembershipRow.tenant_id == tenant_id
    )
    owners = select(MembershipRow.user_id).where(at_scope, MembershipRow.role == "owner").order_by(MembershipRow.id)
    ids = set((await session.execute(database.locked(owners))).scalars()) - {user_id}
    if not ids:
        return False
    # Their accounts too, so that none of them is disabled meanwhile.
    accounts = select(UserAccount.disabled_at).where(UserAccount.id.in_(ids)).order_by(UserAccount.id)
    return any(at is None for at in (await session.execute(database.locked(accounts))).scalars())
