"""Money transactions on PostgreSQL: each statement takes arrays, so that a batch is one round trip however large.

An array arrives as text and is joined with: compared with, it would be read again for each row. Events go by COPY,
which costs half of an INSERT; since it knows no ON CONFLICT, a batch with events that were there begins again without
them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from functools import cache
from operator import attrgetter
from typing import Any, cast
from uuid import UUID

import asyncpg  # type: ignore[import-untyped]
import msgspec
from sqlalchemy import Dialect, Table
from sqlalchemy.dialects import postgresql

from billing.budgets.store_postgresql import PostgresBudgetStore
from billing.events.rollups import KEYS, SUMS, RollupDelta
from billing.events.rows import EventRows
from billing.holds.store_postgresql import PostgresHoldStore
from billing.integrity.hash_chain import ChainBatch, first_head
from billing.integrity.row_seals import CURRENT, digest_of, digest_of_transaction, keyed
from billing.ledger.entries import Balance, Transaction
from billing.ledger.wallet import OpenGrant
from billing.tables import money as tables
from billing.tables.books import ATTEMPTS_LOCK, CLOSING_LOCK
from billing.transaction.money_transaction import EventsAlreadyWritten, Grant, Made, OutboxMessage, RefusedSettlement
from billing.usage import METERS
from storage.database.asyncpg_pool import Connection
from storage.database.keyring import Keyring
from storage.database.sql_arrays import array_literal

_DIALECT = cast(Callable[[], Dialect], postgresql.dialect)()


def _type(table: Table, name: str) -> str:
    return str(table.c[name].type.compile(_DIALECT)).lower()


@cache
def _roll_up(sums: tuple[str, ...]) -> str:
    """The statement that adds rows of which only these sums are not 0. Its keys name the tenant."""
    arrays = ", ".join(f"${n}::text::{kind}[]" for n, kind in enumerate((*_KEY_KINDS, *["bigint"] * len(sums)), 1))
    values = ", ".join(name if name in sums else "0" for name in SUMS)
    added = ", ".join(f"{name} = r.{name} + excluded.{name}" for name in sums)
    return f"""
        INSERT INTO rollup_hour AS r ({", ".join((*KEYS, *SUMS))})
        SELECT {", ".join(KEYS)}, {values} FROM unnest({arrays}) AS t ({", ".join((*KEYS, *sums))})
        ON CONFLICT ({", ".join(KEYS)}) DO UPDATE SET {added}
    """  # noqa: S608  # names of columns


_KEY_KINDS = tuple(_type(tables.rollup_hour, name) for name in KEYS)
_keys = attrgetter(*KEYS)
_NOTICE = ("uuid", "uuid", "text", "text")
_TXN = (*_NOTICE, "text", "bytea")
_ENTRY = ("uuid", "int", "uuid", "text", "text", "text", "numeric", "text")
_GIVEN = ("uuid", *["numeric"] * 4)
_REFUSAL = ("uuid", "uuid", "text", "bytea")

_CHAIN = """
    WITH given AS (
        SELECT * FROM unnest($1::text::uuid[], $2::text[], $3::bigint[], $4::bytea[], $5::bytea[], $6::int[],
            $7::bytea[]) AS t (tenant_id, period, events, root, entries, form, first_head)
    ), linked AS (
        INSERT INTO usage_chain AS c (tenant_id, period, links, events, root, head)
        SELECT tenant_id, period, 1, events, root, sha256(first_head || root) FROM given ORDER BY tenant_id, period
        ON CONFLICT (tenant_id, period) DO UPDATE SET links = c.links + 1, events = c.events + excluded.events,
            root = excluded.root, head = sha256(c.head || excluded.root)
        RETURNING tenant_id, period, links, head
    )
    INSERT INTO usage_batch (tenant_id, period, link, events, entries, form, root, head)
    SELECT tenant_id, period, links, events, entries, form, root, head FROM given JOIN linked USING (tenant_id, period)
