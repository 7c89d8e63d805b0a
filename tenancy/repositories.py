"""Tenants, projects and keys in the database. A tenant's repository sees no other tenant's rows."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any, TypeVar
from uuid import UUID

import structlog
from advanced_alchemy.repository import SQLAlchemyAsyncRepository
from sqlalchemy import Select, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession

from storage.bus import Bus, BusUnavailable
from storage.database.base import from_instant
from storage.database.database import Database
from storage.free_text import NAME, check_text
from storage.reported_error import ReportedError
from tenancy.keys import IssuedKey, Peppers, generate_key
from tenancy.tables import ApiKey, Project, Tenant

log = structlog.get_logger(__name__)

REVOKED = "turnpike.keys.revoked"
"""The bus topic of revocations. The payload is the public id of the key."""

DEFAULT_PROJECT = "default"
"""The project that a tenant is opened with."""

Owned = TypeVar("Owned", Project, ApiKey)


class NameTaken(ReportedError, ValueError):
    """The name is in use."""


class NoSuchRecord(ReportedError, LookupError):
    """The tenant, project or key does not exist, or belongs to another tenant."""


class TenantRepository(SQLAlchemyAsyncRepository[Tenant]):
    """All tenants: only for operators."""

    model_type = Tenant


class OwnedRepository(SQLAlchemyAsyncRepository[Owned]):
    """The rows of one tenant: every query of a subclass is restricted to them here."""

    def __init__(self, session: AsyncSession, tenant_id: UUID) -> None:
        own: Select[Any] = select(self.model_type).where(self.model_type.tenant_id == tenant_id)
        super().__init__(session=session, statement=own, wrap_exceptions=False)


class ProjectRepository(OwnedRepository[Project]):
    """One tenant's projects."""

    model_type = Project


class KeyRepository(OwnedRepository[ApiKey]):
    """One tenant's keys."""

    model_type = ApiKey


class AllKeysRepository(SQLAlchemyAsyncRepository[ApiKey]):
    """All tenants' keys: for operators and for authentication."""

    model_type = ApiKey

    async def get_with_owners(self, public_id: str) -> tuple[ApiKey, str | None, str | None] | None:
        """The key with the names of its tenant and project; an operator's key has neither."""
        query = (
            select(ApiKey, Tenant.name, Project.name)
            .outerjoin(Tenant, Tenant.id == ApiKey.tenant_id)
            .outerjoin(Project, Project.id == ApiKey.project_id)
            .where(ApiKey.public_id == public_id)
        )
        row = (await self.session.execute(query)).one_or_none()
        return None if row is None else (row[0], row[1], row[2])

    async def record_use(self, key_id: UUID, moment: datetime) -> None:
        """Write when the key was last used."""
        await self.session.execute(update(ApiKey).where(ApiKey.id == key_id).values(last_used_at=moment))


