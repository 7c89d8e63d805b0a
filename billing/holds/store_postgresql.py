"""Holds on PostgreSQL: each statement takes arrays, and finds rows by their keys."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from uuid import UUID

import asyncpg  # type: ignore[import-untyped]

from billing.holds.batches import HoldBatch, HoldEntry, NewBatch, group_into_batches
from billing.holds.records import HoldRequest, pack
from billing.holds.store import HoldStore, UnusedHold
from storage.database.asyncpg_pool import Connection
from storage.database.sql_arrays import array_literal

_WRITE = """
    INSERT INTO hold_batch (id, tenant_id, gateway, sources, admitted_at, expires_at, first, last, open, amount_pico,
        entries, requests)
    SELECT t.id, {tenant_id}, t.gateway, t.sources, {now}, {now} + t.lifetime * 1000000, t.first, t.last, t.open,
        t.amount, t.entries, t.requests
    FROM unnest($1::text::uuid[], $2::text::uuid[], $3::text::text[], $4::text::text[], $5::text::bigint[],
        $6::text::uuid[], $7::text::uuid[], $8::text::int[], $9::text::numeric[], $10::bytea[], $11::bytea[])
        AS t (id, tenant, gateway, sources, lifetime, first, last, open, amount, entries, requests)
"""
_HOLD_BACK = """
    UPDATE balance SET held = balance.held + t.held, holds = balance.holds + t.holds
    FROM unnest($1::text::uuid[], $2::text::numeric[], $3::text::bigint[]) AS t (tenant_id, held, holds)
    WHERE balance.tenant_id = t.tenant_id
"""

_TAKE_AT_ONCE = """
    WITH locked AS (
        SELECT balance.tenant_id FROM unnest($12::text::uuid[]) AS t (id) JOIN balance ON balance.tenant_id = t.id
        ORDER BY 1 FOR UPDATE OF balance
    ), paid AS (
        UPDATE balance SET holds = balance.holds + t.holds, held = CASE
            WHEN balance.currency = t.currency AND balance.budgets = 0 AND balance.restricted = 0 AND NOT EXISTS (
                SELECT FROM "grant" AS g JOIN grant_balance AS left_of ON left_of.grant_id = g.id
                WHERE g.tenant_id = balance.tenant_id AND g.expires_at <= {clock} AND left_of.remaining > 0
            ) THEN balance.held + t.held END
        FROM unnest($12::text::uuid[], $13::text::numeric[], $14::text::bigint[], $15::text::text[])
            AS t (tenant_id, held, holds, currency)
        JOIN locked ON locked.tenant_id = t.tenant_id
        WHERE balance.tenant_id = t.tenant_id
    ), moment AS MATERIALIZED (SELECT {clock} AS now)
    {write}
    CROSS JOIN moment
    LEFT JOIN balance AS owner ON owner.tenant_id = t.tenant
    RETURNING admitted_at
"""
"""All or nothing, in one statement: what must not be becomes a null or a balance below zero, and the table refuses.

A part of a statement that nothing refers to runs last: the holds are inserted before balances are locked, for which
everyone waits who reserves or settles. Balances are locked in order, since an UPDATE has none. One that changed while
its lock was waited for is looked at as it is then.
"""

_ROW = "b.id, tenant_id, gateway, sources, admitted_at, expires_at, first, last, open, amount_pico, entries"
_READ = f"""
    SELECT {_ROW} FROM unnest($1::text::uuid[]) AS t (id) JOIN hold_batch AS b ON b.id = t.id
    ORDER BY b.id FOR UPDATE OF b
"""  # noqa: S608  # names of columns
_READ_WHOLE = f"""
    SELECT {_ROW}, requests FROM unnest($1::text::uuid[]) AS t (id) JOIN hold_batch AS b ON b.id = t.id
    ORDER BY b.id FOR UPDATE OF b
