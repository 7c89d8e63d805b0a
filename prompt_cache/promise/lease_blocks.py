"""Under which keys replicas have the KV of leases, so that whoever ends a lease can take its KV away."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from uuid import UUID

import msgspec
from sqlalchemy import literal, select
from sqlalchemy.ext.asyncio import AsyncSession

from prompt_cache.tables import ended_lease, lease, lease_blocks
from storage.database.database import Database, retried_after_conflict
from storage.database.sql_arrays import one_of

_MOST_SPANS = 1000


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
