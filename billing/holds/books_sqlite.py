"""Holds on SQLite, whose one writer holds every lock there is."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import Any
from uuid import UUID

from sqlalchemy import bindparam, delete, insert, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from billing.holds.books import Ended
from billing.holds.records import Hold, HoldRequest, grants_in, join, pack, split, unpack
from billing.tables.money import balance, ended_hold, hold, usage_fact
from storage.base import Pico
from storage.bulk import one_of
from storage.database import Database

_HOLD_BACK = (
    update(balance)
    .where(balance.c.tenant_id == bindparam("tenant"))
    .values(held=balance.c.held + bindparam("more", type_=Pico()), holds=balance.c.holds + bindparam("count"))
)
_AMEND = (
    update(hold)
    .where(hold.c.request_id == bindparam("request_"))
    .values(amount_pico=bindparam("amount"), budgets=bindparam("sources"))
)


class SqliteHoldBooks:
    """Holds in a session's transaction."""

    def __init__(self, database: Database, session: AsyncSession) -> None:
        self._database = database
        self._session = session

    async def open_now(self, requests: Collection[UUID]) -> list[Hold]:
        # all tenants: an id is repeated whoever sent it
        query = select(hold.c.request, hold.c.admitted_at, hold.c.amount_pico, hold.c.budgets)
        rows = await self._session.execute(query.where(one_of(self._database, hold.c.request_id, requests)))
        return [
            Hold.of(unpack(asked), at, amount, budgets=split(of), grants=grants_in(of))
            for asked, at, amount, of in rows
        ]

    async def locked(self, requests: Collection[UUID]) -> list[Hold]:
        return await self.open_now(requests)  # the whole database is locked

    async def amend(self, changed: Collection[Hold]) -> None:
        rows = [
            {"request_": one.request_id, "amount": one.amount_pico, "sources": join(one.budgets, one.grants)}
            for one in changed
        ]
        if rows:
            await self._session.execute(_AMEND, rows)

    async def budgets_of_ended(self, requests: Collection[UUID]) -> dict[UUID, str]:
        # all tenants: usage that is late was admitted before
        query = select(ended_hold.c.request_id, ended_hold.c.budgets).where(ended_hold.c.budgets != "")
        rows = await self._session.execute(query.where(one_of(self._database, ended_hold.c.request_id, requests)))
        return {row.request_id: row.budgets for row in rows}

    async def ended(self, requests: Collection[UUID]) -> set[UUID]:
        # all tenants: an id is repeated whoever sent it
        found: set[UUID] = set()
        for key in (ended_hold.c.request_id, usage_fact.c.id):
            found |= set(await self._session.scalars(select(key).where(one_of(self._database, key, requests))))
        return found

    async def take(self, made: Sequence[tuple[HoldRequest, Hold]], held: Mapping[UUID, int]) -> None:
        await self._session.execute(insert(hold), [_row(asked, new) for asked, new in made])
        count = Counter(asked.tenant_id for asked, _ in made)
        more = [{"tenant": tenant, "more": pico, "count": count[tenant]} for tenant, pico in held.items()]
        await self._session.execute(_HOLD_BACK, more)

    async def end(self, requests: Collection[UUID], state: str) -> list[Ended]:
        if not requests:
            return []
        ending = delete(hold).where(one_of(self._database, hold.c.request_id, requests)).returning(hold)
        rows = (await self._session.execute(ending)).all()
        if rows and state != "settled":
            now = (await self._session.execute(select(self._database.clock))).scalar_one()
            kept = [dict(row._mapping) | {"state": state, "ended_at": now} for row in rows]
            await self._session.execute(insert(ended_hold), kept)
        return _by_tenant(rows)

    async def overdue(self, now: int, most: int) -> list[UUID]:
        # all tenants: time passes for everyone
        return list(await self._session.scalars(select(hold.c.request_id).where(hold.c.expires_at <= now).limit(most)))


def _row(asked: HoldRequest, new: Hold) -> dict[str, Any]:
    row = {name: getattr(new, name) for name in ("request_id", "tenant_id", "amount_pico", "gateway", "admitted_at")}
    return row | {"expires_at": new.expires_at, "budgets": join(new.budgets, new.grants), "request": pack(asked)}


def _by_tenant(rows: Sequence[Any]) -> list[Ended]:
    found: dict[tuple[UUID, str], list[Any]] = defaultdict(list)
    for row in rows:
        found[row.tenant_id, row.budgets].append(row)
    return [
        Ended(tenant, len(some), sum(row.amount_pico for row in some), budgets, [row.request_id for row in some])
        for (tenant, budgets), some in found.items()
    ]
