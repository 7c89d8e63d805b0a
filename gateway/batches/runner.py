"""The batches that one gateway worker runs: it takes those that nobody runs, or whose worker is silent."""

from __future__ import annotations

import asyncio
from collections import Counter
from uuid import UUID

import structlog

from batch_store.records import Batch
from batch_store.running import BatchWork, WaitingBatch
from batch_store.store import BatchStore
from gateway.batches.batch_run import BatchRun, RunLimits
from gateway.batches.line_requests import LineRequests
from prompt_cache.promise.scope_keys import ScopeKeyUnreadable
from storage.database.database import DatabaseUnavailable

log = structlog.get_logger("gateway.batches.runner")

SILENT_S = 10.0
"""A worker that has not said for so long that it runs a batch has died."""
SWEEP_S = 1.0
MOST_RUNS, MOST_RUNS_OF_TENANT = 8, 4
"""Batches that are run here at once, of all tenants and of one."""
_LOOKED_AT = 100
_STOP_S = 5.0


class BatchRunner:
    """Runs batches until it is stopped."""

    def __init__(self, work: BatchWork, requests: LineRequests, limits: RunLimits) -> None:
        self.store: BatchStore = work.store
        self.requests = requests
        self._work = work
        self._limits = limits
        self._runs: dict[UUID, asyncio.Task[None]] = {}
        self._tenants: Counter[UUID] = Counter()
        self._ordered = asyncio.Event()

    def look(self) -> None:
        """Look for batches now: one was ordered here."""
        self._ordered.set()

    async def run(self) -> None:
        """Take batches, for ever."""
        while not self._limits.draining():
            try:
                await self.sweep()
            except DatabaseUnavailable:
                pass
            except Exception:
                log.exception("batches are not taken")
            try:
                async with asyncio.timeout(SWEEP_S):
                    await self._ordered.wait()
            except TimeoutError:
                pass
            self._ordered.clear()

    async def sweep(self) -> None:
        """Take, once, batches that nobody runs. Raises DatabaseUnavailable."""
        if len(self._runs) >= MOST_RUNS:
            return
        full_tenants = [tenant for tenant, runs in self._tenants.items() if runs >= MOST_RUNS_OF_TENANT]
        for found in await self._work.waiting(SILENT_S, _LOOKED_AT, full_tenants):
            full = len(self._runs) >= MOST_RUNS or self._tenants[found.tenant_id] >= MOST_RUNS_OF_TENANT
            if not full and found.id not in self._runs:
                await self._take(found)

    async def _take(self, found: WaitingBatch) -> None:
        try:
            batch = await self._work.take(found, SILENT_S)
            if batch is not None:
                seal = await self.store.files.seal_of(found.tenant_id, found.project_id)
                self._begin(batch, BatchRun(batch, self._work, self.requests, seal, self._limits))
        except ScopeKeyUnreadable as error:
            log.error("a batch cannot be read", batch=str(found.id), cause=str(error))

    def _begin(self, batch: Batch, run: BatchRun) -> None:
        task = self._runs[batch.id] = asyncio.create_task(run.run())
        self._tenants[batch.tenant_id] += 1

        def ended(_: asyncio.Task[None]) -> None:
            self._runs.pop(batch.id, None)
            self._tenants[batch.tenant_id] -= 1
            if not self._tenants[batch.tenant_id]:
                del self._tenants[batch.tenant_id]
            self._ordered.set()

        task.add_done_callback(ended)

    async def stop(self) -> None:
        """Let runs write what they have, and give their batches away: the gateway drains."""
        if self._runs:
            await asyncio.wait(self._runs.values(), timeout=_STOP_S)
        tasks = list(self._runs.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
