"""What agents send to the Messages API, in the shapes that they send it in, and what they need of the answer."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from gateway.dialects.anthropic import messages_request
from gateway.errors import InvalidRequest
from tests.gateway.endpoints.test_messages import ASK, raw
from tests.gateway.stack import Stack

THINKING = {"type": "enabled", "budget_tokens": 31_999}
KEEP_ALL = {"type": "clear_thinking_20251015", "keep": "all"}
THOUGHT: list[dict[str, Any]] = [
    {"role": "user", "content": "One?"},
    {"role": "assistant", "content": [{"type": "thinking", "thinking": "Hm."}, {"type": "text", "text": "One."}]},
    {"role": "user", "content": "Two?"},
    {"role": "assistant", "content": [{"type": "thinking", "thinking": "Hm."}, {"type": "text", "text": "Two."}]},
    {"role": "user", "content": "Three?"},
]
CALLED: list[dict[str, Any]] = [
    {"role": "user", "content": "Read."},
    {
        "role": "assistant",
        "content": [{"type": "tool_use", "id": f"t{at}", "name": "read", "input": {}} for at in "123"],
    },
    {
        "role": "user",
        "content": [{"type": "tool_result", "tool_use_id": f"t{at}", "content": "x"} for at in "123"],
    },
]


def turns(kept: int) -> dict[str, Any]:
    return {"type": "clear_thinking_20251015", "keep": {"type": "thinking_turns", "value": kept}}


@pytest.mark.parametrize(
    ("edits", "fields"),
    [
        ([KEEP_ALL], {"thinking": THINKING, "max_tokens": 32_000}),
        ([KEEP_ALL], {"messages": THOUGHT}),
        ([turns(2)], {"messages": THOUGHT}),
        ([{"type": "clear_thinking_20251015"}], {"messages": THOUGHT[:3]}),
        ([KEEP_ALL, {"type": "clear_tool_uses_20250919"}], {"messages": CALLED}),
        ([{"type": "clear_tool_uses_20250919"}], {}),
    ],
)
def test_an_edit_of_the_context_without_effect_is_taken(edits: list[Any], fields: dict[str, Any]) -> None:
    body = {**ASK, **fields}
    edited = {**body, "context_management": {"edits": edits}}
    for read in (messages_request.parse, messages_request.parse_count):
        assert read(json.dumps(edited).encode()) == read(json.dumps(body).encode())


async def test_a_request_as_claude_code_sends_it_is_answered(stack: Stack) -> None:
    stack.say("Yes.")
    body = {**ASK, "max_tokens": 32_000, "thinking": THINKING, "context_management": {"edits": [KEEP_ALL]}}
    answer = await raw(stack, body, "/v1/messages?beta=true")
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize(
    ("edits", "messages", "path"),
    [
        ([turns(1)], THOUGHT, "$.context_management.edits[0].type"),
        ([{"type": "clear_thinking_20251015"}], THOUGHT, "$.context_management.edits[0].type"),
        (
            [KEEP_ALL, {"type": "clear_tool_uses_20250919", "keep": {"type": "tool_uses", "value": 2}}],
            CALLED,
            "$.context_management.edits[1].type",
        ),
        ([turns(9), {"type": "compact_20260112"}], [], "$.context_management.edits[1].type"),
        ([{"type": "later"}], [], "$.context_management.edits[0].type"),
        ([{"type": "clear_thinking_20251015", "keep": "some"}], [], "$.context_management.edits[0].keep"),
        ([turns(0)], [], "$.context_management.edits[0].keep.value"),
        ("all", [], "$.context_management.edits"),
    ],
)
def test_an_edit_of_the_context_that_has_an_effect_is_refused(edits: Any, messages: list[Any], path: str) -> None:
    body = {**ASK, "messages": messages or ASK["messages"], "context_management": {"edits": edits}}
    with pytest.raises(InvalidRequest) as refused:
        messages_request.parse(json.dumps(body).encode())
    assert refused.value.path == path


async def test_a_program_finds_the_server_by_head(stack: Stack) -> None:
    answer = await stack.http.head("/")
    assert (answer.status_code, answer.content) == (200, b"")
    assert (await stack.http.get("/")).status_code == 302, "a browser is led to the console"


async def test_agents_recognise_a_prompt_that_is_too_long(stack: Stack) -> None:
    """Claude Code compares the whole message; opencode, Cline and Roo look for its first words."""
    for words in (600, 200_000):  # counted, and so long that nobody counts it
        body = {**ASK, "messages": [{"role": "user", "content": "word " * words}]}
        for path in ("/v1/messages", "/v1/messages/count_tokens"):
            answer = await raw(stack, body, path)
            if path.endswith("count_tokens") and words == 600:
                assert answer.status_code == 200, "a prompt is counted, even if no answer fits"
                continue
            error = answer.json()["error"]
            assert (answer.status_code, error["type"]) == (400, "invalid_request_error")
            assert error["details"] == {"error_code": "context_length_exceeded", "path": "$.messages"}
            numbers = re.fullmatch(r"prompt is too long: (\d+) tokens > (\d+) maximum", error["message"])
            assert numbers is not None, error["message"]
            assert int(numbers[1]) > int(numbers[2]) == 512


async def test_a_prompt_that_fills_the_context_is_too_long(stack: Stack) -> None:
    async def tokens(words: int) -> int:
        body = {"model": "tiny", "messages": [{"role": "user", "content": " a" * words}]}
        return int((await raw(stack, body, "/v1/messages/count_tokens")).json()["input_tokens"])

    words = 512 - (await tokens(1) - 1)
    assert await tokens(words) == 512
    answer = await raw(stack, {**ASK, "messages": [{"role": "user", "content": " a" * words}]})
    assert answer.json()["error"]["message"] == "prompt is too long: 512 tokens > 511 maximum"


async def test_openais_clients_recognise_a_prompt_that_is_too_long(stack: Stack) -> None:
    for path, body in (
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "word " * 2000}]}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}] * 600}),
        ("/v1/responses", {"input": "word " * 2000}),
        ("/v1/completions", {"prompt": [7] * 600, "max_tokens": 5}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}], "max_tokens": 512}),
    ):
        headers = {"authorization": f"Bearer {stack.key}"}
        answer = await stack.http.post(path, headers=headers, json={"model": "tiny", **body})
        error = answer.json()["error"]
        assert (answer.status_code, error["code"]) == (400, "context_length_exceeded")
        assert error["message"].startswith("This model's maximum context length is 512 tokens. However, ")
        if body.get("max_tokens") != 512:
            assert "context_length_exceeded" in error["message"], "LangChain looks for it in the text"


async def test_a_route_answers_in_its_own_dialect(stack: Stack) -> None:
    """The header of another one says nothing there: some clients send it to every server."""
    headers = {"authorization": f"Bearer {stack.key}", "anthropic-version": "2023-06-01"}
    body = {"model": "none", "input": "", "messages": [], "prompt": ""}
    for path in ("/v1/chat/completions", "/v1/completions", "/v1/responses"):
        for answer in (
            await stack.http.post(path, headers=headers, json=body),
            await stack.http.post(path, headers=headers | {"authorization": "Bearer wrong"}, json=body),
            await stack.http.get(f"{path}/nothing/here", headers=headers),
        ):
            assert 400 <= answer.status_code < 500
            assert set(answer.json()) == {"error"}
            assert "param" in answer.json()["error"]
            assert "anthropic-organization-id" not in answer.headers
