"""Traces of a running gateway, as a collector gets them: spans, sampling, what they never hold, what is lost."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import structlog

from gateway.services import GatewayOptions
from tenancy.rights.key_limits import parse_networks
from tests.gateway.fake_replica import Script
from tests.gateway.stack import Stack, quick_timeouts, running_stack
from tests.tracing.collector import Collector, attributes, running_collector
from tracing import exporter
from tracing.options import TraceOptions

CALLER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
TRACE, PARENT = CALLER.split("-")[1:3]


def body(content: str = "hello", **fields: Any) -> dict[str, Any]:
    return {"model": "tiny", "messages": [{"role": "user", "content": content}], "max_tokens": 8, **fields}


class Setting(NamedTuple):
    url: str
    folder: Path
    model: Path


@pytest.fixture
def setting(stocked_sqlite_url: str, tmp_path: Path, model_folder: Path) -> Setting:
    return Setting(stocked_sqlite_url, tmp_path, model_folder)


@asynccontextmanager
async def traced(
    setting: Setting, *, replicas: int = 1, proxies: tuple[str, ...] = (), name: str = "gateway-test", **options: Any
) -> AsyncIterator[tuple[Stack, Collector]]:
    async with running_collector() as collector:
        given = GatewayOptions(
            timeouts=quick_timeouts(),
            drain_timeout=20.0,
            tracing=TraceOptions(endpoint=collector.endpoint, **{"ratio": 1.0, **options}),
            trusted_proxies=parse_networks(proxies, "trusted_proxies") if proxies else (),
        )
        async with running_stack(*setting, options=given, replicas=replicas, name=name) as stack:
            yield stack, collector


async def test_a_request_from_its_callers_span_to_settlement(setting: Setting) -> None:
    async with traced(setting) as (stack, collector):
        stack.say("hi", read_hbm=2, queued=0.02, prefill=0.03, pause=0.01)
        answer = await stack.post(
            body(stream=True, temperature=0.5, seed=7, service_tier="priority"), headers={"traceparent": CALLER}
        )
        assert answer.status_code == 200, answer.text
        await collector.until(1)
        [own, *parts] = collector.spans
        assert (own.trace_id.hex(), own.parent_span_id.hex(), own.name) == (TRACE, PARENT, "chat tiny")
        assert [part.name for part in parts] == ["receive", "hold", "route", "queue", "prefill", "decode", "settle"]
        assert {part.parent_span_id for part in parts} == {own.span_id}
        assert len({span.span_id for span in collector.spans}) == 8
        # they follow each other without a gap; the request's own ends with its answer, not with its settlement
        assert parts[0].start_time_unix_nano == own.start_time_unix_nano
        for before, after in itertools.pairwise(parts):
            assert before.end_time_unix_nano == after.start_time_unix_nano
        assert parts[-1].start_time_unix_nano <= own.end_time_unix_nano <= parts[-1].end_time_unix_nano
        said = attributes(own)
        [event] = await stack.settled(1)
        assert said["gen_ai.operation.name"] == "chat"
        assert (said["gen_ai.request.model"], said["gen_ai.response.id"]) == ("tiny", answer.headers["x-request-id"])
        assert said["gen_ai.usage.input_tokens"] == sum(
            getattr(event, column) for column in event._fields if column in ("uncached", "read_automatic")
        )
        assert said["gen_ai.usage.cache_read.input_tokens"] == event.read_automatic
        assert said["gen_ai.usage.output_tokens"] == event.output
        assert said["gen_ai.response.finish_reasons"] == ["stop"]
        assert (said["gen_ai.request.temperature"], said["gen_ai.request.seed"]) == (0.5, 7)
        assert said["gen_ai.response.time_to_first_chunk"] >= 0.05
        assert (said["turnpike.tenant.id"], said["turnpike.lane"]) == (str(stack.tenant.id), "interactive")
        assert attributes(parts[5])["turnpike.decode.steps"] == 2
        assert own.status.code == 0
        # the replica was sent the span that called it
        [run] = stack.replica.runs.values()
        assert run.generate.traceparent == f"00-{TRACE}-{own.span_id.hex()}-01"
        metrics = (await stack.http.get("/metrics")).text
        assert 'turnpike_traced_requests_total{outcome="sent"} 1.0' in metrics


async def test_what_a_request_says_is_in_no_trace(setting: Setting) -> None:
    canary = "CANARY9f3"
    async with traced(setting) as (stack, collector):
        stack.say(canary)
        given = body(
            canary,
            stop=[f"{canary}stop"],
            user=f"{canary}user",
            metadata={canary: canary},
            prompt_cache_key=f"{canary}key",
            tools=[{"type": "function", "function": {"name": f"{canary}tool", "parameters": {"type": "object"}}}],
        )
        assert (await stack.post(given)).status_code == 200
        stack.say(canary, reason="error", error=canary)
        assert (await stack.post(given)).status_code >= 500
        assert (await stack.post(body(canary, max_tokens=canary))).status_code == 400
        assert (await stack.post(body(canary, model=canary))).status_code == 404
        assert (await stack.post(body(canary), headers={"traceparent": canary, "tracestate": canary})).status_code
        await collector.until(3)
        await asyncio.sleep(0.6)
        sent = b"".join(collector.bodies)
        assert b"gen_ai" in sent
        assert canary.encode() not in sent
        assert canary.encode().hex().encode() not in sent


async def test_another_replica_is_an_event(setting: Setting) -> None:
    async with traced(setting, replicas=2) as (stack, collector):
        tokens = stack.tokens("a somewhat longer answer")
        for replica in stack.replicas:
            replica.script = Script(tokens=tokens, die_after=2, pause=0.05)

        async def heal() -> None:
            await stack.until(lambda: any(run.sent for replica in stack.replicas for run in replica.runs.values()))
            for replica in stack.replicas:
                replica.script = Script(tokens=tokens)

        healing = asyncio.create_task(heal())
        answer = await stack.post(body(stream=True))
        await healing
        assert answer.status_code == 200
        await collector.until(1)
        [own] = collector.roots()
        [event] = own.events
        said = attributes(event)
        assert event.name == "continuation"
        assert (said["turnpike.attempt"], said["turnpike.attempt.after"]) == (2, "lost")
        assert said["turnpike.attempt.emitted_tokens"] == 2
        assert own.start_time_unix_nano < event.time_unix_nano < own.end_time_unix_nano
        names = [(span.name, attributes(span).get("turnpike.attempt", 0)) for span in collector.spans[1:]]
        assert ("decode", 1) in names
        assert ("decode", 2) in names
        contexts = {run.generate.traceparent for replica in stack.replicas for run in replica.runs.values()}
        assert contexts == {f"00-{own.trace_id.hex()}-{own.span_id.hex()}-01"}


async def test_errors_and_slow_requests_are_traced_always_and_others_by_chance(setting: Setting) -> None:
    async with traced(setting, ratio=0.0, slow=2.5) as (stack, collector):
        stack.say("quick")
        for _ in range(3):
            assert (await stack.post(body(), headers={"traceparent": CALLER})).status_code == 200
        assert (await stack.post(body(max_tokens=-1))).status_code == 400
        [run, *_] = stack.replica.runs.values()
        assert run.generate.traceparent.startswith(f"00-{TRACE}-")
        assert run.generate.traceparent.endswith("-00"), "the client's flag decides nothing"
        stack.say("broken", reason="error", error="it broke")
        failed = await stack.post(body())
        assert failed.status_code >= 500
        stack.say("late", prefill=2.7)
        late = await stack.post(body())
        assert late.status_code == 200
        await collector.until(2)
        await asyncio.sleep(0.6)
        told = {attributes(span)["gen_ai.response.id"]: span for span in collector.roots()}
        assert set(told) == {failed.headers["x-request-id"], late.headers["x-request-id"]}
        assert told[failed.headers["x-request-id"]].status.code == 2
        assert attributes(told[failed.headers["x-request-id"]])["http.response.status_code"] == failed.status_code


async def test_a_trusted_proxys_flag_decides(setting: Setting) -> None:
    async with traced(setting, ratio=0.0, proxies=("127.0.0.1",)) as (stack, collector):
        stack.say("yes")
        assert (await stack.post(body(), headers={"traceparent": CALLER[:-2] + "00"})).status_code == 200
        assert (await stack.post(body(), headers={"traceparent": CALLER})).status_code == 200
        await collector.until(1)
        await asyncio.sleep(0.6)
        assert len(collector.roots()) == 1
    async with traced(setting, ratio=1.0, proxies=("127.0.0.1",), name="other") as (stack, collector):
        stack.say("yes")
        assert (await stack.post(body(), headers={"traceparent": CALLER[:-2] + "00"})).status_code == 200
        assert (await stack.post(body())).status_code == 200
        await collector.until(1)
        assert collector.roots()[0].trace_id.hex() != TRACE


async def test_a_malformed_or_doubled_traceparent_begins_a_trace_of_its_own(setting: Setting) -> None:
    async with traced(setting) as (stack, collector):
        stack.say("yes")
        headers = {"authorization": f"Bearer {stack.key}"}
        doubled = [*headers.items(), ("traceparent", CALLER), ("traceparent", CALLER)]
        assert (await stack.http.post("/v1/chat/completions", json=body(), headers=doubled)).status_code == 200
        for wrong in (CALLER.upper(), CALLER + "-00", f"ff{CALLER[2:]}", "00-" + "0" * 32 + CALLER[35:], "x" * 4000):
            assert (await stack.post(body(), headers={"traceparent": wrong})).status_code == 200
        await collector.until(6)
        assert all(span.trace_id.hex() != TRACE and not span.parent_span_id for span in collector.roots())
        assert len({span.trace_id for span in collector.roots()}) == 6
        later = f"01{CALLER[2:]}-what a later version adds"
        assert (await stack.post(body(), headers={"traceparent": later})).status_code == 200
        await collector.until(7)
        assert collector.roots()[-1].trace_id.hex() == TRACE


async def test_several_prompts_are_one_trace(setting: Setting) -> None:
    async with traced(setting) as (stack, collector):
        stack.say("yes")
        given = {"model": "tiny", "prompt": ["one", "two"], "max_tokens": 4}
        headers = {"authorization": f"Bearer {stack.key}"}
        assert (await stack.http.post("/v1/completions", json=given, headers=headers)).status_code == 200
        await collector.until(2)
        first, second = collector.roots()
        assert first.name == "text_completion tiny"
        assert first.trace_id == second.trace_id
        assert first.span_id != second.span_id


async def test_a_collector_that_is_away_holds_up_nothing_and_what_has_no_room_is_counted(
    setting: Setting, monkeypatch: Any
) -> None:
    monkeypatch.setattr(exporter, "MOST_WAITING", 3)
    async with traced(setting) as (stack, collector):
        collector.gate.clear()  # it takes connections, and answers nothing
        stack.say("yes")
        for _ in range(12):
            assert (await asyncio.wait_for(stack.post(body()), 5)).status_code == 200
        metrics = (await stack.http.get("/metrics")).text
        [dropped] = [line for line in metrics.splitlines() if 'traced_requests_total{outcome="dropped"}' in line]
        assert float(dropped.split()[-1]) >= 1
        collector.gate.set()


async def test_a_batch_is_sent_again_where_otlp_allows_it_and_left_out_elsewhere(setting: Setting) -> None:
    async with traced(setting, headers=(("x-key", "secret"),)) as (stack, collector):
        stack.say("yes")
        collector.answers = [503, 429]
        assert (await stack.post(body())).status_code == 200
        await collector.until(1)
        assert len(set(collector.bodies)) == 1
        assert len(collector.bodies) == 3
        assert set(collector.paths) == {"/v1/traces"}
        assert {(one["x-key"], one["content-type"]) for one in collector.headers} == {
            ("secret", "application/x-protobuf")
        }
        collector.answers = [400]
        assert (await stack.post(body())).status_code == 200
        await stack.until(lambda: len(collector.bodies) == 4)
        assert (await stack.post(body())).status_code == 200
        await collector.until(2)
        metrics = (await stack.http.get("/metrics")).text
        assert 'turnpike_traced_requests_total{outcome="dropped"} 1.0' in metrics
        assert 'turnpike_traced_requests_total{outcome="sent"} 2.0' in metrics


async def test_logs_and_exemplars_name_the_trace(setting: Setting) -> None:
    async with traced(setting) as (stack, collector):
        stack.say("yes")
        with structlog.testing.capture_logs() as logs:
            assert (await stack.post(body(), headers={"traceparent": CALLER})).status_code == 200
            await collector.until(1)
        lines = {line["event"]: line for line in logs}
        assert lines["answered"]["trace_id"] == TRACE
        accept = {"accept": "application/openmetrics-text; version=1.0.0"}
        answer = await stack.http.get("/metrics", headers=accept)
        assert answer.headers["content-type"].startswith("application/openmetrics-text")
        assert f'# {{trace_id="{TRACE}"}}' in answer.text
        assert answer.text.count("# EOF") == 1
        assert answer.text.endswith("# EOF\n")
        plain = await stack.http.get("/metrics")
        assert TRACE not in plain.text


async def test_without_a_collector_nothing_is_traced(setting: Setting) -> None:
    async with running_stack(*setting) as stack:
        stack.say("yes")
        assert stack.gateway.traces is None
        assert (await stack.post(body(), headers={"traceparent": CALLER})).status_code == 200
        [run] = stack.replica.runs.values()
        assert run.generate.traceparent == ""
