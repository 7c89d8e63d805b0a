"""Costs by line item: exact, complete, and only one's own."""

from __future__ import annotations

from typing import Any

import pytest

from billing.prices import PriceCatalog
from billing.reports.cost_report import cost_buckets
from billing.reports.usage_report import InvalidReport
from storage.database.database import Database
from tests.billing.money import Tenant
from tests.billing.recorded import DAY, HOUR, NOVEMBER, record


async def test_line_items_add_up_to_the_events(database: Database) -> None:
    past = await record(database, await Tenant.rich(database, 0))
    await record(database, await Tenant.rich(database, 0, "other"), count=10, seed=1)
    prices = PriceCatalog(database)

    async def costs(**asked: Any) -> dict[tuple[Any, ...], tuple[int, int]]:
        page = await cost_buckets(
            database,
            prices,
            past.tenant.id,
            **({"start_at": NOVEMBER, "end_at": NOVEMBER + 30 * DAY, "limit": 180} | asked),
        )
        sums: dict[tuple[Any, ...], tuple[int, int]] = {}
        for cost in [cost for bucket in page.buckets for cost in bucket.costs]:
            assert cost.currency == "USD"
            units, pico = sums.get(tuple(cost.group.values()), (0, 0))
            sums[tuple(cost.group.values())] = units + cost.units, pico + cost.cost_pico
        return sums

    versions = {event.price_version: await prices.version(event.price_version) for event in past.events}
    oracle: dict[tuple[Any, ...], tuple[int, int]] = {}
    for event in past.events:
        for meter, units in event.usage.used():
            key = (event.project_id, event.key_id, event.model, event.lane, meter)
            before = oracle.get(key, (0, 0))
            price = versions[event.price_version].price(meter, event.lane, event.context_from)
            oracle[key] = before[0] + units, before[1] + units * price
    assert await costs(group_by=["project_id", "api_key_id", "model", "lane", "meter"]) == oracle
    assert sum(pico for _, pico in oracle.values()) == past.cost_pico
    for group_by in ([], ["meter"], ["lane"], ["project_id"], ["api_key_id", "model"]):
        assert sum(pico for _, pico in (await costs(group_by=group_by)).values()) == past.cost_pico
    one = {("big", "batch", "output"), ("stdlib-qa", "standard", "uncached"), ("none", "batch", "output")}
    assert await costs(group_by=["model", "lane", "meter"], line_items=one) == {
        key: (
            sum(units for k, (units, _) in oracle.items() if k[2:] == key),
            sum(pico for k, (_, pico) in oracle.items() if k[2:] == key),
        )
        for key in one
        if key[0] != "none"
    }
    low, high = NOVEMBER + DAY + 17, NOVEMBER + 3 * DAY + HOUR + 1
    within = sum(event.cost_pico for event in past.events if low <= event.admitted_at < high)
    assert (await costs(start_at=low, end_at=high))[()][1] == within
    page = await cost_buckets(database, prices, past.tenant.id, start_at=NOVEMBER, end_at=NOVEMBER + 30 * DAY)
    assert (len(page.buckets), page.next_page) == (7, f"page_{NOVEMBER + 7 * DAY}")
    with pytest.raises(InvalidReport) as refusal:
        await costs(limit=181)
    assert refusal.value.parameter == "limit"
    with pytest.raises(InvalidReport) as refusal:
        await costs(group_by=["tenant"])
    assert refusal.value.parameter == "group_by"
