"""Under which keys replicas have the KV of leases: by scope and model digest, along the chain of a prompt."""

from __future__ import annotations

from uuid import UUID

import pytest

from prompt_cache.promise.lease_rows import LeaseBlocks, LeaseSpan
from prompt_cache.promise.lease_store import LeaseStore
from storage.database.database import Database
from tests.prompt_cache.promise.decided_leases import PROJECT, decided


async def written(store: LeaseStore, database: Database, path: str) -> UUID:
    """The lease of a request that marks this prefix, and reads what there is of it; it is paid for."""
    request, decision = await decided(store, database, path, tokens=100)
    await store.settle_writes({request: range(10**6)})
    return decision.written[0].id


@pytest.mark.both_databases
async def test_the_leases_of_a_prompt_whose_blocks_are_not_noted(database: Database) -> None:
    store = LeaseStore(database)
    a, ab, abc = [await written(store, database, path) for path in ("a", "ab", "abc")]
    await written(store, database, "ax")
    noted = [LeaseBlocks(a, "s", "d", b"1" * 32), LeaseBlocks(a, "s", "other", b"2" * 32)]
    noted += [LeaseBlocks(ab, "new", "d", b"3" * 32)]
    for _ in range(2):
        assert await store.blocks.note(noted) == set()
    spans = sorted(await store.blocks.spans(abc, "s", "d"), key=lambda span: span.start)
    assert spans == [LeaseSpan(a, 0, 100, True), LeaseSpan(ab, 100, 200, False), LeaseSpan(abc, 200, 300, False)]
    assert {span.noted for span in await store.blocks.spans(abc, "s", "third")} == {False}

    gone = await store.purge(PROJECT, identity=a)
    assert sorted(gone.blocks, key=lambda one: one.digest) == noted[:2]
    assert await store.blocks.spans(a, "s", "d") == []
    spans = sorted(await store.blocks.spans(abc, "s", "d"), key=lambda span: span.start)
    assert spans == [LeaseSpan(ab, 0, 200, False), LeaseSpan(abc, 200, 300, False)], "it promises them now"
    assert await store.blocks.note([LeaseBlocks(a, "s", "d", b"1" * 32)]) == {a}, "to be purged at once"
