"""Usage in OpenAI's format, metrics and health of a gateway."""

from __future__ import annotations

import asyncio
import json
import platform
import socket
import time
from decimal import Decimal
from importlib import metadata
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from gateway import services
from gateway.services import GatewayOptions
from protocol.metric_help import HELP
from storage.database.database import DatabaseUnavailable
from tests.gateway.stack import Stack, quick_timeouts, running_stack

MESSAGES: Any = [{"role": "user", "content": "hi"}]


@pytest.mark.slow
async def test_usage_in_openais_shape(stack: Stack) -> None:
    stack.say("one two three")
    for _ in range(3):
        assert (await stack.post({"model": "tiny", "messages": MESSAGES})).status_code == 200
    events = await stack.settled(3)
    other = await stack.tenancy.create_project(stack.tenant.id, "other")
    other_key = (await stack.tenancy.create_key(stack.tenant.id, other.id)).key
    stranger = await stack.tenancy.create_tenant("stranger")
    stranger_key = (await stack.tenancy.create_key(stranger.id, None)).key
    start = int(time.time()) - 3600

    async def total(key: str, **options: Any) -> tuple[int, int, int]:
        async with stack.openai(key, admin_api_key=key) as client:
            page = await client.admin.organization.usage.completions(start_time=start, **options)
            results: list[Any] = [result for bucket in page.data for result in bucket.results]
            assert all(result.object == "organization.usage.completions.result" for result in results)
            return (
                sum(result.num_model_requests for result in results),
                sum(result.input_tokens for result in results),
                sum(result.output_tokens for result in results),
            )

    wanted = (3, sum(e.uncached for e in events), sum(e.output for e in events))
    assert await total(stack.key) == wanted
    assert await total(stack.admin_key) == wanted
    assert await total(stack.admin_key, project_ids=[str(stack.project.id)], group_by=["project_id", "model"]) == wanted
    assert await total(stack.admin_key, models=["other"]) == (0, 0, 0)
    assert await total(other_key) == (0, 0, 0)
    assert await total(other_key, project_ids=[str(stack.project.id)]) == (0, 0, 0)
    assert await total(stranger_key) == (0, 0, 0)
    assert await total(stranger_key, project_ids=[str(stack.project.id)]) == (0, 0, 0)
    raw = await stack.http.get(
        f"/v1/organization/usage/completions?start_time={start}&group_by=model&group_by=api_key_id&bucket_width=1h",
        headers={"authorization": f"Bearer {stack.key}"},
    )
    results = [result for bucket in raw.json()["data"] for result in bucket["results"]]  # an hour may end meanwhile
    assert {result["model"] for result in results} == {"tiny"}
    assert sum(result["input_uncached_tokens"] for result in results) == wanted[1]
    costs = [cost for result in results for cost in result["cost"]]
    assert {cost["currency"] for cost in costs} == {"USD"}
    assert sum(Decimal(cost["amount"]) for cost in costs) * 10**12 == sum(event.cost_pico for event in events)


BAD = [
    ("", "start_time"),
    ("start_time=x", "start_time"),
    ("start_time=99999999999999", "start_time"),
    ("start_time=5&end_time=4", "start_time"),
    ("start_time=5&bucket_width=1y", "bucket_width"),
    ("start_time=5&group_by=tenant_id", "group_by"),
    ("start_time=5&limit=0", "limit"),
    ("start_time=5&limit=9999", "limit"),
    ("start_time=5&project_ids[]=x", "project_ids"),
    ("start_time=5&page=x", "page"),
    ("start_time=5&batch=maybe", "batch"),
]


async def test_bad_queries(stack: Stack) -> None:
    for query, parameter in BAD:
        answer = await stack.http.get(
            f"/v1/organization/usage/completions?{query}", headers={"authorization": f"Bearer {stack.key}"}
        )
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == parameter.removeprefix("$.")


async def test_metrics_and_health(stack: Stack) -> None:
    stack.say("one two three", burst=2)
    await stack.post({"model": "tiny", "messages": MESSAGES, "stream": True})
    await stack.post({"model": "nope", "messages": MESSAGES})
    await stack.settled(1)
    assert (await stack.http.get("/healthz")).json() == {"status": "ok"}
    stack.gateway.start_problem = "the first API key is not written yet"
    ready = await stack.http.get("/readyz")
    assert (ready.status_code, ready.json()["problems"]) == (503, ["the first API key is not written yet"])
    stack.gateway.start_problem = None
    ready = await stack.http.get("/readyz")
    assert (ready.status_code, ready.json()) == (200, {"ready": True, "problems": []})
    answer = await stack.http.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    assert answer.headers["content-type"].count("charset") == 1
    text = answer.text
    for line in (
        'turnpike_requests_total{model="tiny",status="200"} 1.0',
        'turnpike_requests_total{model="",status="404"} 1.0',
        'turnpike_generations_total{lane="standard",model="tiny",status="ok"} 1.0',
        'turnpike_tokens_total{meter="uncached",model="tiny"}',
        'turnpike_time_to_first_token_seconds_count{lane="standard",model="tiny"} 1.0',
        'turnpike_inter_token_seconds_count{model="tiny"}',
        "turnpike_spool_waiting 0.0",
        'turnpike_replica_healthy{model="tiny",replica="replica-0"} 1.0',
        "turnpike_database_up 1.0",
        "turnpike_bus_up 1.0",
        "turnpike_connections 1.0",
        f'turnpike_build_info{{python="{platform.python_version()}",version="{metadata.version("turnpike")}"}} 1.0',
        'process_resident_memory_bytes{worker="gateway-test"}',
        'turnpike_engine_kv_blocks_free{model="tiny",replica="replica-0"} 7.0',
    ):
        assert line in text, line
    assert str(stack.tenant.id) not in text


