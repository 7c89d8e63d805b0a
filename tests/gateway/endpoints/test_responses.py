"""POST /v1/responses through the official client, whole and streamed."""

from __future__ import annotations

import json
from typing import Any

import pytest
from openai import APIStatusError, BadRequestError

from protocol.requests import Generate
from tests.gateway.stack import Stack

WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city"],
}
TOOLS: Any = [
    {"type": "function", "name": "weather", "description": "The weather.", "parameters": WEATHER, "strict": False},
    {"type": "function", "name": "now", "parameters": None, "strict": None},
]
ARGUMENTS = {"city": "Köln", "days": 2}
CALLS = f'I look.\nTool call: {json.dumps({"name": "weather", "arguments": ARGUMENTS})}\nTool call: {{"name": "now"}}'


def sent(stack: Stack) -> Generate:
    return list(stack.replica.runs.values())[-1].generate


async def create(stack: Stack, **options: Any) -> Any:
    async with stack.openai() as client:
        return await client.responses.create(model="tiny", **options)


async def streamed(stack: Stack, **options: Any) -> tuple[list[Any], Any]:
    """The events of a streamed response, and what the client's helper makes of them."""
    async with stack.openai() as client, client.responses.stream(model="tiny", **options) as stream:
        return [event async for event in stream], await stream.get_final_response()


async def test_a_text_is_answered(stack: Stack) -> None:
    stack.say("The quick brown fox")
    answer = await create(stack, input="Say it.", instructions="Be brief.", metadata={"a": "b"})
    assert (answer.output_text, answer.status, answer.incomplete_details) == ("The quick brown fox", "completed", None)
    assert answer.id.startswith("resp_")
    (message,) = answer.output
    assert (message.type, message.role, message.status) == ("message", "assistant", "completed")
    usage = answer.usage
    assert usage.input_tokens == len(sent(stack).tokens)
    assert usage.total_tokens == usage.input_tokens + usage.output_tokens
    assert (usage.input_tokens_details.cached_tokens, usage.output_tokens_details.reasoning_tokens) == (0, 0)
    assert (answer.instructions, answer.metadata, answer.service_tier) == ("Be brief.", {"a": "b"}, "default")
    await stack.settled(1)


async def test_events_come_in_order_and_equal_the_whole(stack: Stack) -> None:
    stack.say("The quick brown fox")
    events, final = await streamed(stack, input="Say it.")
    kinds = [event.type for event in events]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    deltas = kinds.count("response.output_text.delta")
    assert kinds == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        *["response.output_text.delta"] * deltas,
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert deltas > 1
    assert final.output_text == "The quick brown fox"
    assert {event.item_id for event in events if hasattr(event, "item_id")} == {final.output[0].id}


async def test_calls_whole_and_streamed(stack: Stack) -> None:
    stack.say(CALLS)
    whole = await create(stack, input="Weather?", tools=TOOLS)
    stack.say(CALLS)
    _, final = await streamed(stack, input="Weather?", tools=TOOLS)
    for answer in (whole, final):
        message, first, second = answer.output
        assert answer.status == "completed"
        assert message.content[0].text == "I look."
        assert (first.type, first.name, json.loads(first.arguments)) == ("function_call", "weather", ARGUMENTS)
        assert (second.name, json.loads(second.arguments)) == ("now", {})
        assert first.call_id != second.call_id


