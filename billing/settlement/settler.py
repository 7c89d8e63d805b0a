"""The settler: a task that settles the records of a spool, in order, each once, through any outage of the database."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from datetime import timedelta
from uuid import UUID

import structlog

from billing.prices import PriceCatalog
from billing.settlement.settlement import Settled, refuse_record, settle
from billing.spool.spool import Spool, SpoolBatch
from billing.usage import SpoolRecord, UsageEvent
from storage.backoff import Backoff, pause
from storage.database.database import Database, DatabaseUnavailable

log = structlog.get_logger(__name__)

_BATCH = 1000
_LARGE_BATCH, _BEHIND = 2000, 10_000
"""A larger batch costs less for each record, and keeps the event loop from others for longer: it is for catching up."""
_GATHER = timedelta(milliseconds=250)
"""A batch costs a dozen statements, however small: after one, others gather for so long, unless there are enough."""
_LOOK_FOR_ORPHANS_S = 5
_STOP_S = 10


class Settler:
    """Settles what one spool holds, and what it adopts. `start`, then `drain` and `stop` at the end."""

    def __init__(self, database: Database, spool: Spool, catalog: PriceCatalog | None = None) -> None:
        self.total = Settled()
        """The sum over all batches so far."""
        self.on_settled: Callable[[list[UUID]], None] = lambda request_ids: None
        """Called with the requests of each batch, after its transaction."""
        self.failing = False
        """Whether the last attempt found no database."""
        self._database = database
        self._spool = spool
        self._catalog = catalog or PriceCatalog(database)
        self._task: asyncio.Task[None] | None = None
        self._stopping = asyncio.Event()
        self._hurried = asyncio.Event()
        self._hurrying = 0
        self._backoff = Backoff()
        self._progress = asyncio.Event()
        """Set and replaced by another when a batch is settled, and when there is nothing to settle."""
        self._drained_ns = time.monotonic_ns()

    @property
    def lag(self) -> int:
        """Records that we spooled and that are not settled yet."""
        return self._spool.waiting

    @property
    def lag_s(self) -> int:
        """For how many whole seconds something has been waiting; 0 when the spool is drained."""
        return 0 if self._spool.drained else (time.monotonic_ns() - self._drained_ns) // 1_000_000_000

    async def start(self) -> None:
        """Adopt what earlier owners left behind, and begin. Raises OSError if the folder cannot be read."""
        await self._spool.adopt_orphans()
        self._task = asyncio.create_task(self._run())

    async def drain(self, timeout_s: int) -> bool:
        """Wait until everything that is durable is settled; False if that took too long."""
        return await self._hurry(lambda: self._spool.drained, timeout_s)

    async def settle_first(self, count: int, timeout_s: int) -> bool:
        """Wait until the first so many records that we spooled are settled, and let them gather no others; False if
        that took too long."""
        return await self._hurry(lambda: self._spool.dealt_with >= count, timeout_s)

    async def _hurry(self, done: Callable[[], bool], timeout_s: int) -> bool:
        self._hurrying += 1
        self._hurried.set()
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    while not done():
                        await self._progress.wait()
        finally:
            self._hurrying -= 1
            if not self._hurrying and not self._stopping.is_set():
                self._hurried.clear()
        return done()

    async def stop(self) -> None:
        """Stop after the batch under way; the rest stays in the spool. The database and the spool stay open."""
        if self._task is not None:
            self._stopping.set()
            self._hurried.set()
            self._spool.appended.set()
            _, pending = await asyncio.wait([self._task], timeout=_STOP_S)
            for task in pending:
                task.cancel()
                await asyncio.wait([task])
            self._task = None

    async def _run(self) -> None:
        looked = time.monotonic_ns()
        while not self._stopping.is_set():
            try:
                batch = await self._spool.read(_LARGE_BATCH if self._spool.waiting > _BEHIND else _BATCH)
                if batch is not None:
                    await self._settle(batch)
                    if self._spool.waiting < _BATCH:
                        await pause(_GATHER.total_seconds(), self._hurried)
                    continue
                if time.monotonic_ns() - looked > _LOOK_FOR_ORPHANS_S * 1_000_000_000:
                    looked = time.monotonic_ns()
                    await self._spool.adopt_orphans()
            except Exception:
                log.exception("settling failed, trying again")
                await self._backoff.wait(self._stopping)
                continue
            self._drained_ns = time.monotonic_ns()
            self._progressed()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_FOR_ORPHANS_S):
                    await self._spool.appended.wait()

    async def _settle(self, batch: SpoolBatch) -> None:
        """Settle one batch, however long the database is away. A record that breaks it is set aside."""
        while not self._stopping.is_set():
            try:
                done = await settle(self._database, self._catalog, batch.records) if batch.records else Settled()
            except DatabaseUnavailable as error:
                await self._wait(error)
            except Exception:
                log.exception("a batch cannot be settled, trying its records one by one", records=len(batch.records))
                if not await self._one_by_one(batch.records):
                    continue
                self._finish(batch, Settled())
                return
            else:
                self._finish(batch, done)
                return

    def _finish(self, batch: SpoolBatch, done: Settled) -> None:
        if self.failing:
            log.info("the database is back, settling goes on", waiting=self._spool.waiting)
        self.failing = False
        self._backoff.reset()
        self.total += done
        self._spool.done(batch)
        self._progressed()
        self.on_settled([one.id if isinstance(one, UsageEvent) else one.request_id for one in batch.records])

    def _progressed(self) -> None:
        self._progress.set()
        self._progress = asyncio.Event()

    async def _wait(self, error: DatabaseUnavailable) -> None:
        if not self.failing:
            log.warning("the database is away, usage waits in the spool", cause=str(error))
        self.failing = True
        await self._backoff.wait(self._stopping)

    async def _one_by_one(self, records: list[SpoolRecord]) -> bool:
        """Settle each on its own and refuse those that fail. False if the database went away: then all over again."""
        for record in records:
            try:
                self.total += await settle(self._database, self._catalog, [record])
            except DatabaseUnavailable as error:
                await self._wait(error)
                return False
            except Exception as error:
                log.exception("a record cannot be settled and is kept aside")
                try:
                    await refuse_record(self._database, record, f"{type(error).__name__}: {error}")
                except DatabaseUnavailable as away:
                    await self._wait(away)
                    return False
                self.total += Settled(refused=1)
        return True
