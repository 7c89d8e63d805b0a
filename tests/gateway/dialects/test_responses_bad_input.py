"""Hostile bodies for the Responses API: whatever they say, they are answered, never with a status of ours."""

from __future__ import annotations

import json
import random
from typing import Any

from tests.awake import Awake
from tests.fast import examples
from tests.gateway.stack import Stack

TOOL: dict[str, Any] = {
    "type": "function",
    "name": "f",
    "parameters": {"type": "object", "properties": {"a": {"type": "string"}}},
    "strict": True,
}
CALL = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": '{"a": "b"}', "id": "fc_1"}
OUTPUT = {"type": "function_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "x"}]}
BODY: dict[str, Any] = {
    "model": "tiny",
    "instructions": "Be brief.",
    "input": [
        {
            "role": "user",
            "content": [{"type": "input_text", "text": "hi", "prompt_cache_breakpoint": {"mode": "explicit"}}],
        },
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
        {"type": "message", "role": "assistant", "id": "msg_1", "content": [{"type": "output_text", "text": "yes"}]},
        CALL,
        OUTPUT,
        {"type": "reasoning", "id": "rs_2", "summary": [], "encrypted_content": "AAAA"},
        {"type": "custom_tool_call", "call_id": "c2", "name": "p", "input": "text"},
        {"type": "custom_tool_call_output", "call_id": "c2", "output": "done"},
        {"role": "user", "content": "again"},
    ],
    "tools": [
        TOOL,
        {"type": "custom", "name": "p", "format": {"type": "text"}},
        {"type": "namespace", "name": "n", "description": "d", "tools": [{"type": "function", "name": "g"}]},
    ],
    "tool_choice": "auto",
    "parallel_tool_calls": True,
    "max_output_tokens": 4,
    "text": {"format": {"type": "text"}},
    "reasoning": {"effort": "low", "summary": "auto"},
    "include": ["reasoning.encrypted_content", "message.output_text.logprobs"],
    "metadata": {"a": "b"},
    "prompt_cache_key": "k",
    "prompt_cache_options": {"mode": "explicit", "ttl": "30m"},
    "previous_response_id": None,
    "store": False,
    "stream": False,
    "truncation": "auto",
}
HOSTILE: tuple[Any, ...] = (
    *(None, True, -1, 0, 2**70, 1e308, "", "\x00", "x" * 3000, "<|end|>", "\u2028", [], {}, [[]], {"type": None}),
    *("resp_" + "0" * 32, {"type": "item_reference", "id": "msg_" + "0" * 34}, "required", "none", CALL, OUTPUT, TOOL),
    *({"type": "allowed_tools", "mode": "required", "tools": [{"name": "n__g"}]}, {"type": "custom", "name": "p"}),
    *({"type": "json_schema", "name": "s", "schema": {"$ref": "#"}}, {"type": "json_object"}, [TOOL] * 40, "batch"),
    {"type": "grammar", "syntax": "lark", "definition": "start: start"},
    {"type": "grammar", "syntax": "regex", "definition": "(" * 50},
)
RAW = (
    b"",
    b"{",
    b"null",
    b"[" * 100_000,
    b'{"model":"tiny","input":' + b"[" * 5000,
    b'{"model":"tiny","input":"\\ud800"}',
    b'{"model":"tiny","input":"x","input":"y","model":"tiny"}',
    b'{"model":"tiny","input":[{"role":"user","content":"\xff"}]}',
    json.dumps({**BODY, "tools": [{**TOOL, "name": f"f{n}"} for n in range(10_000)]}).encode(),
    json.dumps({**BODY, "input": [{"role": "user", "content": "x"}] * 20_000}).encode(),
    json.dumps({**BODY, "input": [{"type": "item_reference", "id": f"msg_{n:034x}"} for n in range(300)]}).encode(),
    json.dumps({**BODY, "input": [{**CALL, "call_id": f"c{n}"} for n in range(2000)]}).encode(),
    json.dumps(
        {
            **BODY,
            "tools": [{**TOOL, "parameters": {"type": "object", "properties": {"a": {"enum": list(range(9000))}}}}],
        }
    ).encode(),
)


def mutated(chance: random.Random, value: Any, path: int = 0) -> Any:
    """The body with something hostile at a place or two."""
    if path and chance.random() < 0.02:
        return chance.choice(HOSTILE)
    if isinstance(value, dict):
        made = {key: mutated(chance, inner, path + 1) for key, inner in value.items() if chance.random() > 0.01}
        return made | ({chance.choice(list(BODY)): chance.choice(HOSTILE)} if chance.random() < 0.05 else {})
    if isinstance(value, list):
        items = [mutated(chance, inner, path + 1) for inner in value if chance.random() > 0.02]
        chance.shuffle(items) if chance.random() < 0.05 else None
        return items
    return value


async def test_hostile_bodies_are_answered(stack: Stack) -> None:
    chance = random.Random(20)
    headers = {"authorization": f"Bearer {stack.key}", "content-type": "application/json"}
    bodies = [*RAW, *(json.dumps(mutated(chance, BODY)).encode() for _ in range(examples(700)))]
    statuses: dict[int, int] = {}
    for body in bodies:
        stack.say("Yes.")
        with Awake() as awake:
            answer = await stack.http.post("/v1/responses", headers=headers, content=body)
            assert awake.seconds < 10, body[:200]
        assert answer.status_code < 500, (answer.text, body[:2000])
        if answer.status_code != 200:
            assert answer.json()["error"]["message"]
        statuses[answer.status_code] = statuses.get(answer.status_code, 0) + 1
    assert statuses[200] > 10, statuses
    assert statuses[400] > 100, statuses
