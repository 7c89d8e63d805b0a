"""Roles that a provider's groups or a tenant's directory give: set to what they are to be, and never beyond.

A role that people gave stays as it is; of several that one source gives at one place the highest counts. The last owner
of a place keeps the role, whatever a group says.
"""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from audit_log.record import record_change
from storage.database.base import from_instant
from storage.database.database import Database
from tenancy.rights.permissions import ROLES, Role
from tenancy.rights.principals import Membership
from tenancy.users.accounts import locked_user, membership_row
from tenancy.users.identifiers import user_public_id
from tenancy.users.members import Scope
from tenancy.users.roles import other_owners
from tenancy.users.sessions import end_foreign_access, rotate_sessions
from tenancy.users.tables import MembershipRow

DIRECTORY = "directory"
"""The source of roles that a tenant's directory gives."""


def add_role(wanted: dict[Scope, Role], scope: Scope, role: Role) -> None:
    """Let this role be wanted at this scope, unless a higher one is: in the order of ROLES."""
    present = wanted.get(scope)
    if present is None or ROLES.index(role) < ROLES.index(present):
        wanted[scope] = role


async def set_given_roles(
    session: AsyncSession,
    database: Database,
    user_id: UUID,
    source: str,
    wanted: Mapping[Scope, Role],
    *,
    now: int,
    tenant_id: UUID | None = None,
) -> bool:
    """Set the roles that a source gives a user, in the caller's transaction; whether any changed. `tenant_id`: those at
    this tenant alone; None: at all places that the source may give roles at. The caller announces the change."""
    rows = await _rows(session, user_id, tenant_id)
    losing = [row for row in rows if row.source == source and row.role == "owner" != wanted.get(_scope(row))]
    kept = set()
    for row in losing:  # the owners' rows are locked before the user's, as everywhere
        if row.project_id is None and not await other_owners(session, database, user_id, row.tenant_id):
            kept.add(row.id)
    await locked_user(session, database, user_id)
    rows = await _rows(session, user_id, tenant_id)
    present, more, fewer = {_scope(row) for row in rows}, False, False
    for row in rows:
        role = wanted.get(_scope(row))
        if row.source != source or row.id in kept or row.role == role:
            continue
        if role is None:
            await session.delete(row)
            await _record(session, "member.removed", user_id, _scope(row), source, before=row.role, after=None)
            fewer = True
        else:
            await _record(session, "member.role_changed", user_id, _scope(row), source, before=row.role, after=role)
            row.role, more = role, True
    for scope, role in wanted.items():
        if scope not in present:
            row = membership_row(user_id, Membership(role, scope.tenant_id, scope.project_id), from_instant(now))
            row.source = source
            session.add(row)
            await _record(session, "member.added", user_id, scope, source, before=None, after=role)
            more = True
    if more:
        await end_foreign_access(session, user_id, from_instant(now))
    elif fewer:
        await rotate_sessions(session, user_id)
    return more or fewer


async def _rows(session: AsyncSession, user_id: UUID, tenant_id: UUID | None) -> list[MembershipRow]:
    # all tenants: a provider of the platform gives roles at several
    query = select(MembershipRow).where(MembershipRow.user_id == user_id).execution_options(populate_existing=True)
    if tenant_id is not None:
        query = query.where(MembershipRow.tenant_id == tenant_id)
    return list((await session.execute(query.order_by(MembershipRow.id))).scalars())


def _scope(row: MembershipRow) -> Scope:
    return Scope(row.tenant_id, row.project_id)


async def _record(
    session: AsyncSession,
    action: str,
    user_id: UUID,
    scope: Scope,
    source: str,
    *,
    before: Role | None,
    after: Role | None,
) -> None:
    await record_change(
        session,
        action,
        target="user",
        target_id=user_public_id(user_id),
        tenant_id=scope.tenant_id,
        project_id=scope.project_id,
        before=None if before is None else {"role": before},
        after={"role": after, "given_by": source},
    )
