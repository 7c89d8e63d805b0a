"""Caching asked for with OpenAI's fields and with HTTP headers, by the official client against a real server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from msgspec import structs
from sqlalchemy import text

from billing.prices import PriceCatalog
from billing.usage import LEASE_CLASSES
from gateway.services import GatewayOptions
from protocol.frames import VERSION
from protocol.requests import PROMPT_VERSION, Lost
from storage.database.database import Database
from tests.gateway.stack import PRICES, Stack, quick_timeouts, running_stack
from tests.waiting import LONG_S

LEASED = {
    **PRICES,
    **{f"read_{name}": "0.04" for name in LEASE_CLASSES},
    **{f"write_{name}": price for name, price in zip(LEASE_CLASSES, ("0.50", "0.60", "0.80", "1", "2"), strict=True)},
}
RULES = "Answer in one line, and remove any common leading whitespace from every line in text."
QUESTION = "What does textwrap.dedent do?"
EXPLICIT: Any = {"mode": "explicit"}


@pytest.fixture
async def stack(stocked_sqlite_url: str, tmp_path: Path, model_folder: Path) -> AsyncIterator[Stack]:
    database = await Database.open(stocked_sqlite_url)
    await PriceCatalog(database).set("tiny", "USD", LEASED)
    await database.close()
    async with running_stack(stocked_sqlite_url, tmp_path, model_folder) as running:
        running.say("ok")
        yield running


def messages(marker: dict[str, Any] | None = None, question: str = QUESTION) -> Any:
    """A conversation whose rules may be marked."""
    rules = {"type": "text", "text": RULES, **(marker or {})}
    return [{"role": "system", "content": [rules]}, {"role": "user", "content": question}]


async def ask(stack: Stack, said: Any, **fields: Any) -> tuple[dict[str, Any], str]:
    """The `usage` of an answer, and its `Cache-Status`."""
    async with stack.openai() as client:
        raw = await client.chat.completions.with_raw_response.create(model="tiny", messages=said, **fields)
    answer = raw.parse()
    assert answer.usage is not None
    return answer.usage.model_dump(exclude_none=True), status_of(raw.headers)


def status_of(headers: Any) -> str:
    """`Cache-Status`, whether the lease that is read was settled already or not."""
    return str(headers.get("cache-status", "")).replace("; collapsed", "")


def rules_end(stack: Stack) -> int:
    """The tokens up to the end of the rules: the template's two before them."""
    return 2 + len(stack.tokens(RULES, end=False))


def conversation_end(stack: Stack) -> int:
    return rules_end(stack) + 2 + len(stack.tokens(QUESTION, end=False))


def details(usage: dict[str, Any]) -> tuple[int, int]:
    found = usage["prompt_tokens_details"]
    return found["cached_tokens"], found["cache_write_tokens"]


# ---------------------------------------------------------------- fields


async def test_what_is_not_marked_costs_what_it_did_and_leaves_no_lease(stack: Stack) -> None:
    stack.replica.script.read_hbm = 16  # type: ignore[union-attr]
    usage, status = await ask(stack, messages())
    assert usage["prompt_tokens_details"] == {"cached_tokens": 16, "cache_write_tokens": 0, "audio_tokens": 0}
    assert status == 'turnpike; hit; detail="hbm:16"'
    (event,) = await stack.settled(1)
    assert (event.read_automatic, event.uncached) == (16, usage["prompt_tokens"] - 16)
    assert await stack.rows("SELECT * FROM lease") == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("marker", "options", "lease"),
    [
        ({"prompt_cache_breakpoint": EXPLICIT}, {"mode": "explicit"}, "30m"),
        ({"prompt_cache_breakpoint": EXPLICIT}, {"mode": "explicit", "ttl": "12h"}, "12h"),
        ({"prompt_cache_breakpoint": {**EXPLICIT, "ttl": "12h"}}, {"mode": "explicit", "ttl": "30m"}, "12h"),
        ({"cache_control": {"type": "ephemeral"}}, None, "5m"),
        ({"cache_control": {"type": "ephemeral", "ttl": "1h"}}, None, "1h"),
    ],
)
async def test_a_marked_part_is_written_once_and_read_after(
    stack: Stack, marker: dict[str, Any], options: Any, lease: str
) -> None:
    fields = {} if options is None else {"prompt_cache_options": options}
    marked = rules_end(stack)
    usage, status = await ask(stack, messages(marker), **fields)
    assert details(usage) == (0, marked)
    assert usage["prompt_tokens_details"]["cache_write_tokens_details"][f"ttl_{lease}_tokens"] == marked
    assert status.startswith("turnpike; fwd=uri-miss; stored; ttl=")
    usage, status = await ask(stack, messages(marker, "And textwrap.fill?"), **fields)
    assert details(usage) == (marked, 0)
    assert usage["prompt_tokens_details"]["cached_tokens_details"][f"ttl_{lease}_tokens"] == marked
    assert usage["cache_expires_at"].endswith("Z")
    assert status.startswith("turnpike; hit; ttl=")
    assert 'detail="hbm:0"' in status, "the lease outlives its KV"
    key = status.partition('key="')[2].partition('"')[0]
    found = await stack.http.get(f"/v1/caches/{key}", headers={"authorization": f"Bearer {stack.key}"})
    assert (found.json()["tokens"], found.json()["ttl"]) == (marked, lease)
    first, second = await stack.settled(2)
    assert getattr(first, f"write_{lease}") == getattr(second, f"read_{lease}") == marked


