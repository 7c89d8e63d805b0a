"""Prices: exact to the pico-unit, never changed once made, and refused with the meter's name when they cannot be."""

from __future__ import annotations

import asyncio
import time
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import func, literal, select

from billing.money import (
    MAX_PICO,
    PICO,
    InvalidMoney,
    InvalidPrice,
    check_currency,
    format_pico,
    parse_amount,
    parse_price,
)
from billing.prices import (
    EVERY_LANE,
    LANES,
    PriceCatalog,
    PriceMissing,
    PriceVersion,
    UnknownPriceVersion,
    in_every_lane,
)
from billing.settlement.settlement import Settled, settle
from billing.tables.prices import (
    price,
    price_book,
    price_change,
    price_interval,
    price_row,
    price_sheet,
    price_version,
)
from billing.usage import LEASE_CLASSES, METERS, InvalidUsage, Usage
from storage.database.base import Count
from storage.database.database import Database
from tests.billing.money import PRICES, Tenant


@pytest.mark.parametrize(
    ("text", "micro"),
    [
        ("0.40", 400_000),
        ("0", 0),
        ("0.000", 0),
        ("0.000001", 1),
        ("999999", 10**12 - 10**6),
        ("1.600000000", 1_600_000),
    ],
)
def test_a_price_is_read_exactly(text: str, micro: int) -> None:
    assert parse_price(text) == micro


@pytest.mark.parametrize(
    "text",
    ["-1", "", " 1", "1 ", "1.", ".5", "1e3", "+1", "1,5", "NaN", "inf", "0.0000001", "1_0",
     "١", "9" * 13, "0.40\n", "$1"],
)  # fmt: skip
def test_a_price_that_cannot_be_is_refused_with_its_meter(text: str) -> None:
    with pytest.raises(InvalidPrice, match="price of output") as refusal:
        parse_price(text, "output")
    assert refusal.value.meter == "output"


def test_amounts_are_read_and_shown_exactly() -> None:
    assert format_pico(1_230_400) == "0.000001230400"
    assert format_pico(-5 * PICO - 1) == "-5.000000000001"
    assert parse_amount("20.00") == 20 * PICO
    assert parse_amount("0.000000000001") == 1
    for text in ("0", "-1", "", "1.0000000000001", "9999999999", "1e5", "x"):
        with pytest.raises(InvalidMoney):
            parse_amount(text)
    for currency in ("usd", "US", "", "USDX", "U$D", "USD\n"):
        with pytest.raises(InvalidMoney):
            check_currency(currency)


@given(st.integers(1, MAX_PICO))
def test_an_amount_shown_reads_back(pico: int) -> None:
    assert parse_amount(format_pico(pico)) == pico


tokens = st.integers(0, 10**7)
usages = st.builds(
    Usage,
    uncached=tokens,
    read=st.dictionaries(st.sampled_from(["automatic", *LEASE_CLASSES]), tokens),
    write=st.dictionaries(st.sampled_from(LEASE_CLASSES), tokens),
    output=tokens,
)
books = st.fixed_dictionaries({meter: st.integers(0, 10**10) for meter in METERS})


@given(usages, books)
def test_a_cost_is_what_fractions_say(usage: Usage, prices: dict[str, int]) -> None:
    version = PriceVersion(1, "m", "USD", in_every_lane(prices))
    exact = sum(
        Fraction(units, 10**6) * Fraction(prices[meter], 10**6) * PICO for meter, units in usage.meters().items()
    )
    assert version.cost(usage, "standard") == exact


tiered = st.sets(st.integers(1, 10**7), max_size=2).flatmap(
    lambda tiers: st.fixed_dictionaries(
        {
            (m, lane, tier): st.integers(0, 10**10)
            for m in METERS
            for lane in (EVERY_LANE, "batch")
            for tier in {0, *tiers}
        }
    )
)


