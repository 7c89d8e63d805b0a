"""Holds on PostgreSQL: each statement takes arrays, and finds rows by their keys."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from itertools import accumulate
from uuid import UUID

import asyncpg  # type: ignore[import-untyped]

from billing.holds.books import Ended
from billing.holds.records import Hold, HoldRequest, grants_in, join, pack, split, unpack
from storage.array_literals import array_literal
from storage.direct import Connection

_TAKEN = """
    INSERT INTO hold (request_id, tenant_id, amount_pico, gateway, admitted_at, expires_at, budgets, request)
    SELECT {request_id}, {tenant_id}, t.amount, t.gateway, {now}, {now} + t.lifetime * 1000000, {budgets},
        substring($7::bytea FROM t.start FOR t.size)
    FROM unnest($1::text::uuid[], $2::text::uuid[], $3::text::bigint[], $4::text::text[], $5::text::bigint[],
        $6::text::int[], $8::text::int[]{more}) AS t (id, tenant, amount, gateway, lifetime, start, size{name})
"""
_TAKE = f"""
    WITH held AS (
        UPDATE balance SET held = balance.held + t.held, holds = balance.holds + t.holds
        FROM unnest($10::text::uuid[], $11::text::numeric[], $12::text::bigint[]) AS t (tenant_id, held, holds)
        WHERE balance.tenant_id = t.tenant_id
    )
    {
    _TAKEN.format(
        request_id="t.id",
        tenant_id="t.tenant",
        now="$9::bigint",
        budgets="t.budgets",
        more=", $13::text::text[]",
        name=", budgets",
    )
}
"""  # noqa: S608  # names of columns

_TAKE_AT_ONCE = """
    WITH locked AS (
        SELECT balance.tenant_id FROM unnest($9::text::uuid[]) AS t (id) JOIN balance ON balance.tenant_id = t.id
        ORDER BY 1 FOR UPDATE OF balance
    ), paid AS (
        UPDATE balance SET holds = balance.holds + t.holds, held = CASE
            WHEN balance.currency = t.currency AND balance.budgets = 0 AND balance.restricted = 0
            THEN balance.held + t.held END
        FROM unnest($9::text::uuid[], $10::text::numeric[], $11::text::bigint[], $12::text::text[])
            AS t (tenant_id, held, holds, currency)
        JOIN locked ON locked.tenant_id = t.tenant_id
        WHERE balance.tenant_id = t.tenant_id
    ), moment AS MATERIALIZED (SELECT {clock} AS now)
    {taken}
    CROSS JOIN moment
    LEFT JOIN balance AS owner ON owner.tenant_id = t.tenant
    LEFT JOIN ended_hold AS ended ON ended.request_id = t.id
    LEFT JOIN usage_fact AS event ON event.id = t.id
    RETURNING admitted_at
"""
"""All or nothing, in one statement: what must not be becomes a null, a second row or a balance below zero, and the
table refuses that.

A part of a statement that nothing refers to runs last: the holds, in the order of their requests, are inserted before
balances are locked, for which everyone waits who reserves or settles. Balances are locked in order, since an UPDATE has
none. One that changed while its lock was waited for is looked at as it is then.
"""

_OPEN = """
    SELECT request, admitted_at, amount_pico, budgets
    FROM unnest($1::text::uuid[]) AS t (id) JOIN hold ON request_id = t.id
"""
_LOCKED = """
    SELECT request, admitted_at, amount_pico, budgets
    FROM unnest($1::text::uuid[]) AS t (id) JOIN hold ON request_id = t.id ORDER BY request_id FOR UPDATE OF hold
"""
_AMEND = """
    UPDATE hold SET amount_pico = t.amount, budgets = t.budgets
    FROM unnest($1::text::uuid[], $2::text::bigint[], $3::text::text[]) AS t (id, amount, budgets)
    WHERE request_id = t.id
"""
_ENDED = """
    SELECT request_id FROM unnest($1::text::uuid[]) AS t (id) JOIN ended_hold ON request_id = t.id
    UNION SELECT usage_fact.id FROM unnest($1::text::uuid[]) AS t (id) JOIN usage_fact USING (id)
"""
_SUMS = """
    SELECT tenant_id, count(*), sum(amount_pico), budgets,
        coalesce(array_agg(request_id) FILTER (WHERE budgets <> ''), '{{}}') FROM ended GROUP BY tenant_id, budgets
"""
_SETTLE = f"""
    WITH ended AS (
        DELETE FROM hold USING unnest($1::text::uuid[]) AS t (id) WHERE request_id = t.id
        RETURNING tenant_id, amount_pico, budgets, request_id
    )
    {_SUMS.format()}
"""  # noqa: S608  # names of columns
_COLUMNS = "request_id, tenant_id, amount_pico, gateway, admitted_at, expires_at, budgets, request"
_END = f"""
    WITH ended AS (
        DELETE FROM hold USING unnest($1::text::uuid[]) AS t (id) WHERE request_id = t.id RETURNING hold.*
    ), kept AS (
        INSERT INTO ended_hold ({_COLUMNS}, state, ended_at) SELECT {_COLUMNS}, $2, {{clock}} FROM ended
    )
    {_SUMS}
