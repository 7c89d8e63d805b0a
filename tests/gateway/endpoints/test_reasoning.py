"""Reasoning by HTTP: what the replica is told by each dialect, and how the reasoning's tokens are counted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gateway.fleet.replica_link import FleetOptions
from gateway.services import GatewayOptions
from protocol.requests import Reasoning
from tests.gateway.conversation.family_models import family_folder
from tests.gateway.fake_replica import Script
from tests.gateway.stack import Stack, quick_timeouts, running_stack

ASK: Any = [{"role": "user", "content": "Why?"}]
THOUGHT, SAYS = "Let me see.", "So it is."


@pytest.fixture
async def thinking(stocked_sqlite_url: str, tmp_path: Path) -> AsyncIterator[Stack]:
    """Its template opens the reasoning."""
    folder = family_folder(tmp_path / "model", "qwen-3-thinking")
    async with running_stack(stocked_sqlite_url, tmp_path, folder, context=4096) as running:
        yield running


async def post(stack: Stack, path: str, body: dict[str, Any]) -> Any:
    headers = {"authorization": f"Bearer {stack.key}", "anthropic-version": "2023-06-01"}
    if path != "/v1/messages":
        del headers["anthropic-version"]
    return await stack.http.post(path, json={"model": "tiny", **body}, headers=headers)


def told(stack: Stack) -> Reasoning | None:
    return list(stack.replica.runs.values())[-1].generate.reasoning


def think(stack: Stack) -> tuple[list[int], int]:
    """Let the replica think and then answer. Returns the tokens of the thought, and the marker behind it."""
    model = next(iter(stack.models))
    ((close, _),) = model.tokenizer.ids_of(["</think>"]).items()
    thought = list(model.tokenizer.content(THOUGHT))
    said = [*thought, close, *model.tokenizer.content(SAYS), *model.stop_tokens[:1]]
    stack.replica.script = Script(tokens=said, burst=3)
    return thought, close


async def test_the_same_wish_is_the_same_request_in_three_dialects(thinking: Stack) -> None:
    thought, close = think(thinking)
    chat = (await post(thinking, "/v1/chat/completions", {"messages": ASK, "reasoning_effort": "low"})).json()
    by_chat = told(thinking)
    response = (await post(thinking, "/v1/responses", {"input": "Why?", "reasoning": {"effort": "low"}})).json()
    by_response = told(thinking)
    budget = {"type": "enabled", "budget_tokens": 1024}
    asks = {"messages": ASK, "max_tokens": 2000, "thinking": budget}
    message = (await post(thinking, "/v1/messages", asks)).json()
    assert told(thinking) == by_chat == by_response
    assert by_chat is not None
    assert (by_chat.end, by_chat.begun, by_chat.budget) == ((close,), True, 1024)
    prompts = [run.generate.tokens for run in thinking.replica.runs.values()]
    assert prompts[0] == prompts[1] == prompts[2]

    said = chat["choices"][0]["message"]
    assert (said["reasoning_content"], said["content"]) == (THOUGHT, SAYS)
    assert [item["type"] for item in response["output"]] == ["reasoning", "message"]
    assert [block["type"] for block in message["content"]] == ["thinking", "text"]
    counted = len(thought) + 1  # with the marker
    assert chat["usage"]["completion_tokens_details"]["reasoning_tokens"] == counted
    assert response["usage"]["output_tokens_details"]["reasoning_tokens"] == counted
    assert message["usage"]["output_tokens_details"]["thinking_tokens"] == counted
    events = await thinking.settled(3)
    assert {int(event.output) for event in events} == {len(thinking.replica.answer_to(None).tokens)}  # type: ignore[arg-type]


@pytest.mark.parametrize("display", ["summarized", "omitted"])
async def test_thinking_comes_back_under_its_signature_alone(thinking: Stack, display: str) -> None:
    """Whether its text was shown or not, and streamed as in one piece; with another signature it is left out."""
    think(thinking)
    wish = {"type": "adaptive", "display": display}
    asks: Any = {"messages": ASK, "max_tokens": 2000, "thinking": wish}
    async with (
        thinking.anthropic() as client,
        client.messages.stream(model="tiny", **asks) as stream,
    ):
        kinds = [event.delta.type async for event in stream if event.type == "content_block_delta"]
        streamed: Any = (await stream.get_final_message()).content[0]
    block = (await post(thinking, "/v1/messages", asks)).json()["content"][0]
    shown = THOUGHT if display == "summarized" else ""
    assert block["thinking"] == streamed.thinking == shown
    assert kinds.count("signature_delta") == 1
    assert ("thinking_delta" in kinds) == bool(shown)

    async def prompt(*before: Any) -> list[int]:
        turns = [*ASK, {"role": "assistant", "content": [*before, {"type": "text", "text": SAYS}]}, *ASK]
        answer = await post(thinking, "/v1/messages", {"messages": turns, "max_tokens": 2000, "thinking": wish})
        assert answer.status_code == 200
        return list(list(thinking.replica.runs.values())[-1].generate.tokens)

    unsigned = await prompt({"type": "thinking", "thinking": THOUGHT})
    for signed in (block, streamed.to_dict()):
        assert await prompt(signed) == unsigned
    without = await prompt()
    assert await prompt(block | {"signature": "bm90IG91cnM="}) == without
    if shown:
        assert await prompt(block | {"thinking": "another text"}) == without


@pytest.mark.parametrize("beside", [True, False], ids=["another replica", "none"])
async def test_thinking_that_nobody_saw_is_neither_delivered_nor_kept(
    stocked_sqlite_url: str, tmp_path: Path, beside: bool
) -> None:
    """A replica that is lost while it thinks in secret: the request is tried again, or costs nothing."""
    folder, fleet = family_folder(tmp_path / "model", "qwen-3-thinking"), FleetOptions(credit_window=4, beat_timeout=60)
    options = GatewayOptions(timeouts=quick_timeouts(request=60.0, retry=30.0 if beside else 0.0), drain_timeout=2.0)
    async with running_stack(
        stocked_sqlite_url, tmp_path, folder, context=4096, fleet_options=fleet, options=options
    ) as stack:
        thought, _ = think(stack)
        whole = stack.replica.script
        stack.replica.script = Script(tokens=thought[:3], burst=3, pause=600.0)
        body = {"messages": ASK, "max_tokens": 2000, "thinking": {"type": "adaptive", "display": "omitted"}}
        asked = asyncio.create_task(post(stack, "/v1/messages", body | {"stream": True}))
        await stack.until(lambda: any(run.credits for run in stack.replica.runs.values()))
        (run,) = stack.replica.runs.values()
        assert [credit.delivered for credit in run.credits] == [0]
        await stack.replica.stop()
        stack.replica.script = whole
        if beside:
            await stack.replica.restart()
        text = (await asked).text
        if not beside:
            await stack.replica.restart()
        *_, event = await stack.settled(2 if beside else 1)
        assert (event.status, event.cost_pico > 0) == (("ok", True) if beside else ("failed", False))
        assert ("event: message_stop" in text, "event: error" in text) == (beside, not beside)
        if beside:
            signed = text.partition('"signature_delta","signature":"')[2].partition('"')[0]
            streamed = {"type": "thinking", "thinking": "", "signature": signed}
            for block in (streamed, {"type": "thinking", "thinking": THOUGHT}):
                turns = [*ASK, {"role": "assistant", "content": [block, {"type": "text", "text": SAYS}]}, *ASK]
                assert (await post(stack, "/v1/messages", body | {"messages": turns})).status_code == 200
            *_, by_signature, by_text = [run.generate.tokens for run in stack.replica.runs.values()]
            assert by_signature == by_text, "what was thought before and after is signed as one"


async def test_a_grammar_leaves_room_for_the_reasoning_before_it(thinking: Stack) -> None:
    """The answer's own limit is beside the budget, where the client says none."""
    thinking.say("</think>{}")
    body = {"messages": ASK, "response_format": {"type": "json_object"}}
    limits = []
    for more in ({}, {"reasoning_effort": "minimal"}, {"reasoning_effort": "none"}):
        assert (await post(thinking, "/v1/chat/completions", body | more)).status_code == 200
        limits.append(list(thinking.replica.runs.values())[-1].generate.sampling.max_tokens)
    assert (limits[1], limits[2]) == (2048 + 512, 2048)
    assert limits[0] > limits[1]


