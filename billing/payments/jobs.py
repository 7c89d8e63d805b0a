"""What is to be done at a provider, as durable rows: each is done at least once, by one worker at a time.

There is one queued job of a kind and subject: who queues it again makes it due. Handlers are idempotent, since a worker
may end after it has acted and before the row says so.
"""

from __future__ import annotations

import secrets
from typing import Literal

import msgspec
from sqlalchemy import select, text, update
from sqlalchemy.ext.asyncio import AsyncSession

from billing.tables.payments import payment_job
from storage.database.base import new_id
from storage.database.database import Database
from storage.database.sql_arrays import one_of

JobKind = Literal["customer", "push", "credit_note", "top_up", "refund", "event", "dispute"]
LEASE_S = 300
"""Longer than the calls of a job take, with the waits between them."""
_FIRST_S, _LONGEST_S = 2, 900
_QUEUED = text("state = 'queued'")
_JOB = payment_job.c


class PaymentJob(msgspec.Struct, frozen=True):
    """A job that this worker has taken. `attempts`: with this one; `age_s`: since it was queued."""

    id: object
    kind: JobKind
    subject: str
    attempts: int
    age_s: int


async def queue_job(
    database: Database, session: AsyncSession, kind: JobKind, subject: str, *, delay_s: int = 0
) -> None:
    """Queue a job in this transaction; one that is queued already becomes due as early."""
    due = database.clock + delay_s * 1_000_000
    row = {"id": new_id(), "kind": kind, "subject": subject, "state": "queued", "due_at": due}
    new = database.insert(payment_job).values(row | {"created_at": database.clock})
    earlier = {"due_at": new.excluded.due_at}
    await session.execute(
        new.on_conflict_do_update(
            index_elements=[_JOB.kind, _JOB.subject],
            index_where=_QUEUED,
            set_=earlier,
            where=_JOB.due_at > new.excluded.due_at,
        )
    )


class PaymentJobs:
    """The queue. Methods raise DatabaseUnavailable."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def take(self, most: int) -> list[PaymentJob]:
        """Lease jobs that are due, the earliest first."""
        async with self._database.transaction() as session:
            now = await self._database.now_in(session)
            due = select(_JOB.id, _JOB.kind, _JOB.subject, _JOB.attempts, _JOB.created_at)
            due = due.where(_JOB.state == "queued", _JOB.due_at <= now, _JOB.leased_until <= now)
            due = due.order_by(_JOB.due_at, _JOB.id).limit(most)
            rows = (await session.execute(self._database.locked(due, skip=True))).all()
            if rows:
                leased = {"leased_until": now + LEASE_S * 1_000_000, "attempts": _JOB.attempts + 1}
                ours = one_of(self._database, _JOB.id, [row.id for row in rows])
                await session.execute(update(payment_job).where(ours).values(leased))
            return [
                PaymentJob(row.id, row.kind, row.subject, row.attempts + 1, (now - row.created_at) // 1_000_000)
                for row in rows
            ]

    async def finish(self, job: PaymentJob, problem: str = "") -> None:
        """The job is done, or failed for good."""
        state = "failed" if problem else "done"
        values = {"state": state, "problem": problem[:500], "finished_at": self._database.clock, "leased_until": 0}
        await self._change(job, values)

    async def repeat(self, job: PaymentJob, problem: str, retry_after: int = 0) -> None:
        """The job is tried again later: after seconds that double, randomised by half."""
        mean = min(_FIRST_S * 2 ** min(job.attempts - 1, 20), _LONGEST_S)
        delay = max(retry_after * 1_000_000, mean * 500_000 + secrets.randbelow(mean * 1_000_000))
        values = {"problem": problem[:500], "due_at": self._database.clock + delay, "leased_until": 0}
        await self._change(job, values)

    async def _change(self, job: PaymentJob, values: dict[str, object]) -> None:
        async with self._database.transaction() as session:
            still_queued = (_JOB.id == job.id) & (_JOB.state == "queued")
            await session.execute(update(payment_job).where(still_queued).values(values))

    async def forget(self, keep_s: int) -> int:
        """Delete a batch of ended jobs that are older."""
        async with self._database.transaction() as session:
            before = await self._database.now_in(session) - keep_s * 1_000_000
            old = select(_JOB.id).where(_JOB.state != "queued", _JOB.finished_at < before).limit(1000)
            ids = list(await session.scalars(old))
            if ids:
                await session.execute(payment_job.delete().where(one_of(self._database, _JOB.id, ids)))
            return len(ids)
