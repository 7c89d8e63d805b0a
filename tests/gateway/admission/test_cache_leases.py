"""The contract of leases: every bill as promised, whoever asks where and whatever dies, in random histories on both
databases and two gateways. Only the database's clock counts: the gateways' are wrong."""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from collections.abc import Callable
from typing import Any
from uuid import UUID

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from sqlalchemy import literal

from billing.accounts.balances import Balances
from billing.holds.records import Hold, HoldRequest
from billing.prices import PriceCatalog, PriceVersion
from billing.reservation.billed_writes import billed_writes
from billing.reservation.decisions import InsufficientFunds
from billing.reservation.hold_service import HoldService
from billing.reservation.hooked_holds import HookedHolds
from billing.settlement.settlement import settle
from billing.usage import LEASE_CLASSES, Release, UsageEvent
from billing.verification.audit import audit_money
from gateway.admission.cache_leases import (
    LeaseHook,
    LeasePayer,
    LeaseRequest,
    classes_of,
    lease_request,
    priced_classes,
    readable_classes,
)
from gateway.errors import NotCached
from gateway.metering.billable_usage import FinishedRequest, MeteringTerms, event_of, pack, unpack
from prompt_cache.promise.directives import Breakpoint, CachePlan
from prompt_cache.promise.lease_decisions import written_tokens
from prompt_cache.promise.lease_store import LeaseStore
from prompt_cache.promise.prefix_keys import PromptKeys
from protocol.requests import Counts
from storage.database.base import Count, new_id
from storage.database.database import Database
from tests.fast import examples
from tests.gateway.admission.lease_model import SECOND, Asked, LeaseModel, bill_of
from turnpike.commands.audit.leases import audit_leases

PIECE = 50
PRICES = {
    "uncached": "0.40",
    "read_automatic": "0.04",
    "output": "1.60",
    **{f"read_{name}": "0.04" for name in LEASE_CLASSES},
    **{f"write_{name}": price for name, price in zip(LEASE_CLASSES, ("0.50", "0.60", "0.80", "1", "2"), strict=True)},
}
START = 1_795_000_000_000_000
HISTORIES = int(os.environ.get("TURNPIKE_LEASE_HISTORIES", "25"))


def written_of(hold: Hold, event: UsageEvent) -> range:
    """Which tokens of the prompt this event bills as writes."""
    return written_tokens(unpack(hold.terms).leases, event.usage.prompt)


