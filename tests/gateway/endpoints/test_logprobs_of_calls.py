"""Log probabilities of answers with calls and reasoning: of each sampled token one entry, once, in its order."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.gateway.stack import Stack

CALL = 'Tool call: {"name": "weather", "arguments": {"city": "Köln", "days": 2}}'
ANSWERS = {
    "a text": "It is sunny.",
    "a call": CALL,
    "a text, calls": f'I look.  \n{CALL}\nTool call: {{"name": "now"}}',
    "a call, a text": f"{CALL}\nThat was it.",
    "a call that is cut": CALL[:-12],
}
FUNCTIONS: list[dict[str, Any]] = [{"name": "weather", "parameters": {"type": "object"}}, {"name": "now"}]
CHAT: dict[str, Any] = {
    "model": "tiny",
    "messages": [{"role": "user", "content": "Weather?"}],
    "tools": [{"type": "function", "function": function} for function in FUNCTIONS],
    "logprobs": True,
    "top_logprobs": 1,
}
RESPONSE: dict[str, Any] = {
    "model": "tiny",
    "input": "Weather?",
    "tools": [{"type": "function", **function} for function in FUNCTIONS],
    "include": ["message.output_text.logprobs"],
}
BURSTS = (1, 2, 5, 1000)


def events_of(stream: str) -> list[dict[str, Any]]:
    """The events of a stream."""
    lines = (line.removeprefix("data: ") for line in stream.splitlines() if line.startswith("data: {"))
    return [json.loads(line) for line in lines]


def spelled(entries: list[Any]) -> list[bytes]:
    return [bytes(entry["bytes"]) for entry in entries]


async def post(stack: Stack, path: str, body: dict[str, Any]) -> str:
    answer = await stack.http.post(path, json=body, headers={"authorization": f"Bearer {stack.key}"})
    assert answer.status_code == 200, answer.text
    return answer.text


def sampled(stack: Stack, text: str) -> list[bytes]:
    spelling = next(iter(stack.models)).tokenizer.spelled
    return [spelling(token)[1] for token in stack.tokens(text, end=False)]


@pytest.mark.parametrize("kind", ANSWERS)
async def test_chat_has_each_tokens_entry_once(stack: Stack, kind: str) -> None:
    expected = sampled(stack, ANSWERS[kind])
    for burst in BURSTS:
        stack.say(ANSWERS[kind], end="cut" not in kind, burst=burst, likeliest=1)
        choices = [c for e in events_of(await post(stack, "/v1/chat/completions", {**CHAT, "stream": True}))
                   for c in e["choices"]]  # fmt: skip
        assert spelled([entry for c in choices if c["logprobs"] for entry in c["logprobs"]["content"]]) == expected
    whole = json.loads(await post(stack, "/v1/chat/completions", CHAT))["choices"][0]
    assert spelled(whole["logprobs"]["content"]) == expected


@pytest.mark.parametrize("kind", ANSWERS)
async def test_responses_have_each_tokens_entry_once(stack: Stack, kind: str) -> None:
    """With the item that the token is of; a message's are also those of its deltas, and spell its text."""
    expected = sampled(stack, ANSWERS[kind])
    for burst in BURSTS:
        stack.say(ANSWERS[kind], end="cut" not in kind, burst=burst, likeliest=1)
        events = events_of(await post(stack, "/v1/responses", {**RESPONSE, "stream": True}))
        items = events[-1]["response"]["output"]
        assert spelled([entry for item in items for entry in entries_of(item)]) == expected
        done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
        assert done == items
        deltas: dict[str, list[Any]] = {}
        for event in events:
            if event["type"] == "response.output_text.delta":
                deltas.setdefault(event["item_id"], []).extend(event["logprobs"])
            elif event["type"] == "response.output_text.done":
                assert event["logprobs"] == deltas[event["item_id"]]
        messages = [item for item in items if item["type"] == "message"]
        for item in messages:
            assert deltas[item["id"]] == entries_of(item)
            spelling = b"".join(spelled(entries_of(item))).decode()
            assert spelling.endswith(item["content"][0]["text"])
        if messages and messages[0] is items[0]:
            assert b"".join(spelled(entries_of(items[0]))).decode().startswith(items[0]["content"][0]["text"])
    whole = json.loads(await post(stack, "/v1/responses", RESPONSE))["output"]
    assert [entries_of(item) for item in whole] == [entries_of(item) for item in items]


def entries_of(item: dict[str, Any]) -> list[Any]:
    entries: list[Any] = item["content"][0]["logprobs"] if item["type"] == "message" else item["logprobs"]
    return entries


async def test_items_have_no_entries_that_nobody_asked_for(stack: Stack) -> None:
    stack.say(CALL)
    (item,) = json.loads(await post(stack, "/v1/responses", {**RESPONSE, "include": []}))["output"]
    assert "logprobs" not in item
