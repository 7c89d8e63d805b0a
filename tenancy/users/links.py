"""One-time links: invitations, password resets, sign-in links, and sign-ins that wait for their second factor, an
identity provider or a passkey.

The database has only the MAC of a link's token. A token works once, until it expires; a new link of the same kind for
the same user, or the same e-mail address and scope, takes the place of the one before.
"""

from __future__ import annotations

from typing import Literal, TypeAlias
from uuid import UUID

from msgspec import Struct
from sqlalchemy import ColumnElement, delete, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from audit_log.actors import THIS_MACHINE, current_actor
from audit_log.record import record_change
from storage.database.base import from_instant, new_id, to_instant
from storage.database.database import Database
from tenancy.rights.permissions import Role
from tenancy.rights.principals import Principal
from tenancy.users.accounts import locked_user
from tenancy.users.errors import LinkRefused, NoSuchUser, NotPermitted
from tenancy.users.identifiers import check_email, invitation_public_id, user_public_id
from tenancy.users.members import Scope
from tenancy.users.roles import may_give, may_still_invite, may_take_over
from tenancy.users.sessions import memberships_of
from tenancy.users.tables import OneTimeToken
from tenancy.users.tokens import MOST_TOKEN, UserSecrets, new_token

LinkKind: TypeAlias = Literal[
    "invitation", "password_reset", "sign_in", "second_factor", "provider", "passkey", "new_passkey"
]
LINK_PAGE = "/console/link"
_HOUR_US = 3_600 * 1_000_000
LIFETIME_US: dict[LinkKind, int] = {
    "invitation": 7 * 24 * _HOUR_US,
    "password_reset": 24 * _HOUR_US,
    "sign_in": 24 * _HOUR_US,
    "second_factor": _HOUR_US // 4,
    "provider": _HOUR_US // 6,
    "passkey": _HOUR_US // 12,
    "new_passkey": _HOUR_US // 12,
}
KEPT_US = 30 * 24 * _HOUR_US
"""How long a token that is used or expired is kept."""


class Link(Struct, frozen=True):
    """A link that was just made. `token` is the only copy; the repr leaves it out."""

    id: UUID
    kind: LinkKind
    token: str
    expires_at: int

    @property
    def path(self) -> str:
        """The page that redeems it. The token is in the fragment, which browsers send to nobody."""
        return f"{LINK_PAGE}#{self.kind}={self.token}"

    def __repr__(self) -> str:
        return f"Link(id={self.id!r}, kind={self.kind!r})"


class Invitation(Struct, frozen=True):
    """An invitation that was not accepted yet. Instants in microseconds since the Unix epoch."""

    id: UUID
    email: str
    role: Role
    scope: Scope
    created_by: str
    created_at: int
    expires_at: int


