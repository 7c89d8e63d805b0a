"""`service_tier` end to end, with the official client: run, held, billed and reported in its lane."""

from __future__ import annotations

import time
from typing import Any

import openai
import pytest

from billing.prices import in_every_lane
from billing.prices.approval import PriceSheets
from billing.prices.grid import derived, parse_factor
from billing.prices.sheets import PriceProposal
from tests.gateway.stack import Stack

MESSAGES: Any = [{"role": "user", "content": "hi"}]
MICRO = {"uncached": 400_000, "read_automatic": 40_000, "output": 1_600_000}
FACTORS = {"interactive": "2x", "batch": "0.5x"}
TIERS = {
    None: ("default", "standard", 1.0),
    "auto": ("default", "standard", 1.0),
    "default": ("default", "standard", 1.0),
    "priority": ("priority", "interactive", 2.0),
    "flex": ("flex", "batch", 0.5),
}


@pytest.mark.slow
async def test_a_tier_is_run_held_billed_said_and_reported(stack: Stack) -> None:
    rows = derived(in_every_lane(MICRO), {lane: parse_factor(factor, lane) for lane, factor in FACTORS.items()})
    await PriceSheets(stack.database).put(PriceProposal(model="tiny", rows=rows), by="ann")
    stack.gateway.services.prices.forget()
    stack.say("one two", burst=100)
    since = int(time.time()) - 60
    async with stack.openai() as client:
        for count, (asked, (said, lane, factor)) in enumerate(TIERS.items(), start=1):
            given: Any = {} if asked is None else {"service_tier": asked}
            stack.forget()
            answer = await client.chat.completions.create(model="tiny", messages=MESSAGES, **given)
            assert answer.service_tier == said
            (run,) = stack.replica.runs.values()
            assert run.generate.lane == lane
            event = (await stack.settled(count))[-1]
            assert event.lane == lane
            assert event.cost_pico == factor * (event.uncached * MICRO["uncached"] + event.output * MICRO["output"])
        stream = await client.chat.completions.create(
            model="tiny", messages=MESSAGES, stream=True, service_tier="flex", stream_options={"include_usage": True}
        )
        assert {chunk.service_tier async for chunk in stream} == {"flex"}
        text = await client.completions.create(model="tiny", prompt="on", extra_body={"service_tier": "priority"})
        assert text.service_tier == "priority"  # type: ignore[attr-defined]
    events = await stack.settled(len(TIERS) + 2)
    async with stack.openai(stack.admin_key, admin_api_key=stack.admin_key) as client:
        found = await client.admin.organization.usage.completions(start_time=since, group_by=["service_tier"])
    requests: dict[str, int] = {}
    for bucket in found.data:
        for result in bucket.results:
            requests[result.service_tier] = requests.get(result.service_tier, 0) + result.num_model_requests
    assert requests == {"default": 3, "priority": 2, "flex": 2}
    assert len(events) == sum(requests.values())


async def test_an_unknown_tier_is_refused_by_name(stack: Stack) -> None:
    async with stack.openai() as client:
        for tier in ("enormous", "", "Priority"):
            given: Any = {"service_tier": tier}
            with pytest.raises(openai.BadRequestError) as chat:
                await client.chat.completions.create(model="tiny", messages=MESSAGES, **given)
            with pytest.raises(openai.BadRequestError) as text:
                await client.completions.create(model="tiny", prompt="on", extra_body=given)
            assert chat.value.param == text.value.param == "service_tier"
            assert "priority" in chat.value.message
    assert not stack.replica.runs
    assert await stack.holds() == []
