"""Who is who: users by what identity providers know them by, which is (issuer, subject), and never an e-mail address
alone.

Somebody is linked for the first time by a session of the account, by an invitation, by a tenant's directory, or where
the provider says that an address is verified whose domain an operator confirmed to be the provider's. The last two
find an account only where it has a role at the place of the provider: an account elsewhere is its holder's to link.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

from msgspec import Struct
from sqlalchemy import ColumnElement, and_, delete, func, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from audit_log.record import record_change
from storage.database.base import from_instant, new_id, to_instant
from storage.database.database import Database
from storage.free_text import NAME
from tenancy.identity.directory_roles import directory_may_take_all, give_directory_roles, locked_people
from tenancy.identity.given_roles import add_role, set_given_roles
from tenancy.identity.id_tokens import Claims
from tenancy.identity.providers import Provider
from tenancy.identity.refusals import IdentityRefused
from tenancy.identity.tables import DirectoryUser, IdentityGroup, IdentityProvider, UserIdentity
from tenancy.rights.permissions import Role
from tenancy.users.accounts import add_user
from tenancy.users.errors import FieldRefused, NoSuchUser
from tenancy.users.identifiers import check_email, user_public_id
from tenancy.users.members import Scope
from tenancy.users.roles import may_still_give
from tenancy.users.service import Users
from tenancy.users.sessions import SessionRecord
from tenancy.users.tables import MembershipRow, UserAccount, UserSession


class LinkedIdentity(Struct, frozen=True):
    """An identity that is linked to a user. Instants in microseconds since the Unix epoch."""

    id: UUID
    provider: str
    tenant_id: UUID | None
    email: str
    created_at: int
    used_at: int | None


class KnownPeople:
    """Finds and links users. What has a session is done in the caller's transaction; every method may raise
    DatabaseUnavailable."""

    def __init__(self, database: Database, users: Users) -> None:
        self._database = database
        self._users = users

    async def user_of(self, session: AsyncSession, provider: Provider, claims: Claims, now: int) -> UserAccount | None:
        """The user whom the provider knows by this subject, if one is linked."""
        row = (await session.execute(select(UserIdentity).where(_known_by(provider, claims)))).scalar_one_or_none()
        if row is None:
            return None
        row.used_at, row.email = from_instant(now), _email(claims)
        return await session.get_one(UserAccount, row.user_id)

    async def invited(
        self, session: AsyncSession, provider: Provider, claims: Claims, invitation: str, now: int
    ) -> UserAccount:
        """A new user of an invitation, linked. Raises LinkRefused; IdentityRefused where somebody has the invited
        address already."""
        await self._listed(session, provider, claims)  # locked before the invitation, as where somebody leaves
        row = await self._users.links.look_at(session, "invitation", invitation, now)
        if provider.tenant_id not in (None, row.tenant_id):
            raise IdentityRefused("not_linked")
        if await _account(session, row.email) is not None:
            raise IdentityRefused("account_exists")
        user = await add_user(session, row.email, _name(claims, row.email), from_instant(now))
        await self._add(session, provider, claims, user.id, now)
        await self._users.password_changes.join(session, user.id, invitation)
        return user

    async def first_seen(self, session: AsyncSession, provider: Provider, claims: Claims, now: int) -> UserAccount:
        """The user whom a directory or a domain says that this is, linked; a new one if need be.

        Raises IdentityRefused.
        """
        email, verified = _email(claims), claims.get("email_verified") is True
        listed = await self._listed(session, provider, claims)
        if listed is not None and not listed.active:
            raise IdentityRefused("left")
        claimed = email.partition("@")[2] in provider.domains
        own_address = email if claimed and verified else ""
        if listed is not None and listed.user_id is not None:
            user = await session.get_one(UserAccount, listed.user_id)
            await _check_reach(session, listed, user, own_address)
            await self._add(session, provider, claims, user.id, now)
            return user
        if listed is None and not (claimed and verified):
            raise IdentityRefused("email_not_verified" if claimed else "not_linked")
        try:
            address = check_email(email if verified or listed is None else listed.email or listed.user_name)
        except FieldRefused as error:
            raise IdentityRefused("not_linked", str(error)) from error
        user_here = await _account(session, address)
        if user_here is None:
            user_here = await add_user(session, address, _name(claims, address), from_instant(now))
        elif not await _has_role_at(session, user_here.id, provider.tenant_id):
            raise IdentityRefused("account_exists")
        elif listed is not None:
            await _check_reach(session, listed, user_here, own_address)
        if provider.tenant_id is not None:  # the person is locked before the account is named, as where somebody leaves
            await self._joined(session, provider, claims, user_here.id)
        await self._add(session, provider, claims, user_here.id, now)
        return user_here

    async def link(self, provider: Provider, claims: Claims, signed_in: SessionRecord, now: int) -> None:
        """Link who is signed in. Raises IdentityRefused where somebody else is linked."""
        async with self._database.transaction() as session:
            row = (await session.execute(select(UserIdentity).where(_known_by(provider, claims)))).scalar_one_or_none()
            if row is not None and row.user_id != signed_in.user_id:
                raise IdentityRefused("already_linked")
            if row is None:
                await self._add(session, provider, claims, signed_in.user_id, now)

    async def check_is(self, provider: Provider, claims: Claims, signed_in: SessionRecord) -> None:
        """Raise IdentityRefused unless the provider knows who is signed in by this subject. A provider of a tenant
        proves nothing in a session that has other roles too."""
        async with self._database.reading() as session:
            row = (await session.execute(select(UserIdentity).where(_known_by(provider, claims)))).scalar_one_or_none()
        if row is None or row.user_id != signed_in.user_id or provider.tenant_id not in (None, signed_in.tenant_id):
            raise IdentityRefused("other_person")

    async def set_roles(
        self, session: AsyncSession, provider: Provider, claims: Claims, user_id: UUID, now: int
    ) -> None:
        """Give the roles of the provider's groups and of the tenant's directory. Raises IdentityRefused for who has
        left, and for who has no role then."""
        listed = None if provider.tenant_id is None else await self._joined(session, provider, claims, user_id)
        if provider.groups and provider.groups_claim:
            wanted = await self._wanted(session, provider, claims)
            await set_given_roles(session, self._database, user_id, provider.source, wanted, now=now)
        if listed is not None:
            await give_directory_roles(session, self._database, listed, now)
        if not await _has_role_at(session, user_id, provider.tenant_id, anywhere=provider.tenant_id is None):
            raise IdentityRefused("no_role")

    async def of_user(self, user_id: UUID) -> list[LinkedIdentity]:
        """By what providers a user is known, the oldest first."""
        query = (
            select(UserIdentity, IdentityProvider)
            .join(IdentityProvider, IdentityProvider.id == UserIdentity.provider_id)
            .where(UserIdentity.user_id == user_id)
            .order_by(UserIdentity.id)
        )
        async with self._database.reading() as session:
            # all tenants: a user may be known by providers of several
            rows = (await session.execute(query)).all()
        return [
            LinkedIdentity(
                link.id,
                provider.name,
                provider.tenant_id,
                link.email,
                to_instant(link.created_at),
                None if link.used_at is None else to_instant(link.used_at),
            )
            for link, provider in rows
        ]

    async def unlink(self, user_id: UUID, identity_id: UUID, now: int) -> None:
        """Unlink one of a user's identities, and end the sessions that its provider opened. Raises NoSuchUser."""
        async with self._database.transaction() as session:
            row = await session.get(UserIdentity, identity_id)
            if row is None or row.user_id != user_id:
                raise NoSuchUser(f"there is no linked identity {identity_id}")
            await session.execute(delete(UserIdentity).where(UserIdentity.id == identity_id))
            await _end(session, (UserSession.provider_id == row.provider_id) & (UserSession.user_id == user_id), now)
            await _record(session, "identity_unlinked", row)
        await self._users.changes.announce(user_id)

    async def end_sessions(self, provider: Provider, subject: Any, sid: Any, until: int, now: int) -> int:
        """End sessions that the provider opened until then, of this subject or of its own name; how many."""
        opened = (UserSession.provider_id == provider.id) & (UserSession.created_at <= from_instant(until))
        if isinstance(sid, str) and sid:
            opened &= UserSession.provider_session == sid
        if isinstance(subject, str) and subject:
            users = select(UserIdentity.user_id).where(_known_by(provider, {"sub": subject}))
            opened &= UserSession.user_id.in_(users)
        async with self._database.transaction() as session:
            ended = await _end(session, opened, now)
            for user_id in ended:
                await record_change(
                    session,
                    "session.all_revoked",
                    target="user",
                    target_id=user_public_id(user_id),
                    tenant_id=provider.tenant_id,
                    after={"by": f"identity provider {provider.name}"},
                )
        for user_id in ended:
            await self._users.changes.announce(user_id)
        return len(ended)

    async def _add(self, session: AsyncSession, provider: Provider, claims: Claims, user_id: UUID, now: int) -> None:
        row = UserIdentity(
            id=new_id(),
            user_id=user_id,
            provider_id=provider.id,
            issuer=provider.issuer,
            subject=claims["sub"],
            email=_email(claims),
            created_at=from_instant(now),
            used_at=from_instant(now),
        )
        session.add(row)
        await _record(session, "identity_linked", row)

    async def _wanted(self, session: AsyncSession, provider: Provider, claims: Claims) -> dict[Scope, Role]:
        value = claims.get(provider.groups_claim)
        sources = claims.get("_claim_names")
        if value is None and isinstance(sources, dict) and provider.groups_claim in sources:
            raise IdentityRefused("groups_not_sent")
        groups = {one for one in (value if isinstance(value, list) else [value]) if isinstance(one, str)}
        query = select(IdentityGroup).where(IdentityGroup.provider_id == provider.id)
        wanted: dict[Scope, Role] = {}
        # all tenants: a provider of the platform gives roles at several
        for row in (await session.execute(query)).scalars():
            within = provider.tenant_id in (None, row.tenant_id) and (row.role != "owner" or provider.owner_by_group)
            if row.group_id not in groups or not within:
                continue
            if await may_still_give(session, row.created_by_id, row.role, row.tenant_id, row.project_id):
                add_role(wanted, Scope(row.tenant_id, row.project_id), row.role)
        return wanted

    async def _joined(
        self, session: AsyncSession, provider: Provider, claims: Claims, user_id: UUID
    ) -> DirectoryUser | None:
        """The person in the tenant's directory who this user is, bound and locked. Raises IdentityRefused."""
        own = (DirectoryUser.tenant_id == provider.tenant_id) & (DirectoryUser.user_id == user_id)
        bound = await locked_people(session, self._database, own)
        listed = bound[0] if bound else await self._listed(session, provider, claims)
        if listed is None:
            return None
        if not all(one.active for one in (*bound, listed)):
            raise IdentityRefused("left")
        if listed.user_id not in (None, user_id):
            raise IdentityRefused("already_linked")
        listed.user_id = user_id
        await session.flush()
        return listed

    async def _listed(self, session: AsyncSession, provider: Provider, claims: Claims) -> DirectoryUser | None:
        """The person in the tenant's directory whom the token is of, locked: by an id that the provider gives, or an
        e-mail address that it says is verified."""
        if provider.tenant_id is None:
            return None
        ids = [one for one in (claims["sub"], claims.get("oid")) if isinstance(one, str) and one]
        same: ColumnElement[bool] = DirectoryUser.external_id.in_(ids)
        if claims.get("email_verified") is True and _email(claims):
            same |= (DirectoryUser.user_name == _email(claims)) | (func.lower(DirectoryUser.email) == _email(claims))
        same &= DirectoryUser.tenant_id == provider.tenant_id
        found = await locked_people(session, self._database, same, most=2)
        return found[0] if len(found) == 1 else None


