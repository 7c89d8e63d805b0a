"""What tests of the audit log share: an actor, entries, and a hand that owns the database."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

from sqlalchemy import select, text
from sqlalchemy.ext.asyncio import AsyncSession

from audit_log.actors import Actor
from audit_log.record import record_change
from audit_log.tables import PLATFORM, audit_entry
from audit_log.verification import LogFinding, verify_log
from storage.database.database import Database

ANN = Actor("operator_key", "tpk_ann", "ann", "root@host", "192.0.2.7", "req_1")


async def record(database: Database, *tenants: UUID | None, action: str = "budget.set") -> None:
    """Record a change of each of these tenants, in one transaction."""
    async with database.transaction() as session:
        for n, tenant in enumerate(tenants):
            await record_change(
                session, action, target="budget", target_id=f"b{n}", tenant_id=tenant, reason="why", after={"n": n}
            )


async def entries(database: Database, tenant: UUID | None = None) -> Sequence[Any]:
    """The rows of a chain, in their order."""
    query = select(audit_entry).where(audit_entry.c.tenant_id == (tenant or PLATFORM))
    async with database.reading() as session:
        return (await session.execute(query.order_by(audit_entry.c.number))).all()


async def verified(database: Database) -> list[LogFinding]:
    """What is wrong with the log."""
    async with database.reading() as session:
        return await verify_log(session)


@asynccontextmanager
async def unguarded(database: Database) -> AsyncIterator[AsyncSession]:
    """Do what somebody could who owns the database: put its triggers aside, and on SQLite its checks."""
    async with database.transaction() as session:
        if database.dialect == "postgresql":
            await session.execute(text("SET LOCAL session_replication_role = replica"))
        else:
            await session.execute(text("PRAGMA ignore_check_constraints = ON"))
            for name in (await session.scalars(text("SELECT name FROM sqlite_schema WHERE type = 'trigger'"))).all():
                await session.execute(text(f"DROP TRIGGER {name}"))
        yield session
