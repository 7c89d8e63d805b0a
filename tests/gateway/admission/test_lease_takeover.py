"""Who pays for a lease when writers fail: at any point, on two gateways, with recovery from what the database has.

Of each lease that was ever read, exactly one request has paid the write: never two, never none. The one exception is
stated: a writer that had its first token and then failed through us. Its readers have been told that they read, so
that stands; the lease and all that goes on from it end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any
from uuid import UUID

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test
from msgspec import Struct
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from billing.holds.records import Hold
from billing.reservation.billed_writes import billed_writes
from billing.reservation.hooked_holds import HookedHolds
from billing.settlement.settlement import settle
from billing.usage import Release
from billing.verification.audit import audit_money
from gateway.admission.cache_leases import DecisionTold, LeaseHook, LeaseRequest
from gateway.admission.lease_confirmations import LeaseConfirmations
from gateway.metering.billable_usage import unpack
from prompt_cache.promise.lease_decider import LeaseDecider
from prompt_cache.promise.lease_decisions import LeaseDecision, LeaseWish, is_certain
from prompt_cache.promise.lease_store import LeaseStore
from prompt_cache.tables import lease
from storage.database.database import Database
from tests.fast import examples
from tests.gateway.admission.lease_model import LIVES, SECOND, Asked
from tests.gateway.admission.test_cache_leases import HISTORIES, PIECE, Doors, written_of
from tests.prompt_cache.promise.lease_fates import fates
from turnpike.commands.audit.leases import audit_leases

CLASSES = st.sampled_from(["5m", "1h"])


class Prepared(Struct, frozen=True):
    """What the confirmations read and write of a request."""

    request_id: UUID
    leases: LeaseDecision
    lease_request: LeaseRequest
    terms: Any = None


class Running:
    """A request from its hold to its bill."""

    def __init__(self, door: int, asked: Asked, hold: Hold, wish: LeaseRequest) -> None:
        assert wish.decision is not None
        self.door, self.asked, self.hold = door, asked, hold
        self.prepared = Prepared(hold.request_id, wish.decision, wish)
        self.told = is_certain(wish.decision)
        self.tokens = len(asked.path) * PIECE
        self.reach = self.tokens
        """Tokens of its prompt that are computed when it ends."""

    @property
    def decision(self) -> LeaseDecision:
        return self.prepared.leases


class Gateways(Doors):
    """Two gateways that confirm."""

    confirmations: list[LeaseConfirmations]

    async def start(self) -> Gateways:
        self.confirmations = [
            LeaseConfirmations(store, door) for store, door in zip(self.stores, self.doors, strict=True)
        ]
        await self.new_project()
        return self

    async def begin(self, asked: Asked, door: int = 0) -> Running:
        """A request is admitted."""
        return Running(door, asked, *await self.ask(asked, door))

    async def promise(self, request: Running, reach: int | None = None) -> None:
        """It has its first token, or ends without one."""
        if not request.told:
            confirm: Any = self.confirmations[request.door].confirm
            request.prepared, request.hold = await confirm(request.prepared, request.hold, reach)
            request.told = True
            request.reach = request.tokens if reach is None else reach

    async def finish(self, request: Running, how: str) -> tuple[int, bool]:
        """It ends: `ok`, `left` by its client before its first token, `failed` through us before anything of it was
        delivered, `refused` by the replica, or `killed` with its gateway, of which the database alone tells.

        Returns how many tokens of its prompt were billed, and whether it failed after it had its first token.
        """
        begun, door, hold = request.told, request.door, request.hold
        if how in ("ok", "left"):
            await self.promise(request, None if how == "ok" else request.tokens * 2 // 3)
            hold = request.hold
        elif how == "refused":
            await settle(self.database, self.prices, [Release(hold.request_id, "no", hold.batch)])
            await self.stores[door].settle_writes({hold.request_id: range(0)})
            return 0, begun
        elif how == "killed":
            found = await self.holds[1 - door].get(hold.request_id)
            assert found is not None
            assert found.terms == hold.terms, "what was told is frozen"
            hold = found
        fault = {"ok": "none", "left": "client"}.get(how, "ours_before")
        _, event = self.bill_of(hold, request.reach, fault=fault)
        assert event.cost_pico <= hold.amount_pico
        await settle(self.database, self.prices, [event])
        if how == "killed":
            await self.ask_worker()
        else:
            await self.stores[door].settle_writes({hold.request_id: written_of(hold, event)})
        return event.usage.prompt, begun and fault == "ours_before"

    async def ask_worker(self) -> None:
        """The worker finds out how writers ended of which no gateway tells."""
        writers = await self.stores[0].uncertain_writers(self.now + 1, 100)
        await self.stores[0].settle_writes(await billed_writes(self.database, self.holds[0], writers))

    async def stop(self) -> None:
        for confirmation in self.confirmations:
            await confirmation.close()
        await self.close()


class Histories(RuleBasedStateMachine):
    """Random histories of one project."""

    gateways: Gateways
    runner: asyncio.Runner

    def __init__(self) -> None:
        super().__init__()
        self.gateways.now += 10**12
        self.gateways.pass_time(0)
        self.do(self.gateways.new_project())
        self.running: list[Running] = []
        self.paid: dict[UUID, list[UUID]] = {}
        """Lease -> the requests that paid its write, and would have read it."""
        self.paid_again: dict[UUID, list[UUID]] = {}
        """Lease -> the requests that paid to write whatever is there."""
        self.read: dict[UUID, list[UUID]] = {}
        """Lease -> the requests that paid a read of it."""
        self.lost: set[UUID] = set()
        """Leases whose writers failed through us after their first token."""
        self.purged: set[UUID] = set()
        self.before: dict[UUID, UUID | None] = {}
        """Lease -> the one that its last writer went on from."""

    def do(self, what: Any) -> Any:
        return self.runner.run(what)

    @rule(
        path=st.sampled_from(["aa", "aab", "aab", "aabb"]),
        marks=st.dictionaries(st.integers(1, 4), CLASSES, min_size=1, max_size=3),
        lookups=st.lists(st.integers(1, 3), max_size=2),
        door=st.integers(0, 1),
        count=st.integers(1, 3),
        read=st.sampled_from([True, True, True, False]),
    )
    def ask(self, path: str, marks: dict[int, str], lookups: list[int], door: int, count: int, read: bool) -> None:
        kept = {min(at, len(path)): name for at, name in marks.items()}
        asked = Asked(path, tuple(sorted(kept.items())), tuple(sorted(set(lookups))), read)

        async def all_at_once() -> list[Running]:
            return await asyncio.gather(*(self.gateways.begin(asked, (door + at) % 2) for at in range(count)))

        self.running += (begun := self.do(all_at_once()))
        self.note_chains(begun)

    def note_chains(self, requests: Sequence[Running]) -> None:
        for request in requests:
            written = request.decision.written
            self.before |= {one.id: one.base for one in written if one.writer == request.hold.request_id}

    def chain(self, lease_id: UUID | None) -> set[UUID]:
        """The lease and all before it, ended ones too."""
        return set() if lease_id is None else {lease_id, *self.chain(self.before.get(lease_id))}

    @precondition(lambda self: self.running)
    @rule(picks=st.lists(st.integers(0, 7), min_size=1, max_size=4), door=st.sampled_from([None, 0, 1]))
    def first_token(self, picks: list[int], door: int | None) -> None:
        """Those at one gateway are confirmed, and where that fails decided again, in one transaction."""
        picked = [self.running[at] for at in dict.fromkeys(pick % len(self.running) for pick in picks)]
        chosen = [one for one in picked if not one.told and door in (None, one.door)]

        async def all_at_once() -> None:
            await asyncio.gather(*map(self.gateways.promise, chosen))

        self.do(all_at_once())
        self.note_chains(chosen)
        page = self.do(self.gateways.stores[0].page(self.gateways.project, limit=100, after=None))
        there = {one.id for one in page} | self.purged
        for one in (one for request in chosen for one in request.decision.written):
            assert one.id in there or one.expires_at <= self.gateways.now, "it was told that it is written"

    @precondition(lambda self: self.running)
    @rule(pick=st.integers(0, 7))
    def leave(self, pick: int) -> None:
        """Its client leaves before its first token. It is billed later."""
        request = self.running[pick % len(self.running)]
        self.do(self.gateways.promise(request, request.tokens * 2 // 3))
        self.note_chains([request])

    @precondition(lambda self: self.running)
    @rule(pick=st.integers(0, 7), how=st.sampled_from(["ok", "failed", "ok", "killed", "left", "refused"]))
    def end(self, pick: int, how: str) -> None:
        request = self.running.pop(pick % len(self.running))
        billed, failed_late = self.do(self.gateways.finish(request, how))
        self.note_chains([request])
        decision = request.decision
        if failed_late:
            self.lost |= {one.id for one in decision.written if one.writer == request.hold.request_id}
            left = self.do(self.gateways.stores[0].page(self.gateways.project, limit=100, after=None))
            assert not self.lost & set().union(*(self.chain(one.id) for one in left)), "nothing goes on from it"
        if not billed:
            return
        assert decision.parts == unpack(request.hold.terms).leases
        if decision.hit is not None and billed >= decision.hit.tokens:
            self.read.setdefault(decision.hit.id, []).append(request.hold.request_id)
        for one in decision.written:
            if one.tokens <= billed:
                payers = self.paid if request.asked.read else self.paid_again
                payers.setdefault(one.id, []).append(request.hold.request_id)

    @rule(seconds=st.sampled_from([1, 100, 200, 299, 301]))
    def wait(self, seconds: int) -> None:
        self.gateways.pass_time(seconds)

    @rule()
    def reclaim(self) -> None:
        self.do(self.gateways.stores[0].reclaim(now=self.gateways.now))

    def payers(self, lease_id: UUID) -> list[UUID]:
        return [*self.paid.get(lease_id, []), *self.paid_again.get(lease_id, [])]

    @invariant()
    def nobody_pays_twice(self) -> None:
        assert all(len(writers) == 1 for writers in self.paid.values()), self.paid

    @rule(pick=st.integers(0, 7))
    def extend(self, pick: int) -> None:
        """The client begins the life of a lease anew."""
        if page := self.do(self.gateways.stores[0].page(self.gateways.project, limit=100, after=None)):
            self.do(self.gateways.stores[1].extend(self.gateways.project, page[pick % len(page)].id))

    @rule(pick=st.integers(0, 7))
    def purge(self, pick: int) -> None:
        if page := self.do(self.gateways.stores[0].page(self.gateways.project, limit=100, after=None)):
            identity = page[pick % len(page)].id
            self.do(self.gateways.stores[1].purge(self.gateways.project, identity=identity))
            self.purged.add(identity)

    @invariant()
    def all_that_is_promised_is_counted(self) -> None:
        """Of each lease the tokens beyond the one that it goes on from, and that one is there."""

        async def rows() -> list[Any]:
            query = select(lease.c.id, lease.c.tokens, lease.c.new_tokens, lease.c.base)
            async with self.gateways.database.reading() as session:
                return [*await session.execute(query.where(lease.c.project_id == self.gateways.project))]

        found = self.do(rows())
        tokens = {row.id: row.tokens for row in found}
        for row in found:
            assert row.new_tokens == row.tokens - (tokens[row.base] if row.base is not None else 0)

    def teardown(self) -> None:
        while self.running:
            self.end(0, "ok")
        self.nobody_pays_twice()
        for read in self.read.keys() - self.lost:
            assert self.payers(read), f"{read} was read and never paid for"
        page = self.do(self.gateways.stores[0].page(self.gateways.project, limit=100, after=None))
        for one in page:
            assert one.billed, "all writers have ended"
            assert one.writer in self.payers(one.id)
            assert not self.lost & self.chain(one.id)
            assert all(map(self.payers, self.chain(one.id)))


@pytest.mark.slow
@pytest.mark.both_databases
def test_each_lease_that_is_read_is_paid_once(empty_again: Any) -> None:
    with asyncio.Runner() as runner:
        gateways: Any = runner.run(Gateways.open(empty_again()))
        runner.run(gateways.start())
        machine = type("Histories", (Histories,), {"gateways": gateways, "runner": runner})
        run_state_machine_as_test(
            machine,
            settings=settings(max_examples=examples(HISTORIES), stateful_step_count=25, database=None, deadline=None),
        )
        findings = runner.run(audit_money(gateways.database))
        gateways.pass_time(100 * 86_400)  # every event that will ever come is there
        findings += runner.run(audit_leases(gateways.database))
        runner.run(gateways.stop())
    assert findings == []


COLD = Asked("aa", marks=((2, "5m"),))
READ, WRITE = (("read_5m", 2 * PIECE),), (("write_5m", 2 * PIECE),)


@pytest.fixture
async def gateways(database_url: str) -> Any:
    made: Any = await Gateways.open(database_url)
    await made.start()
    yield made
    await made.stop()


@pytest.mark.parametrize("how", ["failed", "refused", "killed", "left"])
async def test_a_reader_pays_for_the_writer_that_failed(gateways: Gateways, how: str) -> None:
    writer, first, second = [await gateways.begin(COLD, door) for door in (0, 1, 0)]
    assert [gateways.bill(one.hold) for one in (writer, first, second)] == [WRITE, READ, READ]
    await gateways.finish(writer, how)
    await gateways.promise(first)
    await gateways.promise(second)
    assert [gateways.bill(one.hold) for one in (first, second)] == [WRITE, READ]
    for one in (first, second):
        found = await gateways.holds[0].get(one.hold.request_id)
        assert found is not None
        assert found.terms == one.hold.terms
        await gateways.finish(one, "ok")
    (kept,) = await gateways.stores[0].page(gateways.project, limit=10, after=None)
    assert (kept.writer, kept.billed, kept.reads) == (first.hold.request_id, True, 1)


class SilentStore(LeaseStore):
    """Leases in a database that does not answer from the reading, or from the writing, of what is decided again."""

    def __init__(self, database: Database, silent_at: str) -> None:
        super().__init__(database)
        self._silent_at = silent_at
        self.asked, self.answers = asyncio.Event(), asyncio.Event()

    async def _answer(self, step: str) -> None:
        if step == self._silent_at:
            self.asked.set()
            await self.answers.wait()

    async def decider(self, session: AsyncSession, now: int, wishes: Sequence[LeaseWish]) -> LeaseDecider:
        await self._answer("reading")
        return await super().decider(session, now, wishes)

    async def save(self, session: AsyncSession, decider: LeaseDecider) -> None:
        await self._answer("writing")
        await super().save(session, decider)


@pytest.mark.parametrize("silent_at", ["reading", "writing"])
async def test_a_first_token_does_not_wait_for_a_database_that_is_silent_half_way(
    gateways: Gateways, silent_at: str
) -> None:
    """What was decided at admission is told, and stays in the hold, whatever the database does later."""
    writer, reader = [await gateways.begin(COLD, door) for door in (0, 1)]
    await gateways.finish(writer, "failed")
    store = SilentStore(gateways.database, silent_at)
    door = HookedHolds(gateways.holds[1], LeaseHook(store))
    gateways.confirmations[1] = LeaseConfirmations(gateways.stores[1], door, timeout=0.5)
    try:
        async with asyncio.timeout(30):
            await gateways.promise(reader)
    finally:
        store.answers.set()
    assert gateways.bill(reader.hold) == READ
    await door.close()  # it has decided what it was asked to
    found = await gateways.holds[0].get(reader.hold.request_id)
    assert found is not None
    assert found.terms == reader.hold.terms
    assert await gateways.stores[0].page(gateways.project, limit=10, after=None) == [], "nobody pays for one"
    await gateways.finish(reader, "killed")


async def test_who_was_told_too_early_leaves_the_others_their_decisions(gateways: Gateways) -> None:
    """They are decided again in one transaction; in the middle of it the first one's gateway waits no longer."""
    writer, early, other = [await gateways.begin(COLD, door) for door in (0, 1, 1)]
    await gateways.finish(writer, "failed")
    store = SilentStore(gateways.database, "writing")
    asked = [(one.hold, one.prepared.lease_request) for one in (early, other)]
    deciding = asyncio.create_task(gateways.holds[1].decide_again(asked, LeaseHook(store)))
    await store.asked.wait()
    early.prepared.lease_request.told = True
    store.answers.set()
    refusal, other.hold = await deciding
    assert isinstance(refusal, DecisionTold)
    assert gateways.bill(other.hold) == WRITE
    (kept,) = await gateways.stores[0].page(gateways.project, limit=10, after=None)
    assert kept.writer == other.hold.request_id