"""  # noqa: S608  # names of columns
_OPEN_OF = f"SELECT {_ROW}, requests FROM hold_batch AS b WHERE tenant_id = $1"  # noqa: S608  # names of columns
_OVERDUE = f"""
    SELECT {_ROW}, requests FROM hold_batch AS b WHERE expires_at <= $1 AND NOT EXISTS (
        SELECT FROM gateway_epoch AS e WHERE e.epoch = b.gateway AND (e.state = 'live' OR e.holds_ended_at IS NULL)
    ) LIMIT $2 FOR UPDATE OF b SKIP LOCKED
"""  # noqa: S608  # names of columns
_BETWEEN = "SELECT id, first, last FROM hold_batch WHERE first <= $2 AND last >= $1"
_CHANGE = """
    WITH gone AS (DELETE FROM hold_batch USING unnest($1::text::uuid[]) AS t (id) WHERE hold_batch.id = t.id)
    UPDATE hold_batch SET open = t.open, amount_pico = t.amount, entries = t.entries
    FROM unnest($2::text::uuid[], $3::text::int[], $4::text::numeric[], $5::bytea[]) AS t (id, open, amount, entries)
    WHERE hold_batch.id = t.id
"""
_POSTPONE = """
    UPDATE hold_batch SET expires_at = t.expires_at
    FROM unnest($1::text::uuid[], $2::text::bigint[]) AS t (id, expires_at) WHERE hold_batch.id = t.id
"""
_KEEP = """
    INSERT INTO ended_hold (request_id, tenant_id, amount_pico, gateway, admitted_at, expires_at, budgets, request,
        state, ended_at)
    SELECT t.*, $9, {clock} FROM unnest($1::text::uuid[], $2::text::uuid[], $3::text::bigint[], $4::text::text[],
        $5::text::bigint[], $6::text::bigint[], $7::text::text[], $8::bytea[]) AS t
"""
_KEPT = {
    **dict.fromkeys(("request_id", "tenant_id"), "uuid"),
    **{"amount_pico": "bigint", "gateway_epoch": "text", "admitted_at": "bigint", "expires_at": "bigint"},
}
_SOURCES_OF_ENDED = """
    SELECT request_id, budgets FROM unnest($1::text::uuid[]) AS t (id) JOIN ended_hold ON request_id = t.id
    WHERE budgets <> ''
"""
_ENDED_BEFORE = """
    SELECT usage_fact.id FROM unnest($1::text::uuid[]) AS t (id) JOIN usage_fact ON usage_fact.id = t.id
    UNION SELECT request_id FROM unnest($1::text::uuid[]) AS t (id) JOIN ended_hold ON request_id = t.id
