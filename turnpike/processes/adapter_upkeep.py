"""The worker's care for adapters: the hours in which replicas had them ready are recorded for billing."""

from __future__ import annotations

from collections.abc import Sequence

import structlog

from billing.prices import PriceCatalog
from billing.rating.hourly_meters import READY_ADAPTERS, Stored, record_hours
from file_store.adapter_residency import AdapterResidency, ReadyHour
from storage.database.database import Database

logger = structlog.get_logger(__name__)


class AdapterUpkeep:
    """What the worker does for adapters."""

    def __init__(self, database: Database, prices: PriceCatalog) -> None:
        self._database = database
        self._prices = prices
        self.residency = AdapterResidency(database)

    async def run(self) -> bool:
        """Record the next hour that is due; True if there may be more. Raises DatabaseUnavailable."""
        return await self.residency.record_next(self._record)

    async def _record(self, hours: Sequence[ReadyHour]) -> None:
        used = [
            Stored(one.tenant_id, one.project_id, one.model, one.hour, one.millihours, base=one.base) for one in hours
        ]
        if new := await record_hours(self._database, self._prices, used, READY_ADAPTERS):
            logger.info("hours of ready adapters are recorded", hours=new)
