"""Finds tenants and projects by name or public id, and lists them in pages."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from uuid import UUID

import msgspec
from sqlalchemy import ColumnElement, select
from sqlalchemy.orm import InstrumentedAttribute

from storage.database.base import from_instant, to_instant
from storage.database.database import Database
from storage.database.public_ids import PREFIXES, prefixed_id, public_id
from tenancy.tables import ApiKey, Project, Tenant

TENANT_PREFIX, PROJECT_PREFIX = PREFIXES["tenant"], PREFIXES["project"]


def tenant_public_id(tenant_id: UUID) -> str:
    """A tenant's public id."""
    return public_id("tenant", tenant_id)


def project_public_id(project_id: UUID) -> str:
    """A project's public id."""
    return public_id("project", project_id)


class Directory:
    """Reads tenants, projects and the names of keys. Every method may raise DatabaseUnavailable."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def tenant(self, reference: str) -> Tenant | None:
        """The tenant of this public id or name."""
        identity = prefixed_id(reference, TENANT_PREFIX)
        async with self._database.reading() as session:
            if identity is not None and (tenant := await session.get(Tenant, identity)) is not None:
                return tenant
            return (await session.execute(select(Tenant).where(Tenant.name == reference))).scalar_one_or_none()

    async def project(self, tenant_id: UUID, reference: str) -> Project | None:
        """The tenant's project of this public id or name."""
        own = select(Project).where(Project.tenant_id == tenant_id)
        identity = prefixed_id(reference, PROJECT_PREFIX)
        async with self._database.reading() as session:
            if identity is not None:
                found = (await session.execute(own.where(Project.id == identity))).scalar_one_or_none()
                if found is not None:
                    return found
            return (await session.execute(own.where(Project.name == reference))).scalar_one_or_none()

    async def tenants(
        self, limit: int, after: str | None = None, only: Collection[UUID] | None = None
    ) -> tuple[list[Tenant], bool]:
        """Tenants ordered by name, at most `limit`, and whether there are more. `after`: those of later names. `only`:
        of these ids."""
        wanted = _wanted(Tenant.id, Tenant.name, only, after)
        async with self._database.reading() as session:
            query = select(Tenant).where(*wanted).order_by(Tenant.name).limit(limit + 1)
            found = list((await session.execute(query)).scalars())
        return found[:limit], len(found) > limit

    async def projects(
        self, tenant_id: UUID, limit: int, after: str | None = None, only: Collection[UUID] | None = None
    ) -> tuple[list[Project], bool]:
        """A tenant's projects, as `tenants`."""
        wanted = [Project.tenant_id == tenant_id, *_wanted(Project.id, Project.name, only, after)]
        async with self._database.reading() as session:
            query = select(Project).where(*wanted).order_by(Project.name).limit(limit + 1)
            found = list((await session.execute(query)).scalars())
        return found[:limit], len(found) > limit

    async def tenant_names(self, ids: Collection[UUID]) -> Mapping[UUID, str]:
        """The names of these tenants."""
        async with self._database.reading() as session:
            query = select(Tenant.id, Tenant.name).where(Tenant.id.in_(ids))
            return {row.id: row.name for row in await session.execute(query)}

    async def project_names(self, tenant_id: UUID, ids: Collection[UUID]) -> Mapping[UUID, str]:
        """The names of these projects of a tenant."""
        async with self._database.reading() as session:
            query = select(Project.id, Project.name).where(Project.tenant_id == tenant_id, Project.id.in_(ids))
            return {row.id: row.name for row in await session.execute(query)}

    async def all_project_names(self, tenant_id: UUID) -> Mapping[UUID, str]:
        """The names of all projects of a tenant."""
        async with self._database.reading() as session:
            query = select(Project.id, Project.name).where(Project.tenant_id == tenant_id)
            return {row.id: row.name for row in await session.execute(query)}

    async def named_keys(self, tenant_id: UUID, ids: Collection[UUID]) -> Mapping[UUID, NamedKey]:
        """These keys of a tenant, as people know them."""
        async with self._database.reading() as session:
            query = select(ApiKey.id, ApiKey.public_id, ApiKey.name)
            rows = await session.execute(query.where(ApiKey.tenant_id == tenant_id, ApiKey.id.in_(ids)))
            return {row.id: NamedKey(row.public_id, row.name or row.public_id) for row in rows}

    async def any_key(
        self, tenant_id: UUID, project_ids: Collection[UUID] | None = None, *, used: bool = False
    ) -> bool:
        """Whether the tenant ever had a key of a project, of one of these if given; `used`: that was used."""
        own = [ApiKey.tenant_id == tenant_id, ApiKey.project_id.is_not(None)]
        if project_ids is not None:
            own.append(ApiKey.project_id.in_(project_ids))
        if used:
            own.append(ApiKey.last_used_at.is_not(None))
        async with self._database.reading() as session:
            return await session.scalar(select(ApiKey.id).where(*own).limit(1)) is not None

    async def expiring_keys(
        self, now: int, before: int, tenant_ids: Collection[UUID] | None, most: int
    ) -> list[ExpiringKey]:
        """The keys of these tenants (None: all) that are valid now and expire before an instant, the earliest first, at
        most so many. Instants are in microseconds since the Unix epoch."""
        of = ApiKey
        query = select(of.public_id, of.name, of.tenant_id, of.expires_at).where(
            of.revoked_at.is_(None), of.expires_at > from_instant(now), of.expires_at < from_instant(before),
            of.tenant_id.is_not(None),
        )  # fmt: skip
        if tenant_ids is not None:
            query = query.where(of.tenant_id.in_(tenant_ids))
        async with self._database.reading() as session:
            rows = await session.execute(query.order_by(of.expires_at).limit(most))
            return [ExpiringKey(*row[:2], row[2], to_instant(row[3])) for row in rows if row[2] and row[3]]

    async def key(self, tenant_id: UUID, public_id: str) -> UUID | None:
        """The id of the tenant's key of this public id."""
        async with self._database.reading() as session:
            query = select(ApiKey.id).where(ApiKey.tenant_id == tenant_id, ApiKey.public_id == public_id)
            return (await session.execute(query)).scalar_one_or_none()


class NamedKey(msgspec.Struct, frozen=True):
    """A key by its public id and its name; the name of one without is its id."""

    public_id: str
    name: str


class ExpiringKey(msgspec.Struct, frozen=True):
    """A key that is going to expire; `expires_at` in microseconds since the Unix epoch."""

    public_id: str
    name: str
    tenant_id: UUID
    expires_at: int


def _wanted(
    identity: InstrumentedAttribute[UUID],
    name: InstrumentedAttribute[str],
    only: Collection[UUID] | None,
    after: str | None,
) -> list[ColumnElement[bool]]:
    wanted: list[ColumnElement[bool]] = [] if only is None else [identity.in_(only)]
    if after is not None:
        wanted.append(name > after)
    return wanted