async def test_who_is_billed_for_a_read_does_not_pay_for_a_lease_that_has_its_name(gateways: Gateways) -> None:
    """It was told that it reads, while the answer of the database that it writes was lost."""
    writer, reader = [await gateways.begin(COLD, door) for door in (0, 1)]
    await gateways.finish(writer, "failed")
    await gateways.doors[1].decide_again(reader.hold, reader.prepared.lease_request)
    reader.told = True
    assert gateways.bill(reader.hold) == READ
    await gateways.finish(reader, "ok")
    await gateways.ask_worker()
    assert await gateways.stores[0].page(gateways.project, limit=10, after=None) == []
    again = await gateways.begin(COLD)
    assert gateways.bill(again.hold) == WRITE


async def test_who_reads_after_all_does_not_pay_for_what_was_purged(gateways: Gateways) -> None:
    slow = await gateways.begin(Asked("aa", marks=((1, "5m"), (2, "5m"))))
    page = await gateways.stores[0].page(gateways.project, limit=10, after=None)
    (purged,) = [one for one in page if one.tokens == PIECE]
    await gateways.stores[1].purge(gateways.project, identity=purged.id)
    fast = await gateways.begin(Asked("aa", marks=((2, "5m"),), read=False), 1)
    for one in (fast, slow):
        await gateways.promise(one)
        await gateways.finish(one, "ok")
    assert gateways.bill(slow.hold) == READ
    await gateways.ask_worker()
    (fate,) = (await fates(gateways.database, gateways.project, [purged.prefix_key])).values()
    assert fate.cause == "failed", "nobody has paid for it"


