"""Calls of tools through both vendors' official clients, whole and streamed: one output, one meaning."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from protocol.requests import Generate
from tests.gateway.stack import Stack

if TYPE_CHECKING:
    from anthropic.types import ToolParam

WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city"],
}
OPENAI_TOOLS: Any = [
    {"type": "function", "function": {"name": "weather", "description": "The weather.", "parameters": WEATHER}},
    {"type": "function", "function": {"name": "now"}},
]
ANTHROPIC_TOOLS: list[ToolParam] = [
    {"name": "weather", "description": "The weather.", "input_schema": WEATHER},
    {"name": "now", "input_schema": {"type": "object"}},
]
ARGUMENTS = {"city": "Köln", "days": 2}
CALLS = f'I look.\nTool call: {json.dumps({"name": "weather", "arguments": ARGUMENTS})}\nTool call: {{"name": "now"}}'


async def chat(stack: Stack, **options: Any) -> Any:
    async with stack.openai() as client:
        return await client.chat.completions.create(model="tiny", **options)


def sent(stack: Stack) -> Generate:
    return list(stack.replica.runs.values())[-1].generate


async def test_chat_answers_with_calls(stack: Stack) -> None:
    stack.say(CALLS)
    answer = await chat(stack, messages=[{"role": "user", "content": "Weather?"}], tools=OPENAI_TOOLS)
    (choice,) = answer.choices
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", "I look.")
    calls: Any = choice.message.tool_calls
    assert [(call.function.name, json.loads(call.function.arguments)) for call in calls] == [
        ("weather", ARGUMENTS),
        ("now", {}),
    ]
    assert len({call.id for call in calls}) == 2


async def test_chat_streams_calls_as_the_official_helper_expects(stack: Stack) -> None:
    stack.say(CALLS)
    async with (
        stack.openai() as client,
        client.chat.completions.stream(
            model="tiny", messages=[{"role": "user", "content": "Weather?"}], tools=OPENAI_TOOLS
        ) as stream,
    ):
        async for _ in stream:
            pass
        choice = (await stream.get_final_completion()).choices[0]
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", "I look.")
    calls: Any = choice.message.tool_calls
    assert [(call.function.name, json.loads(call.function.arguments)) for call in calls] == [
        ("weather", ARGUMENTS),
        ("now", {}),
    ]


@pytest.mark.slow
async def test_messages_answer_with_calls(stack: Stack) -> None:
    stack.say(CALLS)
    async with stack.anthropic() as client:
        answer = await client.messages.create(
            model="tiny", max_tokens=200, messages=[{"role": "user", "content": "Weather?"}], tools=ANTHROPIC_TOOLS
        )
        stack.say(CALLS)
        async with client.messages.stream(
            model="tiny", max_tokens=200, messages=[{"role": "user", "content": "Weather?"}], tools=ANTHROPIC_TOOLS
        ) as stream:
            streamed = await stream.get_final_message()
    for message in (answer, streamed):
        assert message.stop_reason == "tool_use"
        said: list[Any] = list(message.content)
        assert [block.type for block in said] == ["text", "tool_use", "tool_use"]
        assert said[0].text == "I look."
        assert [(block.name, block.input) for block in said[1:]] == [("weather", ARGUMENTS), ("now", {})]


@pytest.mark.slow
async def test_the_answer_of_a_tool_goes_back_in_both_dialects_as_the_same_prompt(stack: Stack) -> None:
    stack.say("Sunny.")
    arguments = json.dumps(ARGUMENTS, ensure_ascii=False)
    await chat(
        stack,
        tools=OPENAI_TOOLS,
        messages=[
            {"role": "user", "content": "Weather?"},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [
                    {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": arguments}}
                ],
            },
            {"role": "tool", "tool_call_id": "call_1", "content": "sun"},
        ],
    )
    of_chat = sent(stack).tokens
    stack.say("Sunny.")
    tools: list[ToolParam] = [
        ANTHROPIC_TOOLS[0],
        {"name": "now", "input_schema": {"type": "object", "properties": {}}},  # type: ignore[typeddict-unknown-key]
    ]
    async with stack.anthropic() as client:
        await client.messages.create(
            model="tiny",
            max_tokens=50,
            tools=tools,
            messages=[
                {"role": "user", "content": "Weather?"},
                {
                    "role": "assistant",
                    "content": [{"type": "tool_use", "id": "toolu_1", "name": "weather", "input": ARGUMENTS}],
                },
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": "sun"}]},
            ],
        )
    assert sent(stack).tokens == of_chat


@pytest.mark.slow
@pytest.mark.parametrize(
    ("choice", "names"),
    [
        ("required", ["weather", "now"]),
        ({"type": "function", "function": {"name": "now"}}, ["now"]),
        (
            {
                "type": "allowed_tools",
                "allowed_tools": {"mode": "required", "tools": [{"type": "function", "function": {"name": "now"}}]},
            },
            ["now"],
        ),
    ],
)
async def test_a_required_call_is_a_grammar_and_leaves_the_prompt(stack: Stack, choice: Any, names: list[str]) -> None:
    messages: Any = [{"role": "user", "content": "Weather?"}]
    stack.say("Yes.")
    await chat(stack, messages=messages, tools=OPENAI_TOOLS)
    free = sent(stack)
    assert free.grammar is None
    stack.say(CALLS.partition("\n")[2])
    await chat(stack, messages=messages, tools=OPENAI_TOOLS, tool_choice=choice)
    forced = sent(stack)
    assert forced.tokens == free.tokens
    body = json.loads(forced.grammar or "")["calls"]
    assert [name for name in ("weather", "now") if f'\\"{name}\\"' in body["lark"]] == names


@pytest.mark.parametrize("written", ["Tool ca", 'Tool call: {"name": "no', 'Tool call: {"name": "now", "argum'])
async def test_a_required_call_that_the_limit_cuts_off_is_a_part_of_a_call(stack: Stack, written: str) -> None:
    """Never text, in whatever dialect. Of several tools none is named before the model has named it."""
    stack.say(written, end=False)
    named = '"now"' in written
    messages: Any = [{"role": "user", "content": "Weather?"}]
    choice = {"type": "function", "function": {"name": "now"}}
    answer = (await chat(stack, messages=messages, tools=OPENAI_TOOLS, tool_choice=choice)).choices[0]
    assert (answer.finish_reason, answer.message.content) == ("length", None)
    ((call, arguments),) = [(one.function.name, one.function.arguments) for one in answer.message.tool_calls or ()]
    assert (call, arguments) == ("now", "")
    several = (await chat(stack, messages=messages, tools=OPENAI_TOOLS, tool_choice="required")).choices[0]
    assert not several.message.content
    assert [one.function.name for one in several.message.tool_calls or ()] == ["now"] * named
    tools = [{"type": "function", **tool["function"]} for tool in OPENAI_TOOLS]
    body = {"model": "tiny", "input": "Now?", "tools": tools, "tool_choice": {"type": "function", "name": "now"}}
    headers = {"authorization": f"Bearer {stack.key}"}
    response = (await stack.http.post("/v1/responses", json=body, headers=headers)).json()
    (item,) = response["output"]
    assert (response["status"], item["status"], item["type"], item["name"]) == (
        "incomplete", "incomplete", "function_call", "now"
    )  # fmt: skip
    async with stack.anthropic() as client:
        message = await client.messages.create(
            model="tiny",
            max_tokens=100,
            messages=messages,
            tools=[{"name": "now", "input_schema": {"type": "object"}}],
            tool_choice={"type": "tool", "name": "now"},
        )
    assert message.stop_reason == "max_tokens"
    assert [block.type for block in message.content] == ["tool_use"]


async def test_without_leave_to_call_calls_are_text(stack: Stack) -> None:
    stack.say(CALLS)
    answer = await chat(
        stack, messages=[{"role": "user", "content": "Weather?"}], tools=OPENAI_TOOLS, tool_choice="none"
    )
    assert (answer.choices[0].message.content, answer.choices[0].finish_reason) == (CALLS, "stop")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"tools": [{"type": "custom", "custom": {"name": "x"}}]}, "$.tools[0].type"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "$.tools[0].function.name"),
        ({"tools": OPENAI_TOOLS[:1] * 2}, "$.tools[1].function.name"),
        ({"tool_choice": "required"}, "$.tool_choice"),
        (
            {"tools": OPENAI_TOOLS, "tool_choice": {"type": "function", "function": {"name": "x"}}},
            "$.tool_choice.function.name",
        ),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "string"}}}]},
            "$.tools[0].function.parameters.type",
        ),
        ({"messages": [{"role": "tool", "tool_call_id": "x", "content": "y"}]}, "$.messages[0].tool_call_id"),
        (
            {
                "messages": [
                    {
                        "role": "assistant",
                        "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
                    },
                    {"role": "user", "content": "so?"},
                ]
            },
            "$.messages[0].tool_calls[0]",
        ),
    ],
)
async def test_a_wrong_request_names_its_field(stack: Stack, change: dict[str, Any], param: str) -> None:
    body = {"model": "tiny", "messages": [{"role": "user", "content": "x"}], **change}
    answer = await stack.post(body)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param.removeprefix("$."), answer.text