class Tenancy:
    """Creates, lists and revokes tenants, projects and keys, each in its own transaction.

    Every method may raise DatabaseUnavailable.
    """

    def __init__(self, database: Database, peppers: Peppers, bus: Bus) -> None:
        self._database = database
        self._peppers = peppers
        self._bus = bus

    async def create_tenant(self, name: str) -> Tenant:
        """Create a tenant. Raises NameTaken, InvalidText."""
        check_text("name", name, NAME)
        async with self._creating("tenant", name) as session:
            return await TenantRepository(session=session, wrap_exceptions=False).add(
                Tenant(name=name, created_at=_now())
            )

    async def open_tenant(self, name: str) -> tuple[Tenant, Project]:
        """Create a tenant with its first project, both or neither. Raises NameTaken, InvalidText."""
        check_text("name", name, NAME)
        async with self._creating("tenant", name) as session:
            tenant = await TenantRepository(session=session, wrap_exceptions=False).add(
                Tenant(name=name, created_at=_now())
            )
            project = Project(tenant_id=tenant.id, name=DEFAULT_PROJECT, created_at=_now())
            return tenant, await ProjectRepository(session, tenant.id).add(project)

    async def tenant(self, name: str) -> Tenant:
        """The tenant of this name. Raises NoSuchRecord."""
        async with self._database.reading() as session:
            return _found(
                await TenantRepository(session=session, wrap_exceptions=False).get_one_or_none(name=name),
                "tenant",
                name,
            )

    async def list_tenants(self) -> list[Tenant]:
        """All tenants, ordered by name."""
        async with self._database.reading() as session:
            return list(
                await TenantRepository(session=session, wrap_exceptions=False).get_many(order_by=("name", False))
            )

    async def create_project(self, tenant_id: UUID, name: str) -> Project:
        """Create a project. Raises NameTaken, InvalidText; NoSuchRecord if there is no such tenant."""
        check_text("name", name, NAME)
        async with self._creating("project", name) as session:
            project = Project(tenant_id=tenant_id, name=name, created_at=_now())
            return await ProjectRepository(session, tenant_id).add(project)

    async def project(self, tenant_id: UUID, name: str) -> Project:
        """The tenant's project of this name. Raises NoSuchRecord."""
        async with self._database.reading() as session:
            return _found(await ProjectRepository(session, tenant_id).get_one_or_none(name=name), "project", name)

    async def list_projects(self, tenant_id: UUID) -> list[Project]:
        """The tenant's projects, ordered by name."""
        async with self._database.reading() as session:
            return list(await ProjectRepository(session, tenant_id).get_many(order_by=("name", False)))

    async def create_key(
        self, tenant_id: UUID, project_id: UUID | None, name: str = "", *, expires_at: int | None = None
    ) -> IssuedKey:
        """Create a key of a project, or without a project an admin key of the tenant.

        `expires_at` is in microseconds since the Unix epoch. Raises NoSuchRecord if the project is not the tenant's,
        InvalidText.
        """
        check_text("name", name, NAME, empty=True)
        issued, key = self._new_key(name, expires_at)
        key.kind, key.tenant_id, key.project_id = "admin" if project_id is None else "project", tenant_id, project_id
        async with self._database.transaction() as session:
            if project_id is not None:
                project = await ProjectRepository(session, tenant_id).get_one_or_none(id=project_id)
                _found(project, "project", str(project_id))
            await KeyRepository(session, tenant_id).add(key)
        return issued

    async def create_operator_key(self, name: str, *, expires_at: int | None = None) -> IssuedKey:
        """Create an operator's key. Its name is recorded with what the operator does; keys of one name are one
        person's.

        `expires_at` is in microseconds since the Unix epoch. Raises InvalidText.
        """
        check_text("name", name, NAME)
        issued, key = self._new_key(name.strip(), expires_at)
        key.kind = "operator"
        async with self._database.transaction() as session:
            await AllKeysRepository(session=session).add(key)
        return issued

    def _new_key(self, name: str, expires_at: int | None) -> tuple[IssuedKey, ApiKey]:
        issued, secret = generate_key()
        return issued, ApiKey(
            public_id=issued.public_id,
            name=name,
            mac=self._peppers.mac(self._peppers.current, secret),
            pepper_version=self._peppers.current,
            created_at=_now(),
            expires_at=None if expires_at is None else from_instant(expires_at),
        )

    async def list_keys(self, tenant_id: UUID) -> list[ApiKey]:
        """The tenant's keys with revoked ones, oldest first."""
        async with self._database.reading() as session:
            return list(await KeyRepository(session, tenant_id).get_many(order_by=("created_at", False)))

    async def list_operator_keys(self) -> list[ApiKey]:
        """The operators' keys with revoked ones, oldest first."""
        async with self._database.reading() as session:
            return list(
                await AllKeysRepository(session=session).get_many(
                    ApiKey.kind == "operator", order_by=("created_at", False)
                )
            )

    async def operators(self) -> set[str]:
        """Who has an operator's key that is not revoked; two spellings of one name are one person."""
        return {key.name.casefold() for key in await self.list_operator_keys() if not key.revoked_at}

    async def revoke(self, public_id: str, tenant_id: UUID | None = None) -> bool:
        """Revoke a key for good: one of this tenant, or for an operator (None) any. Raises NoSuchRecord.

        Every gateway on the bus drops the key from its cache at once. False if the bus was down: then they accept the
        key until their caches expire.
        """
        async with self._database.transaction() as session:
            keys = (
                AllKeysRepository(session=session, wrap_exceptions=False)
                if tenant_id is None
                else KeyRepository(session, tenant_id)
            )
            key = _found(await keys.get_one_or_none(public_id=public_id), "key", public_id)
            key.revoked_at = key.revoked_at or _now()
        try:
            await self._bus.publish(REVOKED, public_id.encode())
        except BusUnavailable:
            log.warning("the bus is down: a revoked key may be accepted until caches expire", key=public_id)
            return False
        return True

    @asynccontextmanager
    async def _creating(self, kind: str, name: str) -> AsyncIterator[AsyncSession]:
        try:
            async with self._database.transaction() as session:
                yield session
        except IntegrityError as error:
            if "unique" in str(error.orig).lower():
                raise NameTaken(f"there is already a {kind} named {name!r}") from error
            raise NoSuchRecord("there is no such tenant") from error


Row = TypeVar("Row", Tenant, Project, ApiKey)


def _found(row: Row | None, kind: str, name: str) -> Row:
    if row is None:
        raise NoSuchRecord(f"there is no {kind} {name!r}")
    return row


def _now() -> datetime:
    return datetime.now(UTC)
