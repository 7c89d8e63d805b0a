"""Where calls are free: held to the tools once they begin, and never of a tool that nobody offered."""

from __future__ import annotations

import json
import random
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.grammar.llguidance_grammar import LlguidanceGrammars
from gateway.conversation.output.call_grammars import free_call_grammar, plain_schema
from gateway.conversation.output.events import whole_output
from gateway.conversation.output.output_formats import OUTPUT_FORMATS
from gateway.conversation.tokenizer import Tokenizer
from gateway.generation_request import Tool, ToolChoice

MODEL = Path(__file__).resolve().parents[4] / "models" / "tool-caller"
VOCABULARY = 4096
CITY: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "unit": {"type": "string", "enum": ["c", "f"]}},
    "required": ["city"],
    "if": {"title": "which no grammar can hold"},
}
EMPTY: dict[str, Any] = {"type": "object", "properties": {}}
TOOLS = (Tool("get_weather", None, json.dumps(CITY), "$.tools[0]"), Tool("flip", None, json.dumps(EMPTY), "$.tools[1]"))


@cache
def tokenizer() -> Tokenizer:
    return Tokenizer.load(MODEL / "tokenizer.json")


@cache
def grammars() -> LlguidanceGrammars:
    return LlguidanceGrammars(MODEL, VOCABULARY, [ids()["<|end|>"]])


def ids() -> dict[str, int]:
    known = tokenizer().ids_of(["<tool_call>", "</tool_call>", "<|end|>", "<|user|>"])
    return {text: number for number, text in known.items()}


def drawn(choice: ToolChoice, seed: int, limit: int = 160) -> list[int]:
    """An output whose tokens are drawn evenly from what is allowed, and which calls when it may."""
    body = free_call_grammar("hermes", TOOLS, choice, tokenizer().special_texts)
    guide = grammars().compiled(json.dumps({"calls": body})).guide()
    chance, mask = random.Random(seed), torch.zeros(VOCABULARY // 32, dtype=torch.int32)
    tokens: list[int] = []
    begins = chance.randint(0, 5)
    for left in range(limit, 0, -1):
        guide.fill_mask(mask)
        assert guide.failure is None
        allowed = np.unpackbits(mask.numpy().view(np.uint8), bitorder="little").nonzero()[0].tolist()
        assert ids()["<|user|>"] not in allowed
        call = ids()["<tool_call>"]
        wanted = call if call in allowed and len(tokens) >= begins else chance.choice(allowed)
        token = guide.choose_token(wanted, left)
        tokens.append(token)
        guide.accept_token(token)
        if guide.ended:
            break
    return tokens


@pytest.mark.parametrize("seed", range(6))
def test_whatever_is_drawn_calls_are_of_the_tools(seed: int) -> None:
    tokens = drawn(ToolChoice(parallel=False), seed)
    parser = OUTPUT_FORMATS["hermes"].parser(tokenizer().ids_of(["<tool_call>", "</tool_call>"]), lambda _: {})
    special = tokenizer().special
    events = [
        event
        for token in tokens
        for event in parser.feed(token, "" if token in special else tokenizer().token_bytes(token).decode("latin-1"))
    ]
    found = whole_output([*events, *parser.finish()])
    if tokens[-1] == ids()["<|end|>"]:
        assert len(found.calls) <= 1
    for name, arguments in found.calls:
        assert name in ("get_weather", "flip")
        if tokens[-1] == ids()["<|end|>"]:
            schema = CITY if name == "get_weather" else EMPTY | {"additionalProperties": False}
            jsonschema.validate(json.loads(arguments), {key: schema[key] for key in schema if key != "if"})


def test_families_without_a_marker_of_one_token_stay_free() -> None:
    assert free_call_grammar("hermes", TOOLS, ToolChoice(), frozenset()) is None
    assert free_call_grammar("llama3_json", TOOLS, ToolChoice(), tokenizer().special_texts) is None
    assert free_call_grammar("hermes", (), ToolChoice(), tokenizer().special_texts) is None


KEYS = ["type", "properties", "items", "enum", "required", "anyOf", "a"]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["type", "properties", "items", "enum", "required", "anyOf", "a"]), inner, max_size=4
        )
    ),
    max_leaves=20,
)


@given(JSON)
def test_any_schema_has_a_plain_one(schema: object) -> None:
    jsonschema.Draft202012Validator.check_schema(plain_schema(schema, 8))


def test_a_schema_that_no_grammar_could_hold_refuses_nobody() -> None:
    choices = [{"enum": [2**53 + 1]}, {"enum": [0.1, "a"]}, {"type": "integer", "minimum": 2**53 + 1}]
    properties = {str(at): choice for at, choice in enumerate(choices)}
    tool = Tool("flip", None, json.dumps({"type": "object", "properties": properties}), "$.tools[0]")
    body = free_call_grammar("hermes", [tool], ToolChoice(), tokenizer().special_texts)
    grammars().compiled(json.dumps({"calls": body}))
    assert plain_schema({"enum": [2**53, None, True, "a"]}, 8) == {"enum": [2**53, None, True, "a"]}


def test_a_tool_that_nobody_offered_is_text() -> None:
    parser = OUTPUT_FORMATS["hermes"].parser({1: "<tool_call>", 2: "</tool_call>"}, lambda _: {})
    parser.log.names = frozenset({"known"})
    said = [(0, "Well."), (1, ""), (0, '{"name": "other", "argu'), (0, 'ments": {"a": 1}}'), (2, "")]
    said += [(1, ""), (0, '{"name": "known", "arguments": {"b": 2}}'), (2, "")]
    events = [event for token, text in said for event in parser.feed(token, text)]
    found = whole_output([*events, *parser.finish()])
    assert found.calls == (("known", '{"b": 2}'),)
    assert found.text == 'Well.other{"a": 1}'


def test_reasoning_is_counted_with_its_markers() -> None:
    parser = OUTPUT_FORMATS["hermes"].parser({1: "<think>", 2: "</think>"}, lambda _: {})
    counted = 0
    for token, text in [(1, ""), (0, "Let"), (0, " me"), (2, ""), (0, "Yes")]:
        before = parser.reasoning
        parser.feed(token, text)
        counted += before or parser.reasoning
    assert counted == 4
    harmony = OUTPUT_FORMATS["harmony"].parser({1: "<|channel|>", 2: "<|message|>", 3: "<|end|>"}, lambda _: {})
    for token, text in [(1, ""), (0, "analysis"), (2, ""), (0, "hm")]:
        harmony.feed(token, text)
    assert harmony.reasoning
    harmony.feed(3, "")
    assert not harmony.reasoning
