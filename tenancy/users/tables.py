"""The tables of users, their credentials, memberships, sessions, one-time tokens, and counts of sign-in attempts; and
how people get into a tenant."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

from sqlalchemy import ForeignKey, Index, LargeBinary, Text, UniqueConstraint, text
from sqlalchemy.orm import Mapped, mapped_column

from storage.database.base import STRICT, Base, Count, Id, Instant, new_id
from tenancy.rights.permissions import Role


class UserAccount(Base):
    """A person who signs in. `email` is in lower case."""

    __tablename__ = "user_account"
    __table_args__ = (STRICT,)

    id: Mapped[UUID] = mapped_column(Id, primary_key=True, default=new_id)
    email: Mapped[str] = mapped_column(Text, unique=True)
    name: Mapped[str] = mapped_column(Text)
    created_at: Mapped[datetime] = mapped_column(Instant)
    disabled_at: Mapped[datetime | None] = mapped_column(Instant)


class Credential(Base):
    """What a user proves itself with, by kind.

    `password`: `secret` is argon2's text. `totp`: `secret` is sealed, `counter` the last time step that was used.
    `recovery_code`: `secret` is its MAC, a row for each code. `identifier` tells credentials of one kind apart: a
    recovery code's number; a passkey's id or an identity provider's (issuer, subject), when there are such.
    """

    __tablename__ = "credential"
    __table_args__ = (UniqueConstraint("user_id", "kind", "identifier"), STRICT)

    id: Mapped[UUID] = mapped_column(Id, primary_key=True, default=new_id)
    user_id: Mapped[UUID] = mapped_column(Id, ForeignKey("user_account.id"))
    kind: Mapped[str] = mapped_column(Text)
    identifier: Mapped[str] = mapped_column(Text, default="")
    secret: Mapped[bytes] = mapped_column(LargeBinary)
    counter: Mapped[int] = mapped_column(Count, default=0)
    created_at: Mapped[datetime] = mapped_column(Instant)
    confirmed_at: Mapped[datetime | None] = mapped_column(Instant)
    used_at: Mapped[datetime | None] = mapped_column(Instant)


class MembershipRow(Base):
    """A user's role at a scope: the platform, a tenant, or a project. `scope` names it, for uniqueness. `source`: who
    gives it and may take it again: empty for people, else `directory` or `provider_<hex>`. `break_glass` (0 or 1): it
    holds in sessions of a password or passkey too where the tenant lets people in by its provider alone.
    """

    __tablename__ = "membership"
    __table_args__ = (UniqueConstraint("user_id", "scope"), Index("ix_membership_tenant_id", "tenant_id"), STRICT)

    id: Mapped[UUID] = mapped_column(Id, primary_key=True, default=new_id)
    user_id: Mapped[UUID] = mapped_column(Id, ForeignKey("user_account.id"))
    scope: Mapped[str] = mapped_column(Text)
    tenant_id: Mapped[UUID | None] = mapped_column(Id, ForeignKey("tenant.id"))
    project_id: Mapped[UUID | None] = mapped_column(Id, ForeignKey("project.id"))
    role: Mapped[Role] = mapped_column(Text)
    source: Mapped[str] = mapped_column(Text, default="", server_default=text("''"))
    break_glass: Mapped[int] = mapped_column(Count, default=0, server_default=text("0"))
    created_at: Mapped[datetime] = mapped_column(Instant)


class SignInPolicy(Base):
    """How people get into a tenant. `provider_only` (0 or 1): roles there hold only in sessions that an identity
    provider of the tenant opened. A tenant without a row has no such rule.
    """

    __tablename__ = "sign_in_policy"
    __table_args__ = (STRICT,)

    tenant_id: Mapped[UUID] = mapped_column(Id, ForeignKey("tenant.id"), primary_key=True)
    provider_only: Mapped[int] = mapped_column(Count)


class UserSession(Base):
    """A signed-in browser. `mac` is of its token; `previous_mac` of the token before, which is accepted until
    `previous_until`. `rotate` (0 or 1): the next request gets a new token. `proven_at`: when the user last proved
    itself. `provider_id`: the identity provider that opened it, with its own name of the session, `provider_session`.
    `tenant_id`: of the tenant whose provider that is; the session then has the user's roles at this tenant alone.
    """

    __tablename__ = "user_session"
    __table_args__ = (Index("ix_user_session_user_id", "user_id"), STRICT)

    id: Mapped[UUID] = mapped_column(Id, primary_key=True, default=new_id)
    user_id: Mapped[UUID] = mapped_column(Id, ForeignKey("user_account.id"))
    mac: Mapped[bytes] = mapped_column(LargeBinary, unique=True)
    previous_mac: Mapped[bytes | None] = mapped_column(LargeBinary, unique=True)
    previous_until: Mapped[datetime | None] = mapped_column(Instant)
    rotate: Mapped[int] = mapped_column(Count, default=0)
    method: Mapped[str] = mapped_column(Text)
    address: Mapped[str] = mapped_column(Text)
    user_agent: Mapped[str] = mapped_column(Text)
    created_at: Mapped[datetime] = mapped_column(Instant)
    proven_at: Mapped[datetime] = mapped_column(Instant)
    seen_at: Mapped[datetime] = mapped_column(Instant)
    expires_at: Mapped[datetime] = mapped_column(Instant, index=True)
    revoked_at: Mapped[datetime | None] = mapped_column(Instant)
    provider_id: Mapped[UUID | None] = mapped_column(Id)
    provider_session: Mapped[str] = mapped_column(Text, default="", server_default=text("''"))
    tenant_id: Mapped[UUID | None] = mapped_column(Id)


class OneTimeToken(Base):
    """A secret that works once: an invitation, a password reset, a sign-in link, or a sign-in that waits for its second
    factor. An invitation has the e-mail, the role and its scope; the others have the user. `created_by_id`: the public
    id of the user or key that made it; empty: a command, or of a waiting sign-in the user.
    """

    __tablename__ = "one_time_token"
    __table_args__ = (Index("ix_one_time_token_user_id", "user_id"), STRICT)

    id: Mapped[UUID] = mapped_column(Id, primary_key=True, default=new_id)
    kind: Mapped[str] = mapped_column(Text)
    mac: Mapped[bytes] = mapped_column(LargeBinary, unique=True)
    user_id: Mapped[UUID | None] = mapped_column(Id, ForeignKey("user_account.id"))
    email: Mapped[str] = mapped_column(Text, default="")
    role: Mapped[str] = mapped_column(Text, default="")
    tenant_id: Mapped[UUID | None] = mapped_column(Id, ForeignKey("tenant.id"))
    project_id: Mapped[UUID | None] = mapped_column(Id, ForeignKey("project.id"))
    method: Mapped[str] = mapped_column(Text, default="")
    created_by: Mapped[str] = mapped_column(Text, default="")
    created_by_id: Mapped[str] = mapped_column(Text, default="", server_default=text("''"))
    created_at: Mapped[datetime] = mapped_column(Instant)
    expires_at: Mapped[datetime] = mapped_column(Instant, index=True)
    used_at: Mapped[datetime | None] = mapped_column(Instant)


class SignInCount(Base):
    """Attempts under a key in a window of time; `slot` is the window's number since the Unix epoch."""

    __tablename__ = "sign_in_count"
    __table_args__ = (STRICT,)

    key: Mapped[str] = mapped_column(Text, primary_key=True)
    slot: Mapped[int] = mapped_column(Count, primary_key=True)
    attempts: Mapped[int] = mapped_column(Count)
    ends_at: Mapped[int] = mapped_column(Count, index=True)
