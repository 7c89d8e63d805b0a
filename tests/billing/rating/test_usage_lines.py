"""A period's usage as lines: the same from rollups and from events, and each units × price, exactly."""

from __future__ import annotations

import msgspec
import pytest

from billing.calendar import InvalidPeriod, period_bounds
from billing.money import PICO
from billing.prices import PriceCatalog, PriceVersion
from billing.rating.lines import InvalidLine, RatedLine
from billing.rating.usage_lines import CostMismatch, UsageGroup, lines_of, usage_lines
from billing.settlement.settlement import settle
from billing.usage import Usage
from storage.database.base import new_id
from storage.database.database import Database
from tests.billing.money import Tenant

USAGES = [
    Usage(uncached=1000, output=10),
    Usage(uncached=7, read={"automatic": 64, "1h": 128}, write={"5m": 5}, output=3),
    Usage(),
    Usage(output=1),
]


async def test_lines_are_the_same_from_both_sources_and_add_up(database: Database) -> None:
    tenant, other = await Tenant.rich(database, PICO), await Tenant.rich(database, PICO, "zwei")
    tenant.project_id = min(tenant.project_id, other.project_id)
    events = [tenant.event(tenant.request(0), usage) for usage in USAGES * 3]
    elsewhere = msgspec.structs.replace(other, id=tenant.id)
    events += [elsewhere.event(elsewhere.request(0), usage) for usage in USAGES]
    events += [
        msgspec.structs.replace(tenant.event(tenant.request(0)), period="2026-10"),
        other.event(other.request(0)),
    ]
    assert (await settle(database, PriceCatalog(database), events)).refused == 0
    catalog = PriceCatalog(database)
    lines = await usage_lines(database, catalog, tenant.id, "2026-11")
    assert lines == await usage_lines(database, catalog, tenant.id, "2026-11", source="events")
    mine = [event for event in events if event.tenant_id == tenant.id and event.period == "2026-11"]
    assert sum(line.exact_pico for line in lines) == sum(event.cost_pico for event in mine)
    first = lines[0]
    assert (first.model, first.meter, first.units, first.price_micro) == ("stdlib-qa", "uncached", 3021, 400_000)
    assert first.description == "stdlib-qa: input tokens"
    assert first.exact_pico == 3021 * 400_000
    assert [line.project_id for line in lines] == sorted(line.project_id for line in lines if line.project_id)
    assert {line.meter for line in lines} == {"uncached", "read_automatic", "read_1h", "write_5m", "output"}
    assert {(line.service_start, line.service_end) for line in lines} == {period_bounds("2026-11")}
    with pytest.raises(InvalidPeriod):
        await usage_lines(database, catalog, tenant.id, "2026-13")


def test_sums_that_are_not_their_units_at_their_prices_make_no_lines() -> None:
    rows = {(meter, "*", tier): tier or 1 for meter in ("uncached", "read_automatic", "output") for tier in (0, 1000)}
    version = PriceVersion(1, "m", "USD", rows)
    used = UsageGroup(new_id(), "m", "batch", 1000, 1, 2, {"uncached": 5000, "output": 1}, 5_001_000)
    dear, out = lines_of([used], {1: version}, 0, 1)
    assert dear.description == "m: input tokens, batch lane, prompts of 1,000 tokens and more"
    assert (dear.exact_pico, out.exact_pico) == (5_000_000, 1000)
    with pytest.raises(CostMismatch, match="5001001"):
        lines_of([msgspec.structs.replace(used, cost_pico=5_001_001)], {1: version}, 0, 1)


def test_a_line_is_units_at_a_price() -> None:
    with pytest.raises(InvalidLine):
        RatedLine(kind="usage", description="x", units=2, price_micro=3, exact_pico=7, service_start=0, service_end=1)
    with pytest.raises(InvalidLine):
        RatedLine(kind="credit", description="x", units=2, exact_pico=7, service_start=0, service_end=1)


def test_a_period_is_a_month_in_utc() -> None:
    assert period_bounds("2026-12") == (1_796_083_200_000_000, 1_798_761_600_000_000)
    assert period_bounds("2024-02")[1] - period_bounds("2024-02")[0] == 29 * 86_400_000_000
    for wrong in ("2026-00", "0000-01", "9999-12", "x"):
        with pytest.raises(InvalidPeriod):
            period_bounds(wrong)
