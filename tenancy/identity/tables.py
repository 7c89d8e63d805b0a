"""The tables of identity providers, of who is known by them, of passkeys, and of tenants' directories (SCIM)."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

from sqlalchemy import ForeignKey, Index, LargeBinary, Text, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from storage.database.base import STRICT, Base, Count, Id, Instant, new_id
from tenancy.rights.permissions import Role


class IdentityProvider(Base):
    """An OpenID provider of a tenant, or without `tenant_id` of the platform. `issuer` never changes: who is known by
    it is known by (issuer, subject). `secret` is sealed; None: a public client. `acr_values`: what a fresh sign-in must
    have one of, separated by spaces; empty: any. `groups_claim`: the claim with the ids of groups. `owner_by_group`
    (0 or 1): a group may give the role owner. `enabled` (0 or 1).
    """

    __tablename__ = "identity_provider"
    __table_args__ = (Index("ix_identity_provider_tenant_id", "tenant_id"), STRICT)

    id: Mapped[UUID] = mapped_column(Id, primary_key=True, default=new_id)
    tenant_id: Mapped[UUID | None] = mapped_column(Id, ForeignKey("tenant.id"))
    name: Mapped[str] = mapped_column(Text)
    issuer: Mapped[str] = mapped_column(Text)
    client_id: Mapped[str] = mapped_column(Text)
    secret: Mapped[bytes | None] = mapped_column(LargeBinary)
    scopes: Mapped[str] = mapped_column(Text)
    groups_claim: Mapped[str] = mapped_column(Text)
    acr_values: Mapped[str] = mapped_column(Text)
    owner_by_group: Mapped[int] = mapped_column(Count)
    enabled: Mapped[int] = mapped_column(Count)
    created_at: Mapped[datetime] = mapped_column(Instant)


class IdentityDomain(Base):
    """A domain of e-mail addresses that an operator has confirmed to belong to who runs the provider."""

    __tablename__ = "identity_domain"
    __table_args__ = (STRICT,)

    domain: Mapped[str] = mapped_column(Text, primary_key=True)
    provider_id: Mapped[UUID] = mapped_column(Id, ForeignKey("identity_provider.id"), index=True)
    created_at: Mapped[datetime] = mapped_column(Instant)


class IdentityGroup(Base):
    """What role a provider's group gives, at the platform, a tenant or a project. `group_id`: as the provider's tokens
    say it. `created_by_id`: the public id of who made it, whose rights it may not exceed; empty: a command.
    """

    __tablename__ = "identity_group"
    __table_args__ = (UniqueConstraint("provider_id", "group_id", "scope"), STRICT)

    id: Mapped[UUID] = mapped_column(Id, primary_key=True, default=new_id)
    provider_id: Mapped[UUID] = mapped_column(Id, ForeignKey("identity_provider.id"))
    group_id: Mapped[str] = mapped_column(Text)
    scope: Mapped[str] = mapped_column(Text)
    tenant_id: Mapped[UUID | None] = mapped_column(Id, ForeignKey("tenant.id"))
    project_id: Mapped[UUID | None] = mapped_column(Id, ForeignKey("project.id"))
    role: Mapped[Role] = mapped_column(Text)
    created_by_id: Mapped[str] = mapped_column(Text)


class UserIdentity(Base):
    """A user as a provider knows it, by (issuer, subject). `email` is what the provider said last, for people to
    read; it decides nothing."""

    __tablename__ = "user_identity"
    __table_args__ = (
        UniqueConstraint("provider_id", "issuer", "subject"),
        Index("ix_user_identity_user_id", "user_id"),
        STRICT,
    )

    id: Mapped[UUID] = mapped_column(Id, primary_key=True, default=new_id)
    user_id: Mapped[UUID] = mapped_column(Id, ForeignKey("user_account.id"))
    provider_id: Mapped[UUID] = mapped_column(Id, ForeignKey("identity_provider.id"))
    issuer: Mapped[str] = mapped_column(Text)
    subject: Mapped[str] = mapped_column(Text)
    email: Mapped[str] = mapped_column(Text)
    created_at: Mapped[datetime] = mapped_column(Instant)
    used_at: Mapped[datetime | None] = mapped_column(Instant)


class Passkey(Base):
    """A passkey of a user. `counter`: the authenticator's count of signatures, 0 where it does not count."""

    __tablename__ = "passkey"
    __table_args__ = (Index("ix_passkey_user_id", "user_id"), STRICT)

    id: Mapped[UUID] = mapped_column(Id, primary_key=True, default=new_id)
    user_id: Mapped[UUID] = mapped_column(Id, ForeignKey("user_account.id"))
    credential_id: Mapped[bytes] = mapped_column(LargeBinary, unique=True)
    public_key: Mapped[bytes] = mapped_column(LargeBinary)
    counter: Mapped[int] = mapped_column(Count)
    name: Mapped[str] = mapped_column(Text)
    created_at: Mapped[datetime] = mapped_column(Instant)
    used_at: Mapped[datetime | None] = mapped_column(Instant)


