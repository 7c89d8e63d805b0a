"""The clock of a sandbox: time that is moved by hand, to try month ends, expiry, reminders and prices in minutes.

An installation is a sandbox from its first moment or never: its clock begins while its database is empty. So nothing
that anybody owes is ever dated by it. Time only goes forward, and not while requests run. All tenants of a sandbox
stand in one time, since billing periods close for everybody and each series of numbers has one order; a tenant with a
clock of its own has a sandbox of its own.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta

from msgspec import Struct
from sqlalchemy import func, insert, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from audit_log.record import record_change
from audit_log.tables import audit_entry
from billing.calendar import format_instant, is_readable
from billing.spool.gateway_epochs import epochs_before
from billing.tables.money import hold_batch
from storage.database.database import Database
from storage.database.test_clock import follow_test_clock, test_clock
from storage.free_text import REASON, check_text, counted
from storage.reported_error import ReportedError

MOST_STEP_US = 366 * 86_400_000_000
"""The longest step of a clock: a year, so that what is due within it is still done in order."""
_WAIT, _POLL = timedelta(seconds=20), timedelta(milliseconds=250)
"""How long a step waits for requests that run, and then for gateways to say that they stand in the new time."""


class ClockRefused(ReportedError, ValueError):
    """The clock cannot begin, or cannot be moved so."""


class SandboxClock(Struct, frozen=True):
    """The clock of a sandbox: where it stands, and by how much it is ahead of the present, in microseconds."""

    now: int
    ahead: int
    begun_at: int


async def read_clock(database: Database) -> SandboxClock | None:
    """The clock; None where the installation is no sandbox. Raises DatabaseUnavailable."""
    async with database.reading() as session:
        row = (await session.execute(select(test_clock.c.ahead, test_clock.c.begun_at))).one_or_none()
        return None if row is None else SandboxClock(await database.now_in(session), row.ahead, row.begun_at)


async def begin_clock(database: Database, at: int | None = None) -> SandboxClock:
    """Make an empty installation a sandbox, which stands at an instant, by default the present. Raises ClockRefused,
    DatabaseUnavailable."""
    async with database.transaction() as session:
        now = await database.now_in(session)
        # all tenants: whatever was made before left an entry of the audit log
        if await session.scalar(select(audit_entry.c.number).limit(1)) is not None:
            raise ClockRefused(
                "the installation is in use: only an empty one becomes a sandbox; make another data folder, or another "
                "database, with `turnpike migrate`"
            )
        # A process asks for the clock when it opens the database: one that runs would stay in the present.
        if running := await epochs_before(session, now + MOST_STEP_US):
            raise ClockRefused(
                f"gateway {running[0].gateway} runs: stop all of the installation, and start it after this"
            )
        begin = now if at is None else at
        if not now <= begin or not is_readable(begin + MOST_STEP_US):
            raise ClockRefused(f"at: a clock begins at the present, {format_instant(now)}, or later")
        row = {"id": 1, "ahead": begin - now, "begun_at": now}
        await session.execute(insert(test_clock).values(row))
        await _record(session, "clock.begun", None, begin, "an empty installation becomes a sandbox")
    await follow_test_clock(database)
    clock = await read_clock(database)
    assert clock is not None
    return clock


async def advance_clock(database: Database, to: int, reason: str = "") -> SandboxClock:
    """Move a sandbox's time forward to an instant, once no request runs; and wait until its gateways have said that
    they stand there, as far as they live. Raises ClockRefused, InvalidText, DatabaseUnavailable."""
    check_text("reason", reason, REASON, empty=True)
    if await read_clock(database) is None:
        raise ClockRefused("this installation is no sandbox: its time is the present's, and is not moved")
    deadline = asyncio.get_running_loop().time() + _WAIT.total_seconds()
    while running := await _advance(database, to, reason):
        if asyncio.get_running_loop().time() >= deadline:
            raise ClockRefused(f"holds of {counted(running, 'request')} are open: move the clock when they have ended")
        await asyncio.sleep(_POLL.total_seconds())
    await _let_gateways_follow(database, to)
    clock = await read_clock(database)
    assert clock is not None
    return clock


async def _advance(database: Database, to: int, reason: str) -> int:
    """Move the clock; or return how many requests run, and leave it."""
    async with database.transaction() as session:
        ahead = await session.scalar(database.locked(select(test_clock.c.ahead)))
        now = await database.now_in(session)
        if not now < to <= now + MOST_STEP_US:
            last = format_instant(now + MOST_STEP_US)
            raise ClockRefused(f"to: it is {format_instant(now)}; a step goes forward, and at most to {last}")
        # all tenants: a sandbox has one time
        running = int(await session.scalar(select(func.coalesce(func.sum(hold_batch.c.open), 0))) or 0)
        if running:
            return running
        await session.execute(update(test_clock).values(ahead=int(ahead or 0) + to - now))
        await _record(session, "clock.advanced", now, to, reason)
    return 0


async def _record(session: AsyncSession, action: str, before: int | None, after: int, reason: str) -> None:
    said = [None if instant is None else {"now": format_instant(instant)} for instant in (before, after)]
    await record_change(session, action, target="clock", target_id="1", reason=reason, before=said[0], after=said[1])


async def _let_gateways_follow(database: Database, to: int) -> None:
    """Wait until no gateway that was heard of a moment before the step may still admit anything before it: until then
    a period that ended in between does not close. One that is gone is not waited for longer than a while."""
    deadline = asyncio.get_running_loop().time() + _WAIT.total_seconds()
    while asyncio.get_running_loop().time() < deadline:
        async with database.reading() as session:
            if not await epochs_before(session, to):
                return
        await asyncio.sleep(_POLL.total_seconds())
