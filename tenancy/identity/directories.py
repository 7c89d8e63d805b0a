"""Tenants' directories: the token of a SCIM client, what everybody in it has, and which keys who left has made."""

from __future__ import annotations

import secrets
from collections.abc import Collection
from typing import Any
from uuid import UUID

from msgspec import Struct
from sqlalchemy import delete, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from audit_log.record import record_change
from audit_log.tables import audit_entry
from storage.database.base import from_instant, to_instant
from storage.database.database import Database
from storage.database.public_ids import prefixed_id
from tenancy.identity.tables import Directory, DirectoryGroup, DirectoryMember, DirectoryUser, Passkey
from tenancy.rights.permissions import Role
from tenancy.rights.principals import Principal
from tenancy.tables import ApiKey
from tenancy.users.accounts import PASSWORD
from tenancy.users.errors import NoSuchUser, NotPermitted, WrongState
from tenancy.users.identifiers import USER_PREFIX, user_public_id
from tenancy.users.roles import may_give, may_take
from tenancy.users.sessions import BREAK_GLASS
from tenancy.users.tables import Credential, MembershipRow, SignInPolicy, UserAccount
from tenancy.users.tokens import UserSecrets

TOKEN_PREFIX = "tp_scim_"  # noqa: S105  # what tokens begin with, so that scanners of leaked secrets know them
_USE_US = 60 * 1_000_000
_ROLES: tuple[Role, ...] = ("owner", "admin")


class DirectorySettings(Struct, frozen=True, kw_only=True):
    """A tenant's directory, without its token. Instants in microseconds since the Unix epoch."""

    tenant_id: UUID
    role: Role
    member_role: str
    revoke_keys: bool
    created_at: int
    used_at: int | None


class FormerKey(Struct, frozen=True):
    """A key that works, which somebody made, or saw the secret of, who has no role at the tenant any more."""

    key: str
    name: str
    user: str