@pytest.mark.slow
async def test_every_family_says_what_it_is(stack: Stack) -> None:
    text = (await stack.http.get("/metrics")).text
    documented = {family.name: family.documentation for family in text_string_to_metric_families(text)}
    assert all(documented.values())
    assert len(set(documented.values())) == len(documented), "two families say the same of themselves"
    assert len(set(HELP.values())) == len(HELP)


@pytest.mark.slow
async def test_metrics_say_that_the_database_is_away(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    async def away() -> None:
        raise DatabaseUnavailable("away")

    monkeypatch.setattr(stack.database, "ping", away)
    monkeypatch.setattr(services, "_PROBE_S", 0.01)
    text = ""
    async with asyncio.timeout(30):
        while "turnpike_database_up 0.0" not in text:
            await asyncio.sleep(0.05)
            text = (await stack.http.get("/metrics")).text
    monkeypatch.undo()
    assert "turnpike_bus_up 1.0" in text, "the other dependency answers"


async def test_metrics_have_an_address_of_their_own(
    stocked_sqlite_url: str, tmp_path: Path, model_folder: Path
) -> None:
    internal = socket.create_server(("127.0.0.1", 0))
    base = f"http://127.0.0.1:{internal.getsockname()[1]}"
    options = GatewayOptions(timeouts=quick_timeouts(), drain_timeout=2.0, public_metrics=False, connections=1)
    async with (
        running_stack(stocked_sqlite_url, tmp_path, model_folder, options=options, internal=internal) as stack,
        httpx.AsyncClient(base_url=base, timeout=20) as inside,
    ):
        assert (await stack.http.get("/metrics")).status_code == 404
        assert (await stack.http.get("/healthz")).status_code == 200
        assert (await inside.get("/metrics")).status_code == 200, "connections there are counted apart"
        assert (await inside.get("/readyz")).status_code == 200
        assert (await inside.head("/healthz")).status_code == 200
        assert (await inside.get("/v1/models", headers={"x-api-key": stack.key})).status_code == 404


async def test_the_log_says_why_a_request_was_refused(stack: Stack, caplog: pytest.LogCaptureFixture) -> None:
    """Code, field and request id in the line of the answer, at the level of a gateway's log; nothing of the content."""
    secret, key = "what only the client knows", {"authorization": f"Bearer {stack.key}"}
    said = {"role": "user", "content": secret}
    anthropic = {"x-api-key": stack.key, "anthropic-version": "2023-06-01"}
    for path, headers, body, code, field in (
        ("/v1/chat/completions", key, {"model": "tiny", "messages": [said], "top_p": 2}, "invalid_value", "$.top_p"),
        ("/v1/chat/completions", key, {"model": "tiny", "messages": [{"role": secret}]}, "invalid_value",
         "$.messages[0].role"),
        ("/v1/chat/completions", key, {"model": secret, "messages": [said]}, "model_not_found", "$.model"),
        ("/v1/messages", anthropic, {"model": "tiny", "max_tokens": 5, "messages": [said], "thread": {"type": secret}},
         "thread_unsupported_request", "$.thread"),
        ("/v1/chat/completions", key, secret, "invalid_json", None),
        ("/v1/chat/completions", {"authorization": f"Bearer {secret}"}, {}, "invalid_api_key", None),
    ):  # fmt: skip
        caplog.clear()
        data = {"content": body} if isinstance(body, str) else {"json": body}
        answer = await stack.http.post(path, headers=headers, **data)  # type: ignore[arg-type]
        assert answer.status_code in (400, 401, 404)
        lines = [json.loads(record.getMessage()) for record in caplog.records if '"answered"' in record.getMessage()]
        (line,) = lines
        assert (line["code"], line["field"], line["level"]) == (code, field, "info")
        assert line["request_id"] == (answer.headers.get("request-id") or answer.headers["x-request-id"])
        assert secret not in caplog.text
    caplog.clear()
    stack.say("Yes.")
    assert (await stack.post({"model": "tiny", "messages": MESSAGES})).status_code == 200
    (line,) = [json.loads(r.getMessage()) for r in caplog.records if '"answered"' in r.getMessage()]
    assert line["code"] is line["field"] is None
