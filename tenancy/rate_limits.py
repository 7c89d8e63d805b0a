"""Rate limits of projects and of keys: set, listed and removed; and what applies to a key, cached.

A change is announced on the bus. Without Redis other processes notice it within a second.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Literal, TypeAlias
from uuid import UUID

from msgspec import Struct
from sqlalchemy import ColumnElement, and_, delete, or_, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from audit_log.record import record_change
from storage.bus import Bus, announce
from storage.database import clock
from storage.database.announced_cache import AnnouncedCache
from storage.database.database import Database, DatabaseUnavailable
from storage.reported_error import ReportedError
from tenancy.repositories import NoSuchRecord
from tenancy.tables import ApiKey, Project, RateLimit, Tenant

CHANGED = "turnpike.limits.changed"
"""The bus topic of changed limits. The payload is the project's id in hex."""
MOST = 1_000_000_000
"""The largest limit: what the buckets count exactly (`gateway/limits/bucket_script.py`)."""

LimitScope: TypeAlias = Literal["project", "key"]
FIELDS = ("requests_per_minute", "input_tokens_per_minute", "output_tokens_per_minute", "concurrent_requests")


class InvalidLimit(ReportedError, ValueError):
    """A limit is out of bounds; `field` names it."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field
        self.problem = problem


class Limits(Struct, frozen=True):
    """What a project or key may use; None is no limit. Input tokens that were read from the cache do not count."""

    requests_per_minute: int | None = None
    input_tokens_per_minute: int | None = None
    output_tokens_per_minute: int | None = None
    concurrent_requests: int | None = None

    def check(self) -> None:
        """Raise InvalidLimit unless each is from 1 to MOST, and there is one."""
        given = {name: getattr(self, name) for name in FIELDS if getattr(self, name) is not None}
        for name, limit in given.items():
            if not 1 <= limit <= MOST:
                raise InvalidLimit(name, f"it must be from 1 to {MOST}")
        if not given:
            raise InvalidLimit(FIELDS[0], "no limit is given; remove the limits instead")


class SubjectLimits(Struct, frozen=True):
    """The limits of one project or key."""

    subject_id: UUID
    scope: LimitScope
    tenant_id: UUID
    project_id: UUID
    limits: Limits
    tenant: str = ""
    project: str = ""
    key: str | None = None
    """The key's public id."""


class LimitSubject(Struct, frozen=True):
    """Whose limits are meant: a project of a tenant, or one of its keys."""

    tenant_id: UUID
    project_id: UUID
    key_id: UUID | None = None

    @property
    def id(self) -> UUID:
        """The id of the project, or of the key."""
        return self.project_id if self.key_id is None else self.key_id


class RateLimits:
    """All limits, for operators. Every method may raise DatabaseUnavailable."""

    def __init__(self, database: Database, bus: Bus) -> None:
        self._database = database
        self._bus = bus

    async def subject_of_key(self, public_id: str) -> LimitSubject:
        """The key of this public id. Raises NoSuchRecord where there is none of a project."""
        async with self._database.reading() as session:  # all tenants: for operators
            key = await session.scalar(select(ApiKey).where(ApiKey.public_id == public_id))
        if key is None or key.tenant_id is None or key.project_id is None:
            raise NoSuchRecord(f"there is no project's key {public_id!r}")
        return LimitSubject(key.tenant_id, key.project_id, key.id)

    async def subject_of_project(self, project_id: UUID) -> LimitSubject:
        """The project of this id. Raises NoSuchRecord."""
        async with self._database.reading() as session:  # all tenants: for operators
            project = await session.get(Project, project_id)
        if project is None:
            raise NoSuchRecord(f"there is no project {str(project_id)!r}")
        return LimitSubject(project.tenant_id, project.id)

    async def set(self, subject: LimitSubject, limits: Limits, reason: str = "") -> Limits | None:
        """Set all limits of a subject; returns those it had. Raises InvalidLimit."""
        limits.check()
        async with self._database.transaction() as session:
            before = await self._locked(session, subject)
            values = {name: getattr(limits, name) for name in FIELDS}
            await session.execute(update(RateLimit).where(_is(subject)).values(values))
            await _record(session, subject, reason=reason, before=before, after=limits)
        await self._announce(subject)
        return before

    async def remove(self, subject: LimitSubject, reason: str = "") -> Limits | None:
        """Remove the limits of a subject; returns those it had."""
        async with self._database.transaction() as session:
            columns = [getattr(RateLimit, name) for name in FIELDS]
            removed = await session.execute(delete(RateLimit).where(_is(subject)).returning(*columns))
            row = removed.one_or_none()
            if row is None:
                return None
            before = Limits(*row)
            await _record(session, subject, reason=reason, before=before, after=None)
        await self._announce(subject)
        return before

    async def get(self, subject: LimitSubject) -> SubjectLimits | None:
        """The limits of a subject, None if it has none."""
        found = await self.list(tenant_id=subject.tenant_id, project_id=subject.project_id)
        return next((limits for limits in found if limits.subject_id == subject.id), None)

    async def list(self, *, tenant_id: UUID | None = None, project_id: UUID | None = None) -> list[SubjectLimits]:
        """All limits, or those of one tenant or project: a project's before those of its keys."""
        query = (
            select(RateLimit, Tenant.name, Project.name, ApiKey.public_id)
            .join(Tenant, Tenant.id == RateLimit.tenant_id)
            .join(Project, Project.id == RateLimit.project_id)
            .outerjoin(ApiKey, ApiKey.id == RateLimit.key_id)
            .order_by(Tenant.name, Project.name, ApiKey.public_id.nulls_first())
        )
        if tenant_id is not None:
            query = query.where(RateLimit.tenant_id == tenant_id)
        if project_id is not None:
            query = query.where(RateLimit.project_id == project_id)
        async with self._database.reading() as session:
            rows = (await session.execute(query)).all()
        return [_subject_limits(row, tenant, project, key) for row, tenant, project, key in rows]

    async def _locked(self, session: AsyncSession, subject: LimitSubject) -> Limits | None:
        """The subject's limits, with its row locked, which this may make."""
        # no entry: its caller records what it sets
        values = {
            "subject_id": subject.id,
            "tenant_id": subject.tenant_id,
            "project_id": subject.project_id,
            "key_id": subject.key_id,
            "changed_at": clock.moment(),
        }
        locking = self._database.insert(RateLimit).values(values)
        locking = locking.on_conflict_do_update(
            index_elements=["subject_id"], set_={"changed_at": locking.excluded.changed_at}
        )
        found = await session.execute(locking.returning(*(getattr(RateLimit, name) for name in FIELDS)))
        limits = Limits(*found.one())
        return None if limits == Limits() else limits

    async def _announce(self, subject: LimitSubject) -> None:
        await announce(self._bus, CHANGED, subject.project_id.hex.encode())


