"""Who has which role where: members of the platform, a tenant or a project are listed, added, changed and removed."""

from __future__ import annotations

from uuid import UUID

from msgspec import Struct
from sqlalchemy import ColumnElement, select
from sqlalchemy.ext.asyncio import AsyncSession

from audit_log.record import record_change
from storage.database.base import from_instant, to_instant
from storage.database.database import Database
from tenancy.rights.permissions import Role
from tenancy.rights.principals import Membership, Principal
from tenancy.users.accounts import TOTP, locked_user, membership_row, scope_name
from tenancy.users.changes import UserChanges
from tenancy.users.errors import LastOwner, NoSuchUser, NotPermitted, WrongState
from tenancy.users.identifiers import user_public_id
from tenancy.users.roles import may_give, may_take, other_owners
from tenancy.users.sessions import end_foreign_access, rotate_sessions
from tenancy.users.tables import Credential, MembershipRow, UserAccount


class Scope(Struct, frozen=True):
    """Where a role is held: a project of a tenant, a tenant, or without either the platform."""

    tenant_id: UUID | None = None
    project_id: UUID | None = None

    @property
    def name(self) -> str:
        """The scope's name, unique among all."""
        return scope_name(self.tenant_id, self.project_id)


class Member(Struct, frozen=True):
    """A user with its role at a scope. `since`: microseconds since the Unix epoch."""

    user_id: UUID
    email: str
    name: str
    role: Role
    since: int
    disabled: bool
    has_second_factor: bool


class Members:
    """Memberships. A change asks whether the principal may make it, and takes effect at its next request.

    Every method may raise DatabaseUnavailable.
    """

    def __init__(self, database: Database, changes: UserChanges) -> None:
        self._database = database
        self._changes = changes

    async def at(self, scope: Scope) -> list[Member]:
        """Who has a role at this very scope, ordered by e-mail address."""
        query = (
            select(MembershipRow, UserAccount)
            .join(UserAccount, UserAccount.id == MembershipRow.user_id)
            .where(MembershipRow.scope == scope.name)
            .order_by(UserAccount.email)
        )
        async with self._database.reading() as session:
            rows = (await session.execute(query)).all()
            with_totp = await _with_second_factor(session, [row[1].id for row in rows])
        return [
            Member(
                user.id,
                user.email,
                user.name,
                row.role,
                to_instant(row.created_at),
                user.disabled_at is not None,
                user.id in with_totp,
            )
            for row, user in rows
        ]

    async def set(self, by: Principal, user_id: UUID, scope: Scope, role: Role, now: int) -> None:
        """Give a user that `by` may know of this role at this scope, in place of the one it has there.

        Raises NoSuchUser, NotPermitted, LastOwner.
        """
        async with self._database.transaction() as session:
            row = await self._membership(session, user_id, scope)
            if row is None and not await _knows(session, by, user_id, scope):
                raise NoSuchUser(f"there is no user {user_public_id(user_id)}")
            if row is not None and row.role == role:
                return
            _check_permitted(by, user_id, scope, role, *(() if row is None else (row.role,)))
            row = await self._locked(session, user_id, row, scope)
            if row is None:
                before = None
                new = membership_row(user_id, Membership(role, scope.tenant_id, scope.project_id), from_instant(now))
                session.add(new)
            elif row.role == role:
                return
            else:
                _check_permitted(by, user_id, scope, row.role)
                before, row.role = {"role": row.role}, role
            action = "member.added" if row is None else "member.role_changed"
            await _record(session, action, user_id, scope, before=before, after={"role": role})
            await end_foreign_access(session, user_id, from_instant(now))
        await self._changes.announce(user_id)

    async def remove(self, by: Principal, user_id: UUID, scope: Scope, *, own: bool = False) -> None:
        """Take a user's role at this scope away. `own`: it is the user itself who leaves, which needs no permission.

        Raises NoSuchUser, NotPermitted, LastOwner.
        """
        async with self._database.transaction() as session:
            row = _removable(by, await self._membership(session, user_id, scope), user_id, scope, own=own)
            row = _removable(by, await self._locked(session, user_id, row, scope), user_id, scope, own=own)
            await session.delete(row)
            await _record(session, "member.removed", user_id, scope, before={"role": row.role}, after=None)
            await rotate_sessions(session, user_id)
        await self._changes.announce(user_id)

    async def _membership(self, session: AsyncSession, user_id: UUID, scope: Scope) -> MembershipRow | None:
        where = (MembershipRow.user_id == user_id) & (MembershipRow.scope == scope.name)
        query = select(MembershipRow).where(where).execution_options(populate_existing=True)
        return (await session.execute(query)).scalar_one_or_none()

    async def _locked(
        self, session: AsyncSession, user_id: UUID, seen: MembershipRow | None, scope: Scope
    ) -> MembershipRow | None:
        """A membership that is about to change, as it is now, with its user locked: of two changes the second sees the
        first. `seen`: as it was read without a lock. Raises NoSuchUser, LastOwner.

        Who locks both takes the owners' rows before the user's, as `Accounts` does.
        """
        was_owner = seen is not None and seen.role == "owner"
        if was_owner:
            await self._check_owners(session, user_id, scope)
        await locked_user(session, self._database, user_id)
        row = await self._membership(session, user_id, scope)
        if row is not None and row.role == "owner" and not was_owner:
            await self._check_owners(session, user_id, scope)
        return row

    async def _check_owners(self, session: AsyncSession, user_id: UUID, scope: Scope) -> None:
        """Raise LastOwner where the platform or a tenant would be left without one, if this one went.

        A project needs none of its own: the tenant's owners own it.
        """
        if scope.project_id is not None or await other_owners(session, self._database, user_id, scope.tenant_id):
            return
        where = "platform" if scope.tenant_id is None else "tenant"
        raise LastOwner(f"this is the last owner of the {where}: make another one first")