async def test_who_left_before_its_prompt_was_computed_takes_nothing_over(gateways: Gateways) -> None:
    """It is billed for what was computed, so it does not pay for a lease beyond that, and nobody is told to read it."""
    writer = await gateways.begin(Asked("aa", marks=((1, "5m"), (2, "5m"))))
    leaving, reader = [await gateways.begin(Asked("aa", marks=((1, "5m"), (2, "5m"))), door) for door in (1, 0)]
    await gateways.finish(writer, "failed")
    await gateways.promise(leaving, PIECE)
    await gateways.promise(reader)
    assert gateways.bill(reader.hold) == (("read_5m", PIECE), ("write_5m", PIECE))
    assert await gateways.finish(leaving, "left") == (PIECE, False)
    await gateways.finish(reader, "ok")
    page = await gateways.stores[0].page(gateways.project, limit=10, after=None)
    assert {(one.tokens, one.writer, one.billed) for one in page} == {
        (PIECE, leaving.hold.request_id, True),
        (2 * PIECE, reader.hold.request_id, True),
    }


async def test_who_has_the_first_token_writes(gateways: Gateways) -> None:
    """The other one, which was to write, reads."""
    writer, reader = [await gateways.begin(COLD, door) for door in (0, 1)]
    await gateways.promise(reader)
    await gateways.promise(writer)
    assert [gateways.bill(one.hold) for one in (writer, reader)] == [READ, WRITE]
    await gateways.finish(writer, "ok")
    await gateways.finish(reader, "ok")


