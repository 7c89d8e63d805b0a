"""A month rated again is what each of its events would have cost, at other prices and by other rules."""

from __future__ import annotations

import random

import msgspec
import pytest

from billing.accounts.adjustments import adjust
from billing.money import parse_price
from billing.prices import PriceCatalog, PriceVersion
from billing.prices.approval import PriceSheets
from billing.prices.price_books import PriceBooks
from billing.prices.sheets import PriceProposal, PriceSheet
from billing.prices.version import Rows
from billing.reports.what_if import InvalidScenario, Scenario, TenantImpact, parse_move, what_if
from billing.usage import METERS, Usage
from storage.database.database import Database
from tests.billing.invoices.customers import Customer
from tests.billing.money import PRICES

MODEL = "stdlib-qa"
CLASSES = ("automatic", "5m", "1h")


def random_usage(rng: random.Random) -> Usage:
    """A request's usage, with reads of some classes and a write."""
    return Usage(
        uncached=rng.randrange(900),
        read={name: rng.choice([0, rng.randrange(300)]) for name in CLASSES},
        write={"1h": rng.choice([0, rng.randrange(300)])},
        output=rng.randrange(1, 99),
    )


def rows_of(tier: int, **changed: str) -> Rows:
    """Prices with a second context tier, in which all is twice as much."""
    prices = {meter: parse_price(text) for meter, text in {**PRICES, **changed}.items()}
    return {(meter, "*", at): micro * (2 if at else 1) for meter, micro in prices.items() for at in (0, tier)}


async def drafted(database: Database, rows: Rows, book: str = "base") -> PriceSheet:
    return await PriceSheets(database).draft(
        PriceProposal(model=MODEL, rows=rows, book=book), "ann", "cheaper", "on purpose"
    )


def rated_again(usage: Usage, version: PriceVersion, scenario: Scenario) -> int:
    """What the event would have cost, computed as a request is."""
    meters = usage.meters()
    for meter in METERS:
        if meter.startswith("read_") and 0 < meters[meter] < scenario.least_read:
            meters["uncached"] += meters[meter]
            meters[meter] = 0
    moved = dict.fromkeys(METERS, 0)
    for meter, units in meters.items():
        moved[scenario.moves.get(meter, meter)] += units
    return version.cost(Usage.from_meters(moved), "standard")


@pytest.mark.both_databases
async def test_it_is_each_event_rated_again(database: Database) -> None:
    customer, rng = await Customer.make(database), random.Random(7)
    usages = [random_usage(rng) for _ in range(40)]
    await customer.use("2026-10-05", *usages)
    await customer.close("2026-10")
    rows = rows_of(700, output="1.90")
    sheet = await drafted(database, rows)
    for least_read in (0, 1, 50, 150, 10**6):
        for moves in ({}, {"write_1h": "write_5m", "read_1h": "read_5m"}, {"read_automatic": "uncached"}):
            for scenario, version in (
                (Scenario(None, {}, moves, least_read), customer.tenant.version),
                (Scenario(sheet, rows, moves, least_read), PriceVersion(0, MODEL, "USD", rows)),
            ):
                (impact,) = await impacts(database, scenario)
                assert impact.cost_pico == sum(customer.tenant.version.cost(usage, "standard") for usage in usages)
                assert impact.would_cost_pico == sum(rated_again(usage, version, scenario) for usage in usages)
                assert impact.events == len(usages)


async def impacts(database: Database, scenario: Scenario) -> list[TenantImpact]:
    return await what_if(database, PriceCatalog(database), "2026-10", scenario)


async def test_an_adjustment_is_in_the_tier_of_its_request(database: Database) -> None:
    customer = await Customer.make(database)
    (event,) = await customer.use("2026-10-05", Usage(uncached=1000, output=50))
    await adjust(database, PriceCatalog(database), customer.id, event.id, {"output": -20}, reason="why")
    await customer.close("2026-10")
    rows = rows_of(700)
    (impact,) = await impacts(database, Scenario(await drafted(database, rows), rows))
    assert impact.would_cost_pico == 2 * impact.cost_pico


@pytest.mark.both_databases
async def test_who_is_concerned(database: Database) -> None:
    """A tenant with prices of its own keeps them when the base book changes; a sheet of its book concerns it alone."""
    customer, other = await Customer.make(database), await Customer.make(database)
    await PriceBooks(database).create_for(other.id, "agreed", "base")
    for each in (customer, other):
        await each.use("2026-10-05", Usage(uncached=1000, output=50))
    await customer.close("2026-10")
    rows = rows_of(10**6, output="3.20")
    for book, concerned in (("base", customer), ("agreed", other)):
        found = await impacts(database, Scenario(await drafted(database, rows, book), rows))
        changed = [one.tenant_id for one in found if one.would_cost_pico != one.cost_pico]
        assert changed == [concerned.id]
        assert found[0].tenant_id == concerned.id, "the largest difference comes first"


async def test_what_has_no_answer(database: Database) -> None:
    customer = await Customer.make(database)
    await customer.use("2026-10-05", Usage(uncached=1000, read={"1h": 5}, output=50))
    with pytest.raises(InvalidScenario, match="is not closed"):
        await impacts(database, Scenario())
    await customer.close("2026-10")
    (impact,) = await impacts(database, Scenario(moves={"read_1h": "read_24h"}))
    assert (impact.would_cost_pico, impact.problem) == (None, "there is no price of read_24h in the lane standard")
    assert parse_move("read_1h=uncached") == ("read_1h", "uncached")
    for text in ("output=uncached", "read_1h", "read_2h=read_1h", "=", "read_1h=output"):
        with pytest.raises(InvalidScenario):
            parse_move(text)
    assert msgspec.json.encode(impact)
