"""Usage, requests and the overview by /admin/v1: all add up to the events, and nobody sees others'."""

from __future__ import annotations

import asyncio
from collections import Counter
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest

from billing.calendar import period_of
from billing.money import format_pico
from billing.reports.request_list import EventFilters, list_events
from billing.reports.usage_report import usage_by_project_and_model
from tests.gateway.admin.desk import Desks
from tests.gateway.stack import Stack

pytestmark = pytest.mark.slow

D = "/tenants/demo"


async def _asked(stack: Stack, *keys: str) -> list[Any]:
    before = len(await stack.events())
    for number, key in enumerate(keys):
        stack.say(f"answer {number}")
        body = {"model": "tiny", "messages": [{"role": "user", "content": f"hello {number} " * (number + 1)}]}
        assert (await stack.post(body, key)).status_code == 200
    return await stack.settled(before + len(keys))


def _cost(results: list[Any]) -> Decimal:
    return sum((Decimal(cost) for result in results for cost in result["cost"].values()), Decimal(0))


async def test_usage_adds_up_to_the_events_however_it_is_grouped(stack: Stack, desks: Desks) -> None:
    second = await stack.tenancy.create_project(stack.tenant.id, "second")
    other = await stack.tenancy.create_key(stack.tenant.id, second.id)
    events = await _asked(stack, stack.key, other.key, stack.key)
    total = Decimal(format_pico(sum(event.cost_pico for event in events)))
    owner = desks.own()
    for group in ("", "project", "key", "model", "lane", "project&group_by=key&group_by=model"):
        for bucket in ("1h", "1d"):
            query = f"bucket={bucket}&limit=31" + (f"&group_by={group}" if group else "")
            results: list[Any] = []
            after = ""
            while True:
                page = await owner.get(f"{D}/usage?{query}{after}")
                results += [result for each in page["data"] for result in each["results"]]
                if not page["has_more"]:
                    break
                after = f"&after={page['next']}"
            assert _cost(results) == total
            assert sum(result["requests"] for result in results) == 3
            if group == "project":
                assert Counter({r["project"]: r["requests"] for r in results}) == {"default": 2, "second": 1}
            if group == "key":
                assert {r["key"]: r["requests"] for r in results} == {stack.public_id: 2, other.public_id: 1}
    for filters, requests in (("project=second", 1), (f"key={stack.public_id}", 2), ("model=none", 0)):
        page = await owner.get(f"{D}/usage?{filters}")
        assert sum(result["requests"] for each in page["data"] for result in each["results"]) == requests
    member = desks.role("developer", stack.tenant.id, second.id)
    page = await member.get(f"{D}/usage?group_by=project")
    assert [r["project"] for each in page["data"] for r in each["results"]] == ["second"]
    for wrong in ("project=nobody", "key=x", "bucket=1m", "group_by=colour", "limit=999", "since=soon", "after=page_1"):
        await owner.get(f"{D}/usage?{wrong}", 400)
    await member.get(f"{D}/usage?project=default", 400)

    # what `turnpike usage` prints
    month = period_of(events[0].admitted_at)
    rows = await usage_by_project_and_model(stack.database, month, stack.tenant.id)
    over = await desks.operator().get(f"/usage?period={month}&group_by=project&group_by=model")
    (line,) = [each for each in over["data"] if each["tenant"] == "demo"]
    assert sorted((r["project_id"], r["model"], r["requests"], r["cost"]["USD"]) for r in line["results"]) == sorted(
        (f"project_{row.project_id.hex}", row.model, row.requests, row.cost) for row in rows
    )


async def test_usage_over_tenants_has_those_that_one_may_see(stack: Stack, desks: Desks) -> None:
    await _asked(stack, stack.key)
    for name in ("alpha", "beta"):
        await stack.tenancy.create_tenant(name)
    operator = desks.operator("viewer")
    page = await operator.get("/usage?limit=2")
    assert ([each["tenant"] for each in page["data"]], page["has_more"]) == (["alpha", "beta"], True)
    rest = await operator.get(f"/usage?after={page['data'][-1]['tenant_id']}")
    assert [(each["tenant"], each["results"][0]["requests"]) for each in rest["data"]] == [("demo", 1)]
    assert [each["tenant"] for each in (await desks.own("viewer").get("/usage"))["data"]] == ["demo"]
    await desks.own().get("/usage?after=alpha", 400)
    for wrong in ("period=2026-13", "period=2026-11&since=2026-11-01", "group_by[]=key"):
        await operator.get(f"/usage?{wrong}", 400)


