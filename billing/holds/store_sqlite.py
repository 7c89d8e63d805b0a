"""Holds on SQLite, whose one writer holds every lock there is."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy import bindparam, delete, exists, insert, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from billing.holds.batches import HoldBatch, NewBatch
from billing.holds.records import pack
from billing.holds.store import BATCH_COLUMNS, HoldStore, UnusedHold
from billing.tables.books import gateway_epoch
from billing.tables.money import balance, ended_hold, hold_batch, usage_fact
from storage.database.base import Pico
from storage.database.database import Database
from storage.database.sql_arrays import one_of

_HOLD_BACK = (
    update(balance)
    .where(balance.c.tenant_id == bindparam("tenant"))
    .values(held=balance.c.held + bindparam("more", type_=Pico()), holds=balance.c.holds + bindparam("count"))
)
_CHANGING = ("open", "amount_pico", "entries")
_CHANGE = (
    update(hold_batch)
    .where(hold_batch.c.id == bindparam("batch"))
    .values({name: bindparam(f"new_{name}") for name in _CHANGING})
)
_POSTPONE = (
    update(hold_batch).where(hold_batch.c.id == bindparam("batch")).values(expires_at=bindparam("new_expires_at"))
)


class SqliteHoldStore(HoldStore):
    """Holds in a session's transaction."""

    def __init__(self, database: Database, session: AsyncSession) -> None:
        self._database = database
        self._session = session

    async def _open_of(self, tenant: UUID) -> list[HoldBatch]:
        rows = await self._session.execute(select(*BATCH_COLUMNS).where(hold_batch.c.tenant_id == tenant))
        return [HoldBatch(*row) for row in rows]

    async def _sources_of_ended(self, requests: Collection[UUID]) -> list[tuple[UUID, str]]:
        # all tenants: usage that is late was admitted before
        query = select(ended_hold.c.request_id, ended_hold.c.budgets).where(ended_hold.c.budgets != "")
        rows = await self._session.execute(query.where(one_of(self._database, ended_hold.c.request_id, requests)))
        return [(row.request_id, row.budgets) for row in rows]

    async def _ended_before(self, requests: Collection[UUID]) -> set[UUID]:
        # all tenants: holds of several end together
        ends = (usage_fact.c.id, ended_hold.c.request_id)
        found = [await self._session.scalars(select(end).where(one_of(self._database, end, requests))) for end in ends]
        return {id_ for of in found for id_ in of}

    async def _between(self, least: UUID, greatest: UUID) -> list[tuple[UUID, UUID, UUID]]:
        # all tenants: a journal knows requests alone
        of = hold_batch.c
        query = select(of.id, of.first, of.last).where(of.first <= greatest, of.last >= least)
        return [(row.id, row.first, row.last) for row in await self._session.execute(query)]

    async def _read(self, batches: Collection[UUID], *, whole: bool) -> list[HoldBatch]:
        # all tenants: a journal knows requests alone
        columns = BATCH_COLUMNS if whole else [column for column in BATCH_COLUMNS if column.name != "requests"]
        wanted = one_of(self._database, hold_batch.c.id, batches)
        rows = await self._session.execute(select(*columns).where(wanted).order_by(hold_batch.c.id))
        return [HoldBatch(*row) for row in rows]

    async def _overdue(self, now: int, most: int) -> list[HoldBatch]:
        # all tenants: time passes for everyone
        of = gateway_epoch.c
        known = (of.epoch == hold_batch.c.gateway) & ((of.state == "live") | of.holds_ended_at.is_(None))
        due = select(*BATCH_COLUMNS).where(hold_batch.c.expires_at <= now, ~exists().where(known)).limit(most)
        rows = await self._session.execute(due)
        return [HoldBatch(*row) for row in rows]

    async def _write(self, new: Sequence[NewBatch], admitted_at: int) -> None:
        rows = []  # each names its tenant
        for batch in new:
            row = msgspec.structs.asdict(batch)
            ids, lifetime_s = row.pop("ids"), row.pop("lifetime_s")
            ends = {"admitted_at": admitted_at, "expires_at": admitted_at + lifetime_s * 1_000_000}
            rows.append({**row, **ends, "open": len(ids)})
        await self._session.execute(insert(hold_batch), rows)

    async def _change(self, changed: Sequence[HoldBatch], gone: Sequence[UUID]) -> None:
        # all tenants: these rows were locked by their ids
        if gone:
            await self._session.execute(delete(hold_batch).where(one_of(self._database, hold_batch.c.id, gone)))
        if changed:
            rows: list[dict[str, Any]] = [
                {"batch": batch.id, **{f"new_{name}": getattr(batch, name) for name in _CHANGING}} for batch in changed
            ]
            await self._session.execute(_CHANGE, rows)

    async def _postpone(self, batches: Sequence[HoldBatch]) -> None:
        if batches:
            rows = [{"batch": batch.id, "new_expires_at": batch.expires_at} for batch in batches]
            await self._session.execute(_POSTPONE, rows)

    async def _hold_back(self, held: Sequence[tuple[UUID, int, int]]) -> None:
        rows = [{"tenant": tenant, "more": pico, "count": count} for tenant, pico, count in held]
        await self._session.execute(_HOLD_BACK, rows)

    async def _keep(self, ended: Sequence[UnusedHold], state: str) -> None:
        now = (await self._session.execute(select(self._database.clock))).scalar_one()
        same = ("request_id", "tenant_id", "amount_pico", "admitted_at", "expires_at")
        rows: list[dict[str, Any]] = [
            {
                **{name: getattr(unused.hold, name) for name in same},
                "gateway": unused.hold.gateway_epoch,
                "budgets": unused.hold.sources.encode(),
                "request": pack(unused.request),
                "state": state,
                "ended_at": now,
            }
            for unused in ended
        ]
        await self._session.execute(insert(ended_hold), rows)
