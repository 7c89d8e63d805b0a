"""Keeps how long replicas had adapters of projects ready, by hour, until the hour is recorded for billing.

Replicas report counts that only grow, under their name, run and hour, and several gateways pass on the same reports. So
a report that comes twice, late or after another one changes nothing, and a replica that is started again counts beside
its earlier run. What was not reported when a replica died is not billed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from uuid import UUID

import msgspec
from sqlalchemy import delete, func, select
from sqlalchemy.ext.asyncio import AsyncSession

from file_store.adapters import StoredAdapter
from file_store.tables import adapter_residency
from storage.database.database import Database

_SECOND = 1_000_000
HOUR = 3600 * _SECOND
GRACE = 300 * _SECOND
"""An hour is recorded so long after its end, in microseconds: longer than reports take."""
_MILLIHOUR_MS = 3600
_OF = adapter_residency.c


class ResidencyCount(msgspec.Struct, frozen=True):
    """For how many milliseconds a run of a replica had an adapter ready in the hour that began at `hour`."""

    replica: str
    epoch: int
    hour: int
    adapter: StoredAdapter
    milliseconds: int


class ReadyHour(msgspec.Struct, frozen=True):
    """Thousandths of an hour for which replicas had a project's adapter ready in the hour that began at `hour`."""

    tenant_id: UUID
    project_id: UUID
    model: str
    base: str
    hour: int
    millihours: int


class AdapterResidency:
    """The counts of all replicas and projects. `grace`: as `GRACE`."""

    def __init__(self, database: Database, grace: int = GRACE) -> None:
        self._database = database
        self._grace = grace

    async def report(self, counts: Sequence[ResidencyCount]) -> None:
        """Take what replicas report. Raises DatabaseUnavailable."""
        rows = [
            {
                "replica": one.replica,
                "epoch": one.epoch,
                "hour": one.hour,
                "project_id": one.adapter.project_id,
                "digest": one.adapter.digest,
                "tenant_id": one.adapter.tenant_id,
                "model": one.adapter.full_name,
                "base": one.adapter.model,
                "milliseconds": one.milliseconds,
            }
            for one in counts
        ]
        if not rows:
            return
        new = self._database.insert(adapter_residency)
        grown = new.on_conflict_do_update(
            index_elements=list(adapter_residency.primary_key),
            set_={"milliseconds": new.excluded.milliseconds},
            where=new.excluded.milliseconds > _OF.milliseconds,
        )
        async with self._database.transaction() as session:
            await session.execute(grown, rows)

    async def record_next(self, record: Callable[[Sequence[ReadyHour]], Awaitable[object]]) -> bool:
        """Hand what is counted of the next hour that is over to `record`, which may be told the same again after a
        failure; False if there is none. Raises DatabaseUnavailable, and what `record` raises."""
        now = await self._database.now()
        # all tenants: an hour is recorded for everyone
        over = _OF.hour <= now - HOUR - self._grace
        names = ("tenant_id", "project_id", "model", "base")
        by = [_OF[name] for name in names]
        async with self._database.reading() as session:
            hour = await session.scalar(select(func.min(_OF.hour)).where(over))
            if hour is None:
                return False
            rows = (await session.execute(select(*by, _OF.milliseconds).where(_OF.hour == hour))).all()
        sums: dict[tuple[UUID, UUID, str, str], int] = defaultdict(int)
        for *owner, milliseconds in rows:
            sums[tuple(owner)] += milliseconds
        ready = [ReadyHour(*owner, hour, ms // _MILLIHOUR_MS) for owner, ms in sums.items() if ms >= _MILLIHOUR_MS]
        await record(sorted(ready, key=lambda one: (one.tenant_id.int, one.project_id.int, one.model)))
        async with self._database.transaction() as session:
            await session.execute(delete(adapter_residency).where(_OF.hour == hour))
        return True

    async def first_unrecorded(self, session: AsyncSession, before: int) -> int | None:
        """The first hour before an instant that is not recorded yet, in this transaction; None if there is none."""
        # all tenants: an hour is recorded for everyone
        first: int | None = await session.scalar(select(func.min(_OF.hour)).where(_OF.hour < before))
        return first
