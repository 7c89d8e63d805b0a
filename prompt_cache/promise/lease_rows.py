"""Rows of leases: how they are read and written, and what ends or is paid for with a lease beyond it in its chain.

Beside them: under which keys replicas have the KV of leases, so that whoever ends a lease can take its KV away.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Sequence
from typing import Any, Literal, TypeAlias
from uuid import UUID

import msgspec
from sqlalchemy import bindparam, delete, insert, literal, or_, select, update
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
_PAGE = 1000
_BOOLEANS = ("billed", "told", "paid")
_CHANGING = (
    "new_tokens", "lease_class", "created_at", "written_at", "expires_at", "read_at", "reads", "writer", "blocks",
    "base", "unsettled_base", *_BOOLEANS,
)  # fmt: skip
_CHANGE = (
    update(lease).where(lease.c.id == bindparam("lease")).values({name: bindparam(f"new_{name}") for name in _CHANGING})
)
_GROWTH = (
    update(lease)
    .where(lease.c.id == bindparam("lease"))
    .values(
        new_tokens=bindparam("new_new_tokens"), base=bindparam("new_base"), unsettled_base=bindparam("new_unsettled")
    )
)
_NEXT_UNSETTLED = (
    update(lease).where(lease.c.id == bindparam("lease")).values(unsettled_base=bindparam("new_unsettled"))
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
    depends = cause in ("expired", "purged")
    return {
        **{name: getattr(one, name) for name in _KEPT},
        "ended_at": at,
        "cause": cause,
        "payer": one.writer if depends and not one.paid else None,
        "base": (one.unsettled_base or one.base) if depends and not one.billed else None,
    }


async def read_leases(session: AsyncSession) -> AsyncIterator[list[Lease]]:
    """All leases, in pages: an audit's."""
    # all tenants: an audit checks the whole installation
    query = select(*COLUMNS).order_by(lease.c.id).limit(_PAGE)
    page = [lease_of(row) for row in await session.execute(query)]
    while page:
        yield page
        page = [lease_of(row) for row in await session.execute(query.where(lease.c.id > page[-1].id))]


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
        """Move these leases to the table of ended ones, as ended at `at`, or when they expired."""
        await self.move(session, ended, cause, at)
        await self.hand_on(session, ended)

    async def fail(self, session: AsyncSession, identities: Collection[UUID], at: int) -> list[Lease]:
        """End these leases, live or ended ones, and all that are built on them: nobody pays for their tokens. Returns
        those that were live."""
        # all tenants: leases of several may fail together
        live, gone = await self._with_beyond(session, identities)
        if live:
            await self.move(session, live, "failed", at)
        if gone:
            failed = one_of(self._database, ended_lease.c.id, gone)
            await session.execute(update(ended_lease).where(failed).values(cause="failed", payer=None, base=None))
        return live

    async def move(self, session: AsyncSession, ended: Sequence[Lease], cause: EndCause, at: int | None = None) -> None:
        """As `end`, of these alone; what they promised is to be handed on yet."""
        # all tenants: each row names its own
        rows = [ended_row(one, one.expires_at if at is None else at, cause) for one in ended]
        await session.execute(insert(ended_lease), rows)
        await session.execute(delete(lease).where(one_of(self._database, lease.c.id, [one.id for one in ended])))

    async def _with_beyond(
        self, session: AsyncSession, identities: Collection[UUID]
    ) -> tuple[list[Lease], Collection[UUID]]:
        """These leases and those built on them, directly or on one another, locked: the live ones, and the ended.

        At the end it looks at all of them once more: another transaction that was waited for may have ended one.
        """
        live: dict[UUID, Lease] = {}
        gone: set[UUID] = set()
        ids, looks_again = set(identities), False
        while True:
            found, over = await self._built_on(session, ids)
            ids = (found.keys() | over) - live.keys() - gone
            live |= found
            gone |= over
            if looks_again and not ids:
                return list(live.values()), gone
            looks_again = not ids
            if looks_again:
                ids = {*identities, *live, *gone}

    async def _built_on(self, session: AsyncSession, ids: Collection[UUID]) -> tuple[dict[UUID, Lease], set[UUID]]:
        """These leases and those built directly on them, locked: the live ones, and the ended."""
        # all tenants: as its callers
        columns = (lease.c.id, lease.c.base, lease.c.unsettled_base)
        query = select(*COLUMNS).where(or_(*(one_of(self._database, column, ids) for column in columns)))
        query = query.order_by(lease.c.project_id, lease.c.prefix_key)
        live = {one.id: one for one in map(lease_of, await session.execute(self._database.locked(query)))}
        of = ended_lease.c
        ended = or_(one_of(self._database, of.id, ids), one_of(self._database, of.base, ids))
        stored = select(of.id).where(ended, of.cause.in_(("expired", "purged"))).order_by(of.id)
        return live, set(await session.scalars(self._database.locked(stored)))

    async def hand_on(self, session: AsyncSession, ended: Sequence[Lease]) -> None:
        """Count the own tokens of ended leases as those of the leases built on them, which still promise them. These
        depend on the ended ones until it is certain that those are paid for.

        What others have locked is waited for: nobody would count these tokens later. Of two that wait for one another
        PostgreSQL ends one, which is tried again.
        """
        # all tenants: leases of several may end together
        gone = {one.id: one for one in ended}
        built = one_of(self._database, lease.c.base, gone.keys())
        query = select(lease.c.id, lease.c.tokens, lease.c.new_tokens, lease.c.base, lease.c.unsettled_base)
        query = query.where(built).order_by(lease.c.project_id, lease.c.prefix_key)
        # until there is none: whoever was waited for may have ended such a lease, and built others on these
        while await session.scalar(select(lease.c.id).where(built).limit(1)) is not None:
            grown: list[dict[str, Any]] = []
            for id_, tokens, new, base, unsettled_base in await session.execute(self._database.locked(query)):
                more, before, unsettled = new, base, unsettled_base
                while before in gone:
                    last = gone[before]
                    more, before = more + last.new_tokens, last.base
                    unsettled = unsettled or (last.unsettled_base if last.paid else last.id)
                grown.append(
                    {"lease": id_, "new_new_tokens": min(tokens, more), "new_base": before, "new_unsettled": unsettled}
                )
            if grown:
                await session.execute(_GROWTH, grown)
                await self.bill(session, {row["lease"] for row in grown})

    async def settle_ended(self, session: AsyncSession, paid: Collection[UUID]) -> None:
        """Note that these ended leases, which are locked, are paid for. Those built on them depend on the next one
        before it of which that is not certain."""
        # all tenants: leases of several may be paid for together
        await session.execute(
            update(ended_lease).where(one_of(self._database, ended_lease.c.id, paid)).values(payer=None)
        )
        built = one_of(self._database, lease.c.unsettled_base, paid)
        query = select(lease.c.id, lease.c.unsettled_base).where(built)
        query = query.order_by(lease.c.project_id, lease.c.prefix_key)
        # until there is none, as in `hand_on`
        while await session.scalar(select(lease.c.id).where(built).limit(1)) is not None:
            if rows := (await session.execute(self._database.locked(query))).all():
                # only now: while these were waited for, what is before them may have ended
                following = await self._unsettled_before(session, {base for _, base in rows})
                moved = [{"lease": id_, "new_unsettled": following[base]} for id_, base in rows]
                await session.execute(_NEXT_UNSETTLED, moved)
                await self.bill(session, {row["lease"] for row in moved})

    async def _unsettled_before(self, session: AsyncSession, ended: Collection[UUID]) -> dict[UUID, UUID | None]:
        """For each of these settled leases the nearest ended one before it whose payer is not certain.

        The rows on the way are locked, so that nobody settles one of them before what is built on it is written."""
        # all tenants: as its caller
        of = ended_lease.c
        rows: dict[UUID, tuple[UUID | None, UUID | None]] = {}
        wanted = set(ended)
        while wanted:
            query = select(of.id, of.payer, of.base).where(one_of(self._database, of.id, wanted)).order_by(of.id)
            level = {id_: (payer, base) for id_, payer, base in await session.execute(self._database.locked(query))}
            rows |= level
            wanted = {base for payer, base in level.values() if payer is None and base is not None} - rows.keys()
        following: dict[UUID, UUID | None] = {}
        for id_ in ended:
            before: UUID | None = id_
            while before in rows and rows[before][0] is None:
                before = rows[before][1]
            following[id_] = before if before in rows else None  # a live one is the base already
        return following

    async def bill(self, session: AsyncSession, paid: Collection[UUID] | None = None) -> None:
        """Mark these leases as billed, all of them if None, and then those built on them, where all is paid for.

        A lease counts as billed when its own write is paid for, the lease that it is built on (`base`) is billed, and
        it depends on no ended lease whose payer is not certain.

        What others have locked is skipped: to wait for it while having locks out of order could be for ever. It is left
        to a later round of the worker (`LeaseStore.bill_rest`), and can be read meanwhile.
        """
        # all tenants: requests end whoever asked
        before = lease.alias("before")
        certain = before.c.id.is_(None) | (before.c.billed == 1)
        query = select(lease.c.id).join_from(lease, before, lease.c.base == before.c.id, isouter=True)
        query = query.where(lease.c.paid == 1, lease.c.billed == 0, lease.c.unsettled_base.is_(None), certain)
        query = query.limit(_MOST_BILLED)
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
