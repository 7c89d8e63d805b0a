"""Sessions of signed-in users, in the database: made, found, rotated, listed, revoked.

A session ends after 12 h without a request, after 7 days, or when it is revoked. Its token changes at sign-in, when the
user proves itself again, and at the first request after its role changed. The token before is accepted for some seconds
more, for requests that are on their way.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from msgspec import Struct
from sqlalchemy import ColumnElement, delete, exists, or_, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from audit_log.record import record_change
from storage.database.base import from_instant, new_id, to_instant
from storage.database.database import Database
from tenancy.rights.principals import Membership
from tenancy.users.changes import UserChanges
from tenancy.users.identifiers import session_public_id, user_public_id
from tenancy.users.tables import MembershipRow, OneTimeToken, SignInPolicy, UserAccount, UserSession
from tenancy.users.tokens import UserSecrets, new_token

IDLE_US = 12 * 3_600 * 1_000_000
ABSOLUTE_US = 7 * 86_400 * 1_000_000
FRESH_US = 15 * 60 * 1_000_000
PREVIOUS_US = 30 * 1_000_000
"""How long the token before a rotation is still accepted."""
KEPT_US = 30 * 86_400 * 1_000_000
"""How long a session that has ended is kept: its address counts as known to the user."""
MOST_SESSIONS = 50
"""Of one user; a new one ends the oldest."""
BY_LINK = "link"
"""How the `method` of a session begins that a link opened."""
BREAK_GLASS: ColumnElement[bool] = (
    (MembershipRow.break_glass == 1) & (MembershipRow.role == "owner") & MembershipRow.project_id.is_(None)
)
"""A role that holds in any session: of an owner who was named, as long as it is one."""
_MOST_AGENT = 200


class SessionRecord(Struct, frozen=True):
    """A session with its user. Instants in microseconds since the Unix epoch. `current` says which of its two tokens
    was presented."""

    id: UUID
    user_id: UUID
    email: str
    name: str
    memberships: tuple[Membership, ...]
    method: str
    address: str
    user_agent: str
    created_at: int
    proven_at: int
    seen_at: int
    expires_at: int
    rotate: bool
    current: bool
    previous_until: int
    ended: bool
    """It is revoked, or its user disabled."""
    provider_id: UUID | None = None
    tenant_id: UUID | None = None
    """Of the tenant whose identity provider opened it: it has the roles there alone, and changes no account."""

    def alive(self, now: int) -> bool:
        """Whether the session may be used now, by the token that found it."""
        in_time = now < self.expires_at and now - self.seen_at < IDLE_US
        return in_time and not self.ended and (self.current or now < self.previous_until)

    @property
    def by_link(self) -> bool:
        """Whether a link opened it. Others may have made that link."""
        return self.method.startswith(BY_LINK)

    def fresh(self, now: int) -> bool:
        """Whether the user proved itself within the last minutes."""
        return now - self.proven_at < FRESH_US


class NewSession(Struct, frozen=True):
    """A session that was just made. `token` is the only copy; the repr leaves it out."""

    id: UUID
    user_id: UUID
    token: str
    expires_at: int

    def __repr__(self) -> str:
        return f"NewSession(id={self.id!r})"


class Client(Struct, frozen=True):
    """Where a request comes from."""

    address: str
    user_agent: str = ""


class SessionOrigin(Struct, frozen=True):
    """The identity provider that opens a session, of a tenant or of the platform; its own name of the session; and when
    the user proved itself there, in microseconds since the Unix epoch."""

    provider_id: UUID
    tenant_id: UUID | None
    provider_session: str
    proven_at: int


class Sessions:
    """The sessions of all users. Every method may raise DatabaseUnavailable; instants are of the caller's clock."""

    def __init__(self, database: Database, secrets: UserSecrets, changes: UserChanges) -> None:
        self._database = database
        self._secrets = secrets
        self._changes = changes

    async def create(
        self,
        session: AsyncSession,
        user_id: UUID,
        method: str,
        client: Client,
        now: int,
        *,
        origin: SessionOrigin | None = None,
    ) -> NewSession:
        """Make a session in the caller's transaction, and end the oldest of too many. `origin`: who opened it, if that
        is an identity provider."""
        token = new_token()
        moment = from_instant(now)
        row = UserSession(
            id=new_id(),
            user_id=user_id,
            mac=self._secrets.mac("session", token),
            method=method,
            address=client.address,
            user_agent="".join(filter(str.isprintable, client.user_agent[:_MOST_AGENT])),
            rotate=0,
            created_at=moment,
            proven_at=moment if origin is None else from_instant(min(now, origin.proven_at)),
            provider_id=None if origin is None else origin.provider_id,
            provider_session="" if origin is None else origin.provider_session,
            tenant_id=None if origin is None else origin.tenant_id,
            seen_at=moment,
            expires_at=from_instant(now + ABSOLUTE_US),
        )
        session.add(row)
        await session.flush()
        newest = select(UserSession.id).where(_live(user_id)).order_by(UserSession.created_at.desc())
        kept = list((await session.execute(newest.limit(MOST_SESSIONS))).scalars())
        if len(kept) == MOST_SESSIONS:
            surplus = _live(user_id) & UserSession.id.not_in(kept)
            await session.execute(update(UserSession).where(surplus).values(revoked_at=moment))
        return NewSession(row.id, user_id, token, now + ABSOLUTE_US)

    async def find(self, token_mac: bytes) -> SessionRecord | None:
        """The session of a token, whether or not it is alive."""
        query = (
            select(UserSession, UserAccount)
            .join(UserAccount, UserAccount.id == UserSession.user_id)
            .where(or_(UserSession.mac == token_mac, UserSession.previous_mac == token_mac))
        )
        async with self._database.reading() as session:
            row = (await session.execute(query)).one_or_none()
            if row is None:
                return None
            roles = await memberships_in(session, row[0])
        return _record(row[0], row[1], roles, token_mac)

    def token_mac(self, token: str) -> bytes:
        """The MAC by which the database knows a token."""
        return self._secrets.mac("session", token)

    async def rotate(self, session_id: UUID, token_mac: bytes, now: int, *, proven: bool = False) -> str | None:
        """Give the session another token, which is returned; None if another request was faster.

        `proven`: the user has just proven itself, so that the session is fresh, and the old token is void at once.
        """
        token = new_token()
        values: dict[str, Any] = {"mac": self._secrets.mac("session", token), "rotate": 0}
        values |= (
            {"previous_mac": None, "previous_until": None, "proven_at": from_instant(now)}
            if proven
            else {
                "previous_mac": token_mac,
                "previous_until": from_instant(now + PREVIOUS_US),
            }
        )
        where = (UserSession.id == session_id) & (UserSession.mac == token_mac) & UserSession.revoked_at.is_(None)
        async with self._database.transaction() as session:
            done = await session.execute(update(UserSession).where(where).values(**values))
        await self._changes.announce_session(token_mac)
        return token if getattr(done, "rowcount", 0) else None

    async def record_use(self, session_id: UUID, now: int) -> None:
        """Write when the session was last used."""
        async with self._database.transaction() as session:
            await session.execute(
                update(UserSession).where(UserSession.id == session_id).values(seen_at=from_instant(now))
            )

    async def alive(self, user_id: UUID, now: int) -> list[SessionRecord]:
        """The user's sessions that are alive, newest first."""
        query = (
            select(UserSession, UserAccount)
            .join(UserAccount, UserAccount.id == UserSession.user_id)
            .where(_live(user_id), UserSession.expires_at > from_instant(now))
            .order_by(UserSession.created_at.desc(), UserSession.id.desc())
        )
        async with self._database.reading() as session:
            rows = (await session.execute(query)).all()
        found = [_record(row[0], row[1], (), row[0].mac) for row in rows]
        return [each for each in found if each.alive(now)]

    async def revoke(self, user_id: UUID, session_id: UUID, now: int) -> bool:
        """End one session of this user; whether there was one that had not ended."""
        async with self._database.transaction() as session:
            where = _live(user_id) & (UserSession.id == session_id)
            done = await session.execute(update(UserSession).where(where).values(revoked_at=from_instant(now)))
            found = bool(getattr(done, "rowcount", 0))
            if found:
                await record_change(
                    session,
                    "session.revoked",
                    target="session",
                    target_id=session_public_id(session_id),
                    after={"user": user_public_id(user_id)},
                )
        await self._changes.announce(user_id)
        return found

    async def revoke_all(self, user_id: UUID, now: int, *, reason: str = "") -> int:
        """End all sessions of this user, everywhere; how many there were."""
        async with self._database.transaction() as session:
            count = await revoke_sessions(session, user_id, from_instant(now))
            await record_change(
                session,
                "session.all_revoked",
                target="user",
                target_id=user_public_id(user_id),
                reason=reason,
                after={"sessions": count},
            )
        await self._changes.announce(user_id)
        return count

    async def forget_old(self, now: int) -> int:
        """Remove sessions that ended long ago; how many."""
        async with self._database.transaction() as session:
            old = UserSession.expires_at < from_instant(now - KEPT_US)
            return int(getattr(await session.execute(delete(UserSession).where(old)), "rowcount", 0))