class Directory(Base):
    """A tenant's directory: the SCIM client that may change who belongs to it. `mac`: of its token. `role`: the role of
    who made the token, which bounds what it gives and takes; `created_by_id`: who that was. `member_role`: the role of
    everybody who is active; empty: groups alone give roles. `revoke_keys` (0 or 1): who leaves loses the keys.
    """

    __tablename__ = "directory"
    __table_args__ = (STRICT,)

    tenant_id: Mapped[UUID] = mapped_column(Id, ForeignKey("tenant.id"), primary_key=True)
    mac: Mapped[bytes] = mapped_column(LargeBinary, unique=True)
    role: Mapped[Role] = mapped_column(Text)
    member_role: Mapped[str] = mapped_column(Text)
    revoke_keys: Mapped[int] = mapped_column(Count)
    created_by_id: Mapped[str] = mapped_column(Text)
    created_at: Mapped[datetime] = mapped_column(Instant)
    used_at: Mapped[datetime | None] = mapped_column(Instant)


class DirectoryUser(Base):
    """A person in a tenant's directory. `user_id`: the account that is known to be this person's; None as long as none
    is. `user_name` is in lower case. `content`: the rest of the SCIM resource, as JSON.
    """

    __tablename__ = "directory_user"
    __table_args__ = (
        UniqueConstraint("tenant_id", "user_name"),
        Index("ix_directory_user_user_id", "user_id"),
        STRICT,
    )

    id: Mapped[UUID] = mapped_column(Id, primary_key=True, default=new_id)
    tenant_id: Mapped[UUID] = mapped_column(Id, ForeignKey("tenant.id"))
    user_id: Mapped[UUID | None] = mapped_column(Id, ForeignKey("user_account.id"))
    user_name: Mapped[str] = mapped_column(Text)
    external_id: Mapped[str] = mapped_column(Text)
    email: Mapped[str] = mapped_column(Text)
    active: Mapped[int] = mapped_column(Count)
    content: Mapped[str] = mapped_column(Text)
    created_at: Mapped[datetime] = mapped_column(Instant)
    changed_at: Mapped[datetime] = mapped_column(Instant)


class DirectoryGroup(Base):
    """A group in a tenant's directory. `role`: what its members have, at the tenant or at `project_id`; empty: nothing.
    `role_by_id`: who said so, whose rights it may not exceed; empty: a command."""

    __tablename__ = "directory_group"
    __table_args__ = (UniqueConstraint("tenant_id", "name"), STRICT)

    id: Mapped[UUID] = mapped_column(Id, primary_key=True, default=new_id)
    tenant_id: Mapped[UUID] = mapped_column(Id, ForeignKey("tenant.id"))
    name: Mapped[str] = mapped_column(Text)
    external_id: Mapped[str] = mapped_column(Text)
    role: Mapped[str] = mapped_column(Text)
    project_id: Mapped[UUID | None] = mapped_column(Id, ForeignKey("project.id"))
    role_by_id: Mapped[str] = mapped_column(Text)
    created_at: Mapped[datetime] = mapped_column(Instant)
    changed_at: Mapped[datetime] = mapped_column(Instant)


class DirectoryMember(Base):
    """Who is in a group of a directory."""

    __tablename__ = "directory_member"
    __table_args__ = (Index("ix_directory_member_member_id", "member_id"), STRICT)

    group_id: Mapped[UUID] = mapped_column(Id, ForeignKey("directory_group.id"), primary_key=True)
    member_id: Mapped[UUID] = mapped_column(Id, ForeignKey("directory_user.id"), primary_key=True)
    tenant_id: Mapped[UUID] = mapped_column(Id, ForeignKey("tenant.id"))