"""

_BALANCE = tuple(column.name for column in tables.balance.columns)
_MONEY = tuple(name for name in _BALANCE if name not in ("tenant_id", "currency"))
_LOCK = f"""
    SELECT {", ".join(_BALANCE)} FROM unnest($1::text::uuid[]) AS t (id) JOIN balance ON tenant_id = t.id
    ORDER BY tenant_id FOR UPDATE OF balance
"""  # noqa: S608  # names of columns
_BALANCES = ("uuid", *["numeric"] * len(_MONEY))
_AFTER_GIVEN = len(_BALANCES) + len(_GIVEN)
_AFTER_TXN = _AFTER_GIVEN + len(_TXN)
_AFTER_ENTRIES = _AFTER_TXN + len(_ENTRY)


def _unnest(kinds: Sequence[str], after: int) -> str:
    """Rows of columns of these kinds, which are the parameters after so many others."""
    return f"unnest({', '.join(f'${n}::text::{kind}[]' for n, kind in enumerate(kinds, after + 1))})"


_SAVE = f"""
    WITH saved AS (
        UPDATE balance SET {", ".join(f"{name} = t.{name}" for name in _MONEY)}
        FROM {_unnest(_BALANCES, 0)} AS t (tenant_id, {", ".join(_MONEY)})
        WHERE balance.tenant_id = t.tenant_id
    ), given AS (
        UPDATE grant_balance AS b SET remaining = t.remaining, used = t.used, gone = t.gone, held = t.held
        FROM {_unnest(_GIVEN, len(_BALANCES))} AS t (id, remaining, used, gone, held)
        WHERE b.grant_id = t.id
    ), heads AS (
        SELECT * FROM {_unnest(_TXN, _AFTER_GIVEN)} AS t (id, tenant_id, kind, period, memo, digest)
    ), posted AS (
        INSERT INTO ledger_txn (id, tenant_id, kind, period, memo, posted_at)
        SELECT id, tenant_id, kind, period, memo, {{clock}} FROM heads RETURNING id, posted_at
    ), sealed AS (
        INSERT INTO seal (kind, id, sha256, form, key)
        SELECT 'ledger_txn', id::text, sha256(digest || int8send(posted_at)), {CURRENT["ledger_txn"].number}, {{key}}
        FROM posted JOIN heads USING (id)
    ), noted AS (
        INSERT INTO outbox (id, tenant_id, topic, payload, created_at)
        SELECT t.*, {{clock}} FROM {_unnest(_NOTICE, _AFTER_ENTRIES)} AS t
    )
    INSERT INTO ledger_entry (txn_id, seq, tenant_id, currency, debit, credit, amount_pico, grant_id)
    SELECT t.txn, t.seq, t.tenant, t.currency, t.debit, t.credit, t.amount, nullif(t.given, '')::uuid
    FROM {_unnest(_ENTRY, _AFTER_TXN)} AS t (txn, seq, tenant, currency, debit, credit, amount, given)
"""  # noqa: S608  # names of columns
"""All that is done while balances are locked, in one statement: whoever waits for them waits for no more than that."""
_GRANT = f"""
    WITH made AS (
        INSERT INTO "grant" (id, tenant_id, amount_pico, currency, kind, reason, priority, expires_at, model,
            project_id, at)
        VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, {{clock}}) ON CONFLICT DO NOTHING
        RETURNING id, tenant_id, amount_pico, at
    ), sealed AS (
        INSERT INTO seal (kind, id, sha256, form, key)
        SELECT 'grant', id::text, sha256($11 || int8send(at)), {CURRENT["grant"].number}, {{key}} FROM made
    )
    INSERT INTO grant_balance (grant_id, tenant_id, remaining, used, gone)
    SELECT id, tenant_id, amount_pico, 0, 0 FROM made RETURNING grant_id
