"""Lists of requests: every event once, newest first, whatever the filters and however few a page looks at."""

from __future__ import annotations

import random
from typing import Any
from uuid import UUID

import msgspec
import pytest

from billing.prices import PriceCatalog
from billing.reports.cache_savings import PRICED_BY, savings_by_class, total_saved
from billing.reports.request_list import EventFilters, ListedEvent, count_by_status, find_event, list_events
from billing.reports.tenant_usage import usage_of_tenants
from billing.reports.usage_report import usage_buckets
from billing.reports.usage_series import Selection, usage_totals
from billing.usage import Usage, UsageEvent
from storage.database.base import new_id
from storage.database.database import Database
from tests.billing.money import Tenant
from tests.billing.recorded import store

HOUR = 3_600_000_000
NOON = 1_795_003_200_000_000 // HOUR * HOUR


async def _events(database: Database, tenant: Tenant, count: int, seed: int = 7) -> list[UsageEvent]:
    """Events of a few instants (some at the same one), projects, keys, lanes and ends."""
    draw = random.Random(seed)
    projects, keys = [tenant.project_id, new_id()], [tenant.key_id, new_id()]
    events = []
    for _ in range(count):
        usage = Usage(uncached=draw.randrange(100), read={"automatic": draw.randrange(50)}, output=draw.randrange(9))
        event = tenant.event(tenant.request(0), usage)
        at = NOON + draw.randrange(count // 3) * HOUR // 2
        events.append(
            msgspec.structs.replace(
                event,
                admitted_at=at,
                finished_at=at + draw.randrange(1, 10**6),
                project_id=draw.choice(projects),
                key_id=draw.choice(keys),
                status=draw.choice(("ok", "ok", "cancelled", "failed")),
            )
        )
    await store(database, *events)
    return events


async def _all(database: Database, tenant_id: UUID, filters: EventFilters, **options: Any) -> list[ListedEvent]:
    found: list[ListedEvent] = []
    after, pages = None, 0
    while pages == 0 or after is not None:
        page = await list_events(database, tenant_id, filters, after=after, **options)
        assert len(page.events) <= options["limit"]
        found, after, pages = found + page.events, page.after, pages + 1
        assert pages < 500
    return found


@pytest.mark.slow
@pytest.mark.parametrize("most", [1, 4, 7, 1000])
async def test_pages_have_every_event_once(database: Database, most: int) -> None:
    tenant, other = await Tenant.rich(database, 0), await Tenant.rich(database, 0, "big")
    events = await _events(database, tenant, 40)
    await store(database, other.event(other.request(0)))
    middle = NOON + 5 * HOUR
    wanted: list[tuple[EventFilters, Any]] = [
        (EventFilters(), lambda _: True),
        (EventFilters(projects=[tenant.project_id]), lambda e: e.project_id == tenant.project_id),
        (EventFilters(keys=[tenant.key_id]), lambda e: e.key_id == tenant.key_id),
        (EventFilters(statuses=["failed", "cancelled"]), lambda e: e.status != "ok"),
        (EventFilters(models=["none"]), lambda _: False),
        (EventFilters(lanes=["standard"], models=["stdlib-qa"]), lambda _: True),
        (EventFilters(since=middle, statuses=["ok"]), lambda e: e.admitted_at >= middle and e.status == "ok"),
        (EventFilters(until=middle), lambda e: e.admitted_at < middle),
        (EventFilters(least_ms=500), lambda e: e.finished_at - e.admitted_at >= 500_000),
    ]
    for filters, fits in wanted:
        for limit in (1, 3, 100):
            found = await _all(database, tenant.id, filters, limit=limit, most=most)
            of = sorted((e for e in events if fits(e)), key=lambda e: (e.admitted_at, e.id.bytes), reverse=True)
            assert [event.id for event in found] == [event.id for event in of]
    first = found[0]
    (same,) = [event for event in events if event.id == first.id]
    assert (first.meters, first.cost_pico) == (dict(same.usage.used()), same.cost_pico)
    assert (first.dimensions["status"], first.counts.get("output", 0)) == (same.status, same.counts.output)


async def test_requests_are_counted_by_how_they_ended(database: Database) -> None:
    tenant = await Tenant.rich(database, 0)
    events = await _events(database, tenant, 40)
    since = NOON + 2 * HOUR
    for projects in (None, [tenant.project_id]):
        of = [
            event.status
            for event in events
            if event.admitted_at >= since and (projects is None or event.project_id in projects)
        ]
        counted, complete = await count_by_status(database, tenant.id, EventFilters(since=since, projects=projects))
        assert (counted, complete) == ({name: of.count(name) for name in ("ok", "cancelled", "failed")}, True)
    some, complete = await count_by_status(database, tenant.id, EventFilters(), most=10)
    assert (sum(some.values()), complete) == (10, False)


async def test_an_event_is_its_tenants(database: Database) -> None:
    tenant, other = await Tenant.rich(database, 0), await Tenant.rich(database, 0, "big")
    event = (await _events(database, tenant, 4))[0]
    found, corrections = await find_event(database, tenant.id, event.id)
    assert found is not None
    assert (found.id, corrections) == (event.id, [])
    assert await find_event(database, other.id, event.id) == (None, [])
    assert await find_event(database, tenant.id, new_id()) == (None, [])


async def test_usage_of_several_tenants_is_that_of_each(database: Database) -> None:
    tenants = [
        await Tenant.rich(database, 0),
        await Tenant.rich(database, 0, "big"),
        await Tenant.rich(database, 0, "x"),
    ]
    events = {tenant.id: await _events(database, tenant, 20, seed) for seed, tenant in enumerate(tenants[:2])}
    await _events(database, tenants[2], 20)  # which is not asked for
    low, high = NOON + HOUR, NOON + 3 * HOUR
    lines = await usage_of_tenants(database, list(events), start_at=low, end_at=high)
    assert {line.tenant_id for line in lines} == set(events)
    for line in lines:
        of = [event for event in events[line.tenant_id] if low <= event.admitted_at < high]
        assert (line.requests, line.cost_pico) == (len(of), sum(event.cost_pico for event in of))
        assert line.meters.get("output", 0) == sum(event.usage.output for event in of)
    by_project = await usage_of_tenants(database, list(events), start_at=low, end_at=high, group_by=["project_id"])
    assert sum(line.cost_pico for line in by_project) == sum(line.cost_pico for line in lines)
    assert await usage_of_tenants(database, [], start_at=low, end_at=high) == []


async def test_sums_may_be_larger_than_a_request(database: Database) -> None:
    """A day of 2^31 tokens and more is no error, and caching has saved what reads cost less."""
    tenant = await Tenant.rich(database, 0)
    usage = Usage(uncached=2**31 - 100, read={"automatic": 10}, output=1)
    events = [tenant.event(tenant.request(0), usage) for _ in range(3)]
    await store(database, *(msgspec.structs.replace(event, admitted_at=NOON, finished_at=NOON) for event in events))
    page = await usage_buckets(database, tenant.id, start_at=NOON, end_at=NOON + HOUR, width="1h")
    (result,) = page.buckets[0].results
    assert result.usage.uncached == 3 * (2**31 - 100)
    whole = Selection(start_at=NOON, end_at=NOON + HOUR, tenants=[tenant.id])
    classes = await savings_by_class(PriceCatalog(database), await usage_totals(database, whole, PRICED_BY))
    assert classes["automatic"].read == 30
    assert total_saved(classes.values()) == {"USD": 30 * (400_000 - 40_000)}