class Doors:
    """Two gateways on one database, whose clock is ours, and a project that is new in each history."""

    def __init__(self, database: Database, price: PriceVersion, most: int = 0) -> None:
        self.database = database
        self.price = price
        self.prices = PriceCatalog(database)
        self.holds = [HoldService(database) for _ in range(2)]
        self.stores = [LeaseStore(database, most, counted_again_s=-1) for _ in range(2)]
        self.doors = [
            HookedHolds(holds, LeaseHook(store)) for holds, store in zip(self.holds, self.stores, strict=True)
        ]
        self.now = START
        self.tenant = self.project = UUID(int=0)
        self.sequence = 0

    @classmethod
    async def open(cls, url: str, most: int = 0) -> Doors:
        database = await Database.open(url)
        made = cls(database, await PriceCatalog(database).set("tiny", "USD", PRICES), most)
        made.pass_time(0)
        return made

    async def close(self) -> None:
        for door, holds in zip(self.doors, self.holds, strict=True):
            await door.close()
            await holds.close()
        await self.prices.close()
        await self.database.close()

    async def new_project(self) -> None:
        self.tenant, self.project = new_id(), new_id()
        await Balances(self.database).grant(self.tenant, 10**15, "USD")

    def pass_time(self, seconds: float) -> None:
        self.now += int(seconds * SECOND)
        self.database.clock = literal(self.now, Count())

    def keys(self, path: str, project: UUID | None = None) -> PromptKeys:
        tokens = [2 * at + ord(letter) for at, letter in enumerate(path) for _ in range(PIECE)]
        root = (project or self.project).bytes * 2
        return PromptKeys("tiny", "digest", [(len(tokens), root)], tokens)

    def wish(self, asked: Asked, request: UUID, tags: tuple[str, ...] = ()) -> tuple[HoldRequest, LeaseRequest]:
        plan = CachePlan(
            rules="anthropic/*/1",
            automatic=False,
            read="marked" if asked.read else "none",
            store="all",
            read_min=1,
            breakpoints=tuple(Breakpoint(pieces * PIECE, name) for pieces, name in sorted(asked.marks)),
            lookups=tuple(pieces * PIECE for pieces in asked.lookups),
            only_if_cached=asked.only_if_cached,
            max_age=asked.max_age,
        )
        tokens = len(asked.path) * PIECE
        terms = MeteringTerms("anthropic", 1, tokens)
        payer = LeasePayer(request, self.tenant, self.project, "standard")
        made = lease_request(payer, plan, self.keys(asked.path), terms, self.price, tags=tags)
        classes = classes_of(plan, self.price, "standard")
        bound = self.price.bound(tokens, 1, classes, reads=priced_classes(self.price, "standard"), lane="standard")
        return HoldRequest(
            request, self.tenant, self.project, self.tenant, "tiny", "standard", self.price.id, bound, 600, "g",
            pack(terms),
        ), made  # fmt: skip

    async def ask(self, asked: Asked, door: int = 0, tags: tuple[str, ...] = ()) -> tuple[Hold, LeaseRequest]:
        request, wish = self.wish(asked, new_id(), tags)
        return await self.doors[door].reserve(request, wish), wish

    def bill(self, hold: Hold) -> Any:
        """What the hold's terms promise, for a prompt that is billed whole."""
        return self.bill_of(hold, unpack(hold.terms).prompt_tokens)[0]

    def bill_of(self, hold: Hold, prompt: int, lost_kv: int = 0, fault: Any = "none") -> Any:
        terms = unpack(hold.terms)
        found = max(0, prompt - lost_kv)
        counts = Counts(prompt=prompt, computed=prompt - found, read_hbm=found)
        self.sequence += 1
        record = FinishedRequest(
            status="ok" if fault == "none" else "failed", reason="stop", fault=fault, delivered=0, delivery="confirmed",
            source="gateway", replica="r", model_digest="d", sequence=self.sequence, attempt=1,
        )  # fmt: skip
        event = event_of(hold, terms, self.price, counts, record)
        meters = [name for name, tokens in event.usage.used() for _ in range(tokens)]
        return bill_of(meters), event


# ---------------------------------------------------------------- random histories


PIECES = st.integers(1, 4)
asks = st.builds(
    lambda path, marks, lookups, read, max_age, only: Asked(
        path,
        tuple(sorted((min(at, len(path)), name) for at, name in marks.items())),
        tuple(sorted({min(at, len(path)) for at in lookups})),
        read,
        max_age,
        only,
    ),
    st.text("ab", min_size=1, max_size=4),
    st.dictionaries(PIECES, st.sampled_from(["5m", "1h"]), max_size=3),
    st.lists(PIECES, max_size=2),
    st.sampled_from([True, True, True, False]),
    st.sampled_from([None, None, None, 0, 200]),
    st.sampled_from([False, False, False, True]),
).filter(lambda asked: len(dict(asked.marks)) == len(asked.marks))
steps = st.one_of(
    st.tuples(st.just("ask"), asks, st.integers(1, 3)),
    st.tuples(
        st.just("end"), st.integers(0, 3), st.sampled_from(["ok", "lost_kv", "ours_before", "part", "never", "crash"])
    ),
    st.tuples(st.just("wait"), st.sampled_from([0, 1, 100, 200, 299, 300, 301, 3599, 3600]), st.just(0)),
    st.tuples(st.just("purge"), st.integers(0, 3), st.just(0)),
    st.tuples(st.just("extend"), st.integers(0, 3), st.just(0)),
    st.tuples(st.just("reclaim"), st.just(0), st.just(0)),
)
histories = st.lists(steps, min_size=4, max_size=25)