@given(usages, tiered, st.sampled_from(LANES), st.integers(0, 10**7))
def test_no_usage_costs_more_than_its_bound(
    usage: Usage, rows: dict[tuple[str, str, int], int], lane: str, more: int
) -> None:
    """… nor more than the bound of a longer prompt, that a request which ends early was admitted with."""
    version = PriceVersion(1, "m", "USD", rows)
    assert version.cost(usage, lane) <= version.bound(usage.prompt + more, usage.output, LEASE_CLASSES, lane=lane)
    without = Usage(usage.uncached, {k: v for k, v in usage.read.items() if k == "automatic"}, {}, usage.output)
    assert version.cost(without, lane) <= version.bound(without.prompt, without.output, lane=lane)


@given(usages, tiered, st.sampled_from(LANES))
def test_a_request_is_priced_whole_in_its_lane_and_tier(
    usage: Usage, rows: dict[tuple[str, str, int], int], lane: str
) -> None:
    version = PriceVersion(1, "m", "USD", rows)
    tier = max(t for _, _, t in rows if t <= usage.prompt)
    own = "batch" if lane == "batch" else EVERY_LANE
    assert version.context_from(usage.prompt, lane) == tier
    assert version.cost(usage, lane) == sum(n * rows[m, own, tier] for m, n in usage.meters().items())
    assert all(version.price(m, lane, tier) == rows[m, own, tier] for m in METERS)


def test_a_bound_takes_the_dearest_meter_asked_for() -> None:
    version = PriceVersion(1, "m", "USD", in_every_lane({m: parse_price(p) for m, p in PRICES.items()}))
    assert version.bound(100, 10, lane="standard") == 100 * 400_000 + 10 * 1_600_000
    assert version.bound(100, 10, ["5m", "1h"], lane="standard") == 100 * 800_000 + 10 * 1_600_000
    with pytest.raises(PriceMissing, match="write_24h"):
        version.bound(100, 10, ["24h"], lane="standard")
    with pytest.raises(InvalidUsage):
        version.bound(100, 10, ["2h"], lane="standard")
    with pytest.raises(InvalidUsage):
        version.bound(-1, 10, lane="standard")
    with pytest.raises(PriceMissing, match="model m has no price for write_12h"):
        version.cost(Usage(write={"12h": 1}), "standard")
    with pytest.raises(PriceMissing):
        version.price("output", "standard", 1)


def at(database: Database, instant: int) -> None:
    """Let it be this instant for the database."""
    database.clock = literal(instant, Count())


async def test_the_version_in_force_is_found_by_its_instant(database: Database) -> None:
    catalog = PriceCatalog(database)
    with pytest.raises(PriceMissing, match="model m has no price"):
        await catalog.current("m", 10**18)
    at(database, 1000)
    old = await catalog.set("m", "USD", PRICES)
    new = await catalog.set("m", "USD", PRICES | {"output": "3"}, effective_at=2000)
    other = await catalog.set("other", "USD", PRICES)
    fresh = PriceCatalog(database)
    assert await fresh.current("m", 1000) == old
    assert await fresh.current("m", 1999) == old
    assert await fresh.current("m", 2000) == new
    assert await fresh.version(old.id) == old
    assert await fresh.current("other", 1000) == other
    assert await fresh.models() == ["m", "other"]
    with pytest.raises(PriceMissing):
        await fresh.current("m", 999)
    with pytest.raises(UnknownPriceVersion):
        await fresh.version(10**6)


async def test_now_is_told_by_the_databases_clock(database: Database) -> None:
    ahead = time.time_ns() // 1000 + 3_600_000_000
    at(database, ahead)
    catalog = PriceCatalog(database)
    version = await catalog.set("m", "USD", PRICES)
    assert version.effective_at == ahead
    assert await catalog.current("m") == version