async def test_requests_are_listed_newest_first_and_filtered(stack: Stack, desks: Desks) -> None:
    second = await stack.tenancy.create_project(stack.tenant.id, "second")
    other = await stack.tenancy.create_key(stack.tenant.id, second.id)
    events = await _asked(stack, stack.key, other.key, stack.key, stack.key)
    names = [f"req_{UUID(bytes=event.id).hex}" for event in reversed(events)]
    viewer = desks.own("viewer")
    seen: list[Any] = []
    after = ""
    while True:
        page = await viewer.get(f"{D}/requests?limit=3{after}")
        seen += page["data"]
        if not page["has_more"]:
            break
        after = f"&after={page['next']}"
    assert [each["id"] for each in seen] == names
    for shown, event in zip(seen, reversed(events), strict=True):
        assert (shown["cost"], shown["tokens"]["output"]) == (format_pico(event.cost_pico), event.output)
        assert (shown["model"], shown["lane"], shown["status"]) == ("tiny", "standard", "ok")
    listed = await viewer.get(f"{D}/requests?project=second")
    assert [each["key"] for each in listed["data"]] == [other.public_id]
    for filters, count in (
        ("status=ok", 4), ("status=failed", 0), ("model=tiny&lane=standard", 4), ("lane=batch", 0),
        (f"key={stack.public_id}", 3), ("since=2999-01-01T00:00:00Z", 0), ("until=2999-01-01T00:00:00Z", 4),
    ):  # fmt: skip
        assert len((await viewer.get(f"{D}/requests?{filters}"))["data"]) == count, filters
    member = desks.role("developer", stack.tenant.id, second.id)
    assert len((await member.get(f"{D}/requests"))["data"]) == 1
    for wrong in ("after=x", "after=1-2", "status=late", "project=nobody", "limit=101"):
        await viewer.get(f"{D}/requests?{wrong}", 400)
    stranger = desks.role("owner", (await stack.tenancy.create_tenant("stranger")).id)
    await stranger.get(f"{D}/requests", 404)

    # one request, to its tenant and to who may see its project
    (own,) = listed["data"]
    while own["first_token_us"] is None:  # the waterfall is written a moment after the event
        await asyncio.sleep(0.02)
        (own,) = (await viewer.get(f"{D}/requests?project=second"))["data"]
    details = await viewer.get(f"{D}/requests/{own['id']}")
    assert (details["status"], details["request"]) == ("finished", own)
    assert sum(Decimal(charge["cost"]) for charge in details["charges"]) == Decimal(own["cost"])
    assert {charge["meter"]: charge["units"] for charge in details["charges"]} == own["tokens"]
    assert (details["hold"], details["adjustments"]) == (None, [])
    await member.get(f"{D}/requests/{own['id']}")
    await member.get(f"{D}/requests/{names[0]}", 404)
    await stranger.get(f"/tenants/stranger/requests/{own['id']}", 404)
    for nothing in (f"req_{'0' * 32}", "req_x", "x" * 300):
        await viewer.get(f"{D}/requests/{nothing}", 404)
    finance = desks.operator("finance")
    made = await finance.post(f"{D}/adjustments", {"request": own["id"], "units": {"output": -1}}, 201)
    (correction,) = (await viewer.get(f"{D}/requests/{own['id']}"))["adjustments"]
    assert (correction["corrects"], correction["cost"]) == (own["id"], made["cost"])


async def test_a_page_looks_at_a_bounded_number_of_requests(stack: Stack) -> None:
    second = await stack.tenancy.create_project(stack.tenant.id, "second")
    other = await stack.tenancy.create_key(stack.tenant.id, second.id)
    events = await _asked(stack, other.key, *(stack.key for _ in range(5)))
    found: list[Any] = []
    after, pages = None, 0
    filters = EventFilters(projects=[second.id])
    while pages == 0 or after is not None:
        page = await list_events(stack.database, stack.tenant.id, filters, limit=1, after=after, most=2)
        found, after, pages = found + page.events, page.after, pages + 1
    assert [event.id.bytes for event in found] == [events[0].id]
    assert pages == 3


async def test_the_overview_says_how_a_tenant_stands(stack: Stack, desks: Desks) -> None:
    events = await _asked(stack, stack.key, stack.key)
    owner = desks.own()
    await owner.post(f"{D}/budgets", {"limit": "5"})
    await owner.post(f"{D}/budgets", {"limit": "5", "project": "default"})
    found = await owner.get(f"{D}/overview")
    cost = format_pico(sum(event.cost_pico for event in events))
    assert found["today"]["cost"] == found["month"]["cost"] == {"USD": cost}
    assert (found["today"]["requests"], found["last_hour"]) == (
        2, {"ok": 2, "cancelled": 0, "failed": 0, "complete": True},
    )  # fmt: skip
    assert found["month"]["prompt_tokens"] == sum(event.uncached + event.read_automatic for event in events)
    assert found["month"]["read_tokens"] == sum(event.read_automatic for event in events)
    read = sum(event.read_automatic for event in events)
    assert found["month"]["saved"] == {"USD": format_pico(read * (400_000 - 40_000))}
    assert found["balance"] == await owner.get(f"{D}/balance")
    assert len(found["budgets"]) == 2
    developer = await desks.own("developer").get(f"{D}/overview")
    assert (developer["balance"], len(developer["budgets"])) == (None, 2)
    member = await desks.role("developer", stack.tenant.id, stack.project.id).get(f"{D}/overview")
    assert ([each["scope"] for each in member["budgets"]], member["month"]["requests"]) == (["project"], 2)


async def test_a_request_that_runs_has_a_hold_and_no_event_yet(stack: Stack, desks: Desks) -> None:
    stack.say("slowly", prefill=1.0)
    body = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}]}
    running = asyncio.create_task(stack.post(body))
    await stack.until(lambda: stack.replica.runs)
    (batch,) = await stack.rows("SELECT first FROM hold_batch")
    name = f"req_{UUID(bytes=batch.first).hex}"
    viewer = desks.own("viewer")
    found = await viewer.get(f"{D}/requests/{name}")
    assert (found["status"], found["request"], found["hold"]["state"]) == ("in_flight", None, "open")
    assert found["hold"]["amount"] == (await viewer.get(f"{D}/balance"))["held"]
    stranger = desks.role("owner", (await stack.tenancy.create_tenant("stranger")).id)
    await stranger.get(f"/tenants/stranger/requests/{name}", 404)
    other = desks.role("viewer", stack.tenant.id, (await stack.tenancy.create_project(stack.tenant.id, "x")).id)
    await other.get(f"{D}/requests/{name}", 404)
    assert (await running).status_code == 200
    await stack.settled(1)
    assert (await viewer.get(f"{D}/requests/{name}"))["status"] == "finished"
