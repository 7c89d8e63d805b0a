"""Users' accounts: made, found, renamed, disabled; and the rows that other modules of this folder look up."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

from msgspec import Struct
from sqlalchemy import ColumnElement, exists, func, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession

from audit_log.record import record_change
from storage.database.base import from_instant, new_id, to_instant
from storage.database.database import Database
from storage.database.public_ids import prefixed_id, public_id
from storage.free_text import NAME, check_text
from tenancy.rights.principals import Membership
from tenancy.users.changes import UserChanges
from tenancy.users.errors import EmailTaken, LastOwner, NoSuchUser
from tenancy.users.identifiers import USER_PREFIX, check_email, user_public_id
from tenancy.users.roles import other_owners
from tenancy.users.sessions import memberships_of, revoke_sessions
from tenancy.users.tables import Credential, MembershipRow, UserAccount

PASSWORD, TOTP, RECOVERY_CODE = "password", "totp", "recovery_code"  # kinds of credentials


class User(Struct, frozen=True):
    """A user with its roles. Instants in microseconds since the Unix epoch."""

    id: UUID
    email: str
    name: str
    memberships: tuple[Membership, ...]
    created_at: int
    disabled_at: int | None
    has_password: bool
    has_second_factor: bool


class Accounts:
    """All users' accounts. Every method may raise DatabaseUnavailable."""

    def __init__(self, database: Database, changes: UserChanges) -> None:
        self._database = database
        self._changes = changes

    async def create(self, email: str, name: str, now: int, memberships: tuple[Membership, ...] = ()) -> User:
        """Make a user, who has no password yet. Raises EmailTaken, FieldRefused, InvalidText."""
        async with self._database.transaction() as session:
            row = await add_user(session, email, name, from_instant(now))
            for one in memberships:
                session.add(membership_row(row.id, one, from_instant(now)))
                await record_change(
                    session,
                    "member.added",
                    target="user",
                    target_id=user_public_id(row.id),
                    tenant_id=one.tenant_id,
                    project_id=one.project_id,
                    after={"role": one.role},
                )
        return await self.get(row.id)

    async def get(self, user_id: UUID) -> User:
        """The user of this id. Raises NoSuchUser."""
        async with self._database.reading() as session:
            row = await session.get(UserAccount, user_id)
            if row is None:
                raise NoSuchUser(f"there is no user {user_public_id(user_id)}")
            return await _user(session, row)

    async def find(self, reference: str) -> User:
        """The user of this e-mail address or public id. Raises NoSuchUser."""
        if not reference.isprintable():
            raise NoSuchUser("there is no such user")
        identity = prefixed_id(reference, USER_PREFIX)
        where = UserAccount.email == reference.strip().lower() if identity is None else UserAccount.id == identity
        async with self._database.reading() as session:
            row = (await session.execute(select(UserAccount).where(where))).scalar_one_or_none()
            if row is None:
                raise NoSuchUser(f"there is no user {reference[:NAME]!r}")
            return await _user(session, row)

    async def page(self, limit: int, after: str | None = None) -> tuple[list[User], bool]:
        """Users ordered by e-mail address, those after this one, and whether there are more."""
        query = select(UserAccount).order_by(UserAccount.email).limit(limit + 1)
        if after is not None:
            query = query.where(UserAccount.email > after)
        async with self._database.reading() as session:
            rows = (await session.execute(query)).scalars().all()
            return [await _user(session, row) for row in rows[:limit]], len(rows) > limit

    async def any_exist(self) -> bool:
        """Whether there is any user."""
        async with self._database.reading() as session:
            return bool((await session.execute(select(exists().select_from(UserAccount)))).scalar_one())

    async def rename(self, user_id: UUID, *, name: str | None = None, email: str | None = None) -> User:
        """Change a user's name or e-mail address. Raises NoSuchUser, EmailTaken, FieldRefused, InvalidText."""
        if name is not None:
            check_text("name", name, NAME)
        if email is not None:
            email = check_email(email)
        try:
            async with self._database.transaction() as session:
                row = await locked_user(session, self._database, user_id)
                before = {"name": row.name, "email": row.email}
                row.name, row.email = name or row.name, email or row.email
                await session.flush()
                after = {"name": row.name, "email": row.email}
                if before != after:
                    await record_change(
                        session,
                        "user.changed",
                        target="user",
                        target_id=user_public_id(user_id),
                        before=before,
                        after=after,
                    )
        except IntegrityError as error:
            raise EmailTaken("another user has this e-mail address") from error
        await self._changes.announce(user_id)
        return await self.get(user_id)

    async def disable(self, user_id: UUID, now: int, *, reason: str = "") -> User:
        """Let a user sign in no more, and end its sessions. Raises NoSuchUser; LastOwner for the platform's last."""
        moment = from_instant(now)
        async with self._database.transaction() as session:
            owns = any(one.role == "owner" and one.tenant_id is None for one in await memberships_of(session, user_id))
            if owns and not await other_owners(session, self._database, user_id, None):
                raise LastOwner("this is the platform's last owner: make another one first")
            row = await locked_user(session, self._database, user_id)
            if row.disabled_at is None:
                row.disabled_at = moment
                await record_change(
                    session, "user.disabled", target="user", target_id=user_public_id(user_id), reason=reason
                )
            await revoke_sessions(session, user_id, moment)
        await self._changes.announce(user_id)
        return await self.get(user_id)

    async def enable(self, user_id: UUID, *, reason: str = "") -> User:
        """Let a disabled user sign in again. Raises NoSuchUser."""
        async with self._database.transaction() as session:
            row = await locked_user(session, self._database, user_id)
            if row.disabled_at is not None:
                row.disabled_at = None
                await record_change(
                    session, "user.enabled", target="user", target_id=user_public_id(user_id), reason=reason
                )
        await self._changes.announce(user_id)
        return await self.get(user_id)