async def test_what_was_told_stands_and_ends_with_its_writer(gateways: Gateways) -> None:
    """A reader that was told so reads; what it wrote beyond rests on nothing that was paid for, so it ends."""
    writer = await gateways.begin(COLD)
    longer = await gateways.begin(Asked("aab", marks=((2, "5m"), (3, "5m"))), 1)
    await gateways.promise(writer)
    await gateways.promise(longer)
    assert gateways.bill(longer.hold) == (*READ, ("write_5m", PIECE))
    await gateways.finish(longer, "ok")
    (page,) = [one for one in await gateways.stores[0].page(gateways.project, limit=10, after=None) if one.tokens > 100]
    assert (page.paid, page.billed) == (True, False)
    await gateways.finish(writer, "failed")
    assert await gateways.stores[0].page(gateways.project, limit=10, after=None) == []
    again = await gateways.begin(Asked("aab", marks=((2, "5m"), (3, "5m"))))
    assert gateways.bill(again.hold) == (("write_5m", 3 * PIECE),)


async def test_a_lease_beyond_one_that_fails_is_written_from_the_beginning(gateways: Gateways) -> None:
    writer = await gateways.begin(COLD)
    longer = await gateways.begin(Asked("aab", marks=((3, "5m"),), lookups=(2,)), 1)
    assert gateways.bill(longer.hold) == (*READ, ("write_5m", PIECE))
    await gateways.finish(writer, "failed")
    await gateways.promise(longer)
    assert gateways.bill(longer.hold) == (("write_5m", 3 * PIECE),)
    await gateways.finish(longer, "ok")
    (kept,) = await gateways.stores[0].page(gateways.project, limit=10, after=None)
    assert (kept.tokens, kept.new_tokens, kept.billed) == (3 * PIECE, 3 * PIECE, True)