@pytest.mark.parametrize(
    ("body", "names"),
    [
        ({"thinking": {"type": "enabled", "budget_tokens": 1000}}, "thinking.budget_tokens"),
        ({"thinking": {"type": "enabled", "budget_tokens": 2000}}, "thinking.budget_tokens"),
        ({"thinking": {"type": "enabled"}}, "thinking"),
    ],
)
async def test_budgets_out_of_bounds_are_refused(thinking: Stack, body: dict[str, Any], names: str) -> None:
    refused = await post(thinking, "/v1/messages", {"messages": ASK, "max_tokens": 2000, **body})
    assert (refused.status_code, refused.json()["error"]["type"]) == (400, "invalid_request_error")
    assert names in refused.json()["error"]["message"]
    assert not thinking.replica.runs


async def test_a_model_that_does_not_reason_passes_over_efforts_and_budgets(stack: Stack) -> None:
    stack.say("So it is.")
    for path, body in (
        ("/v1/chat/completions", {"messages": ASK, "reasoning_effort": "high"}),
        ("/v1/responses", {"input": "Why?", "reasoning": {"effort": "none"}}),
        ("/v1/messages", {"messages": ASK, "max_tokens": 9, "thinking": {"type": "adaptive"}}),
        ("/v1/messages", {"messages": ASK, "max_tokens": 9, "output_config": {"effort": "max"}}),
        ("/v1/messages", {"messages": ASK, "max_tokens": 2000, "thinking": {"type": "enabled", "budget_tokens": 1024}}),
    ):
        answer = await post(stack, path, body)
        assert answer.status_code == 200, answer.text
        assert told(stack) is None
    models = await stack.http.get(
        "/v1/models", headers={"authorization": f"Bearer {stack.key}", "anthropic-version": "2023-06-01"}
    )
    assert models.json()["data"][0]["capabilities"]["thinking"]["types"]["enabled"] == {"supported": False}


async def test_models_say_that_they_reason(thinking: Stack) -> None:
    headers = {"authorization": f"Bearer {thinking.key}", "anthropic-version": "2023-06-01"}
    able = (await thinking.http.get("/v1/models", headers=headers)).json()["data"][0]["capabilities"]
    assert able["thinking"]["types"]["enabled"] == {"supported": True}
    assert able["effort"]["max"] == {"supported": True}
