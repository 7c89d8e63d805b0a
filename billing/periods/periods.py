"""Billing periods: calendar months in UTC by the database's clock, closed once all their usage has arrived.

A request belongs to the period in which it was admitted. A period can close when it is over, all earlier periods are
closed, every hold of its requests has ended, no gateway has events of it in its spool
(`billing.spool.gateway_epochs`), and hourly meters have recorded its hours. Usage that arrives later is booked
in the period that is open then; `admitted_at` and the rollup's hour still tell its own period. Who books in a period
calls `closed_periods` of its money transaction first, which keeps the period from closing until that transaction ends.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Literal, Protocol

import msgspec
from sqlalchemy import func, select, text, update
from sqlalchemy.ext.asyncio import AsyncSession

from audit_log.record import record_change
from billing.calendar import following_period, period_bounds, period_of
from billing.events.columns import EventColumns
from billing.integrity.hash_chain import period_root
from billing.integrity.row_seals import seal_rows
from billing.spool.gateway_epochs import Epoch, epochs_before
from billing.tables.books import CLOSING_LOCK, billing_period, usage_chain
from billing.tables.money import hold_batch, rollup_hour
from billing.transaction.money_transaction import MoneyTransaction
from storage.database.base import from_instant
from storage.database.database import Database
from storage.free_text import counted
from storage.reported_error import ReportedError

PeriodState = Literal["open", "closing", "closed"]


class Period(msgspec.Struct, frozen=True):
    """A billing period from `starts_at` (included) to `ends_at` (excluded), in microseconds since the Unix epoch.

    `root` is the hash over all its chains of events, sealed when it closed.
    """

    period: str
    starts_at: int
    ends_at: int
    state: PeriodState
    closed_at: int | None = None
    root: bytes | None = None


class HourlyRecords(Protocol):
    """What records the hours of a meter. An interface, since billing knows neither cache nor adapters."""

    async def first_unrecorded(self, session: AsyncSession, before: int) -> int | None:
        """The first hour before an instant that may still be recorded; None if nothing is to come."""


class Waiting(msgspec.Struct, frozen=True):
    """What keeps a period that is over from closing. `hour`: the first one that an hourly meter has not recorded."""

    open_holds: int
    epochs: Sequence[Epoch]
    earlier: Sequence[str]
    hour: int | None = None

    def reasons(self) -> list[str]:
        """The reasons, a line each; none if the period can close."""
        lines = [f"{period} is not closed yet" for period in self.earlier]
        if self.open_holds:
            lines.append(f"{counted(self.open_holds, 'open hold')} of requests that have not ended")
        if self.hour is not None:
            hour = from_instant(self.hour).isoformat(timespec="minutes")
            what = f"what cached prompts and adapters take up is not recorded from {hour} on"
            lines.append(f"{what}; the worker records each hour, 25 h after its end at the latest")
        for epoch in self.epochs:
            oldest, seen = (from_instant(at).isoformat(timespec="seconds") for at in (epoch.watermark, epoch.seen_at))
            lines.append(f"gateway epoch {epoch.epoch} may have usage from {oldest} on in its spool; last seen {seen}")
        return lines


class PeriodOpen(ReportedError, ValueError):
    """The period cannot be closed now; `reasons` are lines that say why."""

    def __init__(self, period: str, reasons: Sequence[str]) -> None:
        super().__init__(f"{period} cannot be closed: {'; '.join(reasons)}")
        self.period = period
        self.reasons = reasons


async def book_late(money: MoneyTransaction, columns: EventColumns) -> EventColumns:
    """The events, those of closed periods moved to the open one. No period of theirs closes during the transaction."""
    moved = await moved_periods(money, {period for *_, period in columns.owners})
    if not moved:
        return columns
    return EventColumns(
        msgspec.structs.replace(event, period=moved.get(event.period, event.period)) for event in columns.events
    )


async def moved_periods(money: MoneyTransaction, periods: Collection[str]) -> dict[str, str]:
    """Closed period → the period that is open now, in which its late usage is booked.

    Neither that one nor any of `periods` that is open closes during the transaction.
    """
    closed = await money.closed_periods(periods)
    if not closed:
        return {}
    period = period_of(await money.now())
    while await money.closed_periods({period}):  # the clock was set back
        period = following_period(period)
    return dict.fromkeys(closed, period)


class Periods:
    """The billing periods of a database. Methods raise DatabaseUnavailable.

    `hourly`: closing waits for their hours.
    """

    def __init__(self, database: Database, *hourly: HourlyRecords) -> None:
        self._database = database
        self._hourly = hourly

    async def list(self) -> list[Period]:
        """All stored periods, oldest first."""
        async with self._database.reading() as session:
            rows = await session.execute(select(billing_period).order_by(billing_period.c.period))
            return [Period(*row) for row in rows]

    async def get(self, period: str) -> Period:
        """A period; one that is not stored yet is open. Raises InvalidPeriod."""
        async with self._database.reading() as session:
            return await self._get(session, period)

    async def waiting(self, period: str) -> Waiting:
        """What keeps a period from closing, apart from its end."""
        async with self._database.reading() as session:
            return await self._waiting(session, period)

    async def prepare(self) -> None:
        """Store every period from the first to the next one; mark those that are over as closing."""
        now = await self._database.now()
        async with self._database.transaction() as session:
            await self._prepare(session, now)

    async def close(self, period: str, *, dry_run: bool = False) -> Period:
        """Close a period for good, and return it. A closed one stays as it is; a dry run changes nothing.

        Raises InvalidPeriod, PeriodOpen.
        """
        found = await self.get(period)
        if found.state == "closed":
            return found
        if (await self._database.now()) < found.ends_at:
            raise PeriodOpen(period, [f"it ends at {from_instant(found.ends_at).isoformat()}"])
        _check_can_close(await self.waiting(period), period)  # first without the lock, which others wait for
        if dry_run:
            now = await self._database.now()
            async with self._database.transaction(write=False) as session:
                await self._prepare(session, now)
                _check_can_close(await self._waiting(session, period), period)
            return found
        await self.prepare()
        async with self._database.transaction() as session:
            if self._database.dialect == "postgresql":  # SQLite has one writer: this transaction
                await session.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": CLOSING_LOCK})
            _check_can_close(await self._waiting(session, period), period)
            row = {"period": period, "starts_at": found.starts_at, "ends_at": found.ends_at, "state": "closing"}
            await session.execute(self._database.insert(billing_period).values(row).on_conflict_do_nothing())
            heads = select(usage_chain.c.tenant_id, usage_chain.c.head).where(usage_chain.c.period == period)
            # all tenants: a period closes for everybody
            root = period_root({row.tenant_id: row.head for row in await session.execute(heads)})
            values = {"state": "closed", "closed_at": self._database.clock, "root": root}
            unclosed = (billing_period.c.period == period) & (billing_period.c.state != "closed")
            closing = update(billing_period).where(unclosed).values(values).returning(billing_period.c.period)
            if (await session.execute(closing)).one_or_none() is not None:
                await seal_rows(session, billing_period, billing_period.c.period == period)
                after = {"state": "closed", "root": root.hex()}
                await record_change(session, "period.closed", target="billing_period", target_id=period, after=after)
            return await self._get(session, period)

    async def close_due(self, grace_s: int) -> Sequence[Period]:
        """Close, in order, the periods that ended `grace_s` seconds ago and can close; return them. A worker's job."""
        await self.prepare()
        now = await self._database.now()
        closed = []
        for period in await self.list():
            if period.state == "closing" and period.ends_at + grace_s * 1_000_000 <= now:
                try:
                    closed.append(await self.close(period.period))
                except PeriodOpen:
                    break
        return closed

    async def _prepare(self, session: AsyncSession, now: int) -> None:
        # no entry: months follow each other by themselves
        latest = await session.scalar(select(func.max(billing_period.c.period)))
        # all tenants: billing periods are the same for everybody
        rows, period = [], latest or await self._first(session) or period_of(now)
        while period <= following_period(period_of(now)):
            starts_at, ends_at = period_bounds(period)
            rows.append({"period": period, "starts_at": starts_at, "ends_at": ends_at, "state": "open"})
            period = following_period(period)
        if rows:
            await session.execute(self._database.insert(billing_period).on_conflict_do_nothing(), rows)
        over = (billing_period.c.state == "open") & (billing_period.c.ends_at <= now)
        await session.execute(update(billing_period).where(over).values(state="closing"))

    async def _first(self, session: AsyncSession) -> str | None:
        """The first period in which anything was admitted."""
        # all tenants: billing periods are the same for everybody
        settled = await session.scalar(select(func.min(rollup_hour.c.period)))
        held = await session.scalar(select(func.min(hold_batch.c.admitted_at)))
        return min(filter(None, (settled, period_of(held) if held else None)), default=None)

    async def _get(self, session: AsyncSession, period: str) -> Period:
        row = (await session.execute(select(billing_period).where(billing_period.c.period == period))).one_or_none()
        return Period(period, *period_bounds(period), "open") if row is None else Period(*row)

    async def _waiting(self, session: AsyncSession, period: str) -> Waiting:
        # all tenants: a period closes for everybody
        starts_at, ends_at = period_bounds(period)
        batch = hold_batch.c
        open_holds = select(func.coalesce(func.sum(batch.open), 0))
        open_holds = open_holds.where(batch.admitted_at >= starts_at, batch.admitted_at < ends_at)
        earlier = select(billing_period.c.period).where(billing_period.c.period < period)
        hours = [await records.first_unrecorded(session, ends_at) for records in self._hourly]
        return Waiting(
            (await session.execute(open_holds)).scalar_one(),
            await epochs_before(session, ends_at),
            list(await session.scalars(earlier.where(billing_period.c.state != "closed").order_by("period"))),
            min((hour for hour in hours if hour is not None), default=None),
        )


def _check_can_close(waiting: Waiting, period: str) -> None:
    if reasons := waiting.reasons():
        raise PeriodOpen(period, reasons)
