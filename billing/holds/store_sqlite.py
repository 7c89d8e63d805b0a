"""Holds on SQLite, whose one writer holds every lock there is."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy import bindparam, delete, exists, insert, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from billing.holds.batches import HoldBatch, NewBatch
from billing.holds.records import join, pack
from billing.holds.store import COLUMNS, HoldStore, Kept
from billing.tables.money import balance, ended_hold, hold_batch
from billing.tables.periods import gateway_epoch
from storage.database.base import Pico
from storage.database.database import Database
from storage.database.sql_arrays import one_of

_HOLD_BACK = (
    update(balance)
    .where(balance.c.tenant_id == bindparam("tenant"))
    .values(held=balance.c.held + bindparam("more", type_=Pico()), holds=balance.c.holds + bindparam("count"))
)
_CHANGE = (
    update(hold_batch)
    .where(hold_batch.c.id == bindparam("batch"))
    .values({name: bindparam(f"new_{name}") for name in ("open", "amount_pico", "entries")})
)
_POSTPONE = (
    update(hold_batch).where(hold_batch.c.id == bindparam("batch")).values(expires_at=bindparam("new_expires_at"))
)


class SqliteHoldStore(HoldStore):
    """Holds in a session's transaction."""

    def __init__(self, database: Database, session: AsyncSession) -> None:
        self._database = database
        self._session = session

    async def budgets_of_ended(self, requests: Collection[UUID]) -> dict[UUID, str]:
        # all tenants: usage that is late was admitted before
        query = select(ended_hold.c.request_id, ended_hold.c.budgets).where(ended_hold.c.budgets != "")
        rows = await self._session.execute(query.where(one_of(self._database, ended_hold.c.request_id, requests)))
        return {row.request_id: row.budgets for row in rows}

    async def _between(self, least: UUID, greatest: UUID) -> list[tuple[UUID, UUID, UUID]]:
        # all tenants: a journal knows requests alone
        of = hold_batch.c
        query = select(of.id, of.first, of.last).where(of.first <= greatest, of.last >= least)
        return [(row.id, row.first, row.last) for row in await self._session.execute(query)]

    async def _read(self, batches: Collection[UUID], *, whole: bool) -> list[HoldBatch]:
        # all tenants: a journal knows requests alone
        columns = COLUMNS if whole else [column for column in COLUMNS if column.name != "requests"]
        wanted = one_of(self._database, hold_batch.c.id, batches)
        rows = await self._session.execute(select(*columns).where(wanted).order_by(hold_batch.c.id))
        return [HoldBatch(*row) for row in rows]

    async def _overdue(self, now: int, most: int) -> list[HoldBatch]:
        # all tenants: time passes for everyone
        of = gateway_epoch.c
        known = (of.epoch == hold_batch.c.gateway) & ((of.state == "live") | of.holds_ended_at.is_(None))
        due = select(*COLUMNS).where(hold_batch.c.expires_at <= now, ~exists().where(known)).limit(most)
        rows = await self._session.execute(due)
        return [HoldBatch(*row) for row in rows]

    async def _write(self, new: Sequence[NewBatch], admitted_at: int) -> None:
        rows = []
        for one in new:
            row = msgspec.structs.asdict(one)
            ids, lifetime_s = row.pop("ids"), row.pop("lifetime_s")
            ends = {"admitted_at": admitted_at, "expires_at": admitted_at + lifetime_s * 1_000_000}
            rows.append({**row, **ends, "open": len(ids)})
        await self._session.execute(insert(hold_batch), rows)

    async def _change(self, changed: Sequence[HoldBatch], gone: Sequence[UUID]) -> None:
        if gone:
            await self._session.execute(delete(hold_batch).where(one_of(self._database, hold_batch.c.id, gone)))
        if changed:
            rows: list[dict[str, Any]] = [
                {"batch": one.id, "new_open": one.open, "new_amount_pico": one.amount_pico, "new_entries": one.entries}
                for one in changed
            ]
            await self._session.execute(_CHANGE, rows)

    async def _postpone(self, batches: Sequence[HoldBatch]) -> None:
        if batches:
            rows = [{"batch": one.id, "new_expires_at": one.expires_at} for one in batches]
            await self._session.execute(_POSTPONE, rows)

    async def _hold_back(self, held: Sequence[tuple[UUID, int, int]]) -> None:
        rows = [{"tenant": tenant, "more": pico, "count": count} for tenant, pico, count in held]
        await self._session.execute(_HOLD_BACK, rows)

    async def _keep(self, ended: Sequence[Kept], state: str) -> None:
        now = (await self._session.execute(select(self._database.clock))).scalar_one()
        rows = [
            {
                "request_id": one.hold.request_id,
                "tenant_id": one.hold.tenant_id,
                "amount_pico": one.hold.amount_pico,
                "gateway": one.hold.gateway,
                "admitted_at": one.hold.admitted_at,
                "expires_at": one.hold.expires_at,
                "budgets": join(one.hold.budgets, one.hold.grants),
                "request": pack(one.request),
                "state": state,
                "ended_at": now,
            }
            for one in ended
        ]
        await self._session.execute(insert(ended_hold), rows)
