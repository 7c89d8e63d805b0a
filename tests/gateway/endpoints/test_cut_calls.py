"""Answers that their limit cut off within a call go back into the conversation as the model wrote them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from protocol.requests import Generate
from tests.gateway.stack import Stack

WEATHER: dict[str, Any] = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}
CUTS = [
    'Tool call: {"name": "weather", "argum',
    'Tool call: {"name": "weather", "arguments": {',
    'Tool call: {"name": "weather", "arguments": {"ci',
    'Tool call: {"name": "weather", "arguments": {"city": "Ber',
    'Tool call: {"name": "weather", "arguments": {"city": "K\\u00',
    'Tool call: {"name": "weather", "arguments": {"city": "Köln", "days": ',
    'Tool call: {"name": "weather", "arguments": {"city": "Köln", "days": 2}',
    'I look.\nTool call: {"name": "weather", "arguments": {}}\nTool call: {"name": "weather", "arguments": {"city": "B',
]


def sent(stack: Stack) -> Generate:
    return list(stack.replica.runs.values())[-1].generate


def prompt(stack: Stack) -> str:
    """The text of the prompt that the replica got last."""
    spelled = next(iter(stack.models)).tokenizer.spelled
    return b"".join(spelled(token)[1] for token in sent(stack).tokens).decode()


async def post(stack: Stack, path: str, body: dict[str, Any]) -> dict[str, Any]:
    headers = {"authorization": f"Bearer {stack.key}", "anthropic-version": "2023-06-01"}
    if path != "/v1/messages":
        del headers["anthropic-version"]
    answer = await stack.http.post(path, json={"model": "tiny", **body}, headers=headers)
    assert answer.status_code == 200, answer.text
    whole: dict[str, Any] = answer.json()
    return whole


async def chat(stack: Stack, messages: list[Any]) -> dict[str, Any]:
    function = {"name": "weather", "parameters": WEATHER}
    body = {"messages": messages, "tools": [{"type": "function", "function": function}]}
    choice: dict[str, Any] = (await post(stack, "/v1/chat/completions", body))["choices"][0]
    return choice


async def respond(stack: Stack, items: Any, **more: Any) -> dict[str, Any]:
    tools = [{"type": "function", "name": "weather", "parameters": WEATHER}]
    return await post(stack, "/v1/responses", {"input": items, "tools": tools, **more})


async def message(stack: Stack, messages: list[Any]) -> dict[str, Any]:
    tools = [{"name": "weather", "input_schema": WEATHER}]
    return await post(stack, "/v1/messages", {"messages": messages, "tools": tools, "max_tokens": 200})


@pytest.mark.parametrize("answered", [True, False])
async def test_a_cut_answer_is_taken_back_by_chat(stack: Stack, answered: bool) -> None:
    """Whether its calls are answered or not: a call that is not whole cannot be made."""
    for written in CUTS:
        stack.say(written, end=False)
        said = (await chat(stack, [{"role": "user", "content": "Weather?"}]))["message"]
        calls = said["tool_calls"]
        whole = [call for call in calls if call["function"]["arguments"].endswith("}")]
        results = [
            {"role": "tool", "tool_call_id": call["id"], "content": "cut off"}
            for call in (calls if answered else whole)
        ]
        history = [{"role": "user", "content": "Weather?"}, said, *results, {"role": "user", "content": "Go on."}]
        await chat(stack, history)
        for call in calls:
            assert f'"arguments": {call["function"]["arguments"] or "{}"}' in prompt(stack), written


@pytest.mark.parametrize("answered", [True, False])
async def test_a_cut_answer_is_taken_back_by_responses(stack: Stack, answered: bool) -> None:
    """Sent back, or named as the response before."""
    for written in CUTS:
        stack.say(written, end=False)
        before = await respond(stack, "Weather?")
        calls = [item for item in before["output"] if item["type"] == "function_call"]
        whole = [call for call in calls if call["status"] == "completed"]
        results = [
            {"type": "function_call_output", "call_id": call["call_id"], "output": "cut off"}
            for call in (calls if answered else whole)
        ]
        more = [*results, {"role": "user", "content": "Go on."}]
        await respond(stack, [{"role": "user", "content": "Weather?"}, *before["output"], *more])
        by_items = sent(stack).tokens
        await respond(stack, more, previous_response_id=before["id"])
        assert sent(stack).tokens == by_items, written
        for call in calls:
            assert f'"arguments": {call["arguments"] or "{}"}' in prompt(stack), written


async def test_a_cut_answer_is_taken_back_by_messages(stack: Stack) -> None:
    """A call's input is an object: what can be read of it, as the official client reads a stream."""
    for written in CUTS:
        stack.say(written, end=False)
        said = (await message(stack, [{"role": "user", "content": "Weather?"}]))["content"]
        calls = [block for block in said if block["type"] == "tool_use"]
        results = [{"type": "tool_result", "tool_use_id": call["id"], "content": "cut off"} for call in calls]
        history = [
            {"role": "user", "content": "Weather?"},
            {"role": "assistant", "content": said},
            {"role": "user", "content": [*results, {"type": "text", "text": "Go on."}]},
        ]
        await message(stack, history)
        for call in calls:
            assert json.dumps(call["input"], ensure_ascii=False) in prompt(stack), written


