"""Budgets on PostgreSQL: each statement takes arrays, and finds rows by their keys."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from operator import attrgetter
from uuid import UUID

from billing.budgets.store import TERMS, WINDOW, fresh
from billing.budgets.windows import BudgetLimit, BudgetWindow
from billing.holds.records import HoldSources
from storage.database.asyncpg_pool import Connection
from storage.database.sql_arrays import array_literal

_KINDS = {
    **dict.fromkeys(("id", "budget_id", "tenant_id"), "uuid"),
    **dict.fromkeys(("scope", "subject", "span", "action", "thresholds"), "text"),
    **dict.fromkeys(("limit_pico", "held", "spent", "over"), "numeric"),
    **dict.fromkeys(("starts_at", "told"), "bigint"),
}
_CHANGING = ("id", "held", "spent", "over", "told")
_all = attrgetter(*WINDOW)
_changing = attrgetter(*_CHANGING)


def _unnest(names: Sequence[str]) -> str:
    arrays = ", ".join(f"${n}::text::{_KINDS[name]}[]" for n, name in enumerate(names, 1))
    return f"unnest({arrays}) AS t ({', '.join(names)})"


_IN_FORCE = f"""
    SELECT {", ".join(TERMS)} FROM unnest($1::text::uuid[]) AS t (id) JOIN budget ON tenant_id = t.id
    WHERE removed_at IS NULL
"""  # noqa: S608  # names of columns
_OPEN = f"""
    INSERT INTO budget_window ({", ".join(WINDOW)}) SELECT * FROM {_unnest(WINDOW)}
    ON CONFLICT (budget_id, starts_at) DO NOTHING
"""  # noqa: S608  # names of columns
_OPENED = f"""
    SELECT {", ".join(WINDOW)} FROM {_unnest(("budget_id", "starts_at"))}
    JOIN budget_window USING (budget_id, starts_at)
"""  # noqa: S608  # names of columns
_WINDOWS = f"""
    SELECT {", ".join(WINDOW)} FROM {_unnest(("id",))} JOIN budget_window USING (id)
"""  # noqa: S608  # names of columns
_SAVE = f"""
    UPDATE budget_window AS w SET {", ".join(f"{name} = t.{name}" for name in _CHANGING[1:])} FROM {_unnest(_CHANGING)}
    WHERE w.id = t.id
"""  # noqa: S608  # names of columns
_CHARGED = "SELECT budgets FROM budget_charge WHERE request_id = $1"
_CHARGE = """
    INSERT INTO budget_charge (request_id, tenant_id, budgets)
    SELECT * FROM unnest($1::text::uuid[], $2::text::uuid[], $3::text::text[])
"""


def _arrays(names: Sequence[str], rows: Sequence[Sequence[object]]) -> list[str]:
    return [array_literal(_KINDS[name], column) for name, column in zip(names, zip(*rows, strict=True), strict=True)]


class PostgresBudgetStore:
    """Budgets in a transaction of the driver's connection."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def in_force(self, tenants: Collection[UUID]) -> list[BudgetLimit]:
        rows = await self._connection.fetch(_IN_FORCE, array_literal("uuid", list(tenants)))
        return [BudgetLimit(*row) for row in rows]

    async def opened(self, wanted: Sequence[tuple[BudgetLimit, int]]) -> list[BudgetWindow]:
        await self._connection.execute(_OPEN, *_arrays(WINDOW, [_all(window) for window in fresh(wanted)]))
        keys = _arrays(("budget_id", "starts_at"), [(limit.budget_id, starts_at) for limit, starts_at in wanted])
        return [BudgetWindow(*row) for row in await self._connection.fetch(_OPENED, *keys)]

    async def windows(self, ids: Collection[UUID]) -> list[BudgetWindow]:
        rows = await self._connection.fetch(_WINDOWS, array_literal("uuid", list(ids)))
        return [BudgetWindow(*row) for row in rows]

    async def save(self, windows: Sequence[BudgetWindow]) -> None:
        if windows:
            await self._connection.execute(_SAVE, *_arrays(_CHANGING, [_changing(window) for window in windows]))

    async def charged(self, request: UUID) -> tuple[UUID, ...]:
        # all tenants: who asks has found the request as the tenant's
        return HoldSources.decode(await self._connection.fetchval(_CHARGED, request) or "").windows

    async def record_charges(self, charges: Mapping[UUID, tuple[UUID, tuple[UUID, ...]]]) -> None:
        if charges:
            rows = [(request, tenant, HoldSources(windows).encode()) for request, (tenant, windows) in charges.items()]
            names = ("id", "tenant_id", "subject")
            await self._connection.execute(_CHARGE, *_arrays(names, rows))