class Links:
    """Makes and withdraws links. Every method may raise DatabaseUnavailable."""

    def __init__(self, database: Database, secrets: UserSecrets) -> None:
        self._database = database
        self._secrets = secrets

    async def invite(self, by: Principal, email: str, role: Role, scope: Scope, now: int) -> Link:
        """Invite somebody, who may be a user already, to this role. Raises FieldRefused, NotPermitted."""
        email = check_email(email)
        if not may_give(by, role, scope.tenant_id, scope.project_id):
            raise NotPermitted(f"your role does not let you give the role {role} here")
        async with self._database.transaction() as session:
            earlier = (OneTimeToken.email == email) & _at(scope) & (OneTimeToken.kind == "invitation")
            await _withdraw(session, earlier, now)
            token, row = self._new("invitation", now)
            row.email, row.role, row.tenant_id, row.project_id = email, role, scope.tenant_id, scope.project_id
            if by.kind == "command":
                row.created_by = THIS_MACHINE  # not USER@HOST: tenants read it
            else:
                row.created_by_id = by.public_id
            session.add(row)
            await record_change(
                session,
                "invitation.created",
                target="invitation",
                target_id=invitation_public_id(row.id),
                tenant_id=scope.tenant_id,
                project_id=scope.project_id,
                after={"email": email, "role": role},
            )
        return Link(row.id, "invitation", token, to_instant(row.expires_at))

    async def create(
        self, user_id: UUID, kind: LinkKind, now: int, *, by: Principal | None = None, reason: str = ""
    ) -> Link:
        """Make a link by which this user resets its password, or signs in. `by`: who asks; None: a command.

        Raises NoSuchUser, NotPermitted.
        """
        async with self._database.transaction() as session:
            await locked_user(session, self._database, user_id)  # so that its roles stay as they are
            if by is not None and not may_take_over(by, await memberships_of(session, user_id)):
                raise NotPermitted("this user has roles that you may not give: an owner of all of them must do this")
            link = await self.create_within(session, user_id, kind, now, by=by)
            await record_change(
                session, f"user.{kind}_link_created", target="user", target_id=user_public_id(user_id), reason=reason
            )
        return link

    async def create_within(
        self,
        session: AsyncSession,
        user_id: UUID | None,
        kind: LinkKind,
        now: int,
        method: str = "",
        *,
        by: Principal | None = None,
        token: str = "",
    ) -> Link:
        """Make a link in the caller's transaction. `user_id`: None where it is not known who signs in. `method`: how
        the user has proven itself so far, or is to. `by`: who made it; None: the user or a command. `token`: a secret
        of 256 bits, if not one that is made here."""
        if kind in ("password_reset", "sign_in"):  # a browser that waits must not end another one that does
            await _withdraw(session, (OneTimeToken.user_id == user_id) & (OneTimeToken.kind == kind), now)
        token, row = self._new(kind, now, token)
        row.user_id, row.method = user_id, method
        row.created_by_id = "" if by is None else by.public_id
        session.add(row)
        return Link(row.id, kind, token, to_instant(row.expires_at))

    async def take(self, session: AsyncSession, kind: LinkKind, token: str, now: int) -> OneTimeToken:
        """Use up a link in the caller's transaction: of several at once, one gets it. Raises LinkRefused."""
        row = await self.look_at(session, kind, token, now)
        unused = (OneTimeToken.id == row.id) & OneTimeToken.used_at.is_(None)
        done = await session.execute(update(OneTimeToken).where(unused).values(used_at=from_instant(now)))
        if not getattr(done, "rowcount", 0):
            raise LinkRefused
        return row

    async def look_at(self, session: AsyncSession, kind: LinkKind, token: str, now: int) -> OneTimeToken:
        """The row of a link that is still good, which stays so. Raises LinkRefused."""
        if not 0 < len(token) <= MOST_TOKEN:
            raise LinkRefused
        query = select(OneTimeToken).where(OneTimeToken.mac == self._secrets.mac("one-time", token))
        row = (await session.execute(query)).scalar_one_or_none()
        if row is None or row.kind != kind or row.used_at is not None or to_instant(row.expires_at) <= now:
            raise LinkRefused
        if kind == "invitation" and not await may_still_invite(session, row):
            raise LinkRefused
        return row

    async def invitations(self, scope: Scope, now: int) -> list[Invitation]:
        """Invitations to this very scope that may still be accepted, oldest first."""
        query = (
            select(OneTimeToken)
            .where(OneTimeToken.kind == "invitation", _at(scope), _open(now))
            .order_by(OneTimeToken.created_at, OneTimeToken.id)
        )
        async with self._database.reading() as session:
            rows = (await session.execute(query)).scalars().all()
            return [_invitation(row) for row in rows if await may_still_invite(session, row)]

    async def withdraw(self, invitation_id: UUID, scope: Scope, now: int) -> None:
        """Withdraw an invitation to this scope. Raises NoSuchUser."""
        async with self._database.transaction() as session:
            row = await session.get(OneTimeToken, invitation_id)
            at_scope = row is not None and (row.tenant_id, row.project_id) == (scope.tenant_id, scope.project_id)
            if row is None or row.kind != "invitation" or not at_scope or row.used_at is not None:
                raise NoSuchUser(f"there is no invitation {invitation_public_id(invitation_id)}")
            row.used_at = from_instant(now)
            await record_change(
                session,
                "invitation.withdrawn",
                target="invitation",
                target_id=invitation_public_id(row.id),
                tenant_id=scope.tenant_id,
                project_id=scope.project_id,
                before={"email": row.email, "role": row.role},
            )

    async def forget_old(self, now: int) -> int:
        """Remove links that expired long ago; how many."""
        async with self._database.transaction() as session:
            old = OneTimeToken.expires_at < from_instant(now - KEPT_US)
            return int(getattr(await session.execute(delete(OneTimeToken).where(old)), "rowcount", 0))

    def _new(self, kind: LinkKind, now: int, token: str = "") -> tuple[str, OneTimeToken]:
        token = token or new_token()
        return token, OneTimeToken(
            id=new_id(),
            kind=kind,
            mac=self._secrets.mac("one-time", token),
            email="",
            role="",
            method="",
            created_by=current_actor().name,
            created_at=from_instant(now),
            expires_at=from_instant(now + LIFETIME_US[kind]),
        )


async def _withdraw(session: AsyncSession, which: ColumnElement[bool], now: int) -> None:
    unused = which & OneTimeToken.used_at.is_(None)
    await session.execute(update(OneTimeToken).where(unused).values(used_at=from_instant(now)))


def _at(scope: Scope) -> ColumnElement[bool]:
    tenant, project = OneTimeToken.tenant_id, OneTimeToken.project_id
    return (tenant.is_(None) if scope.tenant_id is None else tenant == scope.tenant_id) & (
        project.is_(None) if scope.project_id is None else project == scope.project_id
    )


def _open(now: int) -> ColumnElement[bool]:
    return OneTimeToken.used_at.is_(None) & (OneTimeToken.expires_at > from_instant(now))


def _invitation(row: OneTimeToken) -> Invitation:
    return Invitation(
        row.id,
        row.email,
        row.role,  # type: ignore[arg-type]  # only roles are written
        Scope(row.tenant_id, row.project_id),
        row.created_by,
        to_instant(row.created_at),
        to_instant(row.expires_at),
    )
