"""The worker's care for leases: those that nobody pays for end, expired ones are reclaimed, storage is recorded."""

from __future__ import annotations

from collections.abc import Sequence

import structlog

from billing.prices import PriceCatalog
from billing.rating.hourly_meters import Stored, record_hours
from billing.reservation.billed_writes import billed_writes
from billing.reservation.hold_service import HoldService
from prompt_cache.promise.lease_storage import LeaseStorage, StoredHour
from prompt_cache.promise.lease_store import LeaseStore
from storage.database.database import Database

_BATCH = 1000
_WRITERS = 200
_TOLD_US = 10_000_000
"""A gateway has so long to tell how a writer's request ended, after its start, before the worker finds out itself; in
microseconds."""
_KEPT_US = 86_400_000_000
"""How long it is known what became of a lease, in microseconds."""

logger = structlog.get_logger(__name__)


class LeaseUpkeep:
    """What the worker does for leases. `told_us` as `_TOLD_US`."""

    def __init__(
        self, database: Database, holds: HoldService, prices: PriceCatalog, *, told_us: int = _TOLD_US
    ) -> None:
        self._database = database
        self._holds = holds
        self._prices = prices
        self._told_us = told_us
        self._store = LeaseStore(database)
        self._storage = LeaseStorage(database)

    async def run(self) -> bool:
        """Do what is due; True if there is more. Raises DatabaseUnavailable."""
        now = await self._database.now()
        writers = await self._store.uncertain_writers(now - self._told_us, _WRITERS)
        ended = await billed_writes(self._database, self._holds, writers)
        failed = await self._store.settle_writes(ended) if ended else 0
        if failed:
            logger.info("leases ended whose requests failed", leases=failed)
        await self._store.bill_rest()
        reclaimed = await self._store.reclaim(_BATCH)
        recorded = await self._storage.record_next(self._record)
        await self._forget(now)
        return recorded or reclaimed >= _BATCH

    async def _forget(self, now: int) -> None:
        """Forget what ended a day ago, but not before its storage is recorded."""
        due = await self._storage.next_hour()
        await self._store.forget(now - _KEPT_US if due is None else min(now - _KEPT_US, due))

    async def _record(self, hours: Sequence[StoredHour]) -> None:
        stored = [Stored(one.tenant_id, one.project_id, one.model, one.hour, one.token_seconds) for one in hours]
        if new := await record_hours(self._database, self._prices, stored):
            logger.info("storage of cached prompts is recorded", hours=new)
