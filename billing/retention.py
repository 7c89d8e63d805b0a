"""Retention: deleting rows that nothing asks for any more: holds that ended without usage, which budgets counted which
requests, and windows of budgets.

What was used stays in its event, in ledger and rollups for ever, and the audit's sums stay right. Nothing is deleted of
a period that is not closed: until then, usage may come late. Each function deletes one batch, of all tenants, and
returns how many rows; a full batch (`BATCH`) says that there may be more. Several workers take different rows. All
raise DatabaseUnavailable.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from uuid import UUID

from sqlalchemy import bindparam, delete, func, or_, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from billing.calendar import period_bounds, period_of
from billing.events.partitions import made_at
from billing.holds.records import HoldSources
from billing.tables.books import billing_period
from billing.tables.money import balance, budget_charge, budget_window, ended_hold, usage_fact
from storage.database.base import least_id
from storage.database.database import Database
from storage.database.sql_arrays import one_of

BATCH = 1000
_DAY = 86_400_000_000


async def forget_holds(database: Database, keep_s: int) -> int:
    """Delete holds that were released or expired so many seconds ago; `balance.holds` counts them no longer.

    They say the budgets and the metering terms of usage that comes late. Usage that comes later than this is billed by
    its own event, counts in no budget, and is named by the audit.
    """
    async with database.transaction() as session:
        before = await _before(database, session, keep_s)
        of = ended_hold.c
        # all tenants, here and below: time passes for everyone
        old = select(of.request_id, of.tenant_id).where(of.request_id < least_id(before), of.ended_at < before)
        rows = (await session.execute(database.locked(old.order_by(of.request_id).limit(BATCH), skip=True))).all()
        if not rows:
            return 0
        ids = [row.request_id for row in rows]
        used = set(await session.scalars(select(usage_fact.c.id).where(one_of(database, usage_fact.c.id, ids))))
        gone = Counter(row.tenant_id for row in rows if row.request_id not in used)  # the others' events count
        await session.execute(delete(ended_hold).where(one_of(database, of.request_id, ids)))
        fewer = update(balance).where(balance.c.tenant_id == bindparam("tenant"))
        for tenant in sorted(gone):  # in the order in which all lock balances
            values = {"tenant": tenant, "gone": gone[tenant]}
            await session.execute(fewer.values(holds=balance.c.holds - bindparam("gone")), values)
    return len(ids)


async def forget_charges(database: Database, keep_s: int) -> int:
    """Delete which budgets counted the requests of so many seconds ago; the windows keep the sum of their costs.

    An adjustment of such a request changes no budget any more. What was counted without an event stays, for the audit
    to name.
    """
    async with database.transaction() as session:
        before = await _before(database, session, keep_s)
        of = budget_charge.c  # all tenants, here and below: time passes for everyone
        counted = budget_charge.join(usage_fact, usage_fact.c.id == of.request_id)
        old = select(of.request_id, of.budgets, usage_fact.c.cost_pico).select_from(counted)
        oldest = old.where(of.request_id < least_id(before)).order_by(of.request_id).limit(BATCH)
        rows = (await session.execute(database.locked(oldest, budget_charge, skip=True))).all()
        if not rows:
            return 0
        spent: dict[UUID, int] = defaultdict(int)
        for row in rows:
            for window in HoldSources.decode(row.budgets).windows:
                spent[window] += int(row.cost_pico)
        ids = [row.request_id for row in rows]
        await session.execute(delete(budget_charge).where(one_of(database, of.request_id, ids)))
        more = update(budget_window).where(budget_window.c.id == bindparam("window"))
        for window in sorted(spent):
            values = {"window": window, "pico": spent[window]}
            await session.execute(more.values(forgotten=budget_window.c.forgotten + bindparam("pico")), values)
    return len(ids)


async def forget_windows(database: Database, keep_s: int) -> int:
    """Delete months and days of budgets that ended so many seconds ago; a total is never deleted.

    A window stays while something can still change it: an open hold, a hold that ended without usage, which may come
    late, or a request that is known to have been counted in it.
    """
    async with database.transaction() as session:
        before = await _before(database, session, keep_s)
        first = select(ended_hold.c.request_id).order_by(ended_hold.c.request_id)  # all tenants, here and below
        earliest = await session.scalar(first.limit(1))
        if earliest is not None:
            before = min(before, made_at(earliest))
        of = budget_window.c
        ended = {"day": before - _DAY, "month": period_bounds(period_of(before))[0] - 1}
        over = or_(*((of.span == span) & (of.starts_at <= latest) for span, latest in ended.items()))
        old = select(of.id).where(over, of.held == 0, of.spent == of.forgotten).order_by(of.id).limit(BATCH)
        ids = list(await session.scalars(database.locked(old, skip=True)))
        await session.execute(delete(budget_window).where(one_of(database, of.id, ids)))
    return len(ids)


async def _before(database: Database, session: AsyncSession, keep_s: int) -> int:
    """The instant before which rows may be deleted: so long ago, and in closed periods."""
    now = (await session.execute(select(database.clock))).scalar_one()
    first_open = select(func.min(billing_period.c.starts_at)).where(billing_period.c.state != "closed")
    return min(now - keep_s * 1_000_000, await session.scalar(first_open) or 0)
