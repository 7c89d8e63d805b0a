"""POST /v1/estimate and `max_cost`: what a request costs at most, known before it and kept to."""

from __future__ import annotations

from collections.abc import AsyncIterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from billing.prices import PriceCatalog
from tests.gateway.stack import PRICES, Stack, running_stack

ASK: Any = {"model": "tiny", "messages": [{"role": "user", "content": "How much is it?"}], "max_tokens": 4}
MARKED: Any = "A long prompt that is worth keeping. " * 6
VERSION = {"anthropic-version": "2023-06-01"}


@pytest.fixture
async def caching(stocked_sqlite_url: str, tmp_path: Path, model_folder: Path) -> AsyncIterator[Stack]:
    async with running_stack(stocked_sqlite_url, tmp_path, model_folder) as stack:
        leases = {f"{what}_1h": price for what, price in (("read", "0.04"), ("write", "0.50"))}
        await PriceCatalog(stack.database).set("tiny", "USD", PRICES | leases)
        await stack.gateway.services.prices.close()
        stack.gateway.services.prices.__init__(stack.database)  # type: ignore[misc]  # forgets the price of before
        yield stack


async def estimate(stack: Stack, body: Any, headers: Any = None, status: int = 200) -> Any:
    headers = {"authorization": f"Bearer {stack.key}"} | (headers or {})
    answer = await stack.http.post("/v1/estimate", json=body, headers=headers)
    assert answer.status_code == status, answer.text
    return answer.json()


async def test_the_bound_of_each_lane_is_what_a_request_is_held_to(stack: Stack) -> None:
    found = await estimate(stack, ASK)
    assert (found["object"], found["model"], found["currency"], found["max_output_tokens"]) == (
        "estimate", "tiny", "USD", 4,
    )  # fmt: skip
    assert set(found["lanes"]) == {"interactive", "standard", "batch"}
    assert found["input"]["uncached"] == found["input"]["tokens"]
    assert await stack.events() == [], "nothing ran"
    stack.say("one two three four", end=False)
    answer = await stack.post(ASK)
    assert answer.status_code == 200
    (event,) = await stack.settled(1)
    assert event.uncached == found["input"]["tokens"], "the tokens are exact"
    assert event.cost_pico <= Decimal(found["lanes"]["standard"]["max_cost"]) * 10**12


async def test_messages_are_estimated_with_their_header(stack: Stack) -> None:
    found = await estimate(stack, ASK, VERSION)
    assert found["input"]["tokens"] == (await estimate(stack, ASK))["input"]["tokens"]
    refused = await estimate(stack, {"model": "tiny"}, VERSION, 400)
    assert refused["type"] == "error", "in the dialect of the header"


async def test_a_responses_body_is_estimated_as_it_would_be_billed(stack: Stack) -> None:
    headers = {"authorization": f"Bearer {stack.key}"}
    asked = {"model": "tiny", "input": "How much is it?", "max_output_tokens": 4}
    found = await estimate(stack, asked)
    assert found == await estimate(stack, ASK), "as the same conversation in chat"
    stack.say("much")
    first = await stack.http.post("/v1/responses", json=asked | {"store": True}, headers=headers)
    assert first.json()["usage"]["input_tokens"] == found["input"]["tokens"]
    more = asked | {"previous_response_id": first.json()["id"]}
    foreseen = await estimate(stack, more)
    second = await stack.http.post("/v1/responses", json=more, headers=headers)
    assert second.json()["usage"]["input_tokens"] == foreseen["input"]["tokens"] > found["input"]["tokens"]
    long = asked | {"input": [{"role": "user", "content": "word " * 60}] * 12}
    assert (await estimate(stack, long, status=400))["error"]["code"] == "context_length_exceeded"
    shortened = await estimate(stack, long | {"truncation": "auto"})
    answer = await stack.http.post("/v1/responses", json=long | {"truncation": "auto"}, headers=headers)
    assert answer.json()["usage"]["input_tokens"] == shortened["input"]["tokens"] < 512
    unknown = await estimate(stack, asked | {"previous_response_id": "resp_" + "0" * 32}, status=404)
    assert unknown["error"]["code"] == "previous_response_not_found"
    await stack.settled(3)


async def test_what_the_cache_has_is_known(caching: Stack) -> None:
    stack = caching
    part = {"type": "text", "text": MARKED, "cache_control": {"type": "ephemeral", "ttl": "1h"}}
    body = {"model": "tiny", "messages": [{"role": "user", "content": [part]}], "max_tokens": 4}
    first = await estimate(stack, body)
    assert (first["input"]["read"], set(first["input"]["write"])) == ({}, {"1h"})
    again = await estimate(stack, body)
    assert again == first, "an estimate promises nothing"
    stack.say("kept")
    assert (await stack.post(body)).status_code == 200
    (event,) = await stack.settled(1)
    assert event.write_1h == first["input"]["write"]["1h"]
    warm = await estimate(stack, body)
    assert warm["input"]["read"] == {"1h": event.write_1h}
    assert warm["input"]["cache_expires_at"] is not None
    stack.say("kept")
    assert (await stack.post(body)).status_code == 200
    events = await stack.settled(2)
    assert events[-1].read_1h == warm["input"]["read"]["1h"], "as billed"


async def test_max_cost_refuses_before_any_work(stack: Stack) -> None:
    bound = (await estimate(stack, ASK))["lanes"]["standard"]["max_cost"]
    below = f"{Decimal(bound) - Decimal('0.000000000001'):f}"
    for path, version in (("/v1/chat/completions", {}), ("/v1/messages", VERSION)):
        stack.say("never said")
        headers = {"authorization": f"Bearer {stack.key}"} | version
        answer = await stack.http.post(path, json=ASK | {"max_cost": below}, headers=headers)
        assert answer.status_code == 400
        assert "max_cost" in answer.json()["error"]["message"]
    assert answer.json()["error"]["details"]["error_code"] == "max_cost_exceeded"
    asked = {"model": "tiny", "input": "How much is it?", "max_output_tokens": 4, "max_cost": "0.000000000001"}
    answer = await stack.http.post("/v1/responses", json=asked, headers={"authorization": f"Bearer {stack.key}"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "max_cost_exceeded")
    assert (await stack.events(), await stack.holds()) == ([], []), "nothing was held, run or billed"
    stack.say("said")
    assert (await stack.post(ASK | {"max_cost": bound})).status_code == 200


async def test_a_request_without_a_limit_is_shortened_to_its_max_cost(stack: Stack) -> None:
    one = Decimal((await estimate(stack, ASK | {"max_tokens": 1}))["lanes"]["standard"]["max_cost"])
    two = Decimal((await estimate(stack, ASK | {"max_tokens": 2}))["lanes"]["standard"]["max_cost"])
    body = {name: value for name, value in ASK.items() if name != "max_tokens"}
    stack.say("one two three four five six", end=False)
    answer = await stack.post(body | {"max_cost": f"{one + 2 * (two - one):f}"})
    assert answer.status_code == 200
    assert answer.headers["x-turnpike-max-tokens"] == "3"
    assert answer.json()["usage"]["completion_tokens"] <= 3


@pytest.mark.parametrize("cost", ["", "-1", "1e3", "0", "much", "0.0000000000001"])
async def test_a_bad_max_cost_names_the_field(stack: Stack, cost: str) -> None:
    answer = await stack.post(ASK | {"max_cost": cost})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "max_cost"
