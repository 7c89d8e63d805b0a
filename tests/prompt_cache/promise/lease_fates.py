"""What the database says of leases by prefix key, as tests ask for it."""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal
from uuid import UUID

import msgspec
from sqlalchemy import select

from prompt_cache.promise.lease_rows import COLUMNS, EndCause, lease_of
from prompt_cache.tables import ended_lease, lease
from storage.database.database import Database
from storage.database.sql_arrays import one_of


class LeaseFate(msgspec.Struct, frozen=True):
    """The latest that is known of a lease: it lives until `at`, or ended then."""

    cause: Literal["live"] | EndCause
    at: int
    tokens: int
    lease_class: str


async def fates(database: Database, project_id: UUID, keys: Collection[bytes]) -> dict[bytes, LeaseFate]:
    """What is known of leases of a project by prefix key: the live one, else what ended last, within the last day.

    A key that is absent was not written in that time. Raises DatabaseUnavailable.
    """
    # a project is one tenant's
    ended = (ended_lease.c.project_id == project_id) & one_of(database, ended_lease.c.prefix_key, keys)
    wanted = (lease.c.project_id == project_id) & one_of(database, lease.c.prefix_key, keys)
    async with database.reading() as session:
        now = (await session.execute(select(database.clock))).scalar_one()
        of = ended_lease.c
        query = select(of.prefix_key, of.cause, of.ended_at, of.tokens, of.lease_class).where(ended)
        found = {row[0]: LeaseFate(*row[1:]) for row in await session.execute(query.order_by(of.ended_at))}
        for one in map(lease_of, await session.execute(select(*COLUMNS).where(wanted))):
            cause: Literal["live", "expired"] = "live" if one.is_live(now) else "expired"
            found[one.prefix_key] = LeaseFate(cause, one.expires_at, one.tokens, one.lease_class)
    return found
