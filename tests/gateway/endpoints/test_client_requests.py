"""What clients' libraries send, each in its own way: tool runners, agents, older betas."""

from __future__ import annotations

import json
from typing import Any

from protocol.requests import Generate
from tests.gateway.fake_replica import Script
from tests.gateway.stack import Stack

WEATHER: dict[str, Any] = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
SCHEMA: dict[str, Any] = {"type": "object", "properties": {"answer": {"type": "string"}}, "required": ["answer"]}
CALL = 'Tool call: {"name": "weather", "arguments": {"city": "Köln"}}'
OPENAI_TOOL: dict[str, Any] = {"type": "function", "function": {"name": "weather", "parameters": WEATHER}}
ANTHROPIC_TOOL: dict[str, Any] = {"name": "weather", "input_schema": WEATHER}


def sent(stack: Stack) -> Generate:
    return list(stack.replica.runs.values())[-1].generate


async def post(stack: Stack, path: str, **body: Any) -> Any:
    headers = {"authorization": f"Bearer {stack.key}"}
    if path == "messages":
        headers["anthropic-version"] = "2023-06-01"
    said: dict[str, Any] = {"input": "Weather?"} if path == "responses" else {
        "messages": [{"role": "user", "content": "Weather?"}]
    }  # fmt: skip
    answer = await stack.http.post(f"/v1/{path}", json={"model": "tiny", **said, **body}, headers=headers)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_anthropics_tool_runner_goes_on_without_a_thread(stack: Stack) -> None:
    from anthropic import beta_async_tool  # takes seconds, for which few tests need to wait

    asked: list[str] = []

    @beta_async_tool
    async def weather(city: str) -> str:
        """The weather."""
        asked.append(city)
        return "sun"

    stack.replica.script = lambda _: Script(tokens=stack.tokens("It is sunny." if asked else CALL))
    async with stack.anthropic() as client:
        question: Any = [{"role": "user", "content": "Weather?"}]
        runner = client.beta.messages.tool_runner(model="tiny", max_tokens=100, tools=[weather], messages=question)
        last = await runner.until_done()
    assert asked == ["Köln"]
    assert last.content[0].to_dict() == {"type": "text", "text": "It is sunny."}
    prompt = next(iter(stack.models)).tokenizer.spelled
    assert b"Weather?" in b"".join(prompt(token)[1] for token in sent(stack).tokens)


async def test_a_thread_is_refused_as_the_official_clients_look_for_it(stack: Stack) -> None:
    headers = {"x-api-key": stack.key, "anthropic-version": "2023-06-01"}
    body = {"model": "tiny", "max_tokens": 5, "messages": [{"role": "user", "content": "x"}]}
    for thread in ({"type": "create"}, {"type": "continue", "previous_message_id": "msg_1"}):
        for path in ("/v1/messages", "/v1/messages/count_tokens"):
            refused = await stack.http.post(path, json={**body, "thread": thread}, headers=headers)
            assert refused.status_code == 400
            error = refused.json()["error"]
            assert error["type"] == "invalid_request_error"
            assert error["details"] == {
                "error_code": "thread_unsupported_request", "path": "$.thread", "unsupported": ["thread"]
            }  # fmt: skip


async def test_stop_waits_while_a_call_is_forced(stack: Stack) -> None:
    """As smolagents sends both. The call's text is not searched."""
    stack.say(CALL)
    choice = {"type": "function", "function": {"name": "weather"}}
    for forced in ("required", choice):
        answer = await post(
            stack, "chat/completions", tools=[OPENAI_TOOL], tool_choice=forced, stop=["city", "Observation:"],
            stop_token_ids=[5],
        )  # fmt: skip
        (call,) = answer["choices"][0]["message"]["tool_calls"]
        assert json.loads(call["function"]["arguments"]) == {"city": "Köln"}
        assert 5 not in sent(stack).sampling.stop_tokens
    message = await post(
        stack, "messages", max_tokens=100, tools=[ANTHROPIC_TOOL], tool_choice={"type": "any"}, stop_sequences=["city"]
    )
    assert (message["stop_reason"], message["content"][0]["input"]) == ("tool_use", {"city": "Köln"})


async def test_a_call_that_is_forced_wins_over_a_format_of_the_answer(stack: Stack) -> None:
    """As instructor sends both."""
    stack.say(CALL)
    strict = {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}
    named = {"type": "function", "function": {"name": "weather"}}
    await post(stack, "chat/completions", tools=[OPENAI_TOOL], tool_choice=named)
    alone = sent(stack).grammar
    for more in ({"response_format": strict}, {"guided_json": SCHEMA}):
        answer = await post(stack, "chat/completions", tools=[OPENAI_TOOL], tool_choice=named, **more)
        assert answer["choices"][0]["message"]["tool_calls"]
        assert sent(stack).grammar == alone
    response = await post(
        stack, "responses", tools=[{"type": "function", "name": "weather", "parameters": WEATHER}],
        tool_choice={"type": "function", "name": "weather"},
        text={"format": {"type": "json_schema", "name": "a", "schema": SCHEMA}},
    )  # fmt: skip
    assert (response["output"][0]["type"], sent(stack).grammar) == ("function_call", alone)
    message = await post(
        stack, "messages", max_tokens=100, tools=[ANTHROPIC_TOOL], tool_choice={"type": "tool", "name": "weather"},
        output_config={"format": {"type": "json_schema", "schema": SCHEMA}},
    )  # fmt: skip
    assert message["stop_reason"] == "tool_use"


async def test_the_older_beta_of_structured_outputs_is_the_newer(stack: Stack) -> None:
    """As litellm sends it."""
    stack.say('{"answer": "sun"}')
    form = {"type": "json_schema", "schema": SCHEMA}
    await post(stack, "messages", max_tokens=50, output_config={"format": form})
    newer = sent(stack).grammar
    assert newer is not None
    await post(stack, "messages", max_tokens=50, output_format=form)
    assert sent(stack).grammar == newer
    await post(stack, "messages", max_tokens=50, output_format=None)
    assert sent(stack).grammar is None
    both = {"output_format": form, "output_config": {"format": form}}
    for more, path in (
        (both, "$.output_format"),
        ({"output_format": {"type": "json_schema", "schema": []}}, "$.output_format.schema"),
        ({"output_format": form, "stop_sequences": ["a"]}, "$.stop_sequences"),
    ):
        refused = await stack.http.post(
            "/v1/messages",
            json={"model": "tiny", "max_tokens": 5, "messages": [{"role": "user", "content": "x"}], **more},
            headers={"x-api-key": stack.key, "anthropic-version": "2023-06-01"},
        )
        assert refused.status_code == 400
        assert refused.json()["error"]["details"]["path"] == path


async def test_money_in_messages_has_no_needless_zeros(stack: Stack) -> None:
    stack.say("Yes.")
    body = {"model": "tiny", "messages": [{"role": "user", "content": "x"}], "max_tokens": 100}
    answer = await stack.post({**body, "max_cost": "0.000001"})
    assert answer.status_code == 400
    message = answer.json()["error"]["message"]
    assert message.startswith("This request may cost 0.000162 USD, more than its max_cost of 0.000001;")