async def test_the_implicit_breakpoint_lies_at_the_last_message(stack: Stack) -> None:
    options: Any = {"mode": "implicit", "ttl": "30m"}
    usage, _ = await ask(stack, messages(), prompt_cache_options=options)
    assert details(usage) == (0, conversation_end(stack))
    longer = [*messages(), {"role": "assistant", "content": "It dedents."}, {"role": "user", "content": "Why?"}]
    usage, _ = await ask(stack, longer, prompt_cache_options=options)
    read, written = details(usage)
    assert read == conversation_end(stack)
    assert 0 < written < usage["prompt_tokens"] - read


async def test_the_older_retention_is_a_class_of_its_own(stack: Stack) -> None:
    usage, _ = await ask(stack, messages(), prompt_cache_retention="24h")
    assert usage["prompt_tokens_details"]["cache_write_tokens_details"]["ttl_24h_tokens"] == conversation_end(stack)
    usage, _ = await ask(stack, messages(question="Why?"), prompt_cache_retention="in_memory")
    assert usage["prompt_tokens_details"]["cache_write_tokens_details"]["ttl_30m_tokens"] > 0


@pytest.mark.slow
async def test_a_key_splits_the_cache(stack: Stack) -> None:
    marker = {"prompt_cache_breakpoint": EXPLICIT}
    for key, expected in (("a", (0, 1)), ("b", (0, 1)), ("a", (1, 0)), (None, (0, 1))):
        fields = {} if key is None else {"prompt_cache_key": key}
        usage, _ = await ask(stack, messages(marker), prompt_cache_options={"mode": "explicit"}, **fields)
        assert details(usage) == tuple(share * rules_end(stack) for share in expected)
    scopes = [run.generate.segments[0].scope for run in stack.replica.runs.values()]
    assert scopes[0] == scopes[2]
    assert len(set(scopes)) == 3
    roots = {scope.scope: (scope.root, scope.data_key) for scope in stack.replica.scopes}
    assert len(set(roots.values())) == 3


async def test_explicit_mode_without_a_marker_turns_caching_off(stack: Stack) -> None:
    usage, status = await ask(stack, messages(), prompt_cache_options={"mode": "explicit"})
    assert (details(usage), status) == ((0, 0), "turnpike; fwd=bypass")
    (run,) = stack.replica.runs.values()
    assert (run.generate.read, run.generate.store) == (False, "none")


async def test_a_prewarmed_prompt_is_written_and_nothing_is_generated(stack: Stack) -> None:
    stack.replica.script.tokens = []  # type: ignore[union-attr]
    fields: Any = {"response_format": {"type": "json_object"}, "logprobs": True}
    warm = {"prompt_cache_options": {"mode": "implicit", "prewarm": True}}
    usage, _ = await ask(stack, messages(), extra_body=warm, **fields)
    assert (usage["completion_tokens"], details(usage)) == (0, (0, conversation_end(stack)))
    (run,) = stack.replica.runs.values()
    assert (run.generate.sampling.max_tokens, run.generate.grammar) == (0, None)
    stack.say("ok")
    usage, _ = await ask(stack, messages(), prompt_cache_options={"mode": "implicit"})
    assert details(usage) == (conversation_end(stack), 0)


@pytest.mark.slow
async def test_text_completions_take_the_options(stack: Stack) -> None:
    async with stack.openai() as client:
        for expected in ((0, 1), (1, 0)):
            answer = await client.completions.create(
                model="tiny", prompt=RULES, extra_body={"prompt_cache_options": {"ttl": "30m"}}
            )
            assert answer.usage is not None
            tokens = answer.usage.prompt_tokens
            assert details(answer.usage.model_dump()) == tuple(share * tokens for share in expected)


