"""What OpenAI's fields say about the prompt cache, what is refused by name, and that hostile values cost little."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.admission.cache_plans import cache_plan
from gateway.dialects.openai import chat_request, completions_request
from gateway.dialects.openai.responses import request as responses_request
from gateway.errors import GatewayError, InvalidRequest
from gateway.generation_request import CacheDirectives, CacheMarker
from gateway.served_models.served_model import ServedModel

USER = {"role": "user", "content": "hi"}
BREAKPOINT: dict[str, Any] = {"prompt_cache_breakpoint": {"mode": "explicit"}}
CONTROL: dict[str, Any] = {"cache_control": {"type": "ephemeral"}}


def said(**fields: Any) -> CacheDirectives:
    return chat_request.parse(json.dumps({"model": "m", "messages": [USER], **fields}).encode()).generation.cache


def part(text: str = "a", **marker: Any) -> dict[str, Any]:
    return {"type": "text", "text": text, **marker}


def content(*parts: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": list(parts)}]}


# ---------------------------------------------------------------- what is said


def test_nothing_said_is_nothing() -> None:
    assert said() == said(prompt_cache_key="", prompt_cache_options=None, prompt_cache_retention=None)
    assert said() == CacheDirectives()
    assert said(metadata={"user": "x"}) == CacheDirectives()
    assert said(prompt_cache_key="k") == CacheDirectives(partition="k"), "a key alone promises nothing"


@pytest.mark.parametrize(
    ("fields", "path", "lease"),
    [
        ({"prompt_cache_options": {}}, "$.prompt_cache_options", None),
        ({"prompt_cache_options": {"ttl": "12h"}}, "$.prompt_cache_options", "12h"),
        ({"prompt_cache_retention": "in_memory"}, "$.prompt_cache_retention", "30m"),
        ({"prompt_cache_retention": "24h"}, "$.prompt_cache_retention", "24h"),
        ({"prompt_cache_retention": "24h", "prompt_cache_options": {"ttl": "30m"}}, "$.prompt_cache_options", "30m"),
        (CONTROL, "$.cache_control", "5m"),
        ({"cache_control": {"type": "ephemeral", "ttl": "1h"}}, "$.cache_control", "1h"),
        (content(part(**BREAKPOINT)), "$.messages[0].content[0].prompt_cache_breakpoint", None),
    ],
)
def test_what_asks_for_the_implicit_breakpoint(fields: Any, path: str, lease: str | None) -> None:
    found = said(**fields)
    assert (found.automatic, found.automatic_path, found.automatic_lease) == (True, path, lease)


@pytest.mark.parametrize(
    ("fields", "markers"),
    [
        (content(part(), part(**BREAKPOINT)), [("content[1].text", "content[1].prompt_cache_breakpoint", None)]),
        (
            {"prompt_cache_options": {"mode": "explicit", "ttl": "12h"}, **content(part(**BREAKPOINT))},
            [("content[0].text", "content[0].prompt_cache_breakpoint", "12h")],
        ),
        (
            content(part(prompt_cache_breakpoint={"mode": "explicit", "ttl": "30m"}, **CONTROL)),
            [
                ("content[0].text", "content[0].prompt_cache_breakpoint", "30m"),
                ("content[0].text", "content[0].cache_control", "5m"),
            ],
        ),
        ({"messages": [{**USER, **CONTROL}]}, [("content", "cache_control", "5m")]),
        (
            {"messages": [{"role": "assistant", "content": [{"type": "refusal", "refusal": "no", **BREAKPOINT}]}]},
            [("content[0].refusal", "content[0].prompt_cache_breakpoint", None)],
        ),
        (
            {"messages": [{"role": "system", "content": [part(), part()], **CONTROL}]},
            [("content[1].text", "cache_control", "5m")],
        ),
    ],
)
def test_which_text_a_marker_ends_at(fields: Any, markers: list[tuple[str, str, str | None]]) -> None:
    found = [(marker.path, marker.marker_path, marker.lease) for marker in said(**fields).markers]
    assert found == [(f"$.messages[0].{text}", f"$.messages[0].{at}", lease) for text, at, lease in markers]


def test_parts_beside_calls_and_reasoning_are_marked_too() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    answer = {"role": "assistant", "content": [part(**BREAKPOINT)], "tool_calls": [call], "reasoning_content": "hm"}
    result = {"role": "tool", "tool_call_id": "c", "content": [part("b", **BREAKPOINT)]}
    markers = said(messages=[USER, answer, result]).markers
    assert [marker.path for marker in markers] == ["$.messages[1].content[0].text", "$.messages[2].content[0].text"]


def test_items_of_responses_are_marked_at_their_last_part() -> None:
    """As messages of chat are."""
    parts = [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]
    items: Any = [
        {"role": "user", "content": parts, **CONTROL},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "x", **BREAKPOINT},
    ]
    request = responses_request.decode_request(json.dumps({"model": "m", "input": items}).encode())
    assert responses_request.generation_of(request).generation.cache.markers == (
        CacheMarker("$.input[0].content[1].text", "$.input[0].cache_control", "5m"),
        CacheMarker("$.input[2].output", "$.input[2].prompt_cache_breakpoint", None),
    )


def test_tools_are_marked_by_anthropics_marker() -> None:
    """On the tool, or in its function: clients send either. A group of the Responses API ends at its last tool."""
    function = {"name": "f", "parameters": {}}
    chat = [
        {"type": "function", "function": function},
        {"type": "function", "function": {**function, "name": "g", **CONTROL}},
        {
            "type": "function",
            "function": {**function, "name": "h"},
            "cache_control": {"type": "ephemeral", "ttl": "1h"},
        },
    ]
    found = said(tools=chat, messages=[{**USER, **CONTROL}]).markers
    assert found == (
        CacheMarker("$.tools[1]", "$.tools[1].function.cache_control", "5m"),
        CacheMarker("$.tools[2]", "$.tools[2].cache_control", "1h"),
        CacheMarker("$.messages[0].content", "$.messages[0].cache_control", "5m"),
    )
    group = {"type": "namespace", "name": "n", "tools": [{"type": "function", **function}], **CONTROL}
    body = {"model": "m", "input": "hi", "tools": [{"type": "custom", "name": "c", **CONTROL}, group]}
    call = responses_request.generation_of(responses_request.decode_request(json.dumps(body).encode()))
    assert [(marker.path, marker.marker_path) for marker in call.generation.cache.markers] == [
        ("$.tools[0]", "$.tools[0].cache_control"),
        ("$.tools[1].tools[0]", "$.tools[1].cache_control"),
    ]


def test_anthropics_markers_add_no_breakpoint_of_ours() -> None:
    assert not said(**content(part(**CONTROL))).automatic
    assert not said(prompt_cache_options={"mode": "explicit"}, **content(part(**BREAKPOINT))).automatic


def test_labels_come_with_what_is_cached() -> None:
    labels = {"user": "u1", "document": "d1", "tag": "budget", "other": "x"}
    assert said(metadata=labels, **CONTROL).tags == ("u1", "d1")
    assert said(metadata={"user": ""}, **CONTROL).tags == ()


# ---------------------------------------------------------------- what is refused

BAD: list[tuple[dict[str, Any], str]] = [
    ({"prompt_cache_key": "k" * 65}, "$.prompt_cache_key"),
    ({"prompt_cache_key": "k" * 1_000_000}, "$.prompt_cache_key"),
    ({"prompt_cache_key": 7}, "$.prompt_cache_key"),
    ({"prompt_cache_key": ["k"]}, "$.prompt_cache_key"),
    ({"prompt_cache_options": "implicit"}, "$.prompt_cache_options"),
    ({"prompt_cache_options": {"mode": "automatic"}}, "$.prompt_cache_options.mode"),
    ({"prompt_cache_options": {"ttl": "5m"}}, "$.prompt_cache_options.ttl"),
    ({"prompt_cache_options": {"ttl": 1800}}, "$.prompt_cache_options.ttl"),
    ({"prompt_cache_options": {"prewarm": "yes"}}, "$.prompt_cache_options.prewarm"),
    ({"prompt_cache_options": {"comparison_response_id": ""}}, "$.prompt_cache_options.comparison_response_id"),
    ({"prompt_cache_options": {"comparison_response_id": "r" * 129}}, "$.prompt_cache_options.comparison_response_id"),
    ({"prompt_cache_options": {"mode": "explicit", "prewarm": True}}, "$.prompt_cache_options.prewarm"),
    ({"prompt_cache_options": {"prewarm": True}, "n": 2}, "$.n"),
    ({"prompt_cache_options": {"ttl": "30m"}, **CONTROL}, "$.cache_control"),
    ({"prompt_cache_retention": "12h"}, "$.prompt_cache_retention"),
    ({"prompt_cache_retention": True}, "$.prompt_cache_retention"),
    ({"cache_control": "ephemeral"}, "$.cache_control"),
    ({"tools": [{"type": "function", "function": {"name": "f"}, "cache_control": 1}]}, "$.tools[0].cache_control"),
    ({"cache_control": {}}, "$.cache_control.type"),
    ({"cache_control": {"type": "eternal"}}, "$.cache_control.type"),
    ({"cache_control": {"type": "ephemeral", "ttl": "30m"}}, "$.cache_control.ttl"),
    (content(part(prompt_cache_breakpoint=True)), "$.messages[0].content[0].prompt_cache_breakpoint"),
    (content(part(prompt_cache_breakpoint={})), "$.messages[0].content[0].prompt_cache_breakpoint.mode"),
    (
        content(part(prompt_cache_breakpoint={"mode": "implicit"})),
        "$.messages[0].content[0].prompt_cache_breakpoint.mode",
    ),
    (
        content(part(), part(prompt_cache_breakpoint={"mode": "explicit", "ttl": "24h"})),
        "$.messages[0].content[1].prompt_cache_breakpoint.ttl",
    ),
    (content(part(cache_control={"type": "ephemeral", "ttl": "12h"})), "$.messages[0].content[0].cache_control.ttl"),
    ({"messages": [{**USER, "cache_control": 3}]}, "$.messages[0].cache_control"),
]


@pytest.mark.parametrize(("fields", "path"), BAD)
def test_what_is_wrong_is_named(fields: dict[str, Any], path: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        said(**fields)
    assert caught.value.path == path
    assert len(caught.value.message) < 400


@pytest.mark.parametrize(
    ("fields", "choices"),
    [
        ({"prompt_cache_options": {"ttl": "2h"}}, "'12h', '30m'"),
        (content(part(cache_control={"type": "ephemeral", "ttl": "2h"})), "'1h', '5m'"),
    ],
)
def test_a_wrong_class_is_answered_with_the_right_ones(fields: dict[str, Any], choices: str) -> None:
    with pytest.raises(InvalidRequest, match=f"'2h'; it may be {choices}"):
        said(**fields)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text(max_size=70)
    | st.sampled_from(["explicit", "30m", "ephemeral"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["mode", "ttl", "type", "prewarm", "x"]), inner, max_size=4)
    ),
    max_leaves=6,
)


@given(
    st.dictionaries(
        st.sampled_from(["prompt_cache_key", "prompt_cache_options", "prompt_cache_retention", "cache_control"]), JSON
    ),
    JSON,
    JSON,
)
def test_any_value_is_understood_or_refused_by_name(fields: dict[str, Any], first: Any, second: Any) -> None:
    chat = {**content(part(prompt_cache_breakpoint=first), part(cache_control=second)), **fields}
    for parse, body in ((chat_request.parse, chat), (completions_request.parse, {"prompt": "a", **fields})):
        try:
            parse(json.dumps({"model": "m", **body}).encode())
        except InvalidRequest as error:
            assert (error.path or "").startswith("$.")  # noqa: PT017  # it may, but need not, be raised


# ---------------------------------------------------------------- hostile


def test_thousands_of_markers_cost_little(model: ServedModel) -> None:
    marked = [part("a", prompt_cache_breakpoint={"mode": "explicit", "ttl": "12h"}, **CONTROL) for _ in range(400)]
    body = json.dumps({"model": "m", **content(*marked)}).encode()
    generation = chat_request.parse(body).generation
    plan = cache_plan(generation, model.prompt(generation.turns), model)
    assert len(plan.breakpoints) == 4
    assert len(plan.lookups) <= 60
    many = json.dumps({"model": "m", **content(*marked * 40)}).encode()
    started = time.process_time()
    generation = chat_request.parse(many).generation
    assert len(generation.cache.markers) == 32_000
    assert time.process_time() - started < 2
    with pytest.raises(GatewayError):
        chat_request.parse(json.dumps({"model": "m", **content(*marked * 50)}).encode())
