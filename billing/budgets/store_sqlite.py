"""Budgets on SQLite."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from uuid import UUID

import msgspec
from sqlalchemy import bindparam, insert, select, tuple_, update
from sqlalchemy.dialects import sqlite
from sqlalchemy.ext.asyncio import AsyncSession

from billing.budgets.store import TERMS, WINDOW, fresh
from billing.budgets.windows import BudgetLimit, BudgetWindow
from billing.holds.records import HoldSources
from billing.tables.money import budget, budget_charge, budget_window
from storage.database.database import Database
from storage.database.sql_arrays import one_of

_CHANGING = ("held", "spent", "over", "told")
_SAVE = (
    update(budget_window)
    .where(budget_window.c.id == bindparam("window"))
    .values({name: bindparam(f"new_{name}") for name in _CHANGING})
)
_WINDOWS = select(*(budget_window.c[name] for name in WINDOW))


class SqliteBudgetStore:
    """Budgets in a session's transaction."""

    def __init__(self, database: Database, session: AsyncSession) -> None:
        self._database = database
        self._session = session

    async def in_force(self, tenants: Collection[UUID]) -> list[BudgetLimit]:
        query = select(*(budget.c[name] for name in TERMS)).where(budget.c.removed_at.is_(None))
        rows = await self._session.execute(query.where(one_of(self._database, budget.c.tenant_id, tenants)))
        return [BudgetLimit(*row) for row in rows]

    async def opened(self, wanted: Sequence[tuple[BudgetLimit, int]]) -> list[BudgetWindow]:
        rows = [msgspec.structs.asdict(window) for window in fresh(wanted)]
        await self._session.execute(sqlite.insert(budget_window).on_conflict_do_nothing(), rows)
        keys = [(limit.budget_id, starts_at) for limit, starts_at in wanted]
        there = tuple_(budget_window.c.budget_id, budget_window.c.starts_at).in_(keys)  # of tenants that are locked
        return [BudgetWindow(*row) for row in await self._session.execute(_WINDOWS.where(there))]

    async def windows(self, ids: Collection[UUID]) -> list[BudgetWindow]:
        there = one_of(self._database, budget_window.c.id, ids)
        return [BudgetWindow(*row) for row in await self._session.execute(_WINDOWS.where(there))]

    async def save(self, windows: Sequence[BudgetWindow]) -> None:
        rows = [{"window": one.id, **{f"new_{name}": getattr(one, name) for name in _CHANGING}} for one in windows]
        if rows:
            await self._session.execute(_SAVE, rows)

    async def charged(self, request: UUID) -> tuple[UUID, ...]:
        # all tenants: who asks has found the request as the tenant's
        query = select(budget_charge.c.budgets).where(budget_charge.c.request_id == request)
        return HoldSources.decode(await self._session.scalar(query) or "").windows

    async def record_charges(self, charges: Mapping[UUID, tuple[UUID, tuple[UUID, ...]]]) -> None:
        rows = [
            {"request_id": request, "tenant_id": tenant, "budgets": HoldSources(windows).encode()}
            for request, (tenant, windows) in charges.items()
        ]
        if rows:
            await self._session.execute(insert(budget_charge), rows)