async def add_user(session: AsyncSession, email: str, name: str, moment: datetime) -> UserAccount:
    """Add a user in the caller's transaction. Raises EmailTaken, FieldRefused, InvalidText."""
    email = check_email(email)
    check_text("name", name, NAME)
    row = UserAccount(id=new_id(), email=email, name=name.strip(), created_at=moment)
    try:
        async with session.begin_nested():
            session.add(row)
    except IntegrityError as error:
        raise EmailTaken("another user has this e-mail address") from error
    await record_change(
        session,
        "user.created",
        target="user",
        target_id=user_public_id(row.id),
        after={"email": email, "name": row.name},
    )
    return row


def membership_row(user_id: UUID, one: Membership, moment: datetime) -> MembershipRow:
    """A new row of this role."""
    # no entry: its callers add and record it
    return MembershipRow(
        id=new_id(),
        user_id=user_id,
        scope=scope_name(one.tenant_id, one.project_id),
        tenant_id=one.tenant_id,
        project_id=one.project_id,
        role=one.role,
        created_at=moment,
    )


def scope_name(tenant_id: UUID | None, project_id: UUID | None) -> str:
    """The name of a scope, unique among all."""
    if project_id is not None:
        return public_id("project", project_id)
    return "platform" if tenant_id is None else public_id("tenant", tenant_id)


async def locked_user(session: AsyncSession, database: Database, user_id: UUID) -> UserAccount:
    """The user's row, locked. Raises NoSuchUser."""
    query = database.locked(select(UserAccount).where(UserAccount.id == user_id))
    row: UserAccount | None = (await session.execute(query)).scalar_one_or_none()
    if row is None:
        raise NoSuchUser(f"there is no user {user_public_id(user_id)}")
    return row


async def credential(session: AsyncSession, user_id: UUID, kind: str) -> Credential | None:
    """The user's credential of a kind that it has at most one of."""
    where = (Credential.user_id == user_id) & (Credential.kind == kind)
    return (await session.execute(select(Credential).where(where))).scalar_one_or_none()


async def set_credential(session: AsyncSession, user_id: UUID, kind: str, secret: bytes, moment: datetime) -> None:
    """Give the user this credential in place of the one of this kind that it had."""
    # no entry: its callers record what it is for
    where = (Credential.user_id == user_id) & (Credential.kind == kind)
    values = {"secret": secret, "confirmed_at": moment, "counter": 0, "used_at": None}
    done = await session.execute(update(Credential).where(where).values(**values))
    if not getattr(done, "rowcount", 0):
        session.add(Credential(id=new_id(), user_id=user_id, kind=kind, identifier="", created_at=moment, **values))


async def _user(session: AsyncSession, row: UserAccount) -> User:
    kinds = await session.execute(
        select(Credential.kind, func.count())
        .where(Credential.user_id == row.id, _confirmed())
        .group_by(Credential.kind)
    )
    held = {kind for kind, _ in kinds}
    return User(
        id=row.id,
        email=row.email,
        name=row.name,
        memberships=await memberships_of(session, row.id),
        created_at=to_instant(row.created_at),
        disabled_at=None if row.disabled_at is None else to_instant(row.disabled_at),
        has_password=PASSWORD in held,
        has_second_factor=TOTP in held,
    )


def _confirmed() -> ColumnElement[bool]:
    return Credential.confirmed_at.is_not(None)
