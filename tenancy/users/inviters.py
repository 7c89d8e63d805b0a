"""Whether whoever made an invitation may still give its role: an invitation ends with its inviter's right."""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from storage.database.base import new_id, to_instant
from storage.database.public_ids import prefixed_id
from tenancy.rights.key_limits import decode_limits
from tenancy.rights.principals import Membership, Principal
from tenancy.tables import ApiKey
from tenancy.users.identifiers import USER_PREFIX
from tenancy.users.roles import may_give
from tenancy.users.sessions import memberships_of
from tenancy.users.tables import OneTimeToken, UserAccount


async def may_still_invite(session: AsyncSession, row: OneTimeToken) -> bool:
    """Whether the maker of this invitation may give its role now: it is no more if it was removed, demoted, disabled,
    revoked or limited since."""
    if not row.created_by_id:
        return True
    inviter = await _principal(session, row.created_by_id)
    return inviter is not None and may_give(inviter, row.role, row.tenant_id, row.project_id)  # type: ignore[arg-type]


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
