"""What sets a password: an invitation that is accepted, a reset by a link, and a change by who is signed in.

Each ends the user's other sessions and links. None of them signs anybody in: that is `sign_in`'s, with its second
factor.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from uuid import UUID

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from audit_log.record import record_change
from storage.database.base import from_instant
from storage.database.database import Database
from storage.free_text import NAME, check_text
from tenancy.rights.principals import Membership
from tenancy.users.accounts import PASSWORD, add_user, credential, locked_user, membership_row, set_credential
from tenancy.users.changes import UserChanges, acting_as_user
from tenancy.users.errors import LastOwner, LinkRefused, SignInRefused
from tenancy.users.identifiers import check_email, invitation_public_id, user_public_id
from tenancy.users.links import Links
from tenancy.users.members import Scope
from tenancy.users.passwords import Passwords, check_password
from tenancy.users.roles import other_owners
from tenancy.users.sessions import Client, SessionRecord, end_foreign_access, revoke_sessions, withdraw_links
from tenancy.users.sign_in import SignIn
from tenancy.users.tables import MembershipRow, OneTimeToken, UserAccount

_NOT_PROVEN = (
    "Wrong password. Who is a user already signs in, or gives its password; a new user gives a name too, and has the "
    "invited address: if that is somebody else's account, ask for an invitation to another one."
)


class PasswordChanges:
    """Sets passwords. `clock`: microseconds since the Unix epoch. Every method may raise TooManyAttempts, PasswordsBusy
    and DatabaseUnavailable."""

    def __init__(
        self,
        database: Database,
        *,
        passwords: Passwords,
        links: Links,
        sign_in: SignIn,
        changes: UserChanges,
        clock: Callable[[], int],
    ) -> None:
        self._database = database
        self._passwords = passwords
        self._links = links
        self._sign_in = sign_in
        self._changes = changes
        self._clock = clock

    async def change(self, user_id: UUID, session_id: UUID, current: str | None, new: str, client: Client) -> None:
        """Change the password of a signed-in user, whose other sessions end. `current` may be None only where there is
        no password yet. Raises SignInRefused, FieldRefused."""
        async with self._database.reading() as session:
            user = await session.get_one(UserAccount, user_id)
            kept = await credential(session, user_id, PASSWORD)
        check_password(new, user.email, field="new")
        if kept is not None:
            await self._sign_in.check_password(user.email, current or "", client)
        hashed = await self._passwords.hash(new)
        async with self._database.transaction() as session:
            await self._set(session, user_id, hashed, "user.password_changed", but=session_id)
        await self._changes.announce(user_id)

    async def reset(self, token: str, new: str, client: Client) -> UUID:
        """Set the password of the user of a reset link; all its sessions end. Raises LinkRefused, FieldRefused."""
        async with self._sign_in.link_attempt(client):
            async with self._database.reading() as session:
                row = await self._links.look_at(session, "password_reset", token, self._clock())
                assert row.user_id is not None, "a reset belongs to a user"
                user = await session.get_one(UserAccount, row.user_id)
            check_password(new, user.email)
            hashed = await self._passwords.hash(new)
            async with self._database.transaction() as session:
                await self._links.take(session, "password_reset", token, self._clock())
                with acting_as_user(user.id, user.email):
                    await self._set(session, user.id, hashed, "user.password_reset")
            await self._changes.announce(user.id)
            return user.id

    async def accept(
        self,
        token: str,
        name: str,
        password: str | None,
        client: Client,
        *,
        signed_in: SessionRecord | None = None,
        email: str = "",
    ) -> UUID:
        """Accept an invitation: a new user gets this name and password. Who is a user already must be signed in as that
        user (`signed_in`), by more than a link, or give its password. `email`: the address of that user, if it is not
        the invited one. A new user has the invited address: nobody takes one that others may be waiting for.

        Until a user is made, or its password is right, the errors do not tell whether the address is a user's.
        Raises LinkRefused, SignInRefused, FieldRefused, InvalidText, LastOwner.
        """
        async with self._sign_in.link_attempt(client):
            return await self._accept(token, name, password, client, signed_in=signed_in, email=email)

    async def _accept(
        self,
        token: str,
        name: str,
        password: str | None,
        client: Client,
        *,
        signed_in: SessionRecord | None,
        email: str,
    ) -> UUID:
        async with self._database.reading() as session:
            row = await self._links.look_at(session, "invitation", token, self._clock())
            address = check_email(email) if email else row.email
            query = select(UserAccount).where(UserAccount.email == address)
            present = (await session.execute(query)).scalar_one_or_none()
        own = None if signed_in is None or signed_in.by_link else signed_in.user_id
        if present is None or own != present.id:
            check_password(password or "", address)
            if name:
                check_text("name", name, NAME)
        if present is None and name and address == row.email:
            user_id = await self._accept_as_new(token, address, name, password or "")
        else:
            if present is None or own != present.id:
                try:
                    await self._sign_in.check_password(address, password or "", client)
                except SignInRefused as error:
                    raise SignInRefused(_NOT_PROVEN) from error
            assert present is not None, "nobody's password is right"
            if present.disabled_at is not None:
                raise LinkRefused
            user_id = present.id
            async with self._database.transaction() as session:
                with acting_as_user(user_id, address):
                    await self.join(session, user_id, token)
        await self._changes.announce(user_id)
        return user_id

    async def _accept_as_new(self, token: str, email: str, name: str, password: str) -> UUID:
        hashed = await self._passwords.hash(password)
        moment = from_instant(self._clock())
        async with self._database.transaction() as session:
            user = await add_user(session, email, name, moment)
            await set_credential(session, user.id, PASSWORD, hashed, moment)
            with acting_as_user(user.id, email):
                await self.join(session, user.id, token)
        return user.id

    async def join(self, session: AsyncSession, user_id: UUID, token: str) -> None:
        """Use up the invitation, and give the user its role, in the caller's transaction. Raises LinkRefused,
        LastOwner."""
        now = self._clock()
        await locked_user(session, self._database, user_id)
        row = await self._links.take(session, "invitation", token, now)
        scope = Scope(row.tenant_id, row.project_id)
        role = Membership(row.role, scope.tenant_id, scope.project_id)  # type: ignore[arg-type]  # only roles are kept
        held = (MembershipRow.user_id == user_id) & (MembershipRow.scope == scope.name)
        await locked_user(session, self._database, user_id)  # so that nobody gives it a role here meanwhile
        present = (await session.execute(select(MembershipRow).where(held))).scalar_one_or_none()
        before = None if present is None else {"role": present.role}
        if present is None:
            session.add(membership_row(user_id, role, from_instant(now)))
        else:
            leaves = present.role == "owner" != role.role and scope.project_id is None
            if leaves and not await other_owners(session, self._database, user_id, scope.tenant_id):
                raise LastOwner("you are the last owner here: make another one first")
            present.role = role.role
        await end_foreign_access(session, user_id, from_instant(now))
        await self._record_acceptance(session, row, user_id, before)

    async def _record_acceptance(
        self, session: AsyncSession, row: OneTimeToken, user_id: UUID, before: Mapping[str, str] | None
    ) -> None:
        await record_change(
            session,
            "invitation.accepted",
            target="user",
            target_id=user_public_id(user_id),
            tenant_id=row.tenant_id,
            project_id=row.project_id,
            before=before,
            after={"role": row.role, "invitation": invitation_public_id(row.id), "invited_by": row.created_by},
        )

    async def _set(
        self, session: AsyncSession, user_id: UUID, hashed: bytes, action: str, but: UUID | None = None
    ) -> None:
        now = self._clock()
        await set_credential(session, user_id, PASSWORD, hashed, from_instant(now))
        await withdraw_links(session, user_id, from_instant(now))
        ended = await revoke_sessions(session, user_id, from_instant(now), but)
        await record_change(
            session, action, target="user", target_id=user_public_id(user_id), after={"sessions_ended": ended}
        )