"""


@cache
def _at_once(clock: str) -> str:
    return _TAKE_AT_ONCE.format(clock=clock, write=_WRITE.format(tenant_id="owner.tenant_id", now="moment.now"))


async def take_at_once(
    connection: Connection, clock: str, requests: Sequence[HoldRequest], currencies: Mapping[int, str]
) -> tuple[int, dict[UUID, UUID]] | None:
    """Take all the holds in one statement. Returns the instant, and the batch of each request.

    Returns None and writes nothing if a tenant has too little money, has budgets, has grants for one model or project,
    or money whose time has passed. Then the caller decides hold by hold in a transaction.

    `connection` is in no transaction; `currencies` are those of the requests' price versions.
    """
    held: dict[UUID, int] = {}
    money: dict[UUID, str] = {}
    count = Counter(request.tenant_id for request in requests)
    for request in requests:
        tenant, currency = request.tenant_id, currencies.get(request.price_version, "")
        held[tenant] = held.get(tenant, 0) + request.amount_pico
        if money.setdefault(tenant, currency) != currency:
            return None
    charged = (
        _ids(held),
        array_literal("numeric", list(held.values())),
        array_literal("bigint", [count[tenant] for tenant in held]),
        array_literal("text", [money[tenant] for tenant in held]),
    )
    new = group_into_batches(HoldEntry(request, request.amount_pico) for request in requests)
    try:
        now = await connection.fetchval(_at_once(clock), *_columns(new), *charged)
    except asyncpg.IntegrityConstraintViolationError:
        return None
    return int(now), {request: batch.id for batch in new for request in batch.ids}


class PostgresHoldStore(HoldStore):
    """Holds in a transaction of the driver's connection. `clock` is the database's clock as SQL."""

    def __init__(self, connection: Connection, clock: str) -> None:
        self._connection = connection
        self._clock = clock

    async def _open_of(self, tenant: UUID) -> list[HoldBatch]:
        return [HoldBatch(*row) for row in await self._connection.fetch(_OPEN_OF, tenant)]

    async def _sources_of_ended(self, requests: Collection[UUID]) -> list[tuple[UUID, str]]:
        # all tenants: usage that is late was admitted before
        return [tuple(row) for row in await self._connection.fetch(_SOURCES_OF_ENDED, _ids(requests))]

    async def _ended_before(self, requests: Collection[UUID]) -> set[UUID]:
        # all tenants: holds of several end together
        return {row[0] for row in await self._connection.fetch(_ENDED_BEFORE, _ids(requests))}

    async def _between(self, least: UUID, greatest: UUID) -> list[tuple[UUID, UUID, UUID]]:
        # all tenants: a journal knows requests alone
        return [tuple(row) for row in await self._connection.fetch(_BETWEEN, least, greatest)]

    async def _read(self, batches: Collection[UUID], *, whole: bool) -> list[HoldBatch]:
        if not batches:
            return []
        rows = await self._connection.fetch(_READ_WHOLE if whole else _READ, _ids(batches))
        return [HoldBatch(*row) for row in rows]

    async def _overdue(self, now: int, most: int) -> list[HoldBatch]:
        # all tenants: time passes for everyone
        return [HoldBatch(*row) for row in await self._connection.fetch(_OVERDUE, now, most)]

    async def _write(self, new: Sequence[NewBatch], admitted_at: int) -> None:
        await self._connection.execute(
            _WRITE.format(tenant_id="t.tenant", now="$12::bigint"), *_columns(new), admitted_at
        )

    async def _change(self, changed: Sequence[HoldBatch], gone: Sequence[UUID]) -> None:
        await self._connection.execute(
            _CHANGE,
            _ids(gone),
            _ids([batch.id for batch in changed]),
            array_literal("int", [batch.open for batch in changed]),
            array_literal("numeric", [batch.amount_pico for batch in changed]),
            [batch.entries for batch in changed],
        )

    async def _postpone(self, batches: Sequence[HoldBatch]) -> None:
        if batches:
            ends = array_literal("bigint", [batch.expires_at for batch in batches])
            await self._connection.execute(_POSTPONE, _ids([batch.id for batch in batches]), ends)

    async def _hold_back(self, held: Sequence[tuple[UUID, int, int]]) -> None:
        tenants, amounts, counts = zip(*held, strict=True)
        await self._connection.execute(
            _HOLD_BACK, _ids(tenants), array_literal("numeric", amounts), array_literal("bigint", counts)
        )

    async def _keep(self, ended: Sequence[UnusedHold], state: str) -> None:
        holds = [unused.hold for unused in ended]
        await self._connection.execute(
            _KEEP.format(clock=self._clock),
            *(array_literal(kind, [getattr(hold, name) for hold in holds]) for name, kind in _KEPT.items()),
            array_literal("text", [hold.sources.encode() for hold in holds]),
            [pack(unused.request) for unused in ended],
            state,
        )


def _columns(new: Sequence[NewBatch]) -> tuple[str | list[bytes], ...]:
    """The first eleven parameters of `_WRITE`."""
    return (
        _ids([batch.id for batch in new]),
        _ids([batch.tenant_id for batch in new]),
        array_literal("text", [batch.gateway for batch in new]),
        array_literal("text", [batch.sources for batch in new]),
        array_literal("bigint", [batch.lifetime_s for batch in new]),
        _ids([batch.first for batch in new]),
        _ids([batch.last for batch in new]),
        array_literal("int", [len(batch.ids) for batch in new]),
        array_literal("numeric", [batch.amount_pico for batch in new]),
        [batch.entries for batch in new],
        [batch.requests for batch in new],
    )


def _ids(values: Collection[UUID]) -> str:
    return array_literal("uuid", list(values))