async def revoke_sessions(session: AsyncSession, user_id: UUID, moment: datetime, but: UUID | None = None) -> int:
    """End a user's sessions in the caller's transaction, all but one; how many. The caller announces the change."""
    others = _live(user_id) if but is None else _live(user_id) & (UserSession.id != but)
    done = await session.execute(update(UserSession).where(others).values(revoked_at=moment))
    return int(getattr(done, "rowcount", 0))


async def withdraw_links(session: AsyncSession, user_id: UUID, moment: datetime, *, foreign: bool = False) -> None:
    """End a user's links, and sign-ins that wait for a second factor, in the caller's transaction. `foreign`: but those
    that a command made, which may do everything."""
    unused = (OneTimeToken.user_id == user_id) & OneTimeToken.used_at.is_(None)
    if foreign:
        unused &= (OneTimeToken.created_by_id != "") | (OneTimeToken.kind == "second_factor")
    await session.execute(update(OneTimeToken).where(unused).values(used_at=moment))


async def end_foreign_access(session: AsyncSession, user_id: UUID, moment: datetime) -> None:
    """End what others may hold of a user whose roles change: its links, and the sessions that links opened. All its
    other sessions get another token. Whoever made a link was asked whether it may give the roles that the user had
    then, not those it has now. The caller announces the change."""
    # first: who redeems one now has a session after this, or none
    await withdraw_links(session, user_id, moment, foreign=True)
    by_link = _live(user_id) & UserSession.method.startswith(BY_LINK)
    await session.execute(update(UserSession).where(by_link).values(revoked_at=moment))
    await rotate_sessions(session, user_id)