def _removable(by: Principal, row: MembershipRow | None, user_id: UUID, scope: Scope, *, own: bool) -> MembershipRow:
    """The membership, if there is one that `by` may take away. Raises NoSuchUser, NotPermitted."""
    if row is None:
        raise NoSuchUser(f"{user_public_id(user_id)} has no role here")
    if not own and not may_take(by, row.role, scope.tenant_id, scope.project_id):
        raise _refusal(row.role)
    return row


def _check_permitted(by: Principal, user_id: UUID, scope: Scope, *roles: Role) -> None:
    if by.public_id == user_public_id(user_id):
        raise WrongState("nobody changes the own role: ask another owner or admin")
    for role in roles:
        if not may_give(by, role, scope.tenant_id, scope.project_id):
            raise _refusal(role)


def _refusal(role: Role) -> NotPermitted:
    return NotPermitted(f"your role does not let you give or take away the role {role} here")


async def _knows(session: AsyncSession, by: Principal, user_id: UUID, scope: Scope) -> bool:
    """Whether `by` sees a user that it wants to give a role: operators see all, others those of their tenant."""
    if by.may("members.read"):
        return await session.get(UserAccount, user_id) is not None
    same_tenant: ColumnElement[bool] = MembershipRow.tenant_id == scope.tenant_id
    found = await session.execute(
        select(MembershipRow.tenant_id, MembershipRow.project_id).where(MembershipRow.user_id == user_id, same_tenant)
    )
    return any(by.may("members.read", row.tenant_id, row.project_id) for row in found)


async def _with_second_factor(session: AsyncSession, users: list[UUID]) -> frozenset[UUID]:
    where = (Credential.kind == TOTP) & Credential.confirmed_at.is_not(None) & Credential.user_id.in_(users)
    return frozenset((await session.execute(select(Credential.user_id).where(where))).scalars())


async def _record(
    session: AsyncSession, action: str, user_id: UUID, scope: Scope, *, before: object, after: object
) -> None:
    await record_change(
        session,
        action,
        target="user",
        target_id=user_public_id(user_id),
        tenant_id=scope.tenant_id,
        project_id=scope.project_id,
        before=before,
        after=after,
    )
