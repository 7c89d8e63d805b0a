"""Money transactions on SQLite, whose one writer holds every lock there is."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy import bindparam, func, insert, select, update
from sqlalchemy.dialects import sqlite
from sqlalchemy.ext.asyncio import AsyncSession

from billing.budgets.store_sqlite import SqliteBudgetStore
from billing.events.rollups import KEYS, SUMS, RollupDelta
from billing.events.rows import EventRows
from billing.holds.store_sqlite import SqliteHoldStore
from billing.integrity.hash_chain import ChainBatch, first_head, next_head
from billing.integrity.row_seals import CURRENT, digest_of_transaction, keyed, seal_of, seal_row, seal_rows
from billing.ledger.entries import Balance, Transaction
from billing.ledger.wallet import OpenGrant
from billing.tables import money as tables
from billing.tables.books import billing_period, seal, usage_batch, usage_chain
from billing.tables.money import (
    balance,
    grant_balance,
    ledger_entry,
    ledger_txn,
    refused_settlement,
    rollup_hour,
    usage_fact,
)
from billing.transaction.money_transaction import EventsAlreadyWritten, Grant, Made, OutboxMessage, RefusedSettlement
from billing.usage import METERS
from storage.database.base import Pico
from storage.database.database import Database
from storage.database.outbox import outbox
from storage.database.sql_arrays import one_of

_rolled = sqlite.insert(rollup_hour)
_ROLL_UP = _rolled.on_conflict_do_update(
    index_elements=KEYS, set_={name: rollup_hour.c[name] + _rolled.excluded[name] for name in SUMS}
)
_MONEY = [column.name for column in balance.columns if column.name not in ("tenant_id", "currency")]
_SAVE = (
    update(balance)
    .where(balance.c.tenant_id == bindparam("tenant"))
    .values({name: bindparam(f"new_{name}", type_=Pico()) for name in _MONEY})
)

_GRANT_SUMS = ("remaining", "used", "gone", "held")
_OPEN_GRANTS = select(
    *(tables.grant.c[name] for name in ("id", "tenant_id", "kind", "priority", "expires_at", "model", "project_id")),
    *(grant_balance.c[name] for name in _GRANT_SUMS),
).join(grant_balance, grant_balance.c.grant_id == tables.grant.c.id)
_SAVE_GRANTS = (
    update(grant_balance)
    .where(grant_balance.c.grant_id == bindparam("grant"))
    .values({name: bindparam(f"new_{name}", type_=Pico()) for name in _GRANT_SUMS})
)


class SqliteMoneyTransaction:
    """Runs in a session's transaction."""

    def __init__(self, database: Database, session: AsyncSession) -> None:
        self._database = database
        self._session = session
        self.holds = SqliteHoldStore(database, session)
        self.budgets = SqliteBudgetStore(database, session)

    async def now(self) -> int:
        return (await self._session.execute(select(self._database.clock))).scalar_one()

    async def lock_attempts(self) -> None:
        pass  # the one writer is alone

    async def currencies(self, tenants: Collection[UUID]) -> dict[UUID, str]:
        query = select(balance.c.tenant_id, balance.c.currency)
        rows = await self._session.execute(query.where(one_of(self._database, balance.c.tenant_id, tenants)))
        return {row.tenant_id: row.currency for row in rows}

    async def closed_periods(self, periods: Collection[str]) -> set[str]:
        query = select(billing_period.c.period).where(billing_period.c.state == "closed")
        return set(await self._session.scalars(query.where(billing_period.c.period.in_(periods))))

    async def chain(self, batches: Sequence[ChainBatch]) -> None:
        for batch in batches:
            here = (usage_chain.c.tenant_id == batch.tenant_id) & (usage_chain.c.period == batch.period)
            before = (await self._session.execute(select(usage_chain).where(here))).one_or_none()
            link = {
                "root": batch.root,
                "head": next_head(before.head if before else first_head(batch.tenant_id, batch.period), batch.root),
            }
            end = {
                "links": before.links + 1 if before else 1,
                "events": batch.events + (before.events if before else 0),
            }
            if before:
                await self._session.execute(update(usage_chain).where(here).values(link | end))
            else:
                of = {"tenant_id": batch.tenant_id, "period": batch.period}
                await self._session.execute(insert(usage_chain).values(of | link | end))
            row = msgspec.structs.asdict(batch) | link | {"link": end["links"]}
            await self._session.execute(insert(usage_batch).values(row))

    async def existing_attempts(self, ids: Collection[UUID]) -> dict[UUID, int]:
        # all tenants: a record is repeated whoever sent it
        query = select(usage_fact.c.id, usage_fact.c.attempt).where(one_of(self._database, usage_fact.c.id, ids))
        return {row.id: row.attempt for row in await self._session.execute(query)}

    async def units_left(self, tenant: UUID, event: UUID) -> dict[str, int]:
        fact = usage_fact.c
        query = select(*(func.coalesce(func.sum(fact[meter]), 0) for meter in METERS)).where(fact.tenant_id == tenant)
        row = (await self._session.execute(query.where((fact.id == event) | (fact.corrects == event)))).one()
        return dict(zip(METERS, row, strict=True))

    async def write_events(self, rows: EventRows, meanwhile: Callable[[], Made]) -> Made:
        if rows.columns.events:
            # all tenants: each row names its own
            if await self.existing_attempts({event.id for event in rows.columns.events}):
                raise EventsAlreadyWritten
            await self._session.execute(insert(usage_fact), rows.mappings())
        return meanwhile()

    async def roll_up(self, rolled: Sequence[RollupDelta]) -> None:
        if rolled:
            await self._session.execute(_ROLL_UP, [_rollup_row(row) for row in rolled])

    async def write_grant(self, grant: Grant) -> bool:
        row = msgspec.structs.asdict(grant) | {"at": self._database.clock}
        new = sqlite.insert(tables.grant).values(row).on_conflict_do_nothing().returning(tables.grant.c.id)
        if (await self._session.execute(new)).one_or_none() is None:
            return False
        left = {"grant_id": grant.id, "tenant_id": grant.tenant_id, "remaining": grant.amount_pico}
        await self._session.execute(insert(grant_balance).values(left | {"used": 0, "gone": 0}))
        await seal_rows(self._session, tables.grant, tables.grant.c.id == grant.id)
        return True

    async def lock(self, tenants: Collection[UUID]) -> dict[UUID, Balance]:
        query = select(balance).where(one_of(self._database, balance.c.tenant_id, tenants))
        return {row.tenant_id: Balance(*row) for row in await self._session.execute(query)}

    async def grants(self, tenants: Collection[UUID], *, spent: bool = False) -> list[OpenGrant]:
        query = _OPEN_GRANTS.where(one_of(self._database, tables.grant.c.tenant_id, tenants))
        rows = await self._session.execute(query if spent else query.where(grant_balance.c.remaining > 0))
        return [OpenGrant(*row) for row in rows]

    async def is_posted(self, transaction: UUID) -> bool:
        # all tenants: an id is one for all of them
        return await self._session.scalar(select(ledger_txn.c.id).where(ledger_txn.c.id == transaction)) is not None

    async def save(
        self,
        balances: Sequence[Balance],
        transactions: Sequence[Transaction] = (),
        notices: Sequence[OutboxMessage] = (),
        grants: Sequence[OpenGrant] = (),
    ) -> None:
        now = await self.now()
        if balances:
            rows = [{"tenant": b.tenant_id, **{f"new_{name}": getattr(b, name) for name in _MONEY}} for b in balances]
            await self._session.execute(_SAVE, rows)
        if grants:
            rows = [{"grant": g.id, **{f"new_{name}": getattr(g, name) for name in _GRANT_SUMS}} for g in grants]
            await self._session.execute(_SAVE_GRANTS, rows)
        if transactions:
            names = ("id", "tenant_id", "kind", "period", "memo")
            heads = [{"posted_at": now, **{name: getattr(t, name) for name in names}} for t in transactions]
            await self._session.execute(insert(ledger_txn), heads)
            entries = [
                {"txn_id": t.id, "seq": seq, "tenant_id": t.tenant_id, "currency": t.currency}
                | msgspec.structs.asdict(entry)
                for t in transactions
                for seq, entry in enumerate(t.entries, 1)
            ]
            await self._session.execute(insert(ledger_entry), entries)
            form, keyring = CURRENT["ledger_txn"], self._database.keyring
            digests = [(str(t.id), keyed(digest_of_transaction(t), keyring, keyring.current)) for t in transactions]
            seals = [seal_row(form, key, seal_of(digest, now), keyring.current) for key, digest in digests]
            await self._session.execute(insert(seal), seals)
        if notices:
            told = [msgspec.structs.asdict(notice) | {"created_at": now} for notice in notices]
            await self._session.execute(insert(outbox), told)

    async def refuse(self, refusals: Sequence[RefusedSettlement]) -> None:
        if refusals:
            now = await self.now()
            rows = [msgspec.structs.asdict(refusal) | {"refused_at": now} for refusal in refusals]
            await self._session.execute(sqlite.insert(refused_settlement).on_conflict_do_nothing(), rows)


def _rollup_row(rolled: RollupDelta) -> dict[str, Any]:
    return {name: getattr(rolled, name) for name in KEYS} | dict(zip(SUMS, rolled.sums, strict=True))