"""  # noqa: S608  # a number of ours
_OPEN_GRANTS = """
    SELECT g.id, g.tenant_id, g.kind, g.priority, g.expires_at, g.model, g.project_id, b.remaining, b.used, b.gone,
        b.held
    FROM unnest($1::text::uuid[]) AS t (id) JOIN grant_balance b ON b.tenant_id = t.id JOIN "grant" g
        ON g.id = b.grant_id
    WHERE $2 OR b.remaining > 0
"""
_UNITS_LEFT = (
    f"SELECT {', '.join(f'coalesce(sum({meter}), 0)' for meter in METERS)} "  # noqa: S608  # names of columns
    "FROM usage_fact WHERE (id = $1 OR corrects = $1) AND tenant_id = $2"
)
_REFUSE = """
    INSERT INTO refused_settlement (id, request_id, cause, body, refused_at)
    SELECT t.*, {clock} FROM unnest($1::text::uuid[], $2::text::uuid[], $3::text::text[], $4::text::bytea[]) AS t
    ON CONFLICT DO NOTHING
"""


def _arrays(kinds: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[str]:
    """The columns of the rows, each as an array's literal."""
    columns = zip(*rows, strict=True) if rows else [()] * len(kinds)
    return [array_literal(kind, column) for kind, column in zip(kinds, columns, strict=True)]


def _ids(values: Collection[UUID]) -> str:
    return array_literal("uuid", list(values))