class Directories:
    """The directories of all tenants. Every method may raise DatabaseUnavailable."""

    def __init__(self, database: Database, secret: UserSecrets) -> None:
        self._database = database
        self._secrets = secret

    async def create_token(self, by: Principal, tenant_id: UUID, now: int) -> tuple[DirectorySettings, str]:
        """Make a token in place of the one there was; it is shown this once. It gives and takes no more than `by`.

        Raises NotPermitted.
        """
        role = next((one for one in _ROLES if may_give(by, one, tenant_id, None)), None)
        if role is None:
            raise NotPermitted("your role does not let you give roles here")
        token = TOKEN_PREFIX + secrets.token_urlsafe(32)
        async with self._database.transaction() as session:
            row = await session.get(Directory, tenant_id)
            if row is None:
                row = Directory(tenant_id=tenant_id, member_role="", revoke_keys=0)
                session.add(row)
            elif not may_take(by, row.role, tenant_id, None):
                raise NotPermitted("an owner made the present token: an owner replaces it")
            row.mac, row.role = self._secrets.mac("directory", token), role
            row.created_by_id = "" if by.kind == "command" else by.public_id
            row.created_at, row.used_at = from_instant(now), None
            await _record(session, "token_created", tenant_id, after={"role": role})
        return await self.get(tenant_id), token

    async def change(
        self, by: Principal, tenant_id: UUID, *, member_role: str | None, revoke_keys: bool | None
    ) -> DirectorySettings:
        """Change what everybody in the directory has, and whether who leaves loses the keys. It holds for each person
        from the next change of the person. Raises NoSuchUser, NotPermitted."""
        async with self._database.transaction() as session:
            row = await _row(session, tenant_id)
            before = {"member_role": row.member_role, "revoke_keys": bool(row.revoke_keys)}
            if member_role is not None:
                if member_role and not may_give(by, member_role, tenant_id, None):  # type: ignore[arg-type]
                    raise NotPermitted(f"your role does not let you give the role {member_role} here")
                if member_role == "owner":
                    raise WrongState("not everybody in a directory is an owner: say it of a group")
                row.member_role = member_role
            if revoke_keys is not None:
                row.revoke_keys = int(revoke_keys)
            after = {"member_role": row.member_role, "revoke_keys": bool(row.revoke_keys)}
            await _record(session, "changed", tenant_id, before=before, after=after)
        return await self.get(tenant_id)

    async def remove(self, by: Principal, tenant_id: UUID) -> None:
        """Forget the directory with its people and groups. Roles that it gave become ones that people take away.

        Raises NoSuchUser, NotPermitted.
        """
        async with self._database.transaction() as session:
            row = await _row(session, tenant_id)
            if not may_take(by, row.role, tenant_id, None):
                raise NotPermitted("an owner made the present token: an owner removes it")
            for table in (DirectoryMember, DirectoryGroup, DirectoryUser, Directory):
                await session.execute(delete(table).where(table.tenant_id == tenant_id))
            given = (MembershipRow.tenant_id == tenant_id) & (MembershipRow.source == "directory")
            await session.execute(update(MembershipRow).where(given).values(source=""))
            await _record(session, "removed", tenant_id, before={"role": row.role})

    async def get(self, tenant_id: UUID) -> DirectorySettings:
        """A tenant's directory. Raises NoSuchUser."""
        async with self._database.reading() as session:
            row = await _row(session, tenant_id)
        return DirectorySettings(
            tenant_id=row.tenant_id,
            role=row.role,
            member_role=row.member_role,
            revoke_keys=bool(row.revoke_keys),
            created_at=to_instant(row.created_at),
            used_at=None if row.used_at is None else to_instant(row.used_at),
        )

    async def tenant_of(self, token: str, now: int) -> UUID | None:
        """The tenant whose directory's token this is; None if it is nobody's."""
        if not token.startswith(TOKEN_PREFIX) or len(token) > 100:
            return None
        async with self._database.reading() as session:
            mac = self._secrets.mac("directory", token)
            # all tenants: the token says which
            row = (await session.execute(select(Directory).where(Directory.mac == mac))).scalar_one_or_none()
        if row is None:
            return None
        if row.used_at is None or now - to_instant(row.used_at) > _USE_US:
            # no entry: what it is used for is recorded
            async with self._database.transaction() as session:
                used = update(Directory).where(Directory.tenant_id == row.tenant_id)
                await session.execute(used.values(used_at=from_instant(now)))
        return row.tenant_id

    async def keys_of_former_members(self, tenant_id: UUID, user_id: UUID | None = None) -> list[FormerKey]:
        """The tenant's keys that work and were made, or given another secret, by users who have no role at it now; of
        one user if given."""
        query = (
            select(ApiKey.public_id, ApiKey.name, audit_entry.c.actor_id)
            .join(audit_entry, audit_entry.c.target_id == ApiKey.public_id)
            .where(
                ApiKey.tenant_id == tenant_id,
                ApiKey.revoked_at.is_(None),
                audit_entry.c.tenant_id == tenant_id,
                audit_entry.c.action.in_(("key.created", "key.rotated")),
                audit_entry.c.actor_means == "session",
            )
            .distinct()
        )
        if user_id is not None:
            query = query.where(audit_entry.c.actor_id == user_public_id(user_id))
        async with self._database.reading() as session:
            members = await session.execute(select(MembershipRow.user_id).where(MembershipRow.tenant_id == tenant_id))
            present = {user_public_id(member) for member in members.scalars()}
            rows = (await session.execute(query)).all()
        return [FormerKey(*row) for row in rows if row.actor_id not in present]

    async def provider_only(self, tenant_id: UUID) -> bool:
        """Whether roles at a tenant hold only in sessions that its identity providers opened."""
        async with self._database.reading() as session:
            row = await session.get(SignInPolicy, tenant_id)
        return row is not None and bool(row.provider_only)

    async def break_glass_owners(self, tenant_id: UUID) -> list[UUID]:
        """The tenant's owners who get in by password or passkey even so."""
        at = (MembershipRow.tenant_id == tenant_id) & BREAK_GLASS
        async with self._database.reading() as session:
            return list((await session.execute(select(MembershipRow.user_id).where(at))).scalars())

    async def set_policy(self, tenant_id: UUID, *, provider_only: bool, break_glass: list[str]) -> list[UUID]:
        """Say whether people get in by the tenant's identity providers alone, and which owners all the same; returns
        whose sessions change. Raises NoSuchUser, WrongState where nobody would get in without the provider."""
        owners = {identity for text in break_glass if (identity := prefixed_id(text, USER_PREFIX)) is not None}
        async with self._database.transaction() as session:
            at = (MembershipRow.tenant_id == tenant_id) & MembershipRow.project_id.is_(None)
            rows = (await session.execute(self._database.locked(select(MembershipRow).where(at)))).scalars().all()
            if len(owners) < len(break_glass) or not owners <= {row.user_id for row in rows if row.role == "owner"}:
                raise NoSuchUser("break-glass accounts are owners of the tenant, by their ids")
            if provider_only and not await _gets_in(session, owners):
                raise WrongState(
                    "name at least one owner, better two, who gets in if the provider does not answer: not disabled, "
                    "and with a password or a passkey"
                )
            for row in rows:
                row.break_glass = int(row.user_id in owners)
            policy = await session.get(SignInPolicy, tenant_id)
            if policy is None:
                policy = SignInPolicy(tenant_id=tenant_id)
                session.add(policy)
            policy.provider_only = int(provider_only)
            after = {"provider_only": provider_only, "break_glass": sorted(break_glass)}
            await record_change(
                session,
                "sign_in_policy.set",
                target="sign_in_policy",
                target_id=tenant_id,
                tenant_id=tenant_id,
                after=after,
            )
            everybody = await session.execute(
                select(MembershipRow.user_id).where(MembershipRow.tenant_id == tenant_id).distinct()
            )
            return list(everybody.scalars())


async def _gets_in(session: AsyncSession, users: Collection[UUID]) -> bool:
    """Whether one of these users gets in by a password or a passkey."""
    password = select(Credential.user_id).where(Credential.kind == PASSWORD)
    proves = UserAccount.id.in_(password) | UserAccount.id.in_(select(Passkey.user_id))
    able = select(UserAccount.id).where(UserAccount.id.in_(users), UserAccount.disabled_at.is_(None), proves)
    return (await session.execute(able.limit(1))).first() is not None


async def _row(session: AsyncSession, tenant_id: UUID) -> Directory:
    row = await session.get(Directory, tenant_id)
    if row is None:
        raise NoSuchUser("the tenant has no directory: make a token first")
    return row


async def _record(session: AsyncSession, verb: str, tenant_id: UUID, *, before: Any = None, after: Any = None) -> None:
    await record_change(
        session,
        f"directory.{verb}",
        target="directory",
        target_id=tenant_id,
        tenant_id=tenant_id,
        before=before,
        after=after,
    )