async def test_who_takes_over_what_its_writer_gave_up_at_the_same_time_keeps_it(gateways: Gateways) -> None:
    """Both decide again in one transaction: the first reads what is longer, the second writes what that one left."""
    await gateways.begin(Asked("a", marks=((1, "5m"),)))  # it never has a token
    leaving = await gateways.begin(Asked("aaa", marks=((2, "5m"),), lookups=(1, 3)), 1)
    staying = await gateways.begin(COLD, 1)
    longer = await gateways.begin(Asked("aaa", marks=((3, "5m"),), read=False))
    assert gateways.bill(staying.hold) == READ
    await gateways.promise(longer)
    await asyncio.gather(gateways.promise(leaving), gateways.promise(staying))
    assert gateways.bill(leaving.hold) == (("read_5m", 3 * PIECE),)
    assert gateways.bill(staying.hold) == WRITE
    for one in (leaving, staying, longer):
        await gateways.finish(one, "ok")
    (kept,) = [lease for lease in await gateways.stores[0].page(gateways.project, limit=10, after=None) if lease.paid
               and lease.tokens == 2 * PIECE]  # fmt: skip
    assert kept.writer == staying.hold.request_id
    assert gateways.bill((await gateways.begin(COLD)).hold) == READ


async def test_who_writes_all_of_what_another_was_to_write_promises_all_of_it(gateways: Gateways) -> None:
    """It goes on from nothing, so all of its tokens count against the limit, whatever becomes of what is before it."""
    await gateways.finish(await gateways.begin(Asked("aaa", marks=((3, "5m"),))), "ok")
    slow = await gateways.begin(Asked("aaaa", marks=((4, "5m"),), lookups=(3,)))
    whole = await gateways.begin(Asked("aaaa", marks=((4, "5m"),), read=False), 1)
    for one in (whole, slow):
        await gateways.promise(one)
        await gateways.finish(one, "ok")
    gateways.pass_time(200)
    await gateways.finish(await gateways.begin(Asked("aaaa", marks=((4, "5m"),))), "ok")
    gateways.pass_time(200)
    await gateways.stores[0].reclaim(now=gateways.now)
    (kept,) = await gateways.stores[0].page(gateways.project, limit=10, after=None)
    assert (kept.writer, kept.base) == (whole.hold.request_id, None)
    assert (kept.tokens, kept.new_tokens) == (4 * PIECE, 4 * PIECE)


