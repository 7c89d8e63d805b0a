"""A project with limits, and gateway workers in processes of their own that ask for it: light enough to start four."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
from multiprocessing.connection import Connection
from typing import Any
from uuid import uuid4

from audit_log.actors import Actor, acting_as
from gateway.limits.limiter import KEEP_US, LEASE_US, Answer, Asked, Limiter
from gateway.limits.redis_buckets import RedisBuckets
from storage.bus import LocalBus
from storage.database.database import Database
from tenancy.keys import Peppers
from tenancy.rate_limits import LimitCache, Limits, LimitSubject, RateLimits
from tenancy.repositories import Tenancy

ASKED = [Asked(b"c", 10, 5)]
PATIENT_S = 10.0
"""What Redis may take where a test is about counting: a busy machine is not an outage."""
_PEPPERS = Peppers({1: b"p" * 32}, 1)


class Tenant:
    """A project with a key, and its limits."""

    def __init__(self, database: Database, subject: LimitSubject) -> None:
        self.database = database
        self.subject = subject
        self.bus = LocalBus()
        self.store = RateLimits(database, self.bus)

    @classmethod
    async def make(cls, database: Database) -> Tenant:
        tenancy = Tenancy(database, _PEPPERS, LocalBus())
        tenant = await tenancy.create_tenant(f"t-{uuid4().hex}")
        project = await tenancy.create_project(tenant.id, "default")
        issued = await tenancy.create_key(tenant.id, project.id)
        return cls(database, await RateLimits(database, LocalBus()).subject_of_key(issued.public_id))

    async def limit(self, **limits: int) -> None:
        with acting_as(Actor("command", "tester", "tester")):
            await self.store.set(LimitSubject(self.subject.tenant_id, self.subject.project_id), Limits(**limits))

    def limiter(
        self, url: str | None, name: str = "w", timeout: float = PATIENT_S, lease_us: int = LEASE_US
    ) -> Limiter:
        buckets = None if url is None else RedisBuckets(url, lease_us, KEEP_US, timeout=timeout)
        return Limiter(LimitCache(self.database, self.bus), buckets, name)

    async def ask(self, limiter: Limiter, asked: list[Asked] = ASKED) -> Answer:
        assert self.subject.key_id is not None
        subject = self.subject
        answer = await limiter.reserve(
            uuid4(), tenant=subject.tenant_id, project=subject.project_id, key=self.subject.key_id, asked=asked
        )
        assert answer is not None
        return answer

    async def admitted(self, limiter: Limiter, count: int) -> list[Answer]:
        answers = await asyncio.gather(*(self.ask(limiter) for _ in range(count)))
        return [answer for answer in answers if answer.refusal is None]


def work(pipe: Connection, database_url: str, redis_url: str, lease_us: int, count: int) -> None:
    """One gateway worker, in a process of its own: ask so often for each subject that comes through the pipe, and keep
    what runs until told to end."""

    async def run() -> None:
        database = await Database.open(database_url)
        limiter: Limiter | None = None
        pipe.send(None)
        while (subject := await asyncio.to_thread(pipe.recv)) is not None:
            tenant = Tenant(database, subject)
            if limiter is None:
                limiter = tenant.limiter(redis_url, f"w-{os.getpid()}", lease_us=lease_us)
                await limiter.start()
            pipe.send(len(await tenant.admitted(limiter, count)))
        assert limiter is not None
        await limiter.close()
        await database.close()

    asyncio.run(run())


class Workers:
    """Processes that all ask at once."""

    def __init__(self, count: int, *arguments: Any) -> None:
        context = multiprocessing.get_context("spawn")
        pairs = [context.Pipe() for _ in range(count)]
        self.pipes = [ours for ours, _ in pairs]
        self.processes = [context.Process(target=work, args=(theirs, *arguments), daemon=True) for _, theirs in pairs]
        for process in self.processes:
            process.start()
        for pipe in self.pipes:
            pipe.recv()

    def ask(self, subject: LimitSubject) -> list[int]:
        for pipe in self.pipes:
            pipe.send(subject)
        return [pipe.recv() for pipe in self.pipes]

    def end(self) -> None:
        for pipe, process in zip(self.pipes, self.processes, strict=True):
            if process.is_alive():
                pipe.send(None)
            process.join(20)
