"""Caching asked for with `cache_control`, by the official client against a real server with real leases."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from billing.prices import PriceCatalog
from billing.usage import LEASE_CLASSES
from protocol.requests import Generate
from storage.database.database import Database
from tests.gateway.endpoints.test_messages import ASK, events_of, raw
from tests.gateway.fake_replica import Script
from tests.gateway.stack import PRICES, Stack, running_stack

LEASED = {
    **PRICES,
    **{f"read_{name}": "0.04" for name in LEASE_CLASSES},
    **{f"write_{name}": price for name, price in zip(LEASE_CLASSES, ("0.50", "0.60", "0.80", "1", "2"), strict=True)},
}
FIVE: Any = {"type": "ephemeral"}
HOUR: Any = {"type": "ephemeral", "ttl": "1h"}
RULES = "Answer in one line, and remove any common leading whitespace from every line in text."
TOOL: Any = {"name": "look", "description": "Look it up.", "input_schema": {"type": "object", "properties": {}}}


@pytest.fixture
async def stack(stocked_sqlite_url: str, tmp_path: Path, model_folder: Path) -> AsyncIterator[Stack]:
    database = await Database.open(stocked_sqlite_url)
    await PriceCatalog(database).set("tiny", "USD", LEASED)
    await database.close()
    async with running_stack(stocked_sqlite_url, tmp_path, model_folder) as running:
        running.say("ok")
        yield running


def text(said: str, marker: Any = None) -> Any:
    return {"type": "text", "text": said, **({"cache_control": marker} if marker else {})}


def body(question: str = "Why?", **fields: Any) -> dict[str, Any]:
    return {**ASK, "messages": [{"role": "user", "content": question}], **fields}


async def usage_of(stack: Stack, request: dict[str, Any]) -> tuple[int, int, int, int]:
    """Uncached, read, written for 5 minutes, written for an hour: as billed, and as every usage object says it."""
    streamed = bool(request.get("stream"))
    answer = await raw(stack, request)
    assert answer.status_code == 200, answer.text
    shown = [answer.json()["usage"]] if not streamed else []
    if streamed:
        events = dict(events_of(answer.text))
        shown = [events["message_start"]["message"]["usage"], events["message_delta"]["usage"]]
    told = {
        (
            usage["input_tokens"],
            usage["cache_read_input_tokens"],
            usage["cache_creation"]["ephemeral_5m_input_tokens"],
            usage["cache_creation"]["ephemeral_1h_input_tokens"],
        )
        for usage in shown
    }
    (one,) = told
    for usage in shown:
        assert usage["cache_creation_input_tokens"] == sum(one[2:])
    assert sum(one) == len(list(stack.replica.runs.values())[-1].generate.tokens)
    return one


async def test_a_marked_system_is_written_once_and_read_after(stack: Stack) -> None:
    system = [text(RULES, FIVE)]
    async with stack.anthropic() as client:
        first = await client.messages.create(**body(system=system))
        second = await client.messages.create(**body("And textwrap.fill?", system=system))
    marked = 2 + len(stack.tokens(RULES, end=False))
    assert (first.usage.cache_creation_input_tokens, first.usage.cache_read_input_tokens) == (marked, 0)
    assert (second.usage.cache_creation_input_tokens, second.usage.cache_read_input_tokens) == (0, marked)
    events = await stack.settled(2)
    assert (events[0].write_5m, events[1].read_5m) == (marked, marked)


@pytest.mark.slow
async def test_without_markers_nothing_is_cached(stack: Stack) -> None:
    stack.replica.script.read_hbm = 16  # type: ignore[union-attr]
    uncached, *others = await usage_of(stack, body(system=RULES))
    assert others == [0, 0, 0]
    (event,) = await stack.settled(1)
    assert event.uncached == uncached


async def test_streams_tell_the_same_at_both_ends(stack: Stack) -> None:
    request = body(system=[text(RULES, HOUR)], stream=True)
    uncached, read, five, hour = await usage_of(stack, request)
    assert (read, five) == (0, 0)
    assert hour > 0
    assert await usage_of(stack, request) == (uncached, hour, 0, 0)
    await stack.settled(2)


@pytest.mark.slow
async def test_tools_system_and_messages_in_one_request(stack: Stack) -> None:
    request = body(
        tools=[{**TOOL, "cache_control": HOUR}],
        system=[text(RULES, HOUR)],
        messages=[
            {"role": "user", "content": [text("one", FIVE)]},
            {"role": "assistant", "content": [text("two")]},
            {"role": "user", "content": [text("three", FIVE)]},
        ],
    )
    uncached, read, five, hour = await usage_of(stack, request)
    assert read == 0
    assert min(five, hour) > 0
    assert await usage_of(stack, request) == (uncached, five + hour, 0, 0)
    only_tools = body("another", tools=request["tools"])
    _, read, _, _ = await usage_of(stack, only_tools)
    assert 0 < read < hour, "the tools alone are found, since they come first"
    other = [{**TOOL, "description": "Look it all up.", "cache_control": HOUR}]
    _, read, _, written = await usage_of(stack, body("another", tools=other))
    assert read == 0
    assert written > 0
    await stack.settled(4)


async def test_calls_and_results_can_be_marked(stack: Stack) -> None:
    turns: list[Any] = [
        {"role": "user", "content": "How warm is it in Köln?"},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Let me look.", "signature": "x"},
                text("Let me look."),
                {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {"city": "Köln"}, "cache_control": FIVE},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "toolu_1", "content": [text("15 C")], "cache_control": FIVE},
                text("So?"),
            ],
        },
    ]
    request = body(tools=[TOOL], messages=turns)
    uncached, _, five, _ = await usage_of(stack, request)
    assert five > 0
    assert await usage_of(stack, request) == (uncached, five, 0, 0)
    turns[2]["content"][0]["content"] = "16 C"
    _, read, written, _ = await usage_of(stack, request)
    assert 0 < read < five, "the call is found before the result that changed"
    assert written > 0
    await stack.settled(3)


@pytest.mark.slow
async def test_automatic_caching_moves_with_the_conversation(stack: Stack) -> None:
    first = body(cache_control=FIVE, system=RULES)
    _, read, written, _ = await usage_of(stack, first)
    assert (read, written > 0) == (0, True)
    said = [*first["messages"], {"role": "assistant", "content": "So."}, {"role": "user", "content": "And?"}]
    _, read_then, written_then, _ = await usage_of(stack, {**first, "messages": said})
    assert read_then == written
    assert written_then > 0
    await stack.settled(2)


async def test_a_prewarmed_prompt_is_read(stack: Stack) -> None:
    system = [text(RULES, FIVE)]
    say, stack.replica.script.tokens = stack.replica.script.tokens, []  # type: ignore[union-attr]
    _, read, written, _ = await usage_of(stack, body("Warm up.", system=system, max_tokens=0))
    assert (read, written > 0) == (0, True)
    stack.replica.script.tokens = say  # type: ignore[union-attr]
    _, read, _, _ = await usage_of(stack, body(system=system))
    assert read == written
    await stack.settled(2)


async def test_what_is_too_short_is_not_cached_and_no_error(stack: Stack) -> None:
    assert (await usage_of(stack, body(system=[text("a", FIVE)])))[1:] == (0, 0, 0)
    await stack.settled(1)


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "five markers": (
        body(messages=[{"role": "user", "content": [text(f"part {n} of it", FIVE) for n in range(5)]}]),
        "$.messages[0].content[4].cache_control",
    ),
    "four markers and automatic caching": (
        body(
            messages=[{"role": "user", "content": [*(text(f"part {n}", FIVE) for n in range(4)), text("last")]}],
            cache_control=FIVE,
        ),
        "$.cache_control",
    ),
    "a longer lifetime after a shorter one": (
        body(system=[text(RULES, FIVE)], messages=[{"role": "user", "content": [text("one", HOUR)]}]),
        "$.messages[0].content[0].cache_control",
    ),
    "automatic caching of another lifetime at a marked block": (
        body(messages=[{"role": "user", "content": [text("one", HOUR)]}], cache_control=FIVE),
        "$.cache_control",
    ),
    "an empty text": (
        body(messages=[{"role": "user", "content": [text("", FIVE), text("b")]}]),
        "$.messages[0].content[0].cache_control",
    ),
    "thinking": (
        body(
            messages=[
                {"role": "user", "content": "a"},
                {"role": "assistant", "content": [{"type": "thinking", "thinking": "b", "cache_control": FIVE}]},
                {"role": "user", "content": "c"},
            ]
        ),
        "$.messages[1].content[0].cache_control",
    ),
    "an unknown lifetime": (
        body(system=[text(RULES, {"type": "ephemeral", "ttl": "2h"})]),
        "$.system[0].cache_control.ttl",
    ),
    "an unknown type": (body(system=[text(RULES, {"type": "forever"})]), "$.system[0].cache_control.type"),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", WRONG)
async def test_what_the_rules_refuse_names_the_marker(stack: Stack, case: str) -> None:
    request, path = WRONG[case]
    for route in ("/v1/messages", "/v1/messages/count_tokens"):
        answer = await raw(stack, request, route)
        assert answer.status_code == 400, answer.text
        error = answer.json()["error"]
        assert error["type"] == "invalid_request_error"
        assert error["message"].startswith(path), error
        assert error["details"]["path"] == path


@pytest.mark.slow
async def test_only_if_cached_says_what_a_miss_would_cost(stack: Stack) -> None:
    request = body(system=[text(RULES, FIVE)])
    missed = await raw(stack, request, **{"cache-control": "only-if-cached"})
    assert missed.status_code == 412
    assert missed.json()["error"]["cache_miss"]["tokens"] > 0
    await raw(stack, request)
    found = await raw(stack, request, **{"cache-control": "only-if-cached"})
    assert found.status_code == 200
    assert found.headers["cache-status"].startswith("turnpike; hit")
    await stack.settled(2)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["error", "leaves", "refused"])
async def test_who_takes_over_from_a_writer_that_failed_says_and_pays_the_write(stack: Stack, how: str) -> None:
    good = stack.say("ok")
    asked = 0

    def script(_: Generate) -> Script:
        nonlocal asked
        asked += 1
        if asked > 1:
            return good
        reason = {"error": "error", "refused": "rejected"}.get(how, "")
        waits = {"queued": 5.0} if how == "leaves" else {"prefill": 0.1}
        return structs.replace(good, reason=reason, tokens=[] if reason else good.tokens, **waits)

    stack.replica.script = script
    request = body(system=[text(RULES, HOUR)], stream=True)
    writer = asyncio.create_task(raw(stack, request))
    await stack.until(lambda: asked)
    if how == "leaves":
        readers = [asyncio.create_task(raw(stack, request)) for _ in range(3)]
        await asyncio.sleep(0.1)
        writer.cancel()
    else:
        readers = [asyncio.create_task(raw(stack, request)) for _ in range(3)]
    shown = []
    for answer in await asyncio.gather(*readers):
        events = dict(events_of(answer.text))
        start, end = events["message_start"]["message"]["usage"], events["message_delta"]["usage"]
        told = [(usage["cache_read_input_tokens"], usage["cache_creation_input_tokens"]) for usage in (start, end)]
        assert told[0] == told[1]
        shown.append(told[0])
    marked = 2 + len(stack.tokens(RULES, end=False))
    assert sorted(shown) == [(0, marked), (marked, 0), (marked, 0)]
    await asyncio.gather(writer, return_exceptions=True)
    billed = [(event.read_1h, event.write_1h) for event in await stack.settled(3 if how == "refused" else 4)]
    (lease,) = await stack.rows("SELECT billed, tokens FROM lease")
    assert tuple(lease) == (1, marked)
    assert sorted(billed)[-3:] == [(0, marked), (marked, 0), (marked, 0)]
