"""A lease goes on from one that ends before it is certain who pays for it: it lives as long as that may still be."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Literal, TypeAlias
from uuid import UUID

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from sqlalchemy import select

from prompt_cache.promise.lease_store import LeaseStore
from prompt_cache.tables import ended_lease, lease
from storage.database.database import Database, retried_after_conflict
from tests.fast import examples
from tests.prompt_cache.promise.decided_leases import PROJECT, decided
from tests.prompt_cache.promise.lease_fates import fates

Act: TypeAlias = Literal["purge", "paid", "unpaid"]
CHAIN = ("a", "ab", "abc", "abcd")
PAID, UNPAID = range(10**6), range(0)


class Chain:
    """Leases that go on from one another, each written by another request, none of which has ended."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.store = LeaseStore(database)
        self.writers: list[UUID] = []
        self.leases: list[UUID] = []

    async def write(self, paths: Sequence[str] = CHAIN) -> None:
        for path in paths:
            writer, decision = await decided(self.store, self.database, path, tokens=64)
            self.writers.append(writer)
            self.leases.append(decision.written[-1].id)

    async def live(self) -> dict[int, tuple[bool, int]]:
        """The live ones by their place: whether each is billed, and how many of its tokens count as its own."""
        page = await self.store.page(PROJECT, limit=9, after=None)
        return {self.leases.index(one.id): (one.billed, one.new_tokens // 64) for one in page}

    @retried_after_conflict
    async def act(self, at: int, act: Act) -> None:
        if act == "purge":
            await self.store.purge(PROJECT, identity=self.leases[at])
        else:
            await self.store.settle_writes({self.writers[at]: PAID if act == "paid" else UNPAID})


def expected(acts: Sequence[tuple[int, Act]]) -> dict[int, tuple[bool, int]]:
    """As `Chain.live` after these acts, by the promise alone: a lease lives until it is purged, or somebody fails to
    pay for it or for anything before it; and is billed once all that is paid for."""
    purged = {at for at, act in acts if act == "purge"}
    paid = {at for at, act in acts if act == "paid"}
    failed = min((at for at, act in acts if act == "unpaid"), default=len(CHAIN))
    live = [at for at in range(failed) if at not in purged]
    return {
        at: (paid.issuperset(range(at + 1)), at - max((before for before in live if before < at), default=-1))
        for at in live
    }


@pytest.mark.both_databases
@pytest.mark.parametrize("how", ["purged", "expired"])
@pytest.mark.parametrize("pays", [True, False])
async def test_a_lease_ends_with_an_unpaid_beginning_that_ended_before(
    database: Database, how: str, pays: bool
) -> None:
    chain = Chain(database)
    await chain.write(["a", "ab"])
    await chain.store.settle_writes({chain.writers[1]: PAID})
    if how == "purged":
        await chain.store.purge(PROJECT, identity=chain.leases[0])
    else:
        (beginning,) = [one for one in await chain.store.page(PROJECT, limit=9, after=None) if one.tokens == 64]
        await chain.store.extend(PROJECT, chain.leases[1])
        await chain.store.reclaim(now=beginning.expires_at)
    assert await chain.live() == {1: (False, 2)}, "its reader's payment alone is not enough"
    await chain.store.bill_rest()
    assert await chain.store.forget(2**62) == 0, "what is not settled is not forgotten"
    assert await chain.live() == {1: (False, 2)}
    await chain.store.settle_writes({chain.writers[0]: PAID if pays else UNPAID})
    assert await chain.live() == ({1: (True, 2)} if pays else {})
    told = await fates(database, PROJECT, [b"a", b"ab"])
    assert [told[key].cause for key in (b"a", b"ab")] == ([how, "live"] if pays else ["failed", "failed"])


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[int, Act]]:
    """Each request of a chain ends once, paying or not, and its lease may be purged before or after that."""
    results: st.SearchStrategy[Act] = st.sampled_from(["paid", "paid", "unpaid"])
    ends = [(at, draw(results)) for at in range(len(CHAIN))]
    purges: list[tuple[int, Act]] = [(at, "purge") for at in draw(st.sets(st.integers(0, len(CHAIN) - 1)))]
    return draw(st.permutations([*ends, *purges]))


PAID_BESIDE_AN_UNPAID_BEGINNING: list[tuple[int, Act]] = [
    (2, "paid"), (1, "paid"), (0, "unpaid"), (3, "paid"), (0, "purge"), (1, "purge"),
]  # fmt: skip
"""Who settles 1 has waited for the purge of 0, and must see that it ended."""


def follow(
    empty_again: Callable[[], str], check: Callable[[Chain, Sequence[tuple[int, Act]]], Awaitable[None]]
) -> None:
    """Check histories of a chain that has just been written."""
    with asyncio.Runner() as runner:

        async def on_new_chain(url: str, acts: Sequence[tuple[int, Act]]) -> None:
            database = await Database.open(url)
            try:
                chain = Chain(database)
                await chain.write()
                await check(chain, acts)
            finally:
                await database.close()

        @settings(max_examples=examples(40), deadline=None)
        @given(histories())
        @example(PAID_BESIDE_AN_UNPAID_BEGINNING)
        def run(acts: list[tuple[int, Act]]) -> None:
            runner.run(on_new_chain(empty_again(), acts))

        run()


@pytest.mark.both_databases
def test_a_lease_lives_while_all_before_it_may_be_paid_for(empty_again: Callable[[], str]) -> None:
    """Also of ended ones before ended ones, in whatever order they end and are settled."""

    async def check(chain: Chain, acts: Sequence[tuple[int, Act]]) -> None:
        for count, (at, act) in enumerate(acts, 1):
            await chain.act(at, act)
            assert await chain.live() == expected(acts[:count]), acts[:count]
        async with chain.database.reading() as session:
            assert not (await session.scalars(select(lease.c.id).where(lease.c.unsettled_base.is_not(None)))).all()
            causes = {row.id: row.cause for row in await session.execute(select(ended_lease))}
        failed = min((at for at, act in acts if act == "unpaid"), default=len(CHAIN))
        assert causes == {
            id_: "purged" if at < failed else "failed"
            for at, id_ in enumerate(chain.leases)
            if at >= failed or (at, "purge") in acts
        }

    follow(empty_again, check)


@pytest.mark.both_databases
def test_what_is_settled_and_purged_at_the_same_time_ends_as_one_after_another(empty_again: Callable[[], str]) -> None:
    async def check(chain: Chain, acts: Sequence[tuple[int, Act]]) -> None:
        await asyncio.gather(*(chain.act(at, act) for at, act in acts))
        await chain.store.bill_rest()  # what was locked was passed over
        assert await chain.live() == expected(acts)

    follow(empty_again, check)
