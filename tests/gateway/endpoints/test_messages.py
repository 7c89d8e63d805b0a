"""Anthropic's Messages API, with the official client against a real server."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from billing.prices import in_every_lane
from billing.prices.approval import PriceSheets
from billing.prices.sheets import PriceProposal
from tests.gateway.fake_replica import Script
from tests.gateway.stack import Stack

ASK: Any = {
    "model": "tiny",
    "max_tokens": 100,
    "messages": [{"role": "user", "content": "What does textwrap.dedent do?"}],
}
LONG = "Remove any common leading whitespace from every line in text. " * 4


async def raw(stack: Stack, body: Any, path: str = "/v1/messages", **headers: str) -> httpx.Response:
    sent = {"x-api-key": stack.key, "anthropic-version": "2023-06-01", **headers}
    data = {"content": body} if isinstance(body, bytes) else {"json": body}
    return await stack.http.post(path, headers={k: v for k, v in sent.items() if v}, **data)


def events_of(text: str) -> list[tuple[str, dict[str, Any]]]:
    """The events of a stream; each is named as its type says."""
    events = []
    for frame in text.strip().split("\n\n"):
        if frame.startswith(":"):
            continue
        name, data = frame.split("\n")
        body = json.loads(data.removeprefix("data: "))
        assert name == f"event: {body['type']}"
        events.append((body["type"], body))
    return events


def last_generate(stack: Stack) -> Any:
    return list(stack.replica.runs.values())[-1].generate


@pytest.mark.slow
async def test_a_whole_message(stack: Stack) -> None:
    stack.say("It dedents.")
    async with stack.anthropic() as client:
        sent = await client.messages.with_raw_response.create(**ASK)
    message = await sent.parse()
    assert message.id.startswith("msg_")
    assert (message.type, message.role, message.model) == ("message", "assistant", "tiny")
    assert [(block.type, block.text) for block in message.content if block.type == "text"] == [("text", "It dedents.")]
    assert (message.stop_reason, message.stop_sequence) == ("end_turn", None)
    run = next(iter(stack.replica.runs.values()))
    usage = message.usage
    assert (usage.input_tokens, usage.output_tokens) == (len(run.generate.tokens), run.counts.output)
    assert (usage.cache_read_input_tokens, usage.cache_creation_input_tokens) == (0, 0)
    assert usage.cache_creation is not None
    assert usage.cache_creation.ephemeral_5m_input_tokens == usage.cache_creation.ephemeral_1h_input_tokens == 0
    assert usage.service_tier == "standard"
    assert sent.headers["request-id"].startswith("req_")
    assert sent.headers["anthropic-organization-id"] == str(stack.tenant.id)
    (event,) = await stack.settled(1)
    assert event.uncached == len(run.generate.tokens)


async def test_the_stream_helper(stack: Stack) -> None:
    stack.say("Grüße aus 東京! 👩‍👩‍👧", pause=0.002)
    async with stack.anthropic() as client, client.messages.stream(**ASK) as stream:
        text = "".join([piece async for piece in stream.text_stream])
        message = await stream.get_final_message()
    assert text == "Grüße aus 東京! 👩‍👩‍👧"
    assert message.stop_reason == "end_turn"
    run = next(iter(stack.replica.runs.values()))
    assert (message.usage.input_tokens, message.usage.output_tokens) == (len(run.generate.tokens), run.counts.output)
    await stack.settled(1)


async def test_the_events_of_a_stream_in_order(stack: Stack) -> None:
    stack.say("one two three", pause=0.001, prefill=0.05)
    answer = await raw(stack, {**ASK, "stream": True})
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    events = events_of(answer.text)
    names = [name for name, _ in events]
    deltas = names.count("content_block_delta")
    assert names == [
        *("message_start", "ping", "content_block_start"),
        *(["content_block_delta"] * deltas),
        *("content_block_stop", "message_delta", "message_stop"),
    ]
    assert "[DONE]" not in answer.text
    start = events[0][1]["message"]
    tokens = len(last_generate(stack).tokens)
    assert start["content"] == []
    assert start["stop_reason"] is start["stop_sequence"] is start["stop_details"] is start["container"] is None
    assert start["usage"]["input_tokens"] == tokens
    assert start["usage"]["output_tokens"] == 0
    assert events[2][1] == {
        "type": "content_block_start",
        "index": 0,
        "content_block": {"type": "text", "text": ""},
    }
    assert "".join(body["delta"]["text"] for name, body in events if name == "content_block_delta") == "one two three"
    end = events[-2][1]
    assert end["delta"]["stop_reason"] == "end_turn"
    assert end["usage"]["input_tokens"] == tokens
    assert end["usage"]["output_tokens"] > 0
    assert {"cache_read_input_tokens", "cache_creation_input_tokens", "cache_creation"} <= end["usage"].keys()
    await stack.settled(1)


@pytest.mark.slow
async def test_an_answer_without_text_has_no_block(stack: Stack) -> None:
    stack.say("")
    names = [name for name, _ in events_of((await raw(stack, {**ASK, "stream": True})).text)]
    assert names == ["message_start", "ping", "message_delta", "message_stop"]
    assert (await raw(stack, ASK)).json()["content"] == []
    await stack.settled(2)


async def test_why_an_answer_ended(stack: Stack) -> None:
    async def ended(**fields: Any) -> tuple[str, Any]:
        whole = (await raw(stack, {**ASK, **fields})).json()
        events = events_of((await raw(stack, {**ASK, **fields, "stream": True})).text)
        delta = events[-2][1]["delta"]
        assert (delta["stop_reason"], delta["stop_sequence"]) == (whole["stop_reason"], whole["stop_sequence"])
        return whole["stop_reason"], whole["stop_sequence"]

    stack.say("one two three four", end=False)
    assert await ended(stop_sequences=["zzz", " three"]) == ("stop_sequence", " three")
    assert await ended(max_tokens=2) == ("max_tokens", None)
    stack.say("one " * 600, end=False, burst=50)
    assert await ended(max_tokens=100_000) == ("model_context_window_exceeded", None)
    await stack.settled(6)


async def test_a_failure_before_the_text_is_an_error_and_after_it_an_event(stack: Stack) -> None:
    stack.replica.script = Script(tokens=stack.tokens("one two"), reason="error", error="broken", die_after=None)
    answer = await raw(stack, {**ASK, "stream": True})
    assert answer.status_code == 200 or answer.json()["type"] == "error"
    stack.say("one two three four five six", die_after=3, pause=0.01)
    events = events_of((await raw(stack, {**ASK, "stream": True})).text)
    assert events[0][0] == "message_start"
    name, body = events[-1]
    assert name == "error"
    assert body["error"]["type"] == "api_error"
    assert body["request_id"].startswith("req_")


@pytest.mark.slow
async def test_tokens_are_counted_as_they_are_billed(stack: Stack) -> None:
    fields = {
        "system": [{"type": "text", "text": "Be brief."}],
        "tools": [{"name": "look", "description": "Look it up.", "input_schema": {"type": "object"}}],
    }
    async with stack.anthropic() as client:
        counted = await client.messages.count_tokens(model="tiny", messages=ASK["messages"], **fields)  # type: ignore[arg-type]
        stack.say("yes")
        message = await client.messages.create(**ASK, **fields)
    assert counted.input_tokens == message.usage.input_tokens
    assert len(await stack.settled(1)) == 1  # counting costs nothing


async def test_what_is_prewarmed_is_answered_with_nothing(stack: Stack) -> None:
    stack.replica.script = Script(tokens=[])
    async with stack.anthropic() as client:
        message = await client.messages.create(**{**ASK, "max_tokens": 0})
    assert message.content == []
    assert message.stop_reason == "max_tokens"
    assert message.usage.output_tokens == 0
    assert last_generate(stack).sampling.max_tokens == 0
    for field, value in (
        ("stream", True),
        ("output_config", {"format": {"type": "json_schema", "schema": {"type": "object"}}}),
        ("thinking", {"type": "adaptive"}),
    ):
        refused = await raw(stack, {**ASK, "max_tokens": 0, field: value})
        assert refused.status_code == 400, field
        assert field in refused.json()["error"]["message"]
    await stack.settled(1)


async def test_an_answer_goes_on_from_the_assistants_turn(stack: Stack) -> None:
    stack.say(" common whitespace.")
    async with stack.anthropic() as client:
        message = await client.messages.create(
            **{**ASK, "messages": [*ASK["messages"], {"role": "assistant", "content": "It removes"}]}
        )
    assert message.content[0].text == " common whitespace."  # type: ignore[union-attr]
    model = next(iter(stack.models))
    assert last_generate(stack).tokens[-2:] == model.tokenizer.content("It removes")[-2:]
    await stack.settled(1)


@pytest.mark.slow
async def test_both_dialects_make_the_same_prompt(stack: Stack) -> None:
    stack.say("yes")
    said = [
        {"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]},
        {"role": "assistant", "content": "Grüße <|end|>"},
        {"role": "user", "content": "three"},
    ]
    await raw(stack, {**ASK, "system": "Be brief.", "messages": said})
    ours = last_generate(stack).tokens
    await stack.post({"model": "tiny", "messages": [{"role": "system", "content": "Be brief."}, *said]})
    assert last_generate(stack).tokens == ours
    merged = [{"role": "user", "content": "one"}, {"role": "user", "content": "two"}, *said[1:]]
    await raw(stack, {**ASK, "system": [{"type": "text", "text": "Be brief."}], "messages": merged})
    assert last_generate(stack).tokens == ours
    await stack.settled(3)


@pytest.mark.slow
@pytest.mark.parametrize("version", ["2023-06-01", "2026-10-21"])
async def test_both_versions_take_sampling_fields(stack: Stack, version: str) -> None:
    stack.say("yes")
    fields = {"temperature": 0.5, "top_p": 0.9, "top_k": 5}
    answer = await raw(stack, {**ASK, **fields}, **{"anthropic-version": version})
    assert answer.status_code == 200
    sampling = last_generate(stack).sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.5, 0.9, 5)
    await stack.settled(1)


async def test_the_lane_and_the_tag(stack: Stack) -> None:
    stack.say("yes")
    for tier, shown, lane in (
        ("auto", "standard", "standard"),
        ("standard_only", "standard", "standard"),
        ("priority", "priority", "interactive"),
        ("batch", "batch", "batch"),
    ):
        answer = await raw(stack, {**ASK, "service_tier": tier, "metadata": {"user_id": "u-1"}})
        assert answer.json()["usage"]["service_tier"] == shown
        assert last_generate(stack).lane == lane
    await stack.settled(4)


@pytest.mark.slow
async def test_keys_and_versions(stack: Stack) -> None:
    stack.say("yes")
    bearer = {"x-api-key": "", "authorization": f"Bearer {stack.key}"}
    assert (await raw(stack, ASK, **bearer)).status_code == 200
    assert (await raw(stack, ASK, authorization="Bearer wrong")).status_code == 200  # x-api-key wins
    wrong = await raw(stack, ASK, **{**bearer, "x-api-key": "wrong"})
    assert wrong.status_code == 401
    assert wrong.json()["error"]["type"] == "authentication_error"
    for version in ("", "2024-01-01"):
        answer = await raw(stack, ASK, **{"anthropic-version": version})
        assert answer.status_code == 400
        assert "anthropic-version" in answer.json()["error"]["message"]
    await stack.settled(2)


async def test_errors_as_the_client_knows_them(stack: Stack) -> None:
    import anthropic

    async with stack.anthropic() as client:
        with pytest.raises(anthropic.NotFoundError) as missing:
            await client.messages.create(**{**ASK, "model": "none"})
        assert missing.value.request_id is not None
        assert missing.value.body["error"]["type"] == "not_found_error"  # type: ignore[index]
        with pytest.raises(anthropic.BadRequestError, match=r"\$\.messages\[0\]\.content\[0\]"):
            await client.messages.create(
                **{**ASK, "messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}
            )
        dear = in_every_lane({"uncached": 400_000, "read_automatic": 40_000, "output": 10**12})
        await PriceSheets(stack.database).put(PriceProposal(model="tiny", rows=dear), by="ann", force="it must be dear")
        stack.gateway.services.prices.forget()
        with pytest.raises(anthropic.APIStatusError) as unpaid:
            await client.messages.create(**ASK)
        assert unpaid.value.status_code == 402
        error = unpaid.value.body["error"]  # type: ignore[index]
        assert (error["type"], error["details"]["error_code"]) == ("billing_error", "insufficient_quota")
        assert error["insufficient_funds"]["affordable_max_tokens"] > 0
    async with stack.anthropic(api_key="tp_wrong") as client:
        with pytest.raises(anthropic.AuthenticationError):
            await client.messages.create(**ASK)
    await stack.replica.stop()
    await stack.until(lambda: not stack.gateway.services.fleet.healthy("tiny"))
    away = await raw(stack, {**ASK, "max_tokens": 1})
    assert (away.status_code, away.json()["error"]["type"]) == (529, "overloaded_error")
    assert int(away.headers["retry-after"]) > 0
    unknown = await raw(stack, {}, "/v1/messages/nothing")
    assert (unknown.status_code, unknown.json()["error"]["type"]) == (404, "not_found_error")


async def test_models_in_both_shapes(stack: Stack) -> None:
    import anthropic

    async with stack.anthropic() as client:
        models = [model async for model in client.models.list(limit=1)]
        one = await client.models.retrieve("tiny")
        assert [model.id for model in models] == ["tiny"]
        assert models[0] == one
        assert (one.type, one.lifecycle, one.max_input_tokens) == ("model", "active", 512)
        assert one.capabilities is not None
        assert one.capabilities.structured_outputs.supported
        with pytest.raises(anthropic.NotFoundError):
            await client.models.retrieve("none")
        with pytest.raises(anthropic.BadRequestError, match="after_id"):
            await client.models.list(after_id="none")
    async with stack.openai() as theirs:
        assert [model.id async for model in theirs.models.list()] == ["tiny"]
    headers = {"x-api-key": stack.key, "anthropic-version": "2023-06-01"}
    page = (await stack.http.get("/v1/models", headers=headers)).json()
    assert (page["has_more"], page["first_id"], page["last_id"]) == (False, "tiny", "tiny")
    after = (await stack.http.get("/v1/models?after_id=tiny", headers=headers)).json()
    assert (after["data"], after["first_id"]) == ([], None)


DEEP = b'{"model":"tiny","max_tokens":1,"messages":[{"role":"user","content":' + b"[" * 50_000
HOSTILE = {
    "a hundred thousand blocks": json.dumps(
        {**ASK, "messages": [{"role": "user", "content": [{"type": "text", "text": "a"}] * 100_000}]}
    ).encode(),
    "deep nesting": DEEP,
    "deep arguments": b'{"model":"tiny","max_tokens":1,"messages":[{"role":"user","content":"a"}],"tools":[{"name":"a",'
    b'"input_schema":' + b'{"a":' * 3000 + b"1" + b"}" * 3000 + b"}]}",
    "a number": b"1",
    "nothing": b"",
    "no text": b"\xff\xfe",
    "too many marks": json.dumps(
        {**ASK, "messages": [{"role": "user", "content": "".join(map(chr, (*range(0xF0000, 0xF0200),)))}] * 2}
    ).encode(),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", HOSTILE)
async def test_hostile_bodies_are_refused(stack: Stack, case: str) -> None:
    stack.say("yes")
    for path in ("/v1/messages", "/v1/messages/count_tokens"):
        answer = await raw(stack, HOSTILE[case], path)
        assert answer.status_code == 400 or case == "too many marks", answer.text
        if answer.is_error:
            assert answer.status_code == 400, answer.text
            assert answer.json()["error"]["type"] == "invalid_request_error"
