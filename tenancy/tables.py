"""The tables of tenants, projects and API keys."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

from sqlalchemy import CheckConstraint, ForeignKey, Integer, LargeBinary, Text, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from storage.database.base import STRICT, Base, Count, Id, Instant, new_id
from storage.database.public_ids import public_id


class Tenant(Base):
    """A customer, with money and projects."""

    __tablename__ = "tenant"
    __table_args__ = (STRICT,)

    id: Mapped[UUID] = mapped_column(Id, primary_key=True, default=new_id)
    name: Mapped[str] = mapped_column(Text, unique=True)
    created_at: Mapped[datetime] = mapped_column(Instant)
    suspended_at: Mapped[datetime | None] = mapped_column(Instant, index=True)
    suspended_for: Mapped[str | None] = mapped_column(Text)
    suspended_running: Mapped[str | None] = mapped_column(Text)


class Project(Base):
    """The isolation domain: keys, limits, cache and usage belong to a project."""

    __tablename__ = "project"
    __table_args__ = (UniqueConstraint("tenant_id", "name"), STRICT)

    id: Mapped[UUID] = mapped_column(Id, primary_key=True, default=new_id)
    tenant_id: Mapped[UUID] = mapped_column(Id, ForeignKey("tenant.id"))
    name: Mapped[str] = mapped_column(Text)
    created_at: Mapped[datetime] = mapped_column(Instant)
    suspended_at: Mapped[datetime | None] = mapped_column(Instant, index=True)
    suspended_for: Mapped[str | None] = mapped_column(Text)
    suspended_running: Mapped[str | None] = mapped_column(Text)


_OF_A_NAME = 5
"""The version of ids that are made of a name (RFC 9562); all others are of version 7."""


class ApiKey(Base):
    """A key: its public id and the MAC of its secret. A tenant's admin key has no project. An operator's key has no
    tenant either, and its name is the operator's; `user_id` says which user that is, if it is one.

    `limits` is JSON of `tenancy.rights.key_limits.KeyLimits`. A key that was rotated keeps its earlier secret's MAC as
    `previous_mac`, which is valid until `previous_until`. `leaked`: it was revoked since somebody else may have it, so
    that what it ordered before is not to be gone on with.
    """

    __tablename__ = "api_key"
    __table_args__ = (
        CheckConstraint(
            "(kind = 'project' AND tenant_id IS NOT NULL AND project_id IS NOT NULL) "
            "OR (kind = 'admin' AND tenant_id IS NOT NULL AND project_id IS NULL) "
            "OR (kind = 'operator' AND tenant_id IS NULL AND project_id IS NULL)",
            name="kind",
        ),
        STRICT,
    )

    id: Mapped[UUID] = mapped_column(Id, primary_key=True, default=new_id)
    public_id: Mapped[str] = mapped_column(Text, unique=True)
    tenant_id: Mapped[UUID | None] = mapped_column(Id, ForeignKey("tenant.id"), index=True)
    project_id: Mapped[UUID | None] = mapped_column(Id, ForeignKey("project.id"))
    kind: Mapped[str] = mapped_column(Text)
    name: Mapped[str] = mapped_column(Text)
    mac: Mapped[bytes] = mapped_column(LargeBinary)
    pepper_version: Mapped[int] = mapped_column(Integer)
    created_at: Mapped[datetime] = mapped_column(Instant)
    expires_at: Mapped[datetime | None] = mapped_column(Instant)
    revoked_at: Mapped[datetime | None] = mapped_column(Instant)
    leaked: Mapped[int] = mapped_column(Integer, default=0, server_default="0")
    last_used_at: Mapped[datetime | None] = mapped_column(Instant)
    role: Mapped[str | None] = mapped_column(Text)
    limits: Mapped[str] = mapped_column(Text, default="{}", server_default="{}")
    rotated_at: Mapped[datetime | None] = mapped_column(Instant)
    previous_mac: Mapped[bytes | None] = mapped_column(LargeBinary)
    previous_pepper_version: Mapped[int | None] = mapped_column(Integer)
    previous_until: Mapped[datetime | None] = mapped_column(Instant)
    previous_used_at: Mapped[datetime | None] = mapped_column(Instant)
    user_id: Mapped[UUID | None] = mapped_column(Id)

    @property
    def stands_in(self) -> bool:
        """Whether it stands for a person who asks without a key: then its id is made of whom it stands for, and no
        secret is its own."""
        return self.id.version == _OF_A_NAME

    @property
    def user(self) -> str:
        """The public id of the user whose key it is; empty if it says of none."""
        return "" if self.user_id is None else public_id("user", self.user_id)

    def __repr__(self) -> str:
        return f"ApiKey(public_id={self.public_id!r}, kind={self.kind!r}, name={self.name!r})"


class RateLimit(Base):
    """What a project, or one of its keys (`key_id`), may use: requests and tokens a minute, requests at once. None is
    no limit; `subject_id` is the project's id or the key's."""

    __tablename__ = "rate_limit"
    __table_args__ = (STRICT,)

    subject_id: Mapped[UUID] = mapped_column(Id, primary_key=True)
    tenant_id: Mapped[UUID] = mapped_column(Id, ForeignKey("tenant.id"), index=True)
    project_id: Mapped[UUID] = mapped_column(Id, ForeignKey("project.id"), index=True)
    key_id: Mapped[UUID | None] = mapped_column(Id, ForeignKey("api_key.id"))
    requests_per_minute: Mapped[int | None] = mapped_column(Count)
    input_tokens_per_minute: Mapped[int | None] = mapped_column(Count)
    output_tokens_per_minute: Mapped[int | None] = mapped_column(Count)
    concurrent_requests: Mapped[int | None] = mapped_column(Count)
    changed_at: Mapped[datetime] = mapped_column(Instant)
