"""What leases stored, in token-seconds of each past hour.

A token is stored while any live lease covers it, and counted once however many do: prefixes of one project and model
that begin alike share their whole blocks. What is beyond a prefix's last whole block is computed again at our cost, so
it is not stored. Leases that nobody pays for, and those that never began, store nothing.

An hour is recorded once, and is final. It is computed a while after its end (`GRACE`), when every transaction that may
have begun a lease in it is over. It also waits until it is certain of every lease in it whether its writer pays for it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy import delete, func, or_, select, true
from sqlalchemy.ext.asyncio import AsyncSession

from prompt_cache.kv.block_keys import BLOCK_TOKENS
from prompt_cache.promise.lease_decisions import BLOCK_NAME
from prompt_cache.tables import ended_lease, lease, lease_storage_hour
from storage.database.database import Database

_SECOND = 1_000_000
HOUR = 3600 * _SECOND
GRACE = 300 * _SECOND
"""An hour is looked at so long after its end, in microseconds."""
MOST_WAIT = 25 * HOUR
"""An hour waits at most so long after its end for requests that may still pay for leases in it: longer than the longest
`--request-timeout`. What is not paid for by then is not counted."""
_STORED = ("expired", "purged")


class StoredHour(msgspec.Struct, frozen=True):
    """Token-seconds that a project had stored of one model in the hour that began at `hour`."""

    tenant_id: UUID
    project_id: UUID
    model: str
    hour: int
    token_seconds: int


class LeaseInterval(msgspec.Struct, frozen=True):
    """A lease promised its blocks from `start` to `end`. `blocks` has 8 bytes for each whole block."""

    tenant_id: UUID
    project_id: UUID
    model: str
    start: int
    end: int
    blocks: bytes


def stored_in_hour(hour: int, leases: Iterable[LeaseInterval]) -> list[StoredHour]:
    """What these stored in the hour that began at `hour`: each token once at each instant, rounded down to seconds."""
    spans: dict[tuple[UUID, UUID, str], dict[bytes, list[tuple[int, int]]]] = defaultdict(lambda: defaultdict(list))
    for one in leases:
        start, end = max(one.start, hour), min(one.end, hour + HOUR)
        if start < end:
            of_owner = spans[one.tenant_id, one.project_id, one.model]
            for at in range(0, len(one.blocks), BLOCK_NAME):
                of_owner[one.blocks[at : at + BLOCK_NAME]].append((start, end))
    stored = []
    for owner, blocks in sorted(spans.items(), key=lambda item: (item[0][0].int, item[0][1].int, item[0][2])):
        covered = sum(_covered(intervals) for intervals in blocks.values())
        if token_seconds := covered * BLOCK_TOKENS // _SECOND:
            stored.append(StoredHour(*owner, hour, token_seconds))
    return stored


def _covered(intervals: list[tuple[int, int]]) -> int:
    """How long at least one of these intervals lasts."""
    total, reached = 0, -1
    for start, end in sorted(intervals):
        total += max(0, end - max(start, reached))
        reached = max(reached, end)
    return total


def _stores_in(hour: int, of: Any, end: Any) -> tuple[Any, ...]:
    """That a lease with these columns, which ends at `end`, has blocks in this hour."""
    return of.created_at < hour + HOUR, end > hour, func.length(of.blocks) > 0


def _interval(row: Any) -> LeaseInterval:
    return LeaseInterval(*row)


class LeaseStorage:
    """Records past hours, one after another."""

    def __init__(self, database: Database, grace: int = GRACE) -> None:
        self._database = database
        self._grace = grace

    async def record_next(self, record: Callable[[Sequence[StoredHour]], Awaitable[object]]) -> bool:
        """Hand what was stored in the next past hour to `record`, which may be told the same again after a failure.
        Hours after an empty one in which nothing was stored either are passed over: after a pause of weeks there are
        hundreds. False if no hour is over that is not recorded yet, or it is not certain yet what was paid for in it.
        Raises DatabaseUnavailable, and what `record` raises."""
        now = await self._database.now()
        hour = await self.next_hour()
        if hour is None:
            hour = await self._first_hour(now)
            await self._mark(hour - HOUR, now)
        if hour + HOUR + self._grace > now:
            return False
        if now < hour + HOUR + MOST_WAIT and await self._is_uncertain(hour):
            return False
        leases = await self._leases(hour)
        await record(stored_in_hour(hour, leases))
        await self._mark(hour if leases else max(hour, await self._last_empty_hour(now)), now)
        return True

    async def first_unrecorded(self, session: AsyncSession, before: int) -> int | None:
        """The first instant of the first hour before an instant whose storage may still be recorded, in this
        transaction; None if nothing is to come."""
        last = await session.scalar(select(func.max(lease_storage_hour.c.hour)))
        since = 0 if last is None else last + HOUR
        live, gone = lease.c, ended_lease.c
        starts = []
        # all tenants: an hour is recorded for everyone
        for of, end, may_count in (
            (live, live.expires_at, true()),
            (gone, gone.ended_at, or_(gone.payer.is_not(None), gone.cause.in_(_STORED))),
        ):
            query = select(func.min(of.created_at)).where(may_count, of.created_at < before, end > since)
            starts.append(await session.scalar(query.where(func.length(of.blocks) > 0)))
        first = min((max(since, start // HOUR * HOUR) for start in starts if start is not None), default=None)
        return first if first is not None and first < before else None

    async def next_hour(self) -> int | None:
        """The first instant of the hour to be recorded next; None before the first is known."""
        async with self._database.reading() as session:
            last = await session.scalar(select(func.max(lease_storage_hour.c.hour)))
        return None if last is None else last + HOUR

    async def _last_empty_hour(self, now: int) -> int:
        """The last hour that is over before the next one in which something may have been stored."""
        over = (now - self._grace) // HOUR * HOUR
        async with self._database.reading() as session:
            first = await self.first_unrecorded(session, over)
        return (over if first is None else first) - HOUR

    async def _first_hour(self, now: int) -> int:
        """The hour of the first lease, or the current one."""
        async with self._database.reading() as session:
            # all tenants: an hour is recorded for everyone
            firsts = [await session.scalar(select(func.min(t.c.created_at))) for t in (lease, ended_lease)]
        first: int = min([now, *(at for at in firsts if at is not None)])
        return first // HOUR * HOUR

    async def _mark(self, hour: int, now: int) -> None:
        async with self._database.transaction() as session:
            new = self._database.insert(lease_storage_hour).values(hour=hour, recorded_at=now)
            await session.execute(new.on_conflict_do_nothing())
            await session.execute(delete(lease_storage_hour).where(lease_storage_hour.c.hour < hour))

    async def _is_uncertain(self, hour: int) -> bool:
        """Whether a request may still pay, or not, for a lease that stored something in this hour."""
        live, gone = lease.c, ended_lease.c
        async with self._database.reading() as session:
            # all tenants: an hour is recorded for everyone
            query = select(live.id).where(live.paid == 0, *_stores_in(hour, live, live.expires_at)).limit(1)
            if (await session.execute(query)).first() is not None:
                return True
            query = select(gone.id).where(gone.payer.is_not(None), *_stores_in(hour, gone, gone.ended_at)).limit(1)
            return (await session.execute(query)).first() is not None

    async def _leases(self, hour: int) -> list[LeaseInterval]:
        """What was promised at some time in this hour, and is paid for."""
        live, gone = lease.c, ended_lease.c
        async with self._database.reading() as session:
            # all tenants: an hour is recorded for everyone
            names = ("tenant_id", "project_id", "model", "created_at")
            query = select(*(live[name] for name in names), live.expires_at, live.blocks)
            current = await session.execute(query.where(live.paid == 1, *_stores_in(hour, live, live.expires_at)))
            found = [_interval(row) for row in current]
            query = select(*(gone[name] for name in names), gone.ended_at, gone.blocks)
            ended = await session.execute(
                query.where(gone.payer.is_(None), gone.cause.in_(_STORED), *_stores_in(hour, gone, gone.ended_at))
            )
            found += [_interval(row) for row in ended]
        return found
