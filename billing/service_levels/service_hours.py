"""Counts how requests were served, by hour, in memory, and adds the counts to the database now and then.

Counting costs a request about a microsecond for each measure and never waits. What is counted is bounded: beyond
`MOST_COUNTERS` places a count is left out. While the database is away, counts wait.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence
from math import isqrt
from typing import Literal, TypeAlias, get_args
from uuid import UUID

import msgspec
import structlog
from sqlalchemy import delete, func, select, tuple_

from billing.events.rollups import HOUR
from billing.tables.books import service_hour
from storage.database.database import Database, DatabaseUnavailable
from storage.database.sql_arrays import one_of

BUCKETS = 42
_FIRST_US = 1000
BOUNDS = tuple(isqrt(_FIRST_US * _FIRST_US << place) for place in range(BUCKETS))
"""The upper bound of each bucket, from a millisecond to 24 minutes; the last one has all that is longer, too."""


def bucket_of(microseconds: int) -> int:
    """The bucket of a duration."""
    return min(BUCKETS - 1, bisect_left(BOUNDS, microseconds))


def quantile(counts: Mapping[int, int], thousandths: int) -> int | None:
    """The duration that so many thousandths of what was counted did not exceed, in microseconds, rounded up to the
    bound of its bucket; None if nothing was counted. `counts`: by bucket."""
    total = sum(counts.values())
    if total <= 0:
        return None
    wanted = -(-total * thousandths // 1000)
    seen = 0
    for bucket in sorted(counts):
        seen += counts[bucket]
        if seen >= wanted:
            return BOUNDS[bucket]
    return BOUNDS[max(counts)]


def added(one: Mapping[int, int], other: Mapping[int, int]) -> dict[int, int]:
    """Both histograms together."""
    return {bucket: one.get(bucket, 0) + other.get(bucket, 0) for bucket in {*one, *other}}


log = structlog.get_logger("billing.service_levels")

Measure = Literal["first_token", "queue", "ok", "cancelled", "failed"]
ENDS: tuple[Measure, ...] = ("ok", "cancelled", "failed")
MEASURES: tuple[Measure, ...] = get_args(Measure)
KEEP_DAYS = 400
MOST_COUNTERS = 20_000
_WRITE_S = 5
_AT_ONCE = 500
_STOP_S = 3
_DELETED = 1000

Admitted: TypeAlias = tuple[UUID, UUID, str, str, int]
"""Tenant, project, model and lane of a request, and when it was admitted, in microseconds since the Unix epoch."""
_Place: TypeAlias = tuple[UUID, int, UUID, str, str, Measure, int]
_KEYS = tuple(column.name for column in service_hour.primary_key.columns)


class Served(msgspec.Struct, frozen=True):
    """Requests of one lane (or of none in particular) that took as long as `bucket` says."""

    measure: Measure
    lane: str
    bucket: int
    requests: int


class ServiceHours:
    """The counters of one gateway worker. `left_out`: how many counts there was no room for."""

    def __init__(self, database: Database) -> None:
        self.left_out = 0
        self._database = database
        self._counts: dict[_Place, int] = {}
        self._task: asyncio.Task[None] | None = None

    def count(self, request: Admitted, measure: Measure, took_us: int) -> None:
        """Count that a request took so long, in microseconds."""
        tenant_id, project_id, model, lane, admitted_at = request
        hour = admitted_at - admitted_at % HOUR
        place: _Place = (tenant_id, hour, project_id, model, lane, measure, bucket_of(took_us))
        counts = self._counts
        if place not in counts and len(counts) >= MOST_COUNTERS:
            self.left_out += 1
            return
        counts[place] = counts.get(place, 0) + 1
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._write_all())

    async def stop(self) -> None:
        """Write what was counted, for a moment."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        try:
            async with asyncio.timeout(_STOP_S):
                await self.write()
        except (TimeoutError, DatabaseUnavailable):
            log.warning("counts of how requests were served are lost", places=len(self._counts))

    async def write(self) -> None:
        """Add what was counted to the database. Raises DatabaseUnavailable, and then has it still."""
        counts, self._counts = self._counts, {}
        # in one order, so that gateways lock rows in the same
        places = sorted(counts, key=lambda place: (place[0].int, place[1], place[2].int, *place[3:]))
        try:
            while places:
                batch = places[:_AT_ONCE]
                await self._add([(place, counts[place]) for place in batch])
                del places[: len(batch)]
        finally:
            for place in places:
                self._counts[place] = self._counts.get(place, 0) + counts[place]

    async def _add(self, counts: Sequence[tuple[_Place, int]]) -> None:
        statement = self._database.insert(service_hour)  # all tenants: each row names its own
        more = {"requests": service_hour.c.requests + statement.excluded.requests}
        upsert = statement.on_conflict_do_update(index_elements=[service_hour.c[name] for name in _KEYS], set_=more)
        rows = [dict(zip(_KEYS, place, strict=True)) | {"requests": number} for place, number in counts]
        async with self._database.transaction() as session:
            await session.execute(upsert, rows)

    async def _write_all(self) -> None:
        while self._counts:
            await asyncio.sleep(_WRITE_S)
            try:
                await self.write()
            except DatabaseUnavailable:
                continue
            except Exception:
                log.exception("counts of how requests were served are not written")
                return


async def served(
    database: Database,
    tenants: Collection[UUID] | None,
    *,
    start_at: int,
    end_at: int,
    projects: Collection[UUID] | None = None,
    models: Collection[str] | None = None,
    lanes: Collection[str] | None = None,
) -> list[Served]:
    """What was counted of the requests of these tenants (None: all) that were admitted from `start_at` (included) to
    `end_at` (excluded), the first instants of hours, by measure, lane and bucket. Raises DatabaseUnavailable."""
    of = service_hour.c
    only = ((of.tenant_id, tenants), (of.project_id, projects), (of.model, models), (of.lane, lanes))
    conditions = [one_of(database, column, values) for column, values in only if values is not None]
    keys = (of.measure, of.lane, of.bucket)
    query = select(*keys, func.sum(of.requests)).where(of.hour >= start_at, of.hour < end_at, *conditions)
    async with database.reading() as session:
        rows = (await session.execute(query.group_by(*keys).order_by(*keys))).all()
    return [Served(measure, lane, bucket, int(requests)) for measure, lane, bucket, requests in rows]


async def forget_old(database: Database) -> int:
    """Delete a batch of rows that are older than they are kept, the oldest first; how many. Raises
    DatabaseUnavailable."""
    before = await database.now() - KEEP_DAYS * 24 * HOUR
    of = service_hour.c
    keys = [of[name] for name in _KEYS]
    async with database.transaction() as session:
        # all tenants: time passes for everyone
        old = select(*keys).where(of.hour < before).order_by(of.hour).limit(_DELETED)
        gone = await session.execute(delete(service_hour).where(tuple_(*keys).in_(old)))
    return int(getattr(gone, "rowcount", 0))
