"""Who may give whom which role: none that allows more than the giver's own, and a scope keeps an owner. An invitation
ends with its inviter's right."""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from storage.database.base import new_id, to_instant
from storage.database.database import Database
from storage.database.public_ids import prefixed_id
from tenancy.rights.delegation import covers_role
from tenancy.rights.key_limits import NO_LIMITS, decode_limits
from tenancy.rights.permissions import Role
from tenancy.rights.principals import Membership, Principal
from tenancy.tables import ApiKey
from tenancy.users.identifiers import USER_PREFIX
from tenancy.users.sessions import memberships_of
from tenancy.users.tables import MembershipRow, OneTimeToken, UserAccount


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


async def may_still_invite(session: AsyncSession, row: OneTimeToken) -> bool:
    """Whether the maker of this invitation may give its role now: it is no more if it was removed, demoted, disabled,
    revoked or limited since."""
    return await may_still_give(session, row.created_by_id, row.role, row.tenant_id, row.project_id)


async def may_still_give(
    session: AsyncSession, maker: str, role: str, tenant_id: UUID | None, project_id: UUID | None
) -> bool:
    """Whether who has this public id may give this role here now. Empty: a command, which may."""
    if not maker:
        return True
    principal = await _principal(session, maker)
    return principal is not None and may_give(principal, role, tenant_id, project_id)  # type: ignore[arg-type]


async def _principal(session: AsyncSession, public_id: str) -> Principal | None:
    """A user or a key as it is now; None if it may do nothing."""
    user_id = prefixed_id(public_id, USER_PREFIX)
    if user_id is not None:
        user = await session.get(UserAccount, user_id)
        if user is None or user.disabled_at is not None:
            return None
        return Principal("session", new_id(), public_id, memberships=await memberships_of(session, user_id))
    # all tenants: the key is named by what it made
    key = (await session.execute(select(ApiKey).where(ApiKey.public_id == public_id))).scalar_one_or_none()
    if key is None or key.revoked_at is not None or key.kind == "project":
        return None
    limits = decode_limits(key.limits)
    return Principal(
        "operator_key" if key.kind == "operator" else "admin_key",
        key.id,
        public_id,
        memberships=(Membership(key.role or "owner", key.tenant_id),),  # type: ignore[arg-type]  # only roles are kept
        permissions=None if limits.permissions is None else frozenset(limits.permissions),
        limits=limits,
        expires_at=None if key.expires_at is None else to_instant(key.expires_at),
    )