# ---------------------------------------------------------------- headers


async def post(stack: Stack, control: str, **fields: Any) -> httpx.Response:
    body = {"model": "tiny", "messages": messages(), **fields}
    return await stack.post(body, headers={"cache-control": control})


async def test_no_store_writes_nothing_and_keeps_kv_on_the_device(stack: Stack) -> None:
    answer = await post(stack, "no-store")
    assert (answer.status_code, status_of(answer.headers)) == (200, "turnpike; fwd=uri-miss")
    (run,) = stack.replica.runs.values()
    assert (run.generate.read, run.generate.store) == (True, "hbm")
    refused = await post(stack, "No-Store", prompt_cache_options={"ttl": "30m"})
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "Cache-Control"


@pytest.mark.slow
async def test_no_cache_reads_nothing_and_writes(stack: Stack) -> None:
    options = {"prompt_cache_options": {"ttl": "30m"}}
    await ask(stack, messages(), **options)
    for control in ("no-cache", "max-age=0"):
        answer = await post(stack, control, **options)
        assert details(answer.json()["usage"]) == (0, conversation_end(stack)), control
        assert status_of(answer.headers).startswith("turnpike; fwd=bypass")
    assert [run.generate.read for run in stack.replica.runs.values()] == [True, False, False]
    answer = await post(stack, "max-age=600", **options)
    assert details(answer.json()["usage"]) == (conversation_end(stack), 0)


@pytest.mark.slow
async def test_a_lease_that_is_too_old_is_stale(stack: Stack) -> None:
    options = {"prompt_cache_options": {"ttl": "30m"}}
    await ask(stack, messages(), **options)
    await stack.settled(1)
    async with stack.database.transaction() as session:
        await session.execute(text("UPDATE lease SET written_at = written_at - 100000000"))
    aged = await post(stack, "max-age=99", **options)
    assert status_of(aged.headers).startswith("turnpike; fwd=stale; stored; ttl=")
    assert details(aged.json()["usage"]) == (0, conversation_end(stack))
    await stack.settled(2)
    async with stack.database.transaction() as session:
        await session.execute(text("UPDATE lease SET expires_at = written_at"))
    _, status = await ask(stack, messages(), **options)
    assert status.startswith("turnpike; fwd=stale; stored; ttl=")


@pytest.mark.slow
@pytest.mark.parametrize("streamed", [False, True])
async def test_only_if_cached_fails_with_a_price_and_without_work(stack: Stack, streamed: bool) -> None:
    refused = await post(stack, "only-if-cached", stream=streamed, prompt_cache_options={"ttl": "30m"})
    assert refused.status_code == 412
    assert refused.headers["x-should-retry"] == "false"
    assert refused.headers["cache-status"] == "turnpike; fwd=uri-miss"
    error = refused.json()["error"]
    assert (error["code"], error["type"]) == ("not_cached", "invalid_request_error")
    assert error["cache_miss"]["currency"] == "USD"
    assert float(error["cache_miss"]["cost"]) > 0
    assert not stack.replica.runs
    assert "open" not in await stack.holds()
    await ask(stack, messages(), prompt_cache_options={"ttl": "30m"})
    for fields in ({"prompt_cache_options": {"ttl": "30m"}}, {}):
        answer = await post(stack, "only-if-cached", **fields)
        assert answer.status_code == 200, "also without a marker, where one was before"
        assert details(answer.json()["usage"]) == (conversation_end(stack), 0)


@pytest.mark.parametrize("streamed", [False, True])
async def test_only_if_cached_computes_nothing_when_the_writer_fails(stack: Stack, streamed: bool) -> None:
    good = stack.say("ok")
    failing = structs.replace(good, tokens=[], prefill=0.3, reason="error")
    stack.replica.script = lambda _: good if len(stack.replica.runs) > 1 else failing
    ttl = {"prompt_cache_options": {"ttl": "30m"}}
    writer = asyncio.create_task(stack.post({"model": "tiny", "messages": messages(), **ttl}))
    await stack.until(lambda: stack.replica.runs)
    refused = await post(stack, "only-if-cached", stream=streamed, **ttl)
    assert (await writer).status_code >= 500
    assert (refused.status_code, refused.json()["error"]["code"]) == (412, "not_cached")
    assert len(stack.replica.runs) == 1
    (event,) = await stack.settled(1)
    assert event.cost_pico == 0


