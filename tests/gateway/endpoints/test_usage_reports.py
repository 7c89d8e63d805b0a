"""Usage and cost reports with both vendors' clients: each adds up to the month's usage."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import msgspec
import pytest
from sqlalchemy import literal

from billing.prices import PriceCatalog
from billing.prices.approval import PriceSheets
from billing.prices.sheets import PriceProposal
from billing.prices.version import STORAGE
from billing.rating.hourly_meters import Stored, record_hours
from billing.reports.usage_report import usage_by_project_and_model
from billing.usage import Usage
from storage.database.base import Count, from_instant, new_id
from tests.billing.money import Tenant
from tests.billing.recorded import DAY, HOUR, NOVEMBER, Past, record
from tests.gateway.stack import Stack

START, END = NOVEMBER // 1_000_000, (NOVEMBER + 30 * DAY) // 1_000_000


async def _past(stack: Stack) -> Past:
    tenant = await Tenant.rich(stack.database, 0)
    tenant.id, tenant.project_id = stack.tenant.id, stack.project.id
    other = await stack.tenancy.create_project(stack.tenant.id, "other")
    past = await record(stack.database, tenant, projects=[stack.project.id, other.id])
    stranger = await Tenant.rich(stack.database, 0)
    await record(stack.database, stranger, count=20, seed=5)
    return past


def _used(past: Past) -> Usage:
    meters: dict[str, int] = {}
    for event in past.events:
        for meter, units in event.usage.used():
            meters[meter] = meters.get(meter, 0) + units
    return Usage.from_meters(meters)


@pytest.mark.slow
async def test_openai_usage_and_costs(stack: Stack) -> None:
    past = await _past(stack)
    wanted = _used(past)
    month = await usage_by_project_and_model(stack.database, "2026-11", stack.tenant.id)
    assert sum(row.cost_pico for row in month) == past.cost_pico
    async with stack.openai(stack.admin_key, admin_api_key=stack.admin_key) as client:
        reports = client.admin.organization.usage

        async def usage(**asked: Any) -> list[Any]:
            results, page = [], None
            while True:
                more: dict[str, Any] = {} if page is None else {"page": page}
                found = await reports.completions(start_time=START, end_time=END, **asked, **more)
                results += [result for bucket in found.data for result in bucket.results]
                if not found.has_more:
                    return results
                page = found.next_page

        groups = ["project_id", "api_key_id", "model", "batch", "service_tier", "user_id", "api_source"]
        for group_by in ([], ["service_tier"], ["batch", "project_id"], groups):
            for width, limit in (("1d", 31), ("1h", 168)):
                results = await usage(group_by=group_by, bucket_width=width, limit=limit)
                assert sum(r.num_model_requests for r in results) == len(past.events)
                assert sum(r.input_tokens for r in results) == wanted.prompt
                assert sum(r.input_uncached_tokens for r in results) == wanted.uncached
                assert sum(r.input_cached_tokens for r in results) == sum(wanted.read.values())
                assert sum(r.input_cache_write_tokens for r in results) == sum(wanted.write.values())
                assert sum(r.output_tokens for r in results) == wanted.output
                assert sum(r.drafted_tokens for r in results) == sum(e.counts.drafted for e in past.events) > 0
                assert sum(r.accepted_tokens for r in results) == sum(e.counts.accepted for e in past.events) > 0
                pico = sum(Decimal(cost["amount"]) for r in results for cost in r.cost)
                assert pico * 10**12 == past.cost_pico
        for tier, lane in (("priority", "interactive"), ("default", "standard"), ("flex", "batch")):
            of_tier = [r for r in await usage(group_by=["service_tier"]) if r.service_tier == tier]
            assert sum(r.num_model_requests for r in of_tier) == sum(e.lane == lane for e in past.events)
        some = await usage(project_ids=[str(stack.project.id)], models=["big"], api_key_ids=[str(past.keys[0])])
        assert sum(r.num_model_requests for r in some) == sum(
            e.project_id == stack.project.id and e.model == "big" and e.key_id == past.keys[0] for e in past.events
        )

        async def costs(**asked: Any) -> list[Any]:
            found = await reports.costs(start_time=START, end_time=END, limit=180, **asked)
            assert not found.has_more
            return [result for bucket in found.data for result in bucket.results]

        for asked in ({}, {"group_by": ["line_item"]}, {"group_by": ["project_id", "api_key_id", "line_item"]}):
            results = await costs(**asked)
            assert {result.amount.currency for result in results} == {"usd"}
            assert sum(Decimal(result.amount.exact) for result in results) * 10**12 == past.cost_pico
            assert all(result.amount.value == pytest.approx(float(result.amount.exact)) for result in results)
        items = await costs(group_by=["line_item"], line_items=["big, output_tokens, flex", "big, input_tokens"])
        assert {item.line_item for item in items} == {"big, output_tokens, flex", "big, input_tokens"}
        assert all(item.quantity_unit == "tokens" for item in items)
        assert sum(item.quantity for item in items if item.line_item.endswith("flex")) == sum(
            event.usage.output for event in past.events if (event.model, event.lane) == ("big", "batch")
        )
    raw = await stack.http.get(
        f"/v1/organization/costs?start_time={START}&end_time={END}", headers={"x-api-key": stack.admin_key}
    )
    amounts = [r["amount"] for b in msgspec.json.decode(raw.content)["data"] for r in b["results"]]
    plain = msgspec.json.decode(raw.content.replace(b'"exact"', b'"_"'), type=Any)
    assert len(amounts) == len([r for b in plain["data"] for r in b["results"]]) > 3
    for amount, text in zip(amounts, raw.text.split('"value":')[1:], strict=True):
        assert Decimal(text.split(",")[0]) == Decimal(amount["exact"])  # the JSON number has all its digits


@pytest.mark.slow
async def test_anthropic_usage_and_costs(stack: Stack) -> None:
    import anthropic  # takes seconds, which nobody else needs to wait for

    class Response(anthropic.BaseModel):
        data: list[Any]
        has_more: bool
        next_page: str | None

    past = await _past(stack)
    wanted = _used(past)
    span = {"starting_at": "2026-11-01T00:00:00Z", "ending_at": "2026-12-01T00:00:00Z"}
    async with stack.anthropic(api_key=stack.admin_key) as client:

        async def results(path: str, **asked: Any) -> list[Any]:
            found, page = [], None
            while True:
                query = span | asked | ({} if page is None else {"page": page})
                answer = await client.get(f"/v1/organizations/{path}", cast_to=Response, options={"params": query})
                found += [result for bucket in answer.data for result in bucket["results"]]
                if not answer.has_more:
                    return found
                page = answer.next_page

        groups = ["api_key_id", "workspace_id", "model", "service_tier", "context_window", "inference_geo", "speed"]
        for group_by in ([], ["service_tier"], groups):
            for width in ("1d", "1h"):
                found = await results("usage_report/messages", group_by=group_by, bucket_width=width)
                assert sum(r["uncached_input_tokens"] for r in found) == wanted.uncached
                assert sum(r["cache_read_input_tokens"] for r in found) == sum(wanted.read.values())
                for name in ("5m", "1h"):
                    written = sum(r["cache_creation"][f"ephemeral_{name}_input_tokens"] for r in found)
                    assert written == wanted.write[name]
                assert sum(r["output_tokens"] for r in found) == wanted.output
                assert sum(r["drafted_tokens"] for r in found) == sum(e.counts.drafted for e in past.events)
                assert sum(r["accepted_tokens"] for r in found) == sum(e.counts.accepted for e in past.events)
                assert sum(r["requests"] for r in found) == len(past.events)
        batch = await results("usage_report/messages", service_tiers=["batch"], models=["big"])
        assert sum(r["requests"] for r in batch) == sum((e.lane, e.model) == ("batch", "big") for e in past.events)
        for group_by in ([], ["workspace_id"], ["description"], ["workspace_id", "description"]):
            found = await results("cost_report", group_by=group_by)
            assert {r["currency"] for r in found} == {"USD"}
            assert sum(Decimal(r["amount"]) for r in found) * 10**10 == past.cost_pico
        outputs = [r for r in await results("cost_report", group_by=["description"]) if r["model"] == "big"]
        assert {r["token_type"] for r in outputs} == {
            "uncached_input_tokens",
            "cache_read_input_tokens",
            "cache_creation.ephemeral_5m_input_tokens",
            "cache_creation.ephemeral_1h_input_tokens",
            "output_tokens",
        }
        assert "big Usage - Output Tokens" in {r["description"] for r in outputs}
        with pytest.raises(anthropic.BadRequestError) as refusal:
            await results("cost_report", bucket_width="1h")
        assert refusal.value.body["error"]["type"] == "invalid_request_error"  # type: ignore[index]
        assert refusal.value.request_id
    async with stack.anthropic(api_key="tp_live_wrong") as nobody:
        with pytest.raises(anthropic.AuthenticationError) as stranger:
            await nobody.get("/v1/organizations/cost_report", cast_to=Response, options={"params": span})
        assert stranger.value.body["error"]["type"] == "authentication_error"  # type: ignore[index]


async def test_minutes_are_exact_and_a_project_sees_itself(stack: Stack) -> None:
    past = await _past(stack)
    event = past.events[0]
    minute = event.admitted_at - event.admitted_at % 60_000_000
    headers = {"authorization": f"Bearer {stack.key}"}
    mine = [e for e in past.events if e.project_id == stack.project.id]
    for path, low, high in (
        ("/v1/organization/usage/completions", "start_time", "end_time"),
        ("/v1/organizations/usage_report/messages", "starting_at", "ending_at"),
    ):
        of_openai = low == "start_time"
        for at in {e.admitted_at - e.admitted_at % 60_000_000 for e in mine[:5]} | {minute}:
            until = at + 60_000_000
            instants = [at // 1_000_000, until // 1_000_000] if of_openai else [_text(at), _text(until)]
            answer = await stack.http.get(
                path, params={low: instants[0], high: instants[1], "bucket_width": "1m"}, headers=headers
            )
            (bucket,) = answer.json()["data"]
            found = sum(r["num_model_requests" if of_openai else "requests"] for r in bucket["results"])
            assert found == sum(at <= e.admitted_at < until for e in mine)
    answer = await stack.http.get(
        "/v1/organizations/cost_report",
        params={"starting_at": "2026-11-01T00:00:00+00:00", "ending_at": "2026-12-01T00:00:00Z", "limit": 31},
        headers=headers,
    )
    cents = sum(Decimal(r["amount"]) for bucket in answer.json()["data"] for r in bucket["results"])
    assert cents * 10**10 == sum(e.cost_pico for e in mine)
    day = await stack.http.get(
        "/v1/organizations/usage_report/messages",
        params={"starting_at": _text(NOVEMBER + HOUR), "ending_at": _text(NOVEMBER + 2 * HOUR)},
        headers=headers,
    )
    assert day.json() == {"data": [], "has_more": False, "next_page": None}  # no whole day


def _text(instant: int) -> str:
    return from_instant(instant).astimezone(UTC).isoformat()


BAD = [
    ("organization/costs", "", "start_time"),
    ("organization/costs", "start_time=5&bucket_width=1h", "bucket_width"),
    ("organization/costs", "start_time=5&limit=181", "limit"),
    ("organization/costs", "start_time=5&group_by=model", "group_by"),
    ("organization/costs", "start_time=5&line_items=nothing", "line_items"),
    ("organization/usage/completions", "start_time=5&user_ids=me", "user_ids"),
    ("organization/usage/completions", "start_time=5&group-by=model", "group-by"),
    ("organizations/usage_report/messages", "", "starting_at"),
    ("organizations/usage_report/messages", "starting_at=now", "starting_at"),
    ("organizations/usage_report/messages", "starting_at=2026-11-01T00:00:00", "starting_at"),
    ("organizations/usage_report/messages", "starting_at=1066-10-14T00:00:00Z", "starting_at"),
    ("organizations/usage_report/messages", "starting_at=2999-11-01T00:00:00Z", "starting_at"),
    (
        "organizations/usage_report/messages",
        "starting_at=2026-11-01T00:00:00Z&ending_at=2026-11-01T00:00:00Z",
        "ending_at",
    ),
    ("organizations/usage_report/messages", "starting_at=2026-11-01T00:00:00Z&speeds[]=fast", "speeds"),
    ("organizations/usage_report/messages", "starting_at=2026-11-01T00:00:00Z&service_tiers[]=x", "service_tiers"),
    ("organizations/cost_report", "starting_at=2026-11-01T00:00:00Z&limit=32", "limit"),
    ("organizations/cost_report", "starting_at=2026-11-01T00:00:00Z&group_by[]=model", "group_by"),
    ("organizations/cost_report", "starting_at=2026-11-01T00:00:00Z&page=page_5", "page"),
]


async def test_bad_queries_name_the_parameter(stack: Stack) -> None:
    assert from_instant(NOVEMBER) == datetime(2026, 11, 1, tzinfo=UTC)
    for path, query, parameter in BAD:
        answer = await stack.http.get(f"/v1/{path}?{query}", headers={"x-api-key": stack.key})
        assert answer.status_code == 400, (path, query)
        error = answer.json()["error"]
        assert error["type"] == "invalid_request_error"
        assert parameter in error["message"], (path, query, error)
        assert path.startswith("organizations/") == ("param" not in error)


async def test_cache_storage_is_a_line_item_of_both_cost_reports(stack: Stack) -> None:
    tenant = await Tenant.rich(stack.database, 0)
    rows = dict(tenant.version.rows) | {(STORAGE, "*", 0): 3_600_000}
    await PriceSheets(stack.database).put(PriceProposal(model=tenant.version.model, rows=rows), by="ann")
    start = await stack.database.now() // DAY * DAY
    stack.database.clock = literal(start + 3 * DAY, Count())
    stored = Stored(stack.tenant.id, stack.project.id, tenant.version.model, start + 2 * DAY, 3_600 * 10**6)
    assert await record_hours(stack.database, PriceCatalog(stack.database), [stored]) == 1
    span = {"start_time": start // 1_000_000, "end_time": (start + 4 * DAY) // 1_000_000}
    async with stack.openai(stack.admin_key, admin_api_key=stack.admin_key) as client:
        costs = client.admin.organization.usage.costs
        name = f"{tenant.version.model}, cache_storage"
        line_items: list[dict[str, Any]] = [{}, {"line_items": [name]}]
        for asked in line_items:
            page = await costs(**span, group_by=["line_item"], **asked)
            (item,) = [result for bucket in page.data for result in bucket.results]
            assert (item.line_item, item.quantity, item.quantity_unit) == (name, 3_600 * 10**6, "token_seconds")
            assert item.amount.exact == "3.600000000000"
        page = await costs(**span, api_key_ids=[str(new_id())])
        assert [result for bucket in page.data for result in bucket.results] == []
    query = {"starting_at": from_instant(start).isoformat(), "group_by": ["description"]}
    async with stack.anthropic(api_key=stack.admin_key) as claude:
        report: Any = await claude.get("/v1/organizations/cost_report", cast_to=object, options={"params": query})
    (cost,) = [result for bucket in report["data"] for result in bucket["results"]]
    assert (cost["amount"], cost["cost_type"], cost["token_type"]) == ("360.0000000000", "cache_storage", None)