async def rotate_sessions(session: AsyncSession, user_id: UUID) -> None:
    """Let all sessions of a user get another token at their next request; the caller announces the change."""
    await session.execute(update(UserSession).where(_live(user_id)).values(rotate=1))


async def memberships_of(session: AsyncSession, user_id: UUID) -> tuple[Membership, ...]:
    """A user's roles."""
    return await _memberships(session, MembershipRow.user_id == user_id)


async def _memberships(session: AsyncSession, which: ColumnElement[bool]) -> tuple[Membership, ...]:
    # all tenants: a user's roles are at several
    rows = await session.execute(
        select(MembershipRow.role, MembershipRow.tenant_id, MembershipRow.project_id)
        .where(which)
        .order_by(MembershipRow.id)
    )
    return tuple(Membership(row.role, row.tenant_id, row.project_id) for row in rows)


async def memberships_in(session: AsyncSession, row: UserSession) -> tuple[Membership, ...]:
    """The roles of a session's user that hold in this session. One that a tenant's identity provider opened has those
    at this tenant; every other has none where a tenant lets people in by its provider alone, but for break-glass."""
    closed = exists().where(SignInPolicy.tenant_id == MembershipRow.tenant_id, SignInPolicy.provider_only == 1)
    holds = or_(BREAK_GLASS, ~closed) if row.tenant_id is None else MembershipRow.tenant_id == row.tenant_id
    return await _memberships(session, (MembershipRow.user_id == row.user_id) & holds)


def known_since(now: int) -> datetime:
    """The time since when a user's addresses are known."""
    return from_instant(now) - timedelta(microseconds=KEPT_US)


def _live(user_id: UUID) -> ColumnElement[bool]:
    return (UserSession.user_id == user_id) & UserSession.revoked_at.is_(None)


def _record(row: UserSession, user: UserAccount, roles: tuple[Membership, ...], token_mac: bytes) -> SessionRecord:
    return SessionRecord(
        id=row.id,
        user_id=user.id,
        email=user.email,
        name=user.name,
        memberships=roles,
        method=row.method,
        address=row.address,
        user_agent=row.user_agent,
        created_at=to_instant(row.created_at),
        proven_at=to_instant(row.proven_at),
        seen_at=to_instant(row.seen_at),
        expires_at=to_instant(row.expires_at),
        rotate=bool(row.rotate),
        current=row.mac == token_mac,
        previous_until=0 if row.previous_until is None else to_instant(row.previous_until),
        ended=row.revoked_at is not None or user.disabled_at is not None,
        provider_id=row.provider_id,
        tenant_id=row.tenant_id,
    )