class PostgresMoneyTransaction:
    """Runs in a transaction of the driver's connection. `clock` is the database's clock as SQL; `keyring` has the key
    of its seals."""

    def __init__(self, connection: Connection, clock: str, keyring: Keyring) -> None:
        self._connection = connection
        self._clock = clock
        self._keyring = keyring
        self.holds = PostgresHoldStore(connection, clock)
        self.budgets = PostgresBudgetStore(connection)

    async def now(self) -> int:
        return int(await self._connection.fetchval(f"SELECT {self._clock}"))  # of our own

    async def lock_attempts(self) -> None:
        # a statement of its own: the next one sees what the lock waited for
        await self._connection.execute("SELECT pg_advisory_xact_lock($1)", ATTEMPTS_LOCK)

    async def currencies(self, tenants: Collection[UUID]) -> dict[UUID, str]:
        query = "SELECT tenant_id, currency FROM unnest($1::text::uuid[]) AS t (id) JOIN balance ON tenant_id = t.id"
        return dict(await self._connection.fetch(query, _ids(tenants)))

    async def closed_periods(self, periods: Collection[str]) -> set[str]:
        # a statement of its own: the next one sees what the lock waited for
        await self._connection.execute("SELECT pg_advisory_xact_lock_shared($1)", CLOSING_LOCK)
        query = "SELECT period FROM billing_period WHERE state = 'closed' AND period = ANY ($1::text[])"
        return {row[0] for row in await self._connection.fetch(query, list(periods))}

    async def chain(self, batches: Sequence[ChainBatch]) -> None:
        if batches:
            names = ("period", "events", "root", "entries", "form")
            columns = [[getattr(batch, name) for batch in batches] for name in names]
            heads = [first_head(batch.tenant_id, batch.period) for batch in batches]
            await self._connection.execute(_CHAIN, _ids([batch.tenant_id for batch in batches]), *columns, heads)

    async def existing_attempts(self, ids: Collection[UUID]) -> dict[UUID, int]:
        # all tenants: a record is repeated whoever sent it
        query = "SELECT id, attempt FROM usage_fact WHERE id = ANY ($1::text::uuid[])"
        return {row[0]: row[1] for row in await self._connection.fetch(query, _ids(ids))}

    async def units_left(self, tenant: UUID, event: UUID) -> dict[str, int]:
        row = await self._connection.fetchrow(_UNITS_LEFT, event, tenant)
        return dict(zip(METERS, row, strict=True))

    async def write_events(self, rows: EventRows, meanwhile: Callable[[], Made]) -> Made:
        if not rows.columns.events:
            return meanwhile()
        made: list[Made] = []

        async def source() -> AsyncIterator[bytes]:
            for piece in rows.binary():
                yield piece
            await asyncio.sleep(0)  # all of it is on its way before we keep the event loop to ourselves
            made.append(meanwhile())

        try:
            columns = rows.used_columns
            await self._connection.copy_to_table("usage_fact", source=source(), columns=columns, format="binary")
        except asyncpg.UniqueViolationError as error:
            raise EventsAlreadyWritten from error
        return made[0]

    async def roll_up(self, rolled: Sequence[RollupDelta]) -> None:
        if not rolled:
            return
        keys = _arrays(_KEY_KINDS, [_keys(row) for row in rolled])
        columns = dict(zip(SUMS, zip(*(row.sums for row in rolled), strict=True), strict=True))
        sums = tuple(name for name in SUMS if any(columns[name])) or SUMS[:1]  # lost attempts add to none
        added = [array_literal("bigint", columns[name]) for name in sums]
        await self._connection.execute(_roll_up(sums), *keys, *added)

    async def write_grant(self, grant: Grant) -> bool:
        digest = digest_of(CURRENT["grant"], msgspec.structs.asdict(grant))
        values = (*msgspec.structs.astuple(grant), self._keyed(digest))
        query = _GRANT.format(clock=self._clock, key=self._keyring.current)
        return await self._connection.fetchval(query, *values) is not None

    async def lock(self, tenants: Collection[UUID]) -> dict[UUID, Balance]:
        if not tenants:
            return {}
        rows = await self._connection.fetch(_LOCK, _ids(tenants))
        return {row[0]: Balance(row[0], row[1], *map(int, row[2:])) for row in rows}

    async def grants(self, tenants: Collection[UUID], *, spent: bool = False) -> list[OpenGrant]:
        if not tenants:
            return []
        return [OpenGrant(*row) for row in await self._connection.fetch(_OPEN_GRANTS, _ids(tenants), spent)]

    async def is_posted(self, transaction: UUID) -> bool:
        # all tenants: an id is one for all of them
        found = await self._connection.fetchval("SELECT true FROM ledger_txn WHERE id = $1", transaction)
        return found is not None

    async def save(
        self,
        balances: Sequence[Balance],
        transactions: Sequence[Transaction] = (),
        notices: Sequence[OutboxMessage] = (),
        grants: Sequence[OpenGrant] = (),
    ) -> None:
        if not (balances or transactions or notices or grants):
            return
        entries = [
            (t.id, seq, t.tenant_id, t.currency, e.debit, e.credit, e.amount_pico, str(e.grant_id or ""))
            for t in transactions
            for seq, e in enumerate(t.entries, 1)
        ]
        await self._connection.execute(
            _SAVE.format(clock=self._clock, key=self._keyring.current),
            *_arrays(_BALANCES, [(b.tenant_id, *(getattr(b, name) for name in _MONEY)) for b in balances]),
            *_arrays(_GIVEN, [(grant.id, grant.remaining, grant.used, grant.gone, grant.held) for grant in grants]),
            *_arrays(
                _TXN,
                [
                    (t.id, t.tenant_id, t.kind, t.period, t.memo, self._keyed(digest_of_transaction(t)))
                    for t in transactions
                ],
            ),
            *_arrays(_ENTRY, entries),
            *_arrays(_NOTICE, [(n.id, n.tenant_id, n.topic, n.payload) for n in notices]),
        )

    def _keyed(self, digest: bytes) -> bytes:
        return keyed(digest, self._keyring, self._keyring.current)

    async def refuse(self, refusals: Sequence[RefusedSettlement]) -> None:
        rows = [(r.id, r.request_id, r.cause, r.body) for r in refusals]
        if rows:
            await self._connection.execute(_REFUSE.format(clock=self._clock), *_arrays(_REFUSAL, rows))
