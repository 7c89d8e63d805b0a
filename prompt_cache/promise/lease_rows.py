"""Rows of leases: how they are read and written, and what ends or is paid for with a lease beyond it in its chain.

Beside them: under which keys replicas have the KV of leases, so that whoever ends a lease can take its KV away.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Literal, TypeAlias
from uuid import UUID

import msgspec
from sqlalchemy import bindparam, delete, insert, literal, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from prompt_cache.promise.lease_decisions import Lease
from prompt_cache.tables import ended_lease, lease, lease_blocks
from storage.database.database import Database, retried_after_conflict
from storage.database.sql_arrays import one_of

EndCause: TypeAlias = Literal["expired", "purged", "failed", "limit"]
"""Why a lease is no more. `failed`: its writer's request failed before the tokens were paid for. `limit`: it never was,
since the project had as many tokens in leases as it may have."""

COLUMNS = [lease.c[name] for name in Lease.__struct_fields__]
_MOST_BILLED = 10_000
_MOST_SPANS = 1000
_BOOLEANS = ("billed", "told", "paid")
_CHANGING = (
    "new_tokens", "lease_class", "created_at", "written_at", "expires_at", "read_at", "reads", "writer", "blocks",
    "base", *_BOOLEANS,
)  # fmt: skip
_CHANGE = (
    update(lease).where(lease.c.id == bindparam("lease")).values({name: bindparam(f"new_{name}") for name in _CHANGING})
)
_GROWTH = (
    update(lease)
    .where(lease.c.id == bindparam("lease"))
    .values(new_tokens=bindparam("new_new_tokens"), base=bindparam("new_base"))
)
_KEPT = (
    "id",
    "tenant_id",
    "project_id",
    "prefix_key",
    "model",
    "tokens",
    "lease_class",
    "created_at",
    "blocks",
    "reads",
    "new_tokens",
)


def lease_of(row: Any) -> Lease:
    """The lease of a row of `COLUMNS`."""
    values: dict[str, Any] = dict(zip(Lease.__struct_fields__, row, strict=True))
    return Lease(**values | {name: bool(values[name]) for name in _BOOLEANS})


def row_of(one: Lease) -> dict[str, Any]:
    """The values of its row."""
    return msgspec.structs.asdict(one) | {name: int(getattr(one, name)) for name in _BOOLEANS}


def ended_row(one: Lease, at: int, cause: EndCause) -> dict[str, Any]:
    """The values of the row that says what became of it."""
    payer = one.writer if cause in ("expired", "purged") and not one.paid else None
    return {**{name: getattr(one, name) for name in _KEPT}, "ended_at": at, "cause": cause, "payer": payer}


class LeaseRows:
    """The rows of leases in a session's transaction, which has locked those that it changes."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def change(self, session: AsyncSession, changed: Collection[Lease]) -> None:
        """Write these as they are now."""
        # all tenants: these rows were locked
        rows = [{"lease": one.id, **{f"new_{name}": row_of(one)[name] for name in _CHANGING}} for one in changed]
        await session.execute(_CHANGE, sorted(rows, key=lambda row: row["lease"].int))

    async def end(self, session: AsyncSession, ended: Sequence[Lease], cause: EndCause, at: int | None = None) -> None:
        """Move these leases to the table of ended ones, as ended at `at`, or when they expired.

        A lease that failed also ends every lease built on it, since nobody pays for its tokens.
        """
        # all tenants: each row names its own
        if cause == "failed":
            ended = [*ended, *await self._beyond(session, ended)]
        await self.move(session, ended, cause, at)
        if cause != "failed":
            await self.hand_on(session, ended)

    async def move(self, session: AsyncSession, ended: Sequence[Lease], cause: EndCause, at: int | None = None) -> None:
        """As `end`, of these alone; what they promised is to be handed on yet."""
        # all tenants: each row names its own
        rows = [ended_row(one, one.expires_at if at is None else at, cause) for one in ended]
        await session.execute(insert(ended_lease), rows)
        await session.execute(delete(lease).where(one_of(self._database, lease.c.id, [one.id for one in ended])))

    async def _beyond(self, session: AsyncSession, leases: Sequence[Lease]) -> list[Lease]:
        """The leases built on these, directly or on one another, locked."""
        # all tenants: leases of several may end together
        beyond: dict[UUID, Lease] = {}
        before = {one.id for one in leases}
        while before:
            query = select(*COLUMNS).where(one_of(self._database, lease.c.base, before))
            query = query.order_by(lease.c.project_id, lease.c.prefix_key)
            found = {one.id: one for one in map(lease_of, await session.execute(self._database.locked(query)))}
            before = found.keys() - beyond.keys() - {one.id for one in leases}
            beyond |= {id_: found[id_] for id_ in before}
        return list(beyond.values())

    async def hand_on(self, session: AsyncSession, ended: Sequence[Lease]) -> None:
        """Count the own tokens of ended leases as those of the leases built on them, which still promise them.

        What others have locked is waited for: nobody would count these tokens later. Of two that wait for one another
        PostgreSQL ends one, which is tried again.
        """
        # all tenants: leases of several may end together
        gone = {one.id: one for one in ended}
        built = one_of(self._database, lease.c.base, gone.keys())
        query = select(lease.c.id, lease.c.tokens, lease.c.new_tokens, lease.c.base).where(built)
        query = query.order_by(lease.c.project_id, lease.c.prefix_key)
        # until there is none: whoever was waited for may have ended such a lease, and built others on these
        while await session.scalar(select(lease.c.id).where(built).limit(1)) is not None:
            grown: list[dict[str, Any]] = []
            for id_, tokens, new, base in await session.execute(self._database.locked(query)):
                more, before = new, base
                while before in gone:
                    more, before = more + gone[before].new_tokens, gone[before].base
                grown.append({"lease": id_, "new_new_tokens": min(tokens, more), "new_base": before})
            if grown:
                await session.execute(_GROWTH, grown)
                await self.bill(session, {row["lease"] for row in grown})

    async def bill(self, session: AsyncSession, paid: Collection[UUID] | None = None) -> None:
        """Mark these leases as billed, all of them if None, and then those built on them, where all is paid for.

        A lease counts as billed when its own write is paid for and the lease that it is built on (`base`) is billed.

        What others have locked is skipped: to wait for it while having locks out of order could be for ever. It is left
        to a later round of the worker (`LeaseStore.bill_rest`), and can be read meanwhile.
        """
        # all tenants: requests end whoever asked
        before = lease.alias("before")
        certain = before.c.id.is_(None) | (before.c.billed == 1)
        query = select(lease.c.id).join_from(lease, before, lease.c.base == before.c.id, isouter=True)
        query = query.where(lease.c.paid == 1, lease.c.billed == 0, certain).limit(_MOST_BILLED)
        while paid is None or paid:
            ready = query if paid is None else query.where(one_of(self._database, lease.c.id, paid))
            billed = set(await session.scalars(self._database.locked(ready, of=lease, skip=True)))
            if not billed:
                return
            await session.execute(update(lease).where(one_of(self._database, lease.c.id, billed)).values(billed=1))
            beyond = select(lease.c.id).where(one_of(self._database, lease.c.base, billed), lease.c.billed == 0)
            paid = set(await session.scalars(beyond))