"""  # noqa: S608  # names of columns
_BUDGETS_OF_ENDED = """
    SELECT request_id, budgets FROM unnest($1::text::uuid[]) AS t (id) JOIN ended_hold ON request_id = t.id
    WHERE budgets <> ''
"""
_OVERDUE = "SELECT request_id FROM hold WHERE expires_at <= $1 LIMIT $2 FOR UPDATE SKIP LOCKED"


@cache
def _at_once(clock: str) -> str:
    taken = _TAKEN.format(
        request_id="CASE WHEN ended.request_id IS NULL AND event.id IS NULL THEN t.id END",
        tenant_id="owner.tenant_id",
        now="moment.now",
        budgets="''",
        more="",
        name="",
    )
    return _TAKE_AT_ONCE.format(clock=clock, taken=taken)


async def take_at_once(
    connection: Connection, clock: str, requests: Sequence[HoldRequest], currencies: Mapping[int, str]
) -> int | None:
    """Take all the holds in one statement, and return the instant; None, and nothing written, if anything is in the
    way of any: a request that was admitted before, a tenant without enough money, or with budgets, or with
    grants for one model or project, which are asked one by one.

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
    try:
        in_order = sorted(requests, key=_request)
        now = await connection.fetchval(_at_once(clock), *_columns(in_order), *charged)
    except asyncpg.IntegrityConstraintViolationError:
        return None
    return int(now)


class PostgresHoldBooks:
    """Holds in a transaction of the driver's connection. `clock` is the database's clock as SQL."""

    def __init__(self, connection: Connection, clock: str) -> None:
        self._connection = connection
        self._clock = clock

    async def open_now(self, requests: Collection[UUID]) -> list[Hold]:
        return await self._found(_OPEN, requests)

    async def locked(self, requests: Collection[UUID]) -> list[Hold]:
        return await self._found(_LOCKED, requests)

    async def _found(self, query: str, requests: Collection[UUID]) -> list[Hold]:
        rows = await self._connection.fetch(query, _ids(requests))
        return [
            Hold.of(unpack(asked), at, amount, budgets=split(of), grants=grants_in(of))
            for asked, at, amount, of in rows
        ]

    async def amend(self, changed: Collection[Hold]) -> None:
        if changed:
            ids = _ids([hold.request_id for hold in changed])
            amounts = array_literal("bigint", [hold.amount_pico for hold in changed])
            sources = array_literal("text", [join(hold.budgets, hold.grants) for hold in changed])
            await self._connection.execute(_AMEND, ids, amounts, sources)

    async def ended(self, requests: Collection[UUID]) -> set[UUID]:
        return {row[0] for row in await self._connection.fetch(_ENDED, _ids(requests))}

    async def budgets_of_ended(self, requests: Collection[UUID]) -> dict[UUID, str]:
        return dict(await self._connection.fetch(_BUDGETS_OF_ENDED, _ids(requests)))

    async def take(self, made: Sequence[tuple[HoldRequest, Hold]], held: Mapping[UUID, int]) -> None:
        if not made:
            return
        count = Counter(asked.tenant_id for asked, _ in made)
        more = (array_literal("numeric", list(held.values())), array_literal("bigint", [count[t] for t in held]))
        columns = _columns([asked for asked, _ in made])
        budgets = array_literal("text", [join(new.budgets, new.grants) for _, new in made])
        await self._connection.execute(_TAKE, *columns, made[0][1].admitted_at, _ids(held), *more, budgets)

    async def end(self, requests: Collection[UUID], state: str) -> list[Ended]:
        if not requests:
            return []
        in_order = _ids(sorted(requests, key=_as_int))
        if state == "settled":
            rows = await self._connection.fetch(_SETTLE, in_order)
        else:
            rows = await self._connection.fetch(_END.format(clock=self._clock), in_order, state)
        return [Ended(*row) for row in rows]

    async def overdue(self, now: int, most: int) -> list[UUID]:
        # all tenants: time passes for everyone
        return [row[0] for row in await self._connection.fetch(_OVERDUE, now, most)]


def _columns(requests: Sequence[HoldRequest]) -> tuple[str | bytes, ...]:
    """The first eight parameters of `_TAKEN`. The packed requests are one value, cut by the database: that is faster on
    both sides than an array of them."""
    packed = [pack(request) for request in requests]
    sizes = [len(one) for one in packed]
    return (
        _ids([request.request_id for request in requests]),
        _ids([request.tenant_id for request in requests]),
        array_literal("bigint", [request.amount_pico for request in requests]),
        array_literal("text", [request.gateway for request in requests]),
        array_literal("bigint", [request.lifetime_s for request in requests]),
        array_literal("int", list(accumulate(sizes[:-1], initial=1))),
        b"".join(packed),
        array_literal("int", sizes),
    )


def _request(request: HoldRequest) -> int:
    return request.request_id.int


def _as_int(identity: UUID) -> int:
    return identity.int


def _ids(values: Collection[UUID]) -> str:
    return array_literal("uuid", list(values))
