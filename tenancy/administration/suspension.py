"""Suspension of tenants and projects: written by operators, known to every gateway within a second.

The database has what is suspended. A message on the bus only says that it changed; whoever hears it reads again. A
process that no bus reaches reads twice a second (`storage.database.announced_cache`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Literal, TypeAlias
from uuid import UUID

import structlog
from msgspec import Struct
from sqlalchemy import null, select
from sqlalchemy.ext.asyncio import AsyncSession

from audit_log.record import record_change
from storage.backoff import pause
from storage.bus import Bus, announce
from storage.database import clock
from storage.database.announced_cache import TRUSTED_ALONE_S, CacheLife
from storage.database.database import Database, DatabaseUnavailable
from storage.free_text import REASON, check_text
from tenancy.repositories import NoSuchRecord
from tenancy.tables import Project, Tenant

log = structlog.get_logger(__name__)

CHANGED = "turnpike.suspensions"
"""The bus topic of changes; the payload is empty."""
_EVERY_SHARED_S = 5.0
"""Seconds between two readings where a bus says when to read, should a message be lost."""

Running: TypeAlias = Literal["finish", "end"]
"""What happens to the requests that run: they finish, or they end now, billed for what was delivered."""
Suspended: TypeAlias = Literal["tenant", "project"]


class Suspension(Struct, frozen=True):
    """A tenant, or with `project_id` a project, that is suspended."""

    tenant_id: UUID
    project_id: UUID | None
    since: datetime
    running: Running
    reason: str


class Suspensions:
    """Suspends and resumes; and, once `start` was called, knows what is suspended.

    `on_end` is called with each new suspension whose running requests are to end.
    """

    def __init__(self, database: Database, bus: Bus) -> None:
        self.on_end: Callable[[Suspension], None] = lambda _: None
        self._database = database
        self._bus = bus
        self._life = CacheLife(bus, _EVERY_SHARED_S if bus.shared else None)
        self._known: Mapping[UUID, Suspension] = {}
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    # ------------------------------------------------ for a gateway

    async def start(self) -> None:
        """Read what is suspended, and keep knowing it until `close`. Raises DatabaseUnavailable."""
        await self._bus.subscribe(CHANGED, lambda _: self._changed.set(), self._changed.set)
        await self.refresh()
        self._task = asyncio.create_task(self._watch())

    async def close(self) -> None:
        """Stop knowing it."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def find(self, tenant_id: UUID, project_id: UUID | None = None) -> Suspended | None:
        """Which of the two is suspended, the tenant or the project."""
        if not self._known:
            return None
        return "tenant" if tenant_id in self._known else "project" if project_id in self._known else None

    async def refresh(self) -> None:
        """Read anew what is suspended. Raises DatabaseUnavailable."""
        before, self._known = self._known, await self._read()
        for subject, found in self._known.items():
            earlier = before.get(subject)
            if found.running == "end" and (earlier is None or earlier.running != "end"):
                try:
                    self.on_end(found)
                except Exception:
                    log.exception("what a suspension is to end goes on", tenant=str(found.tenant_id))

    async def _watch(self) -> None:
        while True:
            await self._until_due(time.monotonic())
            self._changed.clear()
            try:
                await self.refresh()
                continue
            except DatabaseUnavailable:
                log.info("what is suspended could not be read: the database is unavailable")
            except Exception:  # this must not end: whoever is suspended next would never be
                log.exception("what is suspended could not be read, trying again")
            await asyncio.sleep(TRUSTED_ALONE_S)
            self._changed.set()

    async def _until_due(self, read_at: float) -> None:
        """Wait until something changed, or what was read then is too old for a bus that has been lost meanwhile."""
        while not self._changed.is_set() and self._life.trusts(read_at):
            await pause(TRUSTED_ALONE_S / 2, self._changed)

    async def _read(self) -> dict[UUID, Suspension]:
        # all tenants: a gateway serves every one
        tenants = select(Tenant.id, null(), Tenant.suspended_at, Tenant.suspended_running, Tenant.suspended_for).where(
            Tenant.suspended_at.is_not(None)
        )
        projects = select(
            Project.tenant_id, Project.id, Project.suspended_at, Project.suspended_running, Project.suspended_for
        ).where(Project.suspended_at.is_not(None))
        async with self._database.reading() as session:
            rows = [*(await session.execute(tenants)), *(await session.execute(projects))]
        return {row[1] or row[0]: Suspension(*row) for row in rows}

    # ------------------------------------------------ for operators

    async def list(self) -> list[Suspension]:
        """All that is suspended. Raises DatabaseUnavailable."""
        return list((await self._read()).values())

    async def suspend(
        self, tenant_id: UUID, project_id: UUID | None = None, *, running: Running = "finish", reason: str = ""
    ) -> bool:
        """Refuse all requests of a tenant, or of one of its projects, from now on. What is suspended already gets the
        new reason, and `end` ends what runs still.

        False if the bus was down: then gateways know it some seconds later. Raises NoSuchRecord, InvalidText.
        """
        check_text("reason", reason, REASON, empty=True)
        async with self._database.transaction() as session:
            subject = await _subject(session, tenant_id, project_id)
            before = _state(subject)
            subject.suspended_at = subject.suspended_at or clock.moment()
            subject.suspended_for, subject.suspended_running = reason, running
            await _record(session, subject, "suspended", reason, before)
        return await announce(self._bus, CHANGED, b"")

    async def resume(self, tenant_id: UUID, project_id: UUID | None = None, *, reason: str = "") -> bool:
        """Admit requests again. Raises NoSuchRecord if there is no such tenant or project, InvalidText."""
        check_text("reason", reason, REASON, empty=True)
        async with self._database.transaction() as session:
            subject = await _subject(session, tenant_id, project_id)
            if subject.suspended_at is not None:
                before = _state(subject)
                subject.suspended_at = subject.suspended_for = subject.suspended_running = None
                await _record(session, subject, "resumed", reason, before)
        return await announce(self._bus, CHANGED, b"")


async def _subject(session: AsyncSession, tenant_id: UUID, project_id: UUID | None) -> Tenant | Project:
    """What is about to change, locked as an UPDATE of it would: new rows may refer to it meanwhile."""
    if project_id is None:
        found: Tenant | Project | None = await session.get(Tenant, tenant_id, with_for_update={"key_share": True})
    else:
        query = select(Project).where(Project.id == project_id, Project.tenant_id == tenant_id)
        query = query.with_for_update(key_share=True)
        found = (await session.execute(query)).scalar_one_or_none()
    if found is None:
        raise NoSuchRecord(f"there is no such {'tenant' if project_id is None else 'project of this tenant'}")
    return found


def _state(subject: Tenant | Project) -> dict[str, str | datetime | None]:
    return {
        "suspended_at": subject.suspended_at,
        "running": subject.suspended_running,
        "reason": subject.suspended_for,
    }


async def _record(
    session: AsyncSession,
    subject: Tenant | Project,
    verb: str,
    reason: str,
    before: dict[str, str | datetime | None],
) -> None:
    is_tenant = isinstance(subject, Tenant)
    kind = "tenant" if is_tenant else "project"
    await record_change(
        session,
        f"{kind}.{verb}",
        target=kind,
        target_id=subject.id,
        tenant_id=subject.id if isinstance(subject, Tenant) else subject.tenant_id,
        project_id=None if is_tenant else subject.id,
        reason=reason,
        before=before,
        after=_state(subject),
    )