class LeaseBlocks(msgspec.Struct, frozen=True):
    """Blocks that replicas of a model digest have of a lease: their scope there, and the keys, `KEY_BYTES` each."""

    lease_id: UUID
    scope: str
    digest: str
    keys: bytes


class LeaseSpan(msgspec.Struct, frozen=True):
    """A lease has the tokens `start`..`end` of a prompt, the lease before it those before. `noted`: whether its blocks
    are noted under the scope and the model digest that were asked for."""

    lease_id: UUID
    start: int
    end: int
    noted: bool


class LeaseBlockKeys:
    """What gateways have noted: the blocks of each lease, by their scope and the model digest of their replicas."""

    def __init__(self, database: Database) -> None:
        self._database = database

    @retried_after_conflict
    async def note(self, blocks: Sequence[LeaseBlocks]) -> set[UUID]:
        """Note under which keys replicas have blocks of leases; of those that are gone nothing. Returns which were
        purged already. Raises DatabaseUnavailable."""
        # all tenants: a lease is one tenant's
        async with self._database.transaction() as session:
            wanted = one_of(self._database, lease.c.id, [one.lease_id for one in blocks])
            query = select(lease.c.id).where(wanted).order_by(lease.c.project_id, lease.c.prefix_key)
            there = set(await session.scalars(self._database.locked(query)))
            rows = [msgspec.structs.asdict(one) for one in blocks if one.keys and one.lease_id in there]
            if rows:
                await session.execute(self._database.insert(lease_blocks).on_conflict_do_nothing(), rows)
            gone = one_of(
                self._database, ended_lease.c.id, [one.lease_id for one in blocks if one.lease_id not in there]
            )
            return set(await session.scalars(select(ended_lease.c.id).where(gone, ended_lease.c.cause == "purged")))

    async def spans(self, identity: UUID, scope: str, digest: str) -> list[LeaseSpan]:
        """This lease, and those before it in its chain as far as they are there, at most `_MOST_SPANS`. None if it is
        gone. Raises DatabaseUnavailable."""
        # all tenants: a lease is one tenant's
        columns = (lease.c.id, lease.c.tokens, lease.c.new_tokens, lease.c.base)
        first = select(*columns, literal(1).label("depth")).where(lease.c.id == identity).cte(recursive=True)
        before = select(*columns, first.c.depth + 1).where(lease.c.id == first.c.base, first.c.depth < _MOST_SPANS)
        chain = first.union_all(before)
        noted = lease_blocks.alias()
        here = (noted.c.lease_id == chain.c.id) & (noted.c.scope == scope) & (noted.c.digest == digest)
        query = select(chain.c.id, chain.c.tokens, chain.c.new_tokens, noted.c.lease_id.is_not(None))
        async with self._database.reading() as session:
            rows = await session.execute(query.join_from(chain, noted, here, isouter=True))
            return [LeaseSpan(id_, tokens - new, tokens, bool(known)) for id_, tokens, new, known in rows]

    async def of(self, session: AsyncSession, leases: Collection[UUID]) -> list[LeaseBlocks]:
        """What is noted of these leases, in this transaction."""
        # all tenants: a lease is one tenant's
        of = lease_blocks.c
        query = select(of.lease_id, of.scope, of.digest, of["keys"]).where(one_of(self._database, of.lease_id, leases))
        return [LeaseBlocks(*row) for row in await session.execute(query)]