async def test_another_process_sees_a_new_price_soon(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    here, there = PriceCatalog(database), PriceCatalog(database)
    first = await here.set("m", "USD", PRICES)
    assert await there.current("m") == first
    second = await here.set("m", "USD", PRICES)
    assert await here.current("m") == second
    assert await there.current("m") == first
    monkeypatch.setattr("billing.prices.catalog._CACHE_NS", 0)
    assert await there.current("m") == second


async def test_versions_are_forgotten_that_were_long_unused_and_say_the_same_again(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is remembered is bounded; a request is rated with what it was admitted with, remembered or not."""
    monkeypatch.setattr("billing.prices.catalog._MOST_CELLS", 3 * len(PRICES))
    tenant = await Tenant.rich(database, 10**12)
    admitted = tenant.event(tenant.request(10**9))
    catalog = PriceCatalog(database)
    versions = [await catalog.set("m", "USD", PRICES | {"output": str(price)}) for price in range(1, 9)]
    asked: list[int] = []
    reading = database.reading

    async def ask(version: PriceVersion) -> bool:
        """Whether the database was asked."""
        before = len(asked)
        assert await catalog.version(version.id) == version
        return len(asked) > before

    def counted() -> Any:
        asked.append(1)
        return reading()

    monkeypatch.setattr(database, "reading", counted)
    assert await ask(versions[5]) is False
    assert [await ask(version) for version in versions[:5]] == [True] * 5
    assert [await ask(version) for version in versions[2:5]] == [False] * 3
    assert await ask(versions[2]) is False
    assert await ask(versions[0]) is True
    assert [await ask(versions[number]) for number in (2, 4, 3)] == [False, False, True]
    assert await settle(database, catalog, [admitted]) == Settled(written=1)
    assert await catalog.current("m") == versions[-1]


async def test_a_version_that_is_more_than_may_be_remembered_is_answered(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("billing.prices.catalog._MOST_CELLS", 1)
    catalog = PriceCatalog(database)
    first = await catalog.set("m", "USD", PRICES)
    second = await catalog.set("n", "USD", PRICES)
    for version in (first, second):
        assert await asyncio.gather(*(catalog.version(version.id) for _ in range(3))) == [version] * 3


async def test_requests_do_not_wait_for_the_database(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is half stale is renewed beside the requests; only what is stale makes one wait, and the others with it."""
    catalog = PriceCatalog(database)
    version = await catalog.set("m", "USD", PRICES)
    reads = 0
    reading = database.reading

    def counted() -> Any:
        nonlocal reads
        reads += 1
        return reading()

    monkeypatch.setattr(database, "reading", counted)
    for _ in range(100):
        assert await catalog.current("m") == version
    assert reads == 0
    monkeypatch.setattr("billing.prices.catalog._CACHE_NS", 0)
    assert await asyncio.gather(*(catalog.current("m") for _ in range(10))) == [version] * 10
    monkeypatch.setattr("billing.prices.catalog._CACHE_NS", 3600 * 10**9)
    before = reads
    catalog._loaded_at -= 2000 * 10**9
    for _ in range(10):
        assert await catalog.current("m") == version
    await catalog.close()
    assert reads == before + 1


@pytest.mark.parametrize(
    ("change", "meter"),
    [({"write_2h": "1"}, "write_2h"), ({"output": "-1"}, "output"), ({"read_5m": "0.0000001"}, "read_5m"),
     ({"uncached": None}, "uncached"), ({"output": None}, "output"), ({"output": "20000"}, "output")],
)  # fmt: skip
async def test_bad_prices_write_nothing(database: Database, change: dict[str, str | None], meter: str) -> None:
    prices = {m: p for m, p in (PRICES | change).items() if p is not None}
    with pytest.raises(InvalidPrice) as refusal:
        await PriceCatalog(database).set("m", "USD", prices)
    assert refusal.value.meter == meter
    with pytest.raises(InvalidMoney):
        await PriceCatalog(database).set("m", "usd", PRICES)
    async with database.reading() as session:
        for table in (price, price_version, price_book, price_sheet, price_row, price_interval, price_change):
            assert (await session.execute(select(func.count()).select_from(table))).scalar_one() == 0