async def test_messages_give_what_can_be_read_of_a_cut_input(stack: Stack) -> None:
    stack.say('Tool call: {"name": "weather", "arguments": {"days": 2, "city": "Köln am', end=False)
    (block,) = (await message(stack, [{"role": "user", "content": "Weather?"}]))["content"]
    assert block["input"] == {"days": 2}


async def test_an_answer_that_says_nothing_is_taken_back_by_messages(stack: Stack) -> None:
    """A required call that was cut before its name leaves an answer without blocks."""
    history = [
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": []},
        {"role": "user", "content": "Go on."},
    ]
    stack.say("Sun.")
    assert (await message(stack, history))["content"][0]["text"] == "Sun."


async def test_an_answer_that_says_nothing_is_taken_back_by_chat(stack: Stack) -> None:
    """`content` null, absent or empty, with reasoning beside it or without: a turn without a text."""
    stack.say("Sun.")
    prompts = []
    for said in ({"content": None}, {}, {"content": ""}, {"content": None, "reasoning_content": "Hm."}):
        assistant = {"role": "assistant", **said}
        await chat(stack, [{"role": "user", "content": "?"}, assistant, {"role": "user", "content": "Go on."}])
        prompts.append(sent(stack).tokens)
    assert prompts[0] == prompts[1] == prompts[2] == prompts[3]


async def test_what_is_no_object_is_taken_as_it_stands(stack: Stack) -> None:
    stack.say("Sun.")
    for arguments in ("not JSON", "[1, 2]", '"text"', "{}}", '{"city": NaN}', "null"):
        call = {"id": "1", "type": "function", "function": {"name": "weather", "arguments": arguments}}
        result = {"role": "tool", "tool_call_id": "1", "content": "refused"}
        await chat(stack, [{"role": "user", "content": "?"}, {"role": "assistant", "tool_calls": [call]}, result])
        of_chat = sent(stack).tokens
        assert f'"arguments": {arguments}' in prompt(stack)
        item = {"type": "function_call", "call_id": "1", "name": "weather", "arguments": arguments}
        answer = {"type": "function_call_output", "call_id": "1", "output": "refused"}
        await respond(stack, [{"role": "user", "content": "?"}, item, answer])
        assert sent(stack).tokens == of_chat


async def test_a_whole_call_must_still_be_answered(stack: Stack) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
    messages = [{"role": "user", "content": "?"}, {"role": "assistant", "tool_calls": [call]}]
    refused = await stack.post({"model": "tiny", "messages": [*messages, {"role": "user", "content": "!"}]})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "messages[1].tool_calls[0]")


async def test_a_custom_tools_cut_input_goes_back_without_its_end(stack: Stack) -> None:
    tools = [{"type": "custom", "name": "edit"}]
    stack.say('Tool call: {"name": "edit", "arguments": {"input": "first line\\nsec', end=False)
    before = await respond(stack, "Edit!", tools=tools)
    (call,) = before["output"]
    assert (call["status"], call["input"]) == ("incomplete", "first line\nsec")
    await respond(stack, "Go on.", tools=tools, previous_response_id=before["id"])
    assert '"arguments": {"input": "first line\\nsec' in prompt(stack)
    assert '"first line\\nsec"' not in prompt(stack)