@pytest.mark.parametrize(("slow_class", "fast_class"), [("24h", "5m"), ("5m", "24h")])
async def test_who_takes_a_lease_over_gets_the_class_that_it_pays(
    gateways: Gateways, slow_class: str, fast_class: str
) -> None:
    """Else a request that waits would lend its long class to one that writes the same at the price of a short one."""
    slow = await gateways.begin(Asked("aa", marks=((2, slow_class),)))
    fast = await gateways.begin(Asked("aa", marks=((2, fast_class),), read=False), 1)
    for one in (fast, slow):
        await gateways.promise(one)
        await gateways.finish(one, "ok")
    assert gateways.bill(fast.hold) == ((f"write_{fast_class}", 2 * PIECE),)
    assert gateways.bill(slow.hold) == ((f"read_{fast_class}", 2 * PIECE),)
    (kept,) = await gateways.stores[0].page(gateways.project, limit=10, after=None)
    assert (kept.writer, kept.lease_class) == (fast.hold.request_id, fast_class)


@pytest.mark.parametrize("taken", ["5m", "1h"])
async def test_who_writes_what_was_taken_over_meanwhile_gets_what_is_billed(gateways: Gateways, taken: str) -> None:
    """The class that it has now, and the time that it was told."""
    await gateways.begin(Asked("aa", marks=((2, "1h"),)))  # it never has a token
    taker = await gateways.begin(Asked("aa", marks=((2, taken),), read=False), 1)
    gateways.pass_time(10)
    again = await gateways.begin(Asked("aa", marks=((2, "1h"),), read=False))
    admitted = gateways.now
    assert gateways.bill(again.hold) == (("write_1h", 2 * PIECE),)
    for one in (taker, again):
        await gateways.promise(one)
        await gateways.finish(one, "ok")
    assert gateways.bill(again.hold) == ((f"write_{taken}", 2 * PIECE),)
    (kept,) = await gateways.stores[0].page(gateways.project, limit=10, after=None)
    assert kept.expires_at == again.decision.expires_at == admitted + LIVES[taken] * SECOND


