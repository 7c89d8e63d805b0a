"""Signing in: by a password, a one-time link and a second factor, within the limits on guessing.

An unknown user, one without a password and a disabled one are refused as a wrong password is: after as many statements
and one hash, with the same words. Whoever signs in gets a new session, whatever token the browser had before.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeAlias, TypeVar
from uuid import UUID

import structlog
from msgspec import Struct
from sqlalchemy import ColumnElement, and_, select
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import aliased

from audit_log.record import record_change
from storage.database.base import from_instant
from storage.database.database import Database
from tenancy.users.accounts import PASSWORD, TOTP, credential, set_credential
from tenancy.users.attempts import AttemptCounter, code_limits, link_limits, network_of, password_limits
from tenancy.users.changes import acting_as_user
from tenancy.users.errors import LinkRefused, PasswordsBusy, SignInRefused
from tenancy.users.identifiers import MOST_EMAIL, session_public_id, user_public_id
from tenancy.users.links import Link, Links
from tenancy.users.passwords import Passwords
from tenancy.users.second_factors import WRONG_CODE, SecondFactors
from tenancy.users.sessions import BREAK_GLASS, BY_LINK, Client, NewSession, SessionOrigin, Sessions, known_since
from tenancy.users.tables import Credential, MembershipRow, SignInPolicy, UserAccount, UserSession

log = structlog.get_logger(__name__)

SignedInOrStep: TypeAlias = NewSession | Link
"""A session, or a sign-in that waits for its second factor."""
Result = TypeVar("Result")


class _Known(Struct, frozen=True):
    """What is known of who wants to sign in; of an unknown user nothing, in as many statements."""

    user_id: UUID | None
    enabled: bool
    password: bytes | None
    known_address: bool


class SignIn:
    """Signs users in. `clock`: microseconds since the Unix epoch. Every method may raise TooManyAttempts, PasswordsBusy
    and DatabaseUnavailable."""

    def __init__(
        self,
        database: Database,
        *,
        passwords: Passwords,
        sessions: Sessions,
        links: Links,
        second_factors: SecondFactors,
        attempts: AttemptCounter,
        clock: Callable[[], int],
    ) -> None:
        self._database = database
        self._passwords = passwords
        self._sessions = sessions
        self._links = links
        self._second_factors = second_factors
        self._attempts = attempts
        self._clock = clock

    async def with_password(self, email: str, password: str, client: Client) -> SignedInOrStep:
        """A session for who knows the password, or the step to the second factor. Raises SignInRefused."""
        known = await self.check_password(email, password, client)
        now = self._clock()
        async with self._database.transaction() as session:
            return await self._enter(session, known, PASSWORD, client, now)

    async def check_password(self, email: str, password: str, client: Client) -> UUID:
        """The user of this password, who is not signed in yet. Raises SignInRefused."""
        email = email.strip().lower()[:MOST_EMAIL]
        if not email.isprintable():  # nobody's, and databases refuse some of it
            email = ""
        self._passwords.check_room()
        known = await self._look_up(email, client.address)
        limits = password_limits(email, client.address, known_address=known.known_address)
        attempt = await self._attempts.take(limits)
        try:
            right = await self._passwords.verify(known.password, password)
        except PasswordsBusy:
            await self._attempts.give_back(attempt)  # nothing was tried
            raise
        if not right or not known.enabled or known.user_id is None:
            await self.record_failure(known.user_id, PASSWORD)
            raise SignInRefused
        await self._attempts.give_back(attempt)
        if known.password is not None and self._passwords.is_outdated(known.password):
            hashed = await self._passwords.hash(password)
            async with self._database.transaction() as session:
                await set_credential(session, known.user_id, PASSWORD, hashed, from_instant(self._clock()))
        return known.user_id

    async def with_code(self, step_token: str, code: str, client: Client) -> NewSession:
        """A session for who has passed the first step, and has a code. Raises SignInRefused, LinkRefused."""
        now = self._clock()
        async with self._database.reading() as session:
            user_id = (await self._links.look_at(session, "second_factor", step_token, now)).user_id
        assert user_id is not None, "the step belongs to a user"

        async def enter(session: AsyncSession) -> NewSession | None:
            factor = await self._second_factors.use(session, user_id, code, now)
            if factor is None:
                return None
            step = await self._links.take(session, "second_factor", step_token, now)
            user = await session.get(UserAccount, user_id)
            if user is None or user.disabled_at is not None:
                raise LinkRefused
            return await self.open_session(session, user_id, f"{step.method}+{factor}", client, now)

        return await self._with_code(user_id, client, enter)

    async def check_code(self, user_id: UUID, code: str, client: Client) -> None:
        """Use up a code of a user who is signed in. Raises SignInRefused."""

        async def use(session: AsyncSession) -> str | None:
            return await self._second_factors.use(session, user_id, code, self._clock())

        await self._with_code(user_id, client, use)

    async def confirm_second_factor(self, user_id: UUID, code: str, client: Client) -> list[str]:
        """Let the authenticator that is being set up count; the recovery codes. Raises SignInRefused, WrongState."""
        async with self._database.reading() as session:
            known = await self._knows_address(session, UserAccount.id == user_id, client.address)
        limits = code_limits(user_id, client.address, known_address=known)
        attempt = await self._attempts.take(limits)
        codes = await self._second_factors.confirm(user_id, code, self._clock())
        await self._attempts.give_back(attempt)
        return codes

    async def with_link(self, token: str, client: Client) -> SignedInOrStep:
        """A session for who has a sign-in link, or the step to the second factor. Raises LinkRefused."""
        now = self._clock()
        async with self.link_attempt(client), self._database.transaction() as session:
            row = await self._links.take(session, "sign_in", token, now)
            assert row.user_id is not None, "a sign-in link belongs to a user"
            user = await session.get(UserAccount, row.user_id)
            if user is None or user.disabled_at is not None:
                raise LinkRefused
            return await self._enter(session, row.user_id, BY_LINK, client, now)

    @asynccontextmanager
    async def link_attempt(self, client: Client) -> AsyncIterator[None]:
        """An attempt to redeem a link. It counts unless the body ends well, or for lack of a turn to hash."""
        attempt = await self._attempts.take(link_limits(client.address))
        try:
            yield
        except PasswordsBusy:
            await self._attempts.give_back(attempt)
            raise
        await self._attempts.give_back(attempt)

    async def _with_code(
        self, user_id: UUID, client: Client, use: Callable[[AsyncSession], Awaitable[Result | None]]
    ) -> Result:
        """What `use` returns of a code that is right; None of it counts as a failure. Raises SignInRefused."""
        async with self._database.reading() as session:
            known = await self._knows_address(session, UserAccount.id == user_id, client.address)
        limits = code_limits(user_id, client.address, known_address=known)
        attempt = await self._attempts.take(limits)
        async with self._database.transaction() as session:
            result = await use(session)
        if result is None:
            await self.record_failure(user_id, "second factor")
            raise SignInRefused(WRONG_CODE)
        await self._attempts.give_back(attempt)
        return result

    async def _enter(
        self, session: AsyncSession, user_id: UUID, method: str, client: Client, now: int
    ) -> SignedInOrStep:
        second = await credential(session, user_id, TOTP)
        if second is not None and second.confirmed_at is not None:
            return await self._links.create_within(session, user_id, "second_factor", now, method)
        return await self.open_session(session, user_id, method, client, now)

    async def open_session(
        self,
        session: AsyncSession,
        user_id: UUID,
        method: str,
        client: Client,
        now: int,
        *,
        origin: SessionOrigin | None = None,
    ) -> NewSession:
        """A session, in the caller's transaction, for who has proven to be this user. `origin`: by whom, if that is an
        identity provider."""
        made = await self._sessions.create(session, user_id, method, client, now, origin=origin)
        user = await session.get_one(UserAccount, user_id)
        with acting_as_user(user_id, user.email):
            await record_change(
                session,
                "user.signed_in",
                target="user",
                target_id=user_public_id(user_id),
                after={"method": method, "session": session_public_id(made.id), "address": client.address},
            )
            if origin is None:
                await _record_break_glass(session, user_id, made.id)
        return made

    async def _look_up(self, email: str, address: str) -> _Known:
        password = aliased(Credential)
        query = (
            select(UserAccount.id, UserAccount.disabled_at, password.secret)
            .outerjoin(password, and_(password.user_id == UserAccount.id, password.kind == PASSWORD))
            .where(UserAccount.email == email)
        )
        async with self._database.reading() as session:
            row = (await session.execute(query)).one_or_none()
            known = await self._knows_address(session, UserAccount.email == email, address)
        if row is None:
            return _Known(None, False, None, False)
        return _Known(row[0], row[1] is None, row[2], known)

    async def _knows_address(self, session: AsyncSession, who: ColumnElement[bool], address: str) -> bool:
        """Whether the user has signed in from this network within the last weeks."""
        query = (
            select(UserSession.address)
            .join(UserAccount, UserAccount.id == UserSession.user_id)
            .where(who, UserSession.created_at > known_since(self._clock()))
            .distinct()
            .limit(1_000)
        )
        addresses = (await session.execute(query)).scalars()
        return network_of(address) in {network_of(each) for each in addresses}

    async def record_failure(self, user_id: UUID | None, method: str, reason: str = "") -> None:
        """Record that somebody did not prove to be this user; None: it is not known which. `reason`: a code."""
        async with self._database.transaction() as session:
            await record_change(
                session,
                "user.sign_in_failed",
                target="user",
                target_id="unknown" if user_id is None else user_public_id(user_id),
                after={"method": method, **({"refused": reason} if reason else {})},
            )


async def _record_break_glass(session: AsyncSession, user_id: UUID, session_id: UUID) -> None:
    """Tell of a session in which a break-glass role holds that no other session of its kind would have."""
    tenants = await session.execute(
        select(MembershipRow.tenant_id)
        .join(SignInPolicy, SignInPolicy.tenant_id == MembershipRow.tenant_id)
        .where(MembershipRow.user_id == user_id, BREAK_GLASS, SignInPolicy.provider_only == 1)
    )
    for tenant_id in tenants.scalars():
        log.warning("a break-glass owner signs in", user=user_public_id(user_id), tenant=str(tenant_id))
        await record_change(
            session,
            "user.break_glass_used",
            target="user",
            target_id=user_public_id(user_id),
            tenant_id=tenant_id,
            after={"session": session_public_id(session_id)},
        )
