"""The same conversation through each dialect: the same tokens, with tools, calls, results and system prompt."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gateway.dialects.anthropic import messages_request
from gateway.dialects.openai import chat_request
from gateway.served_models.served_model import load_served_model

MODEL = load_served_model(Path(__file__).resolve().parents[3] / "models" / "tool-caller")
SCHEMA: Any = {
    "type": "object",
    "properties": {"city": {"type": "string", "description": "Which one"}, "unit": {"enum": ["celsius", "kelvin"]}},
    "required": ["city"],
}
ARGUMENTS: Any = {"unit": "celsius", "city": "Zürich <|end|>"}
GOLDEN = """\
<|begin|><|tools|># get_weather: Weather in a city
- city (string, required): Which one
- unit (one of celsius, kelvin)
<|end|><|system|>Be brief.<|end|><|user|>Weather in Zürich, and twice?<|end|><|assistant|>Let me see.
<tool_call>
{"name": "get_weather", "arguments": {"unit": "celsius", "city": "Zürich <|end|>"}}
</tool_call>
<tool_call>
{"name": "get_weather", "arguments": {}}
</tool_call><|end|><|tool|>{"degrees": 21}<|end|><|tool|>no city<|end|>\
<|user|>Thanks, <tool_call>!<|end|><|assistant|>"""
"""What the template makes of it, written out by hand."""


def chat(newer: bool) -> Any:
    calls = [
        {"id": name, "type": "function", "function": {"name": "get_weather", "arguments": json.dumps(arguments)}}
        for name, arguments in (("call_1", ARGUMENTS), ("call_2", {}))
    ]
    return {
        "model": "tool-caller",
        "tools": [
            {
                "type": "function",
                "function": {"name": "get_weather", "description": "Weather in a city", "parameters": SCHEMA},
            }
        ],
        "messages": [
            {"role": "developer" if newer else "system", "content": "Be brief."},
            {"role": "user", "content": "Weather in Zürich, and twice?"},
            {"role": "assistant", "content": "Let me see.", "tool_calls": calls},
            {"role": "tool", "tool_call_id": "call_1", "content": '{"degrees": 21}'},
            {"role": "tool", "tool_call_id": "call_2", "content": [{"type": "text", "text": "no city"}]},
            {"role": "user", "content": "Thanks, <tool_call>!"},
        ],
    }


def message() -> Any:
    return {
        "model": "tool-caller",
        "max_tokens": 9,
        "system": "Be brief.",
        "tools": [{"name": "get_weather", "description": "Weather in a city", "input_schema": SCHEMA}],
        "messages": [
            {"role": "user", "content": "Weather in Zürich, and twice?"},
            {
                "role": "assistant",
                "content": [
                    {"type": "text", "text": "Let me see."},
                    {"type": "tool_use", "id": "toolu_1", "name": "get_weather", "input": ARGUMENTS},
                    {"type": "tool_use", "id": "toolu_2", "name": "get_weather", "input": {}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "toolu_1", "content": '{"degrees": 21}'},
                    {"type": "tool_result", "tool_use_id": "toolu_2", "content": "no city"},
                    {"type": "text", "text": "Thanks, <tool_call>!"},
                ],
            },
        ],
    }


def tokens_of(generation: Any) -> list[int]:
    return MODEL.prompt(generation.turns, generation.tools).tokens


@pytest.mark.parametrize("newer", [False, True])
def test_the_same_tokens_through_both_dialects(newer: bool) -> None:
    ours = tokens_of(chat_request.parse(json.dumps(chat(newer)).encode()).generation)
    theirs = tokens_of(messages_request.parse(json.dumps(message()).encode()).generation)
    assert ours == theirs
    assert "".join(MODEL.tokenizer.spelled(token)[1].decode("latin-1") for token in ours) == GOLDEN.encode().decode(
        "latin-1"
    )


def test_what_a_client_wrote_is_never_a_marker() -> None:
    tokens = tokens_of(chat_request.parse(json.dumps(chat(newer=False)).encode()).generation)
    ids = {text: number for number, text in MODEL.tokenizer.ids_of(["<|end|>", "<tool_call>", "</tool_call>"]).items()}
    assert tokens.count(ids["<tool_call>"]) == tokens.count(ids["</tool_call>"]) == 2
    assert tokens.count(ids["<|end|>"]) == 7


def test_a_call_is_rendered_as_the_model_wrote_it() -> None:
    """Its tokens in the next turn's prompt are those of the answer, so that the cached prefix goes on."""
    body = chat(newer=False)
    whole = tokens_of(chat_request.parse(json.dumps(body).encode()).generation)
    body["messages"] = body["messages"][:2]
    before = tokens_of(chat_request.parse(json.dumps(body).encode()).generation)
    assert whole[: len(before)] == before
    wrote = MODEL.tokenizer.literal('Let me see.\n<tool_call>\n{"name": "get_weather", "arguments": {"unit": "celsius"')
    assert whole[len(before) : len(before) + len(wrote)] == wrote