async def test_a_lease_lives_from_the_start_of_who_takes_it_over(gateways: Gateways) -> None:
    writer = await gateways.begin(COLD)
    gateways.pass_time(10)
    reader = await gateways.begin(COLD, 1)
    admitted = gateways.now
    gateways.pass_time(20)
    await gateways.finish(writer, "failed")
    await gateways.promise(reader)
    (kept,) = await gateways.stores[0].page(gateways.project, limit=10, after=None)
    assert (kept.created_at, kept.expires_at) == (admitted, admitted + 300 * SECOND)


async def test_who_was_to_write_what_another_wrote_and_was_purged_writes_anew(gateways: Gateways) -> None:
    """It does not pay for the other one's lease, which is gone."""
    slow, fast = [await gateways.begin(COLD, door) for door in (0, 1)]
    (lease,) = await gateways.stores[0].page(gateways.project, limit=10, after=None)
    taker = await gateways.begin(Asked("aa", marks=((2, "5m"),), read=False), 1)
    await gateways.promise(taker)
    await gateways.stores[1].purge(gateways.project, identity=lease.id)
    await gateways.promise(slow)
    for one in (taker, slow):
        await gateways.finish(one, "ok")
    (kept,) = await gateways.stores[0].page(gateways.project, limit=10, after=None)
    assert (kept.writer, kept.billed) == (slow.hold.request_id, True)
    await gateways.promise(fast)
    assert gateways.bill(fast.hold) == READ


async def test_what_is_purged_while_its_writer_runs_stays_ended(gateways: Gateways) -> None:
    writer = await gateways.begin(COLD)
    (lease,) = await gateways.stores[0].page(gateways.project, limit=10, after=None)
    await gateways.stores[1].purge(gateways.project, identity=lease.id)
    await gateways.finish(writer, "ok")
    assert gateways.bill(writer.hold) == WRITE
    assert await gateways.stores[0].page(gateways.project, limit=10, after=None) == []
