"""Reports: exact sums, the right month, the right bucket, and only one's own."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from billing.calendar import InvalidPeriod, period_of
from billing.prices import PriceCatalog
from billing.reports.usage_report import InvalidReport, usage_buckets, usage_by_project_and_model
from billing.usage import Usage, UsageEvent, UsageSum
from storage.database.base import new_id
from storage.database.database import Database
from tests.billing.money import Tenant, priced_in
from tests.billing.recorded import store

DAY = 86_400_000_000
NOON = 1_795_003_200_000_000 // DAY * DAY + DAY // 2


def _at(event: UsageEvent, instant: int, **changes: Any) -> UsageEvent:
    booked = {"admitted_at": instant, "finished_at": instant, "period": period_of(instant)}
    return msgspec.structs.replace(event, **booked | changes)


async def test_a_month_by_project_and_model(database: Database) -> None:
    tenant, other = await Tenant.rich(database, 0), await Tenant.rich(database, 0, "big")
    usage = Usage(uncached=7, read={"automatic": 5}, write={"1h": 2}, output=3)
    mine = [tenant.event(tenant.request(0), usage) for _ in range(3)]
    mine[2] = msgspec.structs.replace(mine[2], project_id=new_id())
    december = msgspec.structs.replace(tenant.event(tenant.request(0)), period="2026-12")
    await store(database, *mine, december, other.event(other.request(0)))
    rows = await usage_by_project_and_model(database, "2026-11", tenant.id)
    by_project = {row.project_id: row for row in rows}
    row = by_project[tenant.project_id]
    assert (row.tenant_id, row.model, row.currency, row.requests) == (tenant.id, "stdlib-qa", "USD", 2)
    assert row.meters == {"uncached": 14, "read_automatic": 10, "write_1h": 4, "output": 6}
    assert row.cost_pico == 2 * mine[0].cost_pico == 2 * (7 * 400_000 + 5 * 40_000 + 2 * 800_000 + 3 * 1_600_000)
    assert row.cost == "0.000018800000"
    assert by_project[mine[2].project_id].requests == 1
    assert len(rows) == 2
    assert len(await usage_by_project_and_model(database, "2026-11")) == 3
    assert len(await usage_by_project_and_model(database, "2026-11", tenant.id, tenant.project_id)) == 1
    assert await usage_by_project_and_model(database, "2026-10") == []
    with pytest.raises(InvalidPeriod):
        await usage_by_project_and_model(database, "2026-13")


async def test_rollups_say_what_the_events_say(database: Database) -> None:
    tenant, other = await Tenant.rich(database, 0), await Tenant.rich(database, 0, "big")
    event = tenant.event(tenant.request(0), Usage(uncached=4, write={"1h": 9}, output=2))
    event = msgspec.structs.replace(event, counts=msgspec.structs.replace(event.counts, drafted=3, accepted=1))
    instants = [NOON + n * 1_111_000_000 for n in range(20)]
    keys = [new_id(), new_id()]
    await store(database, *(_at(event, at, id=new_id(), key_id=keys[at % 3 // 2]) for at in instants))
    await store(database, other.event(other.request(0)))
    for who in (tenant.id, None):
        by_events = await usage_by_project_and_model(database, "2026-11", who, source="events")
        assert await usage_by_project_and_model(database, "2026-11", who) == by_events
        assert sum(row.drafted for row in by_events) == 3 * len(instants)
        assert sum(row.accepted for row in by_events) == len(instants)
    for low, high in ((NOON, NOON + DAY // 2), (NOON + 1, NOON + DAY // 4 + 1), (NOON + 5, NOON + 6)):
        page = await usage_buckets(database, tenant.id, start_at=low, end_at=high, group_by=["api_key_id"])
        within = [at for at in instants if low <= at < high]
        for result in page.buckets[0].results:
            mine = [at for at in within if keys[at % 3 // 2] == result.group["api_key_id"]]
            assert (result.requests, result.usage.output) == (len(mine), 2 * len(mine))
            assert result.costs_pico == {"USD": len(mine) * event.cost_pico}
            assert (result.drafted, result.accepted) == (3 * len(mine), len(mine)), "which cost nothing"
        assert sum(result.requests for result in page.buckets[0].results) == len(within)


async def test_sums_do_not_overflow(database: Database) -> None:
    version = await PriceCatalog(database).set(
        "dear", "USD", dict.fromkeys(("uncached", "read_automatic", "output"), "9999.999999")
    )
    tenant = await Tenant.rich(database, 0)
    tenant.version = version
    events = [tenant.event(tenant.request(0), Usage(uncached=900_000_001)) for _ in range(3)]
    await store(database, *events)
    (row,) = await usage_by_project_and_model(database, "2026-11", tenant.id)
    assert row.cost_pico == 3 * 900_000_001 * 9_999_999_999 > 2**64


async def test_buckets_are_aligned_and_complete(database: Database) -> None:
    tenant, other = await Tenant.rich(database, 0), await Tenant.rich(database, 0)
    event = tenant.event(tenant.request(0), Usage(uncached=4, read={"automatic": 1}, output=2))
    midnight = NOON - DAY // 2
    instants = [midnight - 1, midnight, NOON, midnight + DAY - 1, midnight + DAY, midnight + 3 * DAY]
    await store(database, *(_at(event, at, id=new_id()) for at in instants))
    await store(database, _at(other.event(other.request(0)), NOON))
    page = await usage_buckets(database, tenant.id, start_at=midnight, end_at=midnight + 3 * DAY)
    assert [(b.start_at, b.end_at) for b in page.buckets] == [
        (midnight + n * DAY, midnight + (n + 1) * DAY) for n in range(3)
    ]
    assert [[r.requests for r in b.results] for b in page.buckets] == [[3], [1], []]
    assert page.next_page is None
    (result,) = page.buckets[0].results
    assert (result.group, result.usage) == ({}, UsageSum(uncached=12, read={"automatic": 3}, output=6))
    assert result.costs_pico == {"USD": 3 * event.cost_pico}
    inside = await usage_buckets(database, tenant.id, start_at=NOON, end_at=NOON + 1, width="1m")
    assert [b.start_at for b in inside.buckets] == [NOON]
    assert inside.buckets[0].results[0].requests == 1
    later = await usage_buckets(database, tenant.id, start_at=NOON + 1, end_at=midnight + DAY)
    assert later.buckets[0].start_at == midnight
    assert later.buckets[0].results[0].requests == 1


async def test_pages_follow_each_other_without_gap_or_overlap(database: Database) -> None:
    tenant = await Tenant.rich(database, 0)
    event = tenant.event(tenant.request(0))
    start = NOON - 100 * DAY
    await store(database, *(_at(event, start + n * DAY, id=new_id()) for n in range(20)))
    found, page = [], None
    while True:
        answer = await usage_buckets(database, tenant.id, start_at=start, end_at=start + 19 * DAY, limit=6, page=page)
        assert len(answer.buckets) <= 6
        found += answer.buckets
        page = answer.next_page
        if page is None:
            break
    assert [b.end_at for b in found[:-1]] == [b.start_at for b in found[1:]]
    assert sum(r.requests for b in found for r in b.results) == 19


async def test_groups_and_filters(database: Database) -> None:
    tenant = await Tenant.rich(database, 0)
    project, key = new_id(), new_id()
    event = tenant.event(tenant.request(0))
    euro = await priced_in(database, "EUR", "stdlib-qa")
    await store(
        database,
        _at(event, NOON),
        _at(event, NOON, id=new_id(), project_id=project),
        _at(event, NOON, id=new_id(), key_id=key, lane="batch"),
        _at(event, NOON, id=new_id(), model="big", price_version=euro.id),
    )

    async def requests(**asked: Any) -> dict[tuple[Any, ...], int]:
        page = await usage_buckets(database, tenant.id, start_at=NOON, end_at=NOON + 1, width="1h", **asked)
        return {tuple(r.group.values()): r.requests for b in page.buckets for r in b.results}

    assert await requests() == {(): 4}
    assert await requests(group_by=["project_id"]) == {(tenant.project_id,): 3, (project,): 1}
    assert await requests(group_by=["api_key_id"]) == {(tenant.key_id,): 3, (key,): 1}
    assert await requests(group_by=["model", "batch"]) == {
        ("stdlib-qa", False): 2,
        ("stdlib-qa", True): 1,
        ("big", False): 1,
    }
    assert await requests(group_by=["lane"]) == {("standard",): 3, ("batch",): 1}
    assert await requests(project_ids=[project]) == {(): 1}
    assert await requests(key_ids=[key], models=["stdlib-qa"]) == {(): 1}
    assert await requests(models=["big", "none"], group_by=["model"]) == {("big",): 1}
    assert await requests(batch=True) == {(): 1}
    assert await requests(batch=False) == {(): 3}
    assert await requests(project_ids=[]) == {}
    page = await usage_buckets(database, tenant.id, start_at=NOON, end_at=NOON + 1)
    assert page.buckets[0].results[0].costs_pico == {"USD": 3 * event.cost_pico, "EUR": event.cost_pico}


@pytest.mark.parametrize(
    ("asked", "parameter"),
    [({"width": "2h"}, "bucket_width"), ({"limit": 0}, "limit"), ({"limit": 32}, "limit"),
     ({"width": "1m", "limit": 1441}, "limit"), ({"group_by": ["price"]}, "group_by"), ({"end_at": NOON}, "start_time"),
     ({"start_at": -1}, "start_time"), ({"page": "x"}, "page"), ({"page": "page_"}, "page"),
     ({"page": "page_1"}, "page"),
     ({"page": f"page_{10**17}"}, "page"), ({"page": "page_٣"}, "page")],
)  # fmt: skip
async def test_a_report_that_cannot_be_is_refused(database: Database, asked: dict[str, Any], parameter: str) -> None:
    with pytest.raises(InvalidReport) as refusal:
        await usage_buckets(database, new_id(), **({"start_at": NOON, "end_at": NOON + DAY} | asked))
    assert refusal.value.parameter == parameter
