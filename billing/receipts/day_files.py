"""The file of a tenant's day: all its events, numbered without gaps, under the root of a Merkle tree.

An event's number follows from where it was settled: the order of a file is that of the tenant's hash chain
(`billing.integrity.hash_chain`), which settling extends in its own transaction. So numbering costs settling nothing,
and nobody can give a number twice or leave one out.

A day closes some time after it ends, up to a link of its period's chain. An event belongs to the file of the day on
which it was admitted. One that is settled after that day closed, or booked in a later period than its own, is in the
first file of its booking period that is open then, which names the event's own day. The last day of a period closes
with the period, so that the files of a period have exactly the events of its invoice. Days without events have files
too: a missing day shows.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from itertools import chain
from typing import Any, TypeAlias
from uuid import UUID

import msgspec
import structlog
from sqlalchemy import func, insert, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession

from billing.calendar import period_bounds
from billing.integrity.hash_chain import split_entries
from billing.integrity.row_seals import seal_rows
from billing.receipts.merkle import MerkleRoot, leaf_hash
from billing.receipts.statements import statement_digest, statement_of_row
from billing.tables.books import billing_period, usage_batch, usage_chain
from billing.tables.money import usage_event
from billing.tables.receipts import receipt_day
from storage.database.base import from_instant
from storage.database.database import Database
from storage.database.sql_arrays import one_of
from storage.reported_error import ReportedError

log = structlog.get_logger(__name__)

GRACE_S = 3600
"""Seconds after its end until a day closes: most of its usage has been settled by then."""
DAY = 86_400_000_000
_CHUNK = 2000
_LINKS = 16
_TENANTS = 100
"""Tenants whose days are closed before the worker does something else."""

Row: TypeAlias = Any
"""A row of the view `usage_event`, by name."""


class EventMissing(ReportedError):
    """An event of the chain is not in the database: `turnpike audit money` names it."""


class ClosedDay(msgspec.Struct, frozen=True):
    """A row of `receipt_day`."""

    tenant_id: UUID
    day: str
    period: str
    link: int
    pending_from: int
    events: int
    late: int
    cost_pico: int
    root: bytes
    closed_at: int


class FilePlace(msgspec.Struct, frozen=True):
    """A place in a file behind an event: its number, and where the chain has it."""

    n: int
    link: int
    event: UUID


class FiledEvent(msgspec.Struct, frozen=True):
    """An event in a file: its place, its statement, its cost, and its own day where that is an earlier one."""

    place: FilePlace
    statement: bytes
    cost_pico: int
    own_day: str | None


def file_leaf(n: int, statement: bytes) -> bytes:
    """The leaf of an event in its file's tree: its number, and the digest of what it says."""
    return leaf_hash(n.to_bytes(8, "big") + statement_digest(statement))


def day_name(day: int) -> str:
    """A day, counted from the Unix epoch, as a date."""
    return from_instant(day * DAY).date().isoformat()


class _Builder:
    """The file of a day that is being closed."""

    def __init__(self, day: int) -> None:
        self.day = day
        self.tree = MerkleRoot()
        self.late = 0
        self.cost_pico = 0

    def add(self, row: Row, own: int) -> None:
        self.tree.append(file_leaf(self.tree.leaves + 1, statement_of_row(row)))
        self.late += own < self.day
        self.cost_pico += int(row["cost_pico"])


class _Closing:
    """The days from `first` to `last` of a period, closed together after those in `closed`."""

    def __init__(self, closed: ClosedDay | None, days: range, *, closing_link: int) -> None:
        self.closed_through = days.start - 1
        self.closed_link = 0 if closed is None else closed.link
        self.files = {day: _Builder(day) for day in days}
        self._closing_link = closing_link
        self._first_links: dict[int, int] = {}
        """The first link with an event of each day's file, of the days that stay open too."""

    def add(self, link: int, row: Row) -> None:
        own = row["admitted_at"] // DAY
        if own <= self.closed_through and link <= self.closed_link:
            return
        day = max(own, self.closed_through + 1)
        self._first_links.setdefault(day, link)
        if day in self.files:
            self.files[day].add(row, own)

    def rows(self, tenant_id: UUID, period: str, link: int) -> Iterator[dict[str, Any]]:
        """The rows of the days."""
        for day, file in self.files.items():
            pending = [first for later, first in self._first_links.items() if later > day]
            yield {
                "tenant_id": tenant_id,
                "day": day_name(day),
                "period": period,
                "link": link,
                "pending_from": min(pending, default=self._closing_link + 1),
                "events": file.tree.leaves,
                "late": file.late,
                "cost_pico": file.cost_pico,
                "root": file.tree.root,
            }


