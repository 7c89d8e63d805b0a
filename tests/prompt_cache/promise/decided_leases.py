"""Leases of made-up requests, each marking one prefix of a project."""

from __future__ import annotations

from uuid import UUID

from prompt_cache.promise.lease_decider import LeaseDecider
from prompt_cache.promise.lease_decisions import LeaseDecision, LeaseWish, Mark
from prompt_cache.promise.lease_store import LeaseStore
from storage.database.base import new_id
from storage.database.database import Database

PROJECT = UUID(int=1)


async def decided(store: LeaseStore, database: Database, path: str, *, tokens: int) -> tuple[UUID, LeaseDecision]:
    """A request that marks the prefix `path`, of `tokens` a letter, and reads what there is of it: its id, and what is
    decided."""
    wish = LeaseWish(
        request_id=new_id(),
        tenant_id=PROJECT,
        project_id=PROJECT,
        model="m",
        marks=(Mark(tokens * len(path), path.encode(), "1h"),),
        lookups=tuple(path[:end].encode() for end in range(1, len(path))),
    )
    async with database.transaction() as session:
        decider: LeaseDecider = await store.decider(session, await database.now_in(session), [wish])
        decision = decider.decide(wish)
        decider.take(wish, decision)
        await store.save(session, decider)
    return wish.request_id, decision