_KeyOwners: TypeAlias = tuple[UUID, UUID, UUID]
"""A key, its project and its tenant."""


class LimitCache:
    """What applies to each key: the limits of its project and its own. Call `start` before use and `close` after."""

    def __init__(
        self,
        database: Database,
        bus: Bus,
        ttl: float | None = None,
        timeout: float = 5.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`timeout`: seconds to wait for the database when a key's limits are not known; while it is silent, one
        request at a time finds out whether it answers."""
        self._database = database
        self.cache: AnnouncedCache[_KeyOwners, tuple[SubjectLimits, ...]]
        self.cache = AnnouncedCache(bus, self._read, ttl=ttl, timeout=timeout, clock=clock)

    async def start(self) -> None:
        """Subscribe to changes."""
        await self.cache.listen(CHANGED, self._of_project)

    async def close(self) -> None:
        """Wait for what is being read."""
        await self.cache.close()

    def known(self, key_id: UUID, project_id: UUID, tenant_id: UUID) -> tuple[SubjectLimits, ...] | None:
        """The key's limits if they are known, however old by up to two lives: they are then read again in the
        background. None: `load` them."""
        return self.cache.peek((key_id, project_id, tenant_id))

    async def load(self, key_id: UUID, project_id: UUID, tenant_id: UUID) -> tuple[SubjectLimits, ...]:
        """Read the key's limits; old ones while the database is away. Raises DatabaseUnavailable."""
        owners = (key_id, project_id, tenant_id)
        try:
            limits = await self.cache.load(owners)
        except DatabaseUnavailable as error:
            limits = self.cache.cached().get(owners)
            if limits is None:
                raise DatabaseUnavailable("the limits of a key could not be read") from error
        return limits or ()

    def _of_project(self, payload: bytes) -> list[_KeyOwners]:
        return [owners for owners in self.cache.cached() if owners[1].hex.encode() == payload]

    async def _read(self, owners: _KeyOwners) -> tuple[SubjectLimits, ...]:
        key_id, project_id, tenant_id = owners
        query = select(RateLimit).where(
            RateLimit.tenant_id == tenant_id,
            or_(RateLimit.subject_id == project_id, RateLimit.subject_id == key_id),
        )
        async with self._database.reading() as session:
            limits = [_subject_limits(row) for row in await session.scalars(query)]
        return tuple(sorted(limits, key=lambda of_subject: of_subject.scope == "key"))


def _is(subject: LimitSubject) -> ColumnElement[bool]:
    return and_(RateLimit.subject_id == subject.id, RateLimit.tenant_id == subject.tenant_id)


async def _record(
    session: AsyncSession, subject: LimitSubject, *, reason: str, before: Limits | None, after: Limits | None
) -> None:
    whose: UUID | str = subject.project_id
    if subject.key_id is not None:
        mine = (ApiKey.id == subject.key_id, ApiKey.tenant_id == subject.tenant_id)
        whose = await session.scalar(select(ApiKey.public_id).where(*mine)) or subject.key_id
    await record_change(
        session,
        "limits.set" if after else "limits.removed",
        target="project" if subject.key_id is None else "key",
        target_id=whose,
        tenant_id=subject.tenant_id,
        project_id=subject.project_id,
        reason=reason,
        before=before,
        after=after,
    )


def _subject_limits(row: RateLimit, tenant: str = "", project: str = "", key: str | None = None) -> SubjectLimits:
    return SubjectLimits(
        subject_id=row.subject_id,
        scope="project" if row.key_id is None else "key",
        tenant_id=row.tenant_id,
        project_id=row.project_id,
        limits=_limits(row),
        tenant=tenant,
        project=project,
        key=key,
    )


def _limits(row: RateLimit) -> Limits:
    return Limits(*(getattr(row, name) for name in FIELDS))