async def close_days(database: Database, tenant_id: UUID, period: str, grace_s: int = GRACE_S) -> int:
    """Close what days of a tenant's period can be closed; how many were. None are if it has no events at all.

    Raises InvalidPeriod, EventMissing, DatabaseUnavailable.
    """
    now = await database.now()
    async with database.reading() as session:
        links = await session.scalar(
            select(usage_chain.c.links).where(usage_chain.c.tenant_id == tenant_id, usage_chain.c.period == period)
        )
        before = await _last_closed(session, tenant_id, period)
        days = _closable(period, before, now - grace_s * 1_000_000, ended=await _is_closed(session, period))
        if links is None or not days:
            return 0
        closing = _Closing(before, days, closing_link=links)
        pending_from = 1 if before is None else before.pending_from
        async for link, row in events_of_links(database, session, (tenant_id, period), pending_from, links):
            closing.add(link, row)
    rows = [row | {"closed_at": database.clock} for row in closing.rows(tenant_id, period, links)]
    try:
        async with database.transaction() as session:
            for row in rows:
                await session.execute(insert(receipt_day).values(row))
            mine = (receipt_day.c.tenant_id == tenant_id, receipt_day.c.day.in_([row["day"] for row in rows]))
            await seal_rows(session, receipt_day, *mine)
    except IntegrityError:  # another closed the same days meanwhile
        return 0
    return len(rows)


async def close_due_days(database: Database, grace_s: int = GRACE_S) -> bool:
    """Close the days of all tenants that are due. A worker's job; True if there are more. A tenant whose events are
    damaged keeps no other one waiting. Raises DatabaseUnavailable."""
    now = await database.now()
    due: list[tuple[UUID, str]] = []
    async with database.reading() as session:
        for period in await session.scalars(select(usage_chain.c.period).distinct().order_by(usage_chain.c.period)):
            days = _closable(period, None, now - grace_s * 1_000_000, ended=await _is_closed(session, period))
            mine = (receipt_day.c.tenant_id == usage_chain.c.tenant_id, receipt_day.c.period == usage_chain.c.period)
            # all tenants: the days of everybody close
            count = select(func.count()).select_from(receipt_day).where(*mine).scalar_subquery()
            behind = select(usage_chain.c.tenant_id).where(usage_chain.c.period == period, count < len(days))
            due += [(tenant, period) for tenant in await session.scalars(behind.limit(_TENANTS))]
    closed = 0
    for tenant, period in due[:_TENANTS]:
        try:
            closed += await close_days(database, tenant, period, grace_s)
        except EventMissing as error:
            log.error("a day of receipts cannot be closed", tenant=str(tenant), period=period, cause=str(error))
    return len(due) >= _TENANTS and closed > 0


