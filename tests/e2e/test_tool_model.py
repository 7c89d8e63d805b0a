"""The demo model that calls tools, asked by the official client: what is held out, and a task with two tools."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI

from tests.e2e.conftest import Running
from tests.e2e.processes import first_key, process
from tests.servers import free_port

FOLDER = Path(__file__).resolve().parents[2] / "models" / "tool-caller"
HELD_OUT: Any = json.loads((FOLDER / "held_out.json").read_text())
MODEL = "gpt-4o"
REACHED = {"calls": 94, "no calls": 98}
"""Of 100 each, a little below what was measured (97 and 100). What is aimed at is 90."""
TASK = "What is the weather in Lisbon, and what is 17 times 4?"
TOOLS: Any = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Get the weather in a city",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    },
    {
        "type": "function",
        "function": {
            "name": "multiply",
            "description": "Multiply two numbers",
            "parameters": {
                "type": "object",
                "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
                "required": ["a", "b"],
            },
        },
    },
]


@pytest.fixture(scope="module")
def tool_model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("tools")
    port, data = free_port(), folder / "data"
    words = ("--port", str(port), "--data-dir", str(data), "--model", str(FOLDER))
    with process(folder, "serve", *words, "--model-aliases", f"{MODEL}=tool-caller") as running:
        yield Running(running, f"http://127.0.0.1:{port}", first_key(running), data, 0)
        assert running.stop() == 0, running.errors


def answered(client: OpenAI, case: Any) -> list[tuple[str, Any]]:
    tools: Any = [{"type": "function", "function": HELD_OUT["tools"][name]} for name in case["tools"]]
    messages: Any = [{"role": "user", "content": case["question"]}]
    choice = client.chat.completions.create(model=MODEL, messages=messages, tools=tools, max_tokens=256).choices[0]
    calls: Any = choice.message.tool_calls or []
    assert bool(choice.message.content) != bool(calls)
    return [(call.function.name, json.loads(call.function.arguments)) for call in calls]


def all_answered(running: Running, cases: Any) -> list[list[tuple[str, Any]]]:
    with running.client() as client, ThreadPoolExecutor(8) as pool:
        return list(pool.map(lambda case: answered(client, case), cases))


@pytest.mark.slow
def test_the_right_tool_is_called_with_the_right_arguments(tool_model: Running) -> None:
    cases = HELD_OUT["calls"]
    found = all_answered(tool_model, cases)
    right = [
        len(calls) == 1 and calls[0][0] == case["name"] and calls[0][1] in case["arguments"]
        for case, calls in zip(cases, found, strict=True)
    ]
    assert (len(cases), sum(right) >= REACHED["calls"]) == (100, True), sum(right)


@pytest.mark.slow
def test_nothing_is_called_where_no_tool_is_needed(tool_model: Running) -> None:
    found = all_answered(tool_model, HELD_OUT["no_calls"])
    quiet = sum(calls == [] for calls in found)
    assert (len(found), quiet >= REACHED["no calls"]) == (100, True), quiet


def test_a_task_with_two_tools(tool_model: Running) -> None:
    with tool_model.client() as client:
        check_task(client)


def check_task(client: OpenAI) -> None:
    messages: Any = [{"role": "user", "content": TASK}]
    first = client.chat.completions.create(model=MODEL, messages=messages, tools=TOOLS)
    message = first.choices[0].message
    assert first.choices[0].finish_reason == "tool_calls"
    calls: Any = message.tool_calls
    assert [(one.function.name, json.loads(one.function.arguments)) for one in calls] == [
        ("get_weather", {"city": "Lisbon"}),
        ("multiply", {"a": 17, "b": 4}),
    ]
    results = ["It is sunny, 21 degrees.", "68"]
    messages += [
        message,
        *({"role": "tool", "tool_call_id": one.id, "content": said} for one, said in zip(calls, results, strict=True)),
    ]
    last = client.chat.completions.create(model=MODEL, messages=messages, tools=TOOLS).choices[0]
    assert last.finish_reason == "stop"
    assert "21 degrees" in (last.message.content or "")
    assert "68" in (last.message.content or "")