async def test_a_conversation_is_the_same_prompt_as_in_chat_completions(stack: Stack) -> None:
    arguments = json.dumps(ARGUMENTS, ensure_ascii=False)
    stack.say("Sunny.")
    async with stack.openai() as client:
        await client.chat.completions.create(
            model="tiny",
            tools=[
                {
                    "type": "function",
                    "function": {"name": "weather", "description": "The weather.", "parameters": WEATHER},
                },
                {"type": "function", "function": {"name": "now"}},
            ],
            messages=[
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": "Weather?"},
                {
                    "role": "assistant",
                    "content": "I look.",
                    "tool_calls": [
                        {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": arguments}}
                    ],
                },
                {"role": "tool", "tool_call_id": "call_1", "content": "sun"},
                {"role": "assistant", "content": "Sun."},
                {"role": "user", "content": "Sure?"},
            ],
        )
    of_chat = sent(stack).tokens
    stack.say("Sunny.")
    await create(
        stack,
        tools=TOOLS,
        instructions="Be brief.",
        input=[
            {"role": "user", "content": "Weather?"},
            {
                "type": "message",
                "role": "assistant",
                "id": "msg_1",
                "status": "completed",
                "content": [{"type": "output_text", "text": "I look.", "annotations": []}],
            },
            {"type": "function_call", "call_id": "call_1", "name": "weather", "arguments": arguments},
            {"type": "function_call_output", "call_id": "call_1", "output": [{"type": "input_text", "text": "sun"}]},
            {"role": "assistant", "content": "Sun."},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Sure?"}]},
        ],
    )
    assert sent(stack).tokens == of_chat


@pytest.mark.parametrize(
    ("choice", "names"),
    [
        ("required", ["weather", "now"]),
        ({"type": "function", "name": "now"}, ["now"]),
        ({"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "now"}]}, ["now"]),
    ],
)
async def test_a_required_call_is_a_grammar_and_leaves_the_prompt(stack: Stack, choice: Any, names: list[str]) -> None:
    stack.say("Yes.")
    await create(stack, input="Weather?", tools=TOOLS)
    free = sent(stack)
    stack.say(CALLS.partition("\n")[2])
    answer = await create(stack, input="Weather?", tools=TOOLS, tool_choice=choice)
    assert answer.to_dict()["tool_choice"] == choice
    forced = sent(stack)
    assert forced.tokens == free.tokens
    body = json.loads(forced.grammar or "")["calls"]
    assert [name for name in ("weather", "now") if f'\\"{name}\\"' in body["lark"]] == names


async def test_a_custom_tool_takes_text(stack: Stack) -> None:
    patch = '*** Begin Patch\n+ "Grüße" \\ 🚀\n'
    tools: Any = [
        {
            "type": "custom",
            "name": "apply_patch",
            "description": "Edit.",
            "format": {"type": "grammar", "syntax": "lark", "definition": "start: /.+/"},
        },
        {
            "type": "namespace",
            "name": "files",
            "description": "Files.",
            "tools": [{"type": "function", "name": "read", "parameters": {"type": "object", "properties": {}}}],
        },
    ]
    said = "\n".join(
        f"Tool call: {json.dumps(call)}"
        for call in (
            {"name": "apply_patch", "arguments": {"input": patch}},
            {"name": "files__read", "arguments": {}},
        )
    )
    stack.say(said)
    whole = await create(stack, input="Edit.", tools=tools)
    stack.say(said)
    events, final = await streamed(stack, input="Edit.", tools=tools)
    for answer in (whole, final):
        custom, grouped = answer.output
        assert (custom.type, custom.name, custom.input) == ("custom_tool_call", "apply_patch", patch)
        assert (grouped.type, grouped.name, grouped.namespace) == ("function_call", "read", "files")
    assert "".join(e.delta for e in events if e.type == "response.custom_tool_call_input.delta") == patch
    stack.say("Done.")
    again = await create(
        stack,
        tools=tools,
        input=[
            {"role": "user", "content": "Edit."},
            *[item.to_dict() for item in whole.output],
            {"type": "custom_tool_call_output", "call_id": whole.output[0].call_id, "output": "ok"},
            {"type": "function_call_output", "call_id": whole.output[1].call_id, "output": "text"},
        ],
    )
    assert again.output_text == "Done."


async def test_the_limit_makes_an_answer_incomplete(stack: Stack) -> None:
    stack.say("The quick brown fox", end=False, reason="length")
    answer = await create(stack, input="Say it.", max_output_tokens=4)
    assert (answer.status, answer.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert answer.output[0].status == "incomplete"
    stack.say("The quick brown fox", end=False, reason="length")
    async with stack.openai() as client:
        told: Any = await client.responses.create(model="tiny", input="x", max_output_tokens=4, stream=True)
        events = [event async for event in told]
    assert events[-1].type == "response.incomplete"


async def test_a_schema_is_a_grammar(stack: Stack) -> None:
    schema = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    stack.say('{"city":"x"}')
    form = {"type": "json_schema", "name": "codex_output_schema", "schema": schema, "strict": True}
    answer = await create(stack, input="City?", text={"format": form, "verbosity": "low"})
    assert json.loads(sent(stack).grammar or "") == {"json_schema": schema}
    assert answer.to_dict()["text"]["format"] == form


async def test_a_failure_is_told_as_a_failed_response(stack: Stack) -> None:
    stack.say("The quick brown fox", die_after=3)
    async with stack.openai() as client:
        stream: Any = await client.responses.create(model="tiny", input="Say it.", stream=True)
        events = [event async for event in stream]
    assert events[-1].type == "response.failed"
    assert events[-1].response.error.code == "server_error"
    assert [event.sequence_number for event in events] == list(range(len(events)))


@pytest.mark.parametrize(
    ("change", "param", "code"),
    [
        ({"conversation": "conv_1"}, "$.conversation", "unsupported_parameter"),
        ({"prompt": {"id": "x"}}, "$.prompt", "unsupported_parameter"),
        ({"max_tool_calls": 3}, "$.max_tool_calls", "unsupported_parameter"),
        ({"tools": [{"type": "code_interpreter"}]}, "$.tools[0].type", "unsupported_parameter"),
        ({"input": [{"type": "image_generation_call"}]}, "$.input[0].type", "unsupported_parameter"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
            "$.input[0].content[0].type",
            "unsupported_parameter",
        ),
        ({"input": []}, "$.input", "missing_required_parameter"),
        ({"input": [{"role": "user"}]}, "$.input[0].content", "missing_required_parameter"),
        ({"input": [{"content": "x"}]}, "$.input[0].role", "missing_required_parameter"),
        (
            {"input": [{"type": "function_call_output", "call_id": "c", "output": "x"}]},
            "$.input[0].call_id",
            "invalid_value",
        ),
        (
            {"input": [{"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}]},
            "$.input[0]",
            "invalid_value",
        ),
        ({"tool_choice": "required"}, "$.tool_choice", "invalid_value"),
        ({"tools": TOOLS, "tool_choice": {"type": "function"}}, "$.tool_choice.name", "missing_required_parameter"),
        ({"tools": TOOLS, "tool_choice": {"type": "custom", "name": "x"}}, "$.tool_choice.name", "invalid_value"),
        ({"stream_options": {"include_obfuscation": True}}, "$.stream_options", "invalid_value"),
        ({"background": True, "store": False}, "$.background", "invalid_value"),
        ({"service_tier": "gold"}, "$.service_tier", "invalid_value"),
    ],
)
async def test_what_is_wrong_is_named(stack: Stack, change: Any, param: str, code: str) -> None:
    answer = await stack.http.post(
        "/v1/responses",
        headers={"authorization": f"Bearer {stack.key}"},
        json={"model": "tiny", "input": "x"} | change,
    )
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert (error["param"], error["code"]) == (param.removeprefix("$."), code), error


async def test_a_conversation_that_is_too_long_loses_its_oldest_turns(stack: Stack) -> None:
    call = {"type": "function_call", "name": "weather", "arguments": "{}"}
    items: Any = [
        *({"role": role, "content": f"{number} old words"} for number in range(40) for role in ("user", "assistant")),
        {"role": "user", "content": "The question?"},
        {**call, "call_id": "c1"},
        {"type": "function_call_output", "call_id": "c1", "output": "sun"},
    ]
    options: Any = {"input": items, "instructions": "Be brief.", "max_output_tokens": 16}
    with pytest.raises(BadRequestError) as caught:
        await create(stack, **options)
    assert caught.value.code == "context_length_exceeded"
    stack.say("Yes.")
    answer = await create(stack, **options, truncation="auto")
    model = next(iter(stack.models))
    prompt = "".join(model.tokenizer.spelled(token)[0] for token in sent(stack).tokens)
    assert prompt.startswith("<|begin|><|system|>Be brief.<|end|><|user|>")
    assert "0 old words" not in prompt.split("<|end|>")[1]
    assert prompt.index("39 old words") < prompt.index("The question?") < prompt.index("sun")
    assert answer.usage.input_tokens > 400, "no more is left out than must be"


@pytest.mark.parametrize("background", [False, True])
async def test_a_request_may_say_what_it_may_cost(stack: Stack, background: bool) -> None:
    with pytest.raises(APIStatusError) as caught:
        await create(
            stack,
            input="Say it.",
            max_output_tokens=100,
            background=background,
            extra_body={"max_cost": "0.000001"},
        )
    assert caught.value.param == "max_cost"
    assert stack.replica.runs == {}


async def test_tokens_are_counted_as_they_are_billed(stack: Stack) -> None:
    stack.say("Yes.")
    answer = await create(stack, input="Weather?", tools=TOOLS, instructions="Be brief.")
    async with stack.openai() as client:
        counted = await client.responses.input_tokens.count(
            model="tiny", input="Weather?", tools=TOOLS, instructions="Be brief."
        )
    assert counted.input_tokens == answer.usage.input_tokens