@pytest.mark.slow
async def test_the_official_client_does_not_retry_a_miss(stack: Stack) -> None:
    async with stack.openai(max_retries=2) as client:
        with pytest.raises(openai.APIStatusError) as caught:
            await client.chat.completions.create(
                model="tiny", messages=messages(), extra_headers={"Cache-Control": "only-if-cached"}
            )
    assert (caught.value.status_code, caught.value.code) == (412, "not_cached")


@pytest.mark.parametrize(
    ("version", "lost", "status"),
    [
        (VERSION, (), 'turnpike; hit; detail="nvme:32"'),
        (VERSION, (Lost(0, 16, "late"),), 'turnpike; hit; detail="nvme:16"'),
        (VERSION, (Lost(0, 32, "corrupted"),), "turnpike; fwd=uri-miss"),
        (PROMPT_VERSION - 1, (Lost(0, 32, "late"),), None),
    ],
)
async def test_a_stream_tells_what_came_and_not_what_was_planned(
    stack: Stack, version: int, lost: tuple[Lost, ...], status: str | None
) -> None:
    stack.say("ok", read_nvme=32, lost=lost)
    stack.replica.version = version
    answer = await stack.post({"model": "tiny", "messages": messages(), "stream": True})
    assert answer.headers.get("cache-status") == status
    (event,) = await stack.settled(1)
    assert event.count_read_nvme == 32 - sum(part.end - part.start for part in lost)


async def test_a_stream_that_waits_for_a_slow_disk_does_not_tell_what_may_not_come(
    stocked_sqlite_url: str, tmp_path: Path, model_folder: Path
) -> None:
    options = GatewayOptions(timeouts=quick_timeouts(), keep_alive=0.05)
    async with running_stack(stocked_sqlite_url, tmp_path, model_folder, options=options) as stack:
        stack.say("ok", read_nvme=32, prefill=0.5)
        answer = await stack.post({"model": "tiny", "messages": messages(), "stream": True})
        assert answer.status_code == 200
        assert "cache-status" not in answer.headers


@pytest.mark.slow
async def test_a_stream_tells_the_cache_before_its_first_event(stack: Stack) -> None:
    options: Any = {"ttl": "30m"}
    statuses, usages = [], []
    async with stack.openai() as client:
        for _ in range(2):
            raw = await client.chat.completions.with_raw_response.create(
                model="tiny",
                messages=messages(),
                stream=True,
                stream_options={"include_usage": True},
                prompt_cache_options=options,
            )
            statuses.append(status_of(raw.headers))
            usages += [chunk.usage async for chunk in raw.parse() if chunk.usage is not None]
    assert statuses[0].startswith("turnpike; fwd=uri-miss; stored; ttl=1")
    assert statuses[1].startswith("turnpike; hit; ttl=1")
    assert [details(usage.model_dump()) for usage in usages] == [
        (0, conversation_end(stack)),
        (conversation_end(stack), 0),
    ]


@pytest.mark.alone  # its headers go out after 50 ms
async def test_a_stream_that_waits_for_its_turn_tells_what_its_leases_promise_for_certain(
    stocked_sqlite_url: str, tmp_path: Path, model_folder: Path
) -> None:
    database = await Database.open(stocked_sqlite_url)
    await PriceCatalog(database).set("tiny", "USD", LEASED)
    await database.close()
    options = GatewayOptions(timeouts=quick_timeouts(), keep_alive=0.05)
    async with running_stack(stocked_sqlite_url, tmp_path, model_folder, options=options) as stack:
        stack.say("ok", queued=0.3)
        statuses = []
        for fields in ({"prompt_cache_options": {}}, {"prompt_cache_options": {}}, {}):
            answer = await stack.post({"model": "tiny", "messages": messages(), "stream": True, **fields})
            statuses.append(status_of(answer.headers))
            await stack.settled(len(statuses))
            end = time.monotonic() + LONG_S
            while await stack.rows("SELECT 1 FROM lease WHERE billed = 0"):
                assert time.monotonic() < end, "the write is not billed"
                await asyncio.sleep(0.01)
    assert statuses[0] == "", "another request may write in its place before it has a token"
    assert statuses[1].startswith("turnpike; hit; ttl=1")
    assert "detail" not in statuses[1]
    assert statuses[2] == ""


async def test_what_contradicts_itself_is_refused(stack: Stack) -> None:
    for control in ("max-age=soon", "max-age", "max-age=-1", "max-age=1, max-age=2", "only-if-cached, no-cache"):
        refused = await post(stack, control)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "Cache-Control"), control
    refused = await post(stack, "only-if-cached", prompt_cache_options={"mode": "explicit"})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "Cache-Control")
    assert not stack.replica.runs