def _closable(period: str, before: ClosedDay | None, over: int, *, ended: bool) -> range:
    """The days of a period that can close now, counted from the Unix epoch: all if the period is closed (`ended`), else
    those that ended at the instant `over` but for the period's last."""
    start, end = (bound // DAY for bound in period_bounds(period))
    first = start if before is None else start + int(before.day[8:])
    return range(first, end if ended else min(max(first, over // DAY), end - 1))


async def _is_closed(session: AsyncSession, period: str) -> bool:
    state = select(billing_period.c.state).where(billing_period.c.period == period)
    return await session.scalar(state) == "closed"


async def _last_closed(session: AsyncSession, tenant_id: UUID, period: str) -> ClosedDay | None:
    mine = (receipt_day.c.tenant_id == tenant_id, receipt_day.c.period == period)
    query = select(receipt_day).where(*mine).order_by(receipt_day.c.day.desc()).limit(1)
    row = (await session.execute(query)).one_or_none()
    return None if row is None else _closed_day(row)


def _closed_day(row: Any) -> ClosedDay:
    return ClosedDay(**dict(row._mapping) | {"cost_pico": int(row.cost_pico)})


async def closed_days(session: AsyncSession, tenant_id: UUID, period: str) -> list[ClosedDay]:
    """The closed days of a tenant's period, in order."""
    mine = (receipt_day.c.tenant_id == tenant_id, receipt_day.c.period == period)
    rows = await session.execute(select(receipt_day).where(*mine).order_by(receipt_day.c.day))
    return [_closed_day(row) for row in rows]


async def filed_events(
    database: Database,
    session: AsyncSession,
    closed: ClosedDay,
    before: ClosedDay | None,
    *,
    after: FilePlace | None = None,
    chunk: int = _CHUNK,
) -> AsyncIterator[FiledEvent]:
    """The events of a closed day in the order of their numbers, those `after` a place; `before` is the day before it in
    its period. Events are read `chunk` at a time. Raises EventMissing."""
    day = period_bounds(closed.period)[0] // DAY + int(closed.day[8:]) - 1
    first, closed_link = (1, 0) if before is None else (before.pending_from, before.link)
    n = 0
    if after is not None:
        n, first = after.n, max(first, after.link)
    chain_of = (closed.tenant_id, closed.period)
    async for link, row in events_of_links(database, session, chain_of, first, closed.link, chunk=chunk):
        own = row["admitted_at"] // DAY
        if own > day or (own < day and link <= closed_link):
            continue
        if after is not None and (link, row["id"]) <= (after.link, after.event):
            continue
        n += 1
        yield FiledEvent(
            FilePlace(n, link, row["id"]),
            statement_of_row(row),
            int(row["cost_pico"]),
            day_name(own) if own < day else None,
        )


async def file_of(events: AsyncIterator[FiledEvent]) -> tuple[int, int, int, bytes]:
    """What a file comes to: its events, those of earlier days, their cost, and the root. Raises EventMissing."""
    tree, late, cost_pico = MerkleRoot(), 0, 0
    async for event in events:
        tree.append(file_leaf(event.place.n, event.statement))
        late += event.own_day is not None
        cost_pico += event.cost_pico
    return tree.leaves, late, cost_pico, tree.root


async def events_of_links(
    database: Database, session: AsyncSession, of: tuple[UUID, str], first: int, last: int, *, chunk: int = _CHUNK
) -> AsyncIterator[tuple[int, Row]]:
    """The events of these links of a tenant's and period's chain, each with its link, in the chain's order. Raises
    EventMissing."""
    row, (tenant_id, period) = usage_batch.c, of
    mine = (row.tenant_id == tenant_id, row.period == period, row.link >= first, row.link <= last)
    waiting: list[tuple[int, UUID]] = []
    stream = await session.stream(
        select(row.link, row.entries).where(*mine).order_by(row.link).execution_options(yield_per=_LINKS)
    )
    async for links in stream.partitions(_LINKS):
        waiting += chain.from_iterable(
            ((link, event) for event, _ in split_entries(entries)) for link, entries in links
        )
        while len(waiting) >= chunk:
            for found in await _read(database, session, tenant_id, waiting[:chunk]):
                yield found
            del waiting[:chunk]
    for found in await _read(database, session, tenant_id, waiting):
        yield found


async def _read(
    database: Database, session: AsyncSession, tenant_id: UUID, events: Sequence[tuple[int, UUID]]
) -> list[tuple[int, Row]]:
    ids = [event for _, event in events]
    query = select(usage_event).where(usage_event.c.tenant_id == tenant_id, one_of(database, usage_event.c.id, ids))
    rows = {row["id"]: row for row in (await session.execute(query)).mappings()}
    missing = next((event for event in ids if event not in rows), None)
    if missing is not None:
        raise EventMissing(f"event {missing} was settled and is not there: `turnpike audit money` says more")
    return [(link, rows[event]) for link, event in events]
