"""The worker's part: jobs at the provider, invoices that are finished, top-ups that are due."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from uuid import UUID

import structlog

from billing.payments.customers import Customers
from billing.payments.errors import NotConnected
from billing.payments.events import EventEffects
from billing.payments.jobs import PaymentJob, PaymentJobs
from billing.payments.provider import PaymentProvider, ProviderRefused, ProviderUnavailable
from billing.payments.pushing import DocumentPusher, InvoiceFirst
from billing.payments.refunds import Refunds
from billing.payments.tasks import TaskKind, add_task
from billing.payments.top_ups import TopUps
from storage.database.database import Database, DatabaseUnavailable, TransactionConflict

AT_ONCE = 8
OLD_S = 23 * 3600
"""After so long a provider may have forgotten a key: what was made is looked for first."""
_TEMPORARY = (ProviderUnavailable, NotConnected, InvoiceFirst, TransactionConflict)
log = structlog.get_logger(__name__)


class PaymentWorker:
    """Does what is due, in one worker; others take other jobs. Methods raise DatabaseUnavailable."""

    def __init__(self, database: Database, provider: PaymentProvider) -> None:
        self._database, self._provider = database, provider
        self._jobs, self._customers = PaymentJobs(database), Customers(database)
        self._top_ups, self._pusher, self._refunds = TopUps(database), DocumentPusher(database), Refunds(database)
        self._events = EventEffects(database)

    async def run(self) -> bool:
        """Queue what is due, and do a batch of jobs; whether there may be more."""
        await self._queue("finished invoices", self._pusher.queue_finished)
        await self._queue("due top-ups", self._top_ups.charge_due)
        jobs = await self._jobs.take(AT_ONCE)
        unavailable: list[DatabaseUnavailable] = []
        async with asyncio.TaskGroup() as group:
            for job in jobs:
                group.create_task(self._do_alone(job, unavailable))
        if unavailable:
            raise unavailable[0]
        return len(jobs) == AT_ONCE

    async def _queue(self, what: str, queue: Callable[[str], Awaitable[int]]) -> None:
        """Queue what is due of a kind: jobs that are queued already do not wait for what is wrong with it."""
        try:
            await queue(self._provider.name)
        except DatabaseUnavailable:
            raise
        except Exception:
            log.exception("what is due at the payment provider was not queued", what=what)

    async def _do_alone(self, job: PaymentJob, unavailable: list[DatabaseUnavailable]) -> None:
        """Do a job, whatever becomes of it: an error that left the group would cancel the others of the batch."""
        try:
            await self._do(job)
        except DatabaseUnavailable as error:
            unavailable.append(error)

    async def _do(self, job: PaymentJob) -> None:
        try:
            await self._act(job)
        except _TEMPORARY as error:
            after = error.retry_after if isinstance(error, ProviderUnavailable) else 0
            await self._jobs.repeat(job, str(error), after)
        except DatabaseUnavailable:
            raise
        except ProviderRefused as error:
            log.warning("a job of payments was refused", kind=job.kind, subject=job.subject, cause=str(error))
            await self._add_task("unknown_object", job, error)
            await self._jobs.finish(job, str(error))
        except Exception as error:
            log.exception("a job of payments failed", kind=job.kind, subject=job.subject)
            await self._add_task("payment_failed", job, error)
            await self._jobs.repeat(job, f"{type(error).__name__}: {error}")
        else:
            await self._jobs.finish(job)

    async def _add_task(self, kind: TaskKind, job: PaymentJob, error: Exception) -> None:
        async with self._database.transaction() as session:
            text = f"{job.kind} {job.subject}: {error}"
            await add_task(self._database, session, kind, f"{job.kind} {job.subject}"[:200], text)

    async def _act(self, job: PaymentJob) -> None:
        old = job.age_s > OLD_S
        if job.kind == "event":
            await self._events.follow(self._provider, job.subject.partition(" ")[2])
            return
        if job.kind == "dispute":
            await self._events.follow_dispute(self._provider, job.subject)
            return
        identity = UUID(job.subject)
        if job.kind == "customer":
            await self._customers.save_at_provider(self._provider, identity, old=old)
        elif job.kind == "push":
            await self._pusher.push(self._provider, identity, old=old)
        elif job.kind == "credit_note":
            await self._pusher.push_credit_note(self._provider, identity)
        elif job.kind == "top_up":
            await self._top_ups.send(self._provider, identity, old=old)
        else:
            await self._refunds.send(self._provider, identity, old=old)