def _known_by(provider: Provider, claims: Claims) -> ColumnElement[bool]:
    return and_(
        UserIdentity.provider_id == provider.id,
        UserIdentity.issuer == provider.issuer,
        UserIdentity.subject == claims["sub"],
    )


async def _account(session: AsyncSession, email: str) -> UserAccount | None:
    found: UserAccount | None = (
        await session.execute(select(UserAccount).where(UserAccount.email == email))
    ).scalar_one_or_none()
    return found


async def _check_reach(session: AsyncSession, listed: DirectoryUser, user: UserAccount, own_address: str) -> None:
    """Raise IdentityRefused where the directory alone says that this is the user, and its token may not take what the
    user has: who holds the token would become somebody above it. `own_address`: what the provider proves."""
    if own_address != user.email and not await directory_may_take_all(session, listed.tenant_id, user.id):
        raise IdentityRefused("account_exists")


async def _has_role_at(session: AsyncSession, user_id: UUID, tenant_id: UUID | None, *, anywhere: bool = False) -> bool:
    at = MembershipRow.tenant_id.is_(None) if tenant_id is None else MembershipRow.tenant_id == tenant_id
    query = select(MembershipRow.id).where(MembershipRow.user_id == user_id).limit(1)
    return (await session.execute(query if anywhere else query.where(at))).first() is not None


async def _end(session: AsyncSession, which: ColumnElement[bool], now: int) -> list[UUID]:
    """End the live ones of these sessions; whose they are."""
    live = which & UserSession.revoked_at.is_(None)
    users = list((await session.execute(select(UserSession.user_id).where(live).distinct())).scalars())
    await session.execute(update(UserSession).where(live).values(revoked_at=from_instant(now)))
    return users


def _email(claims: Claims) -> str:
    email = claims.get("email")
    return email.strip().lower()[:254] if isinstance(email, str) and email.isprintable() else ""


def _name(claims: Claims, email: str) -> str:
    name = claims.get("name")
    return name[:NAME].strip() if isinstance(name, str) and name.isprintable() and name.strip() else email[:NAME]


async def _record(session: AsyncSession, verb: str, row: UserIdentity) -> None:
    await record_change(
        session,
        f"user.{verb}",
        target="user",
        target_id=user_public_id(row.user_id),
        after={"issuer": row.issuer, "subject": row.subject, "provider": str(row.provider_id)},
    )