TWO_BASES_END_AT_ONCE = [
    ("ask", Asked("abaa", marks=((1, "5m"), (2, "5m"), (4, "1h"))), 1),
    ("wait", 301, 0),
    ("reclaim", 0, 0),
    ("end", 0, "ok"),
]


class History:
    """One project's random history, beside the model."""

    def __init__(self, doors: Doors, most: int) -> None:
        self.doors = doors
        self.model = LeaseModel(PIECE, most)
        self.running: list[tuple[Hold, Asked, list[str]]] = []

    async def run(self, history: list[Any]) -> None:
        self.doors.now = START
        self.doors.pass_time(0)
        await self.doors.new_project()
        for name, what, how in history:
            await getattr(self, f"_{name}")(what, how)
        while self.running:
            await self._end(0, "ok")
        await self._same_leases()

    async def _ask(self, asked: Asked, count: int) -> None:
        """So many identical requests at once, at both gateways."""
        count = count if asked.read else 1  # of several writers of one lease the bills do not say who was first
        at_once = [self.doors.ask(asked, number % 2) for number in range(count)]
        answers = await asyncio.gather(*at_once, return_exceptions=True)
        got: list[tuple[Hold, Any]] = []
        for answer in answers:
            if isinstance(answer, NotCached):
                assert answer.tokens == len(asked.path) * PIECE
            else:
                assert not isinstance(answer, BaseException), answer
                got.append((answer[0], self.doors.bill(answer[0])))
        # those that write are decided first
        got.sort(key=lambda item: -sum(tokens for meter, tokens in item[1] if meter.startswith("write")))
        if not got:
            assert self.model.ask(asked, new_id(), self.doors.now) is None
        for hold, bill in got:
            meters = self.model.ask(asked, hold.request_id, self.doors.now)
            assert meters is not None
            assert bill == bill_of(meters), asked
            self.running.append((hold, asked, meters))

    async def _end(self, index: int, how: str) -> None:
        if not self.running:
            return
        hold, asked, meters = self.running.pop(index % len(self.running))
        prompt = len(asked.path) * PIECE
        if how == "never":
            await settle(self.doors.database, self.doors.prices, [Release(hold.request_id, "no", hold.batch)])
            await self.doors.stores[0].settle_writes({hold.request_id: range(0)})
            self.model.ended(hold.request_id, 0)
            return
        if how == "crash":  # the gateway is gone: another bills from what the database has
            recovered = await self.doors.holds[1].get(hold.request_id)
            assert recovered is not None
            assert recovered.terms == hold.terms
            hold = recovered
        part = {"part": prompt * 2 // 3, "ours_before": prompt}.get(how, prompt)
        fault = "ours_before" if how == "ours_before" else "client" if how == "part" else "none"
        bill, event = self.doors.bill_of(hold, part, lost_kv=prompt if how == "lost_kv" else 0, fault=fault)
        assert bill == bill_of([] if how == "ours_before" else meters[:part])
        assert event.cost_pico <= hold.amount_pico
        await settle(self.doors.database, self.doors.prices, [event])
        if how == "crash":  # the worker finds out by itself
            writers = await self.doors.stores[1].uncertain_writers(self.doors.now + 1, 100)
            known = await billed_writes(self.doors.database, self.doors.holds[1], writers)
            assert not known.keys() & {hold.request_id for hold, _, _ in self.running}
            await self.doors.stores[1].settle_writes(known)
        else:
            await self.doors.stores[0].settle_writes({hold.request_id: written_of(hold, event)})
        self.model.ended(hold.request_id, event.usage.prompt)

    async def _wait(self, seconds: int, _: int) -> None:
        self.doors.pass_time(seconds)

    async def _purge(self, index: int, _: int) -> None:
        live = await self._live()
        if live:
            path, identity = live[index % len(live)]
            assert (await self.doors.stores[0].purge(self.doors.project, identity=identity)).leases
            self.model.end([path])

    async def _extend(self, index: int, _: int) -> None:
        live = await self._live()
        if live:
            path, identity = live[index % len(live)]
            extended = await self.doors.stores[1].extend(self.doors.project, identity)
            kept = self.model.leases[path]
            kept.expires = max(kept.expires, self.doors.now + {"5m": 300, "1h": 3600}[kept.lease_class] * SECOND)
            assert extended is not None
            assert extended.expires_at == kept.expires

    async def _reclaim(self, _what: int, _how: int) -> None:
        await self.doors.stores[0].reclaim(now=self.doors.now)
        self.model.reclaim(self.doors.now)

    async def _live(self) -> list[tuple[str, UUID]]:
        """The live leases, by their text."""
        paths = [path for path in self.model.leases if self.model.live(path, self.doors.now)]
        keys = {self.doors.keys(path).at(len(path) * PIECE): path for path in paths}
        page = await self.doors.stores[0].page(self.doors.project, limit=100, after=None)
        return sorted((keys[one.prefix_key], one.id) for one in page)

    async def _same_leases(self) -> None:
        """The database has what the model has."""
        page = await self.doors.stores[0].page(self.doors.project, limit=100, after=None)
        found = {
            one.prefix_key: (one.tokens, one.new_tokens, one.lease_class, one.expires_at, one.billed) for one in page
        }
        assert found == {
            self.doors.keys(path).at(len(path) * PIECE): (
                kept.tokens,
                kept.new,
                kept.lease_class,
                kept.expires,
                kept.billed,
            )
            for path, kept in self.model.leases.items()
            if self.doors.now < kept.expires
        }


@pytest.fixture
def wrong_clocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The hosts' clock is ten minutes wrong, each time it is read the other way: no two gateways could differ more."""
    by = itertools.cycle((600, -600))
    right, right_ns = time.time, time.time_ns
    monkeypatch.setattr(time, "time", lambda: right() + next(by))
    monkeypatch.setattr(time, "time_ns", lambda: right_ns() + next(by) * 10**9)


@pytest.mark.both_databases
@pytest.mark.usefixtures("wrong_clocks")
@pytest.mark.parametrize("most", [0, 3 * PIECE])
def test_every_bill_is_as_promised(empty_again: Callable[[], str], most: int) -> None:
    with asyncio.Runner() as runner:
        doors = runner.run(Doors.open(empty_again(), most))

        @settings(max_examples=examples(HISTORIES), database=None)
        @given(histories)
        @example(TWO_BASES_END_AT_ONCE)
        def histories_agree(history: list[Any]) -> None:
            runner.run(History(doors, most).run(history))

        histories_agree()
        findings = runner.run(audit_money(doors.database))
        doors.pass_time(100 * 86_400)  # each history began at the same instant
        findings += runner.run(audit_leases(doors.database))
        runner.run(doors.close())
    assert findings == []


# ---------------------------------------------------------------- single promises


@pytest.mark.parametrize(("seconds", "kind"), [(299.999999, "read"), (300, "write")])
async def test_a_lease_lives_to_the_microsecond(database_url: str, seconds: float, kind: str) -> None:
    doors = await Doors.open(database_url)
    await doors.new_project()
    asked = Asked("aa", marks=((2, "5m"),))
    await doors.ask(asked)
    doors.pass_time(seconds)
    hold, _ = await doors.ask(asked, 1)
    assert doors.bill(hold) == ((f"{kind}_5m", 2 * PIECE),)
    await doors.close()


async def test_mixed_classes_are_billed_in_three_parts(database_url: str) -> None:
    """The highest hit, the last marker of the longer class after it, the last marker."""
    doors = await Doors.open(database_url)
    await doors.new_project()
    await doors.ask(Asked("a", marks=((1, "1h"),)))
    hold, wish = await doors.ask(Asked("aabab", marks=((1, "1h"), (2, "1h"), (3, "5m"), (4, "5m"))))
    assert [(part.until, part.kind, part.lease) for part in unpack(hold.terms).leases] == [
        (PIECE, "read", "1h"),
        (2 * PIECE, "write", "1h"),
        (4 * PIECE, "write", "5m"),
    ]
    assert wish.decision is not None
    assert wish.decision.collapsed
    assert [tokens for tokens, _ in wish.decision.retained] == [PIECE, 2 * PIECE, 3 * PIECE, 4 * PIECE]
    await doors.close()


async def test_who_cannot_pay_begins_no_lease(database_url: str) -> None:
    """Of identical requests at once the first may be refused: then the next one writes."""
    doors = await Doors.open(database_url)
    await doors.new_project()
    asked = Asked("a", marks=((1, "5m"),))
    pairs = [doors.wish(asked, new_id()) for _ in range(3)]
    pairs[0] = (msgspec.structs.replace(pairs[0][0], amount_pico=10**16), pairs[0][1])
    answers = await asyncio.gather(*(doors.doors[0].reserve(*pair) for pair in pairs), return_exceptions=True)
    assert isinstance(answers[0], InsufficientFunds)
    holds = [answer for answer in answers if isinstance(answer, Hold)]
    assert [doors.bill(hold) for hold in holds] == [(("write_5m", PIECE),), (("read_5m", PIECE),)]
    await doors.close()


@pytest.mark.parametrize("read", [{"read": False}, {"max_age": 0}])
async def test_a_live_lease_that_is_written_again_keeps_its_class(database_url: str, read: dict[str, Any]) -> None:
    """Else a write that is never billed would make a long lease of a short one."""
    doors = await Doors.open(database_url)
    await doors.new_project()
    await doors.ask(Asked("aa", marks=((2, "5m"),)))
    doors.pass_time(1)
    hold, _ = await doors.ask(Asked("aa", marks=((2, "24h"),), **read))
    assert doors.bill(hold) == (("write_5m", 2 * PIECE),)
    await doors.stores[0].settle_writes({hold.request_id: range(0)})
    (kept,) = await doors.stores[0].page(doors.project, limit=10, after=None)
    assert (kept.lease_class, kept.expires_at) == ("5m", doors.now + 300 * SECOND)
    await doors.close()


async def test_a_marker_inside_what_is_read_begins_no_lease(database_url: str) -> None:
    """Else a few tokens that are written for long, and a purge, would make a long lease of all that is before them."""
    doors = await Doors.open(database_url)
    await doors.new_project()
    _, short = await doors.ask(Asked("aa", marks=((2, "5m"),)))
    await doors.ask(Asked("aab", marks=((2, "5m"), (3, "24h"))))
    assert short.decision is not None
    await doors.stores[0].purge(doors.project, identity=short.decision.written[0].id)
    await doors.ask(Asked("aab", marks=((2, "24h"), (3, "24h"))))
    page = await doors.stores[0].page(doors.project, limit=10, after=None)
    assert [one.tokens for one in page] == [3 * PIECE]
    await doors.close()


@pytest.mark.both_databases
@pytest.mark.parametrize("how", ["purge", "expire"])
async def test_a_lease_that_outlives_the_one_before_it_counts_its_tokens(database_url: str, how: str) -> None:
    """Else a few tokens beyond a prompt would promise all of it outside the limit."""
    doors = await Doors.open(database_url, 5 * PIECE)
    await doors.new_project()
    first, _ = await doors.ask(Asked("aaa", marks=((3, "5m"),)))
    _, beyond = await doors.ask(Asked("aaaa", marks=((3, "5m"), (4, "5m"))))
    assert doors.bill(first) == (("write_5m", 3 * PIECE),)
    assert beyond.decision is not None
    if how == "purge":
        assert beyond.decision.hit is not None
        await doors.stores[0].purge(doors.project, identity=beyond.decision.hit.id)
    else:
        doors.pass_time(200)
        await doors.ask(Asked("aaaa", marks=((4, "5m"),)))
        doors.pass_time(200)
        await doors.stores[0].reclaim(now=doors.now)
    (kept,) = await doors.stores[0].page(doors.project, limit=10, after=None)
    assert (kept.tokens, kept.new_tokens) == (4 * PIECE, 4 * PIECE)
    other, _ = await doors.ask(Asked("bbb", marks=((3, "5m"),)))
    assert doors.bill(other) == (("uncached", 3 * PIECE),)
    await doors.close()


async def test_a_lease_that_is_written_with_the_one_before_it_counts_its_tokens(database_url: str) -> None:
    """The one before it had expired, and begins anew in the transaction that writes it again."""
    doors = await Doors.open(database_url, 100 * PIECE)
    await doors.new_project()
    both, end = (Asked("aa", marks=marks) for marks in (((1, "5m"), (2, "5m")), ((2, "5m"),)))
    await doors.ask(both)
    doors.pass_time(200)
    await doors.ask(end)
    doors.pass_time(200)
    await doors.ask(msgspec.structs.replace(both, read=False))
    page = await doors.stores[0].page(doors.project, limit=10, after=None)
    assert {one.tokens: (one.new_tokens, one.base) for one in page} == {
        PIECE: (PIECE, None),
        2 * PIECE: (2 * PIECE, None),
    }
    await doors.close()


async def test_only_what_goes_on_from_a_lease_counts_its_tokens(database_url: str) -> None:
    """Not what stopped at the same length in another prompt."""
    doors = await Doors.open(database_url, 100 * PIECE)
    await doors.new_project()
    _, gone = await doors.ask(Asked("aa", marks=((2, "5m"),)))
    for path in ("bb", "bbb", "aaa"):
        await doors.ask(Asked(path, marks=tuple((at, "5m") for at in range(2, len(path) + 1))))
    assert gone.decision is not None
    await doors.stores[0].purge(doors.project, identity=gone.decision.written[0].id)
    page = await doors.stores[0].page(doors.project, limit=10, after=None)
    assert sorted((one.tokens, one.new_tokens) for one in page) == [
        (2 * PIECE, 2 * PIECE),
        (3 * PIECE, PIECE),
        (3 * PIECE, 3 * PIECE),
    ]
    await doors.close()


async def test_a_few_tokens_beyond_a_short_lease_do_not_promise_it_for_long(database_url: str) -> None:
    """They get the class of what they go on from; a request that does not read pays for all in the class it asks."""
    doors = await Doors.open(database_url)
    await doors.new_project()
    await doors.ask(Asked("aaa", marks=((3, "5m"),)))
    hold, _ = await doors.ask(Asked("aaab", marks=((3, "24h"), (4, "24h"))))
    assert doors.bill(hold) == (("read_5m", 3 * PIECE), ("write_5m", PIECE))
    doors.pass_time(301)
    hold, _ = await doors.ask(Asked("aaab", marks=((4, "24h"),)))
    assert doors.bill(hold) == (("write_24h", 4 * PIECE),)
    hold, _ = await doors.ask(Asked("aaabb", marks=((4, "24h"), (5, "1h"))))
    assert doors.bill(hold) == (("read_24h", 4 * PIECE), ("write_1h", PIECE))
    await doors.close()


def test_a_live_lease_is_read_while_its_reads_have_a_price() -> None:
    rows = dict.fromkeys(("uncached", "read_automatic", "read_1h", "read_5m", "write_5m", "output"), 1)
    price = PriceVersion(1, "tiny", "USD", {(meter, "*", 0): each for meter, each in rows.items()})
    assert readable_classes(price, "standard") == {"5m", "1h"}
    assert priced_classes(price, "standard") == {"5m"}
