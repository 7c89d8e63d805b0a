"""What agents send to the Responses API, in the shapes that they send it in, and what they need of the answer."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.gateway.endpoints.test_responses import sent
from tests.gateway.stack import Stack

SHELL: dict[str, Any] = {
    "type": "function",
    "name": "shell_command",
    "strict": False,
    "parameters": {
        "type": "object",
        "properties": {"command": {"type": "string"}},
    },
}
PATCH: dict[str, Any] = {
    "type": "custom",
    "name": "apply_patch",
    "format": {"type": "grammar", "syntax": "lark", "definition": "start: x"},
}
CODEX: dict[str, Any] = {
    "model": "tiny",
    "instructions": "Code.",
    "input": [
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "<p>"}]},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "<env>"}]},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Go."}]},
    ],
    "tools": [SHELL, PATCH, {"type": "web_search", "external_web_access": False}],
    "tool_choice": "auto",
    "parallel_tool_calls": False,
    "reasoning": {"effort": "medium", "summary": "auto"},
    "store": False,
    "stream": True,
    "include": ["reasoning.encrypted_content"],
    "prompt_cache_key": "01934f6e-0d2a-7b3c-8e51-a9c4d7f60b12",
    "text": {"verbosity": "low"},
    "client_metadata": {"x": "y"},
}
"""A request of Codex, without its long texts."""
HEADERS = {"session_id": "01934f6e", "originator": "codex_cli_rs", "accept": "text/event-stream"}


async def codex(stack: Stack, body: dict[str, Any]) -> list[dict[str, Any]]:
    """The events of the answer, read as Codex does: the data alone, by its type."""
    headers = {"authorization": f"Bearer {stack.key}", **HEADERS}
    answer = await stack.http.post("/v1/responses", headers=headers, json=body)
    assert answer.status_code == 200, answer.text
    lines = [line for line in answer.text.split("\n") if line.startswith("data: ")]
    return [json.loads(line[6:]) for line in lines]


async def test_codex_runs_a_turn_with_tools(stack: Stack) -> None:
    said = (
        {"name": "shell_command", "arguments": {"command": "ls"}},
        {"name": "apply_patch", "arguments": {"input": "*** Begin"}},
    )
    stack.say("\n".join(f"Tool call: {json.dumps(one)}" for one in said))
    events = await codex(stack, CODEX)
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert [(item["type"], item["name"]) for item in done] == [
        ("function_call", "shell_command"),
        ("custom_tool_call", "apply_patch"),
    ]
    assert json.loads(done[0]["arguments"]) == {"command": "ls"}
    assert done[1]["input"] == "*** Begin"
    completed = events[-1]
    assert completed["type"] == "response.completed"
    assert completed["response"]["id"].startswith("resp_")
    usage = completed["response"]["usage"]
    counts = [usage["input_tokens"], usage["output_tokens"], usage["total_tokens"]]
    details = [usage["input_tokens_details"]["cached_tokens"], usage["output_tokens_details"]["reasoning_tokens"]]
    assert all(type(count) is int for count in (*counts, *details))
    first = sent(stack).tokens
    stack.say("Yes.")
    results = [
        {"type": "function_call_output", "call_id": done[0]["call_id"], "output": "a.py"},
        {"type": "custom_tool_call_output", "call_id": done[1]["call_id"], "output": "Done"},
    ]
    events = await codex(stack, {**CODEX, "input": [*CODEX["input"], *done, *results]})
    assert events[-1]["response"]["output"][0]["content"][0]["text"].startswith("Yes")
    second = sent(stack).tokens
    tail = 4  # what opens the answer is not in the next prompt in the same place
    assert second[: len(first) - tail] == first[: len(first) - tail], "the next turn reads the cached prompt"


HOSTED: list[dict[str, Any]] = [
    {"type": "web_search", "external_web_access": True, "search_content_types": ["text", "image"]},
    {"type": "web_search"},
    {"type": "image_generation", "output_format": "png"},
]
"""What Codex sends by default, and with its features for newer models."""
FROM_CODEX = {"x-codex-installation-id": "bab30ca8", "session_id": "01a222c2"}


async def test_codex_does_without_hosted_tools(stack: Stack) -> None:
    """They are nowhere in what the model is told: it works with the tools that Codex runs itself."""
    prompts = []
    for tools in ([SHELL, PATCH], [SHELL, *HOSTED, PATCH]):
        stack.say("Yes.")
        events = await codex(stack, {**CODEX, "tools": tools, "client_metadata": FROM_CODEX})
        assert events[-1]["type"] == "response.completed"
        prompts.append(sent(stack).tokens)
    assert prompts[0] == prompts[1]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"client_metadata": {"x": "y"}}, "tools[1].type"),
        ({"client_metadata": None}, "tools[1].type"),
        ({"client_metadata": FROM_CODEX, "tools": HOSTED, "tool_choice": "required"}, "tool_choice"),
        ({"client_metadata": FROM_CODEX, "tools": [SHELL, {"type": "local_shell"}]}, "tools[1].type"),
    ],
)
async def test_hosted_tools_are_refused_where_nothing_else_answers_for_them(
    stack: Stack, fields: dict[str, Any], param: str
) -> None:
    body = {**CODEX, "tools": [SHELL, *HOSTED], **fields}
    answer = await stack.http.post("/v1/responses", headers={"authorization": f"Bearer {stack.key}"}, json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"].removeprefix("$.") == param
    assert not stack.replica.runs


async def test_codex_hears_of_failures_by_code(stack: Stack) -> None:
    headers = {"authorization": f"Bearer {stack.key}", **HEADERS}
    long = [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "word " * 2000}]}]
    answer = await stack.http.post("/v1/responses", headers=headers, json={**CODEX, "input": long})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "context_length_exceeded")
    stack.say("The quick brown fox", die_after=2)
    failed = (await codex(stack, CODEX))[-1]
    assert (failed["type"], failed["response"]["error"]["code"]) == ("response.failed", "server_error")


@pytest.mark.parametrize(
    "extra",
    [
        {"include": [], "tools": []},
        {"tool_choice": "auto", "parallel_tool_calls": None, "truncation": None, "reasoning": None},
        {"include": ["message.output_text.logprobs"], "top_logprobs": 2},
        {"metadata": {"trace": "1"}, "prompt_cache_retention": "24h", "store": True, "safety_identifier": "u"},
        {
            "service_tier": "auto",
            "text": {"format": {"type": "text"}},
            "stream_options": {"include_obfuscation": False},
        },
        {"reasoning": {"effort": "none", "summary": "detailed", "context": "auto"}, "user": "u"},
    ],
)
async def test_what_the_agents_sdk_sends_is_taken(stack: Stack, extra: dict[str, Any]) -> None:
    stack.say("Yes.")
    body = {"model": "tiny", "input": [{"role": "user", "content": "Well?"}], "stream": True, **extra}
    answer = await stack.http.post("/v1/responses", headers={"authorization": f"Bearer {stack.key}"}, json=body)
    assert answer.status_code == 200, answer.text
    assert "response.completed" in answer.text


async def test_log_probabilities_come_with_the_text(stack: Stack) -> None:
    stack.say("Yes.")
    async with stack.openai() as client:
        answer: Any = await client.responses.create(
            model="tiny", input="Well?", top_logprobs=0, include=["message.output_text.logprobs"]
        )
    assert sent(stack).sampling.logprobs == 0
    assert isinstance(answer.output[0].content[0].logprobs, list)


async def test_what_is_not_there_is_said_in_the_dialects_envelope(stack: Stack) -> None:
    """An agent that can shorten a conversation by itself does so where the server does not."""
    headers = {"authorization": f"Bearer {stack.key}"}
    answer = await stack.http.post("/v1/responses/compact", headers=headers, json={"model": "tiny", "input": []})
    assert answer.status_code == 405, answer.text
    error = answer.json()["error"]
    assert (error["type"], error["code"]) == ("invalid_request_error", "method_not_allowed")


async def test_a_lark_grammar_of_a_custom_tool_is_told_to_the_model_alone(stack: Stack) -> None:
    """As docs/responses.md says: what the model is made to write is a string, not what the grammar allows."""
    patch = PATCH | {"format": {"type": "grammar", "syntax": "lark", "definition": 'start: "only this"'}}
    stack.say('Tool call: {"name": "apply_patch", "arguments": {"input": "something else"}}')
    headers = {"authorization": f"Bearer {stack.key}"}
    body = {"model": "tiny", "input": "Go.", "tools": [patch], "tool_choice": "required", "max_output_tokens": 150}
    answer = await stack.http.post("/v1/responses", headers=headers, json=body)
    (called,) = answer.json()["output"]
    assert (called["type"], called["input"]) == ("custom_tool_call", "something else")
    (run,) = stack.replica.runs.values()
    assert "only this" in next(iter(stack.models)).tokenizer.decode(run.generate.tokens)
    assert "only this" not in (run.generate.grammar or "")
