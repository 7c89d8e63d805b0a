"""The Messages API's JSON: what is read of it, and that everything else is refused with its path."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.dialects.anthropic import messages_request
from gateway.dialects.json_objects import MOST_VALUES
from gateway.dialects.large_bodies import MOST_PARTS
from gateway.errors import InvalidRequest
from gateway.generation_request import CacheMarker, GenerationRequest, Text, Tool, ToolCall, ToolChoice, Turn
from tests.fast import examples

USER: Any = {"role": "user", "content": "a"}
OK: dict[str, Any] = {"model": "tiny", "max_tokens": 10, "messages": [USER]}
CALL: Any = {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {"b": 1, "a": "ü"}}
CALLED: Any = {"role": "assistant", "content": [CALL]}
RESULT: Any = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "15 C"}
TOOL: Any = {"name": "look", "input_schema": {"type": "object"}}
THOUGHT: Any = {"type": "thinking", "thinking": "hm", "signature": "x"}


def parse(*, version: str = "2026-10-21", **fields: Any) -> GenerationRequest:
    body = {name: value for name, value in {**OK, **fields}.items() if value is not ...}
    return messages_request.parse(json.dumps(body).encode(), version).generation


def of_user(*blocks: Any) -> list[Any]:
    return [{"role": "user", "content": list(blocks)}]


def nested(depth: int) -> Any:
    value: Any = "a"
    for _ in range(depth):
        value = {"a": value}
    return value


# ---------------------------------------------------------------- what is read


def test_neighbours_of_one_role_merge_and_paths_stay() -> None:
    generation = parse(
        system=[{"type": "text", "text": "s"}],
        messages=[
            USER,
            {"role": "user", "content": [{"type": "text", "text": "b"}]},
            {"role": "system", "content": "c"},
        ],
    )
    assert generation.turns == (
        Turn("system", (Text("s", "$.system[0].text"),)),
        Turn("user", (Text("a", "$.messages[0].content"), Text("b", "$.messages[1].content[0].text"))),
        Turn("system", (Text("c", "$.messages[2].content"),)),
    )
    assert not generation.continued


def test_calls_results_and_thinking() -> None:
    failed = {**RESULT, "is_error": True, "content": [{"type": "text", "text": "no"}, {"type": "text", "text": "way"}]}
    generation = parse(
        messages=[
            USER,
            {"role": "assistant", "content": [THOUGHT, {"type": "redacted_thinking", "data": "x"}, CALL]},
            *of_user(failed, {"type": "text", "text": "so"}),
        ]
    )
    path = "$.messages[1].content"
    assert generation.turns[1:] == (
        Turn(
            "assistant",
            (
                Text("hm", f"{path}[0].thinking", "thinking"),
                ToolCall('{"b": 1, "a": "ü"}', f"{path}[2]", id="toolu_1", name="look"),
            ),
        ),
        Turn(
            "tool",
            (
                Text("no", "$.messages[2].content[0].content[0].text", "tool_result"),
                Text("way", "$.messages[2].content[0].content[1].text", "tool_result"),
            ),
            "toolu_1",
            "look",
            True,
        ),
        Turn("user", (Text("so", "$.messages[2].content[1].text"),)),
    )


def test_tools_keep_the_order_of_their_keys() -> None:
    schema = {"type": "object", "properties": {"z": {"type": "string"}, "a": {"type": "number"}}}
    generation = parse(
        tools=[{"name": "look", "description": "ü", "input_schema": schema, "input_examples": [{"z": "a"}]}],
        tool_choice={"type": "auto", "disable_parallel_tool_use": True},
    )
    (tool,) = generation.tools
    assert tool == Tool("look", "ü", json.dumps({**schema, "examples": [{"z": "a"}]}), "$.tools[0]")


def test_markers_in_the_vendors_order() -> None:
    five, hour = {"type": "ephemeral"}, {"type": "ephemeral", "ttl": "1h"}
    generation = parse(
        cache_control=five,
        tools=[TOOL, {**TOOL, "name": "b", "cache_control": hour}],
        system=[{"type": "text", "text": "s", "cache_control": hour}],
        messages=[
            *of_user({"type": "text", "text": "a", "cache_control": five}),
            {"role": "assistant", "content": [{**CALL, "cache_control": five}]},
            *of_user({**RESULT, "cache_control": five}),
        ],
        metadata={"user_id": "u"},
    )
    assert generation.cache.markers == (
        CacheMarker("$.tools[1]", "$.tools[1].cache_control", "1h"),
        CacheMarker("$.system[0].text", "$.system[0].cache_control", "1h"),
        CacheMarker("$.messages[0].content[0].text", "$.messages[0].content[0].cache_control", None),
        CacheMarker("$.messages[1].content[0]", "$.messages[1].content[0].cache_control", None),
        CacheMarker("$.messages[2].content[0].content", "$.messages[2].content[0].cache_control", None),
    )
    assert generation.cache.automatic
    assert (generation.tag, generation.cache.tags) == ("u", ("u",))
    assert not generation.cache.prewarm


def test_a_trailing_turn_of_the_assistant_is_gone_on_with() -> None:
    assert parse(messages=[USER, {"role": "assistant", "content": "It"}]).continued
    assert not parse(messages=[USER, {"role": "assistant", "content": []}]).continued
    assert not parse(messages=[USER, {"role": "assistant", "content": ""}]).continued


def test_what_has_no_effect_is_taken() -> None:
    plain = parse()
    assert parse(thinking=None, inference_geo="eu", speed="fast", container=None, mcp_servers=[], unknown=1) == plain


@pytest.mark.parametrize(
    ("choice", "meant"),
    [
        (None, ToolChoice()),
        ({"type": "none"}, ToolChoice("none")),
        ({"type": "auto", "disable_parallel_tool_use": True}, ToolChoice(parallel=False)),
        ({"type": "any"}, ToolChoice("required")),
        ({"type": "tool", "name": "look"}, ToolChoice("required", ("look",))),
    ],
)
def test_a_choice_of_tools(choice: Any, meant: ToolChoice) -> None:
    assert parse(tools=[TOOL], tool_choice=choice).tool_choice == meant


def test_citations_by_version() -> None:
    cited = of_user({"type": "text", "text": "a", "citations": [{"type": "char_location"}]})
    assert (
        parse(messages=cited, version="2023-06-01").turns
        == parse(messages=of_user({"type": "text", "text": "a"})).turns
    )
    with pytest.raises(InvalidRequest, match="citations"):
        parse(messages=cited)


def test_counting_reads_the_same_prompt() -> None:
    fields = {"system": "s", "tools": [TOOL], "messages": [USER, CALLED, *of_user(RESULT)]}
    whole = parse(**fields)
    counted = messages_request.parse_count(json.dumps({"model": "tiny", **fields}).encode())
    assert (counted.turns, counted.tools) == (whole.turns, whole.tools)


# ---------------------------------------------------------------- what is refused

SCHEMA: Any = {"format": {"type": "json_schema", "schema": {"type": "object"}}}
BAD: list[tuple[dict[str, Any], str]] = [
    ({"max_tokens": ...}, "$.max_tokens"),
    ({"max_tokens": -1}, "$.max_tokens"),
    ({"max_tokens": "1"}, "$.max_tokens"),
    ({"model": 1}, "$.model"),
    ({"messages": ...}, "$.messages"),
    ({"messages": []}, "$.messages"),
    ({"messages": [{"role": "assistant", "content": []}]}, "$.messages"),
    ({"messages": [{"role": "user", "content": []}, USER]}, "$.messages[0].content"),
    ({"messages": [{"role": "user"}]}, "$.messages[0].content"),
    ({"messages": [{"role": "tool", "content": "a"}]}, "$.messages[0].role"),
    ({"messages": of_user({"type": "text"})}, "$.messages[0].content[0].text"),
    ({"messages": of_user({"type": "video"})}, "$.messages[0].content[0].type"),
    ({"messages": of_user({"type": "image", "source": {}})}, "$.messages[0].content[0]"),
    ({"messages": of_user({"type": "document"})}, "$.messages[0].content[0]"),
    ({"messages": of_user(CALL)}, "$.messages[0].content[0]"),
    ({"messages": of_user(THOUGHT)}, "$.messages[0].content[0]"),
    ({"messages": [USER, {"role": "assistant", "content": [RESULT]}]}, "$.messages[1].content[0]"),
    ({"messages": [USER, {"role": "system", "content": [CALL]}]}, "$.messages[1].content[0]"),
    ({"messages": [USER, {"role": "assistant", "content": "a "}]}, "$.messages[1].content"),
    ({"messages": [USER, {"role": "assistant", "content": [THOUGHT]}]}, "$.messages[1].content[0]"),
    ({"messages": [USER, CALLED]}, "$.messages[1].content[0]"),
    ({"messages": [USER, CALLED, USER]}, "$.messages[1].content[0]"),
    ({"messages": of_user(RESULT)}, "$.messages[0].content[0].tool_use_id"),
    ({"messages": [USER, CALLED, *of_user(RESULT, RESULT)]}, "$.messages[2].content[1].tool_use_id"),
    ({"messages": [USER, CALLED, *of_user({"type": "text", "text": "a"}, RESULT)]}, "$.messages[2].content[1]"),
    ({"messages": [USER, {"role": "assistant", "content": [CALL, CALL]}]}, "$.messages[1].content[1].id"),
    (
        {"messages": [USER, {"role": "assistant", "content": [{**CALL, "id": "a b"}]}]},
        "$.messages[1].content[0].id",
    ),
    (
        {"messages": [USER, {"role": "assistant", "content": [{**CALL, "input": [1]}]}]},
        "$.messages[1].content[0].input",
    ),
    (
        {"messages": [USER, CALLED, *of_user({**RESULT, "content": [{"type": "image"}]})]},
        "$.messages[2].content[0].content[0]",
    ),
    ({"system": [{"type": "image"}]}, "$.system[0].type"),
    ({"tools": [{**TOOL, "type": "web_search_20250305"}]}, "$.tools[0].type"),
    ({"tools": [{**TOOL, "name": "a b"}]}, "$.tools[0].name"),
    ({"tools": [TOOL, TOOL]}, "$.tools[1].name"),
    ({"tools": [{"name": "a"}]}, "$.tools[0].input_schema"),
    ({"tools": [{"name": "a", "input_schema": {"type": "string"}}]}, "$.tools[0].input_schema.type"),
    ({"tools": [{"name": "a", "input_schema": nested(200)}]}, "$.tools[0].input_schema"),
    ({"tools": [{**TOOL, "defer_loading": True}]}, "$.tools[0].defer_loading"),
    ({"tool_choice": {"type": "auto"}}, "$.tool_choice"),
    ({"tools": [TOOL], "tool_choice": {"type": "tool", "name": "other"}}, "$.tool_choice.name"),
    ({"thinking": {"type": "enabled", "budget_tokens": 1023}}, "$.thinking.budget_tokens"),
    ({"thinking": {"type": "enabled", "budget_tokens": 1024}, "max_tokens": 1024}, "$.thinking.budget_tokens"),
    ({"container": "c"}, "$.container"),
    ({"mcp_servers": [{}]}, "$.mcp_servers"),
    ({"output_format": {"type": "json_schema"}}, "$.output_format.schema"),
    ({"thread": {"type": "create"}}, "$.thread"),
    ({"context_management": {"edits": [{"type": "compact_20260112"}]}}, "$.context_management.edits[0].type"),
    ({"output_config": {"effort": "huge"}}, "$.output_config.effort"),
    ({"output_config": SCHEMA, "stop_sequences": ["a"]}, "$.stop_sequences"),
    ({"output_config": SCHEMA, "messages": [USER, {"role": "assistant", "content": "a"}]}, "$.messages"),
    ({"output_config": {"format": {"type": "json_schema", "schema": 1}}}, "$.output_config.format.schema"),
    ({"stop_sequences": [1]}, "$.stop_sequences[0]"),
    ({"stop_sequences": ["a", " \n"]}, "$.stop_sequences[1]"),
    ({"stop_sequences": ["a"] * 65}, "$.stop_sequences"),
    ({"temperature": 1.5}, "$.temperature"),
    ({"top_k": -1}, "$.top_k"),
    ({"service_tier": "gold"}, "$.service_tier"),
    ({"metadata": {"user_id": "a" * 513}}, "$.metadata.user_id"),
    ({"cache_control": {"type": "ephemeral", "ttl": "30m"}}, "$.cache_control.ttl"),
    ({"messages": [USER, {**USER, "cache_control": {"type": "ephemeral"}}]}, "$.messages[1].cache_control"),
    ({"max_tokens": 0, "stream": True}, "$.stream"),
    ({"max_tokens": 0, "output_config": SCHEMA}, "$.output_config.format"),
    ({"max_tokens": 0, "thinking": {"type": "adaptive"}}, "$.thinking"),
]


@pytest.mark.parametrize(("fields", "path"), BAD, ids=[f"{path} {n}" for n, (_, path) in enumerate(BAD)])
def test_what_is_wrong_is_named(fields: dict[str, Any], path: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        parse(**fields)
    assert refused.value.path == path
    assert refused.value.status == 400
    assert path in refused.value.message


@pytest.mark.parametrize(
    "fields",
    [
        {"cache_control": {"type": "ephemeral", "ttl": "2h"}},
        {"system": [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral", "ttl": "2h"}}]},
    ],
)
def test_a_wrong_class_is_answered_with_the_right_ones(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match="'2h'; it may be '1h', '5m'"):
        parse(**fields)


def many(item: Any, times: int) -> Callable[[], bytes]:
    return lambda: json.dumps({**OK, **item(times)}).encode()


HOSTILE: dict[str, tuple[Callable[[], bytes], str]] = {
    "blocks": (many(lambda n: {"messages": of_user(*[{"type": "text", "text": "a"}] * n)}, 100_000), "$.messages"),
    "messages": (many(lambda n: {"messages": [USER] * n}, 100_000), "$.messages"),
    "blocks of a result": (
        many(
            lambda n: {
                "messages": [USER, CALLED, *of_user({**RESULT, "content": [{"type": "text", "text": "a"}] * n})]
            },
            MOST_PARTS,
        ),
        "$.messages",
    ),
    "tools": (many(lambda n: {"tools": [TOOL] * n}, 50_000), "$.messages"),
    "parts of the system": (many(lambda n: {"system": [{"type": "text", "text": "a"}] * n}, 50_000), "$.messages"),
    "values of a schema": (
        many(lambda n: {"tools": [{"name": "a", "input_schema": {"type": "object", "enum": [0] * n}}]}, MOST_VALUES),
        "$.tools[0].input_schema",
    ),
    "values of many calls": (
        many(
            lambda n: {
                "messages": [
                    USER,
                    {
                        "role": "assistant",
                        "content": [{**CALL, "id": f"t{i}", "input": {"a": [0] * 300}} for i in range(n)],
                    },
                ]
            },
            200,
        ),
        "$.messages[1].content[108].input",
    ),
    "stop sequences": (many(lambda n: {"stop_sequences": ["a"] * n}, 100_000), "$.stop_sequences"),
    "fields that nobody knows": (many(lambda n: {f"k{i}": 1 for i in range(n)}, 100_000), "$"),
    "a schema in bytes": (
        many(lambda n: {"tools": [{"name": "a", "input_schema": {"type": "object", "title": "a" * n}}]}, 300_000),
        "$.tools[0].input_schema",
    ),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_what_is_too_much_is_named(case: str) -> None:
    body, path = HOSTILE[case]
    with pytest.raises(InvalidRequest) as refused:
        messages_request.parse(body())
    assert refused.value.path == path


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"\xff",
        b"{",
        b'{"messages":' + b"[" * 100_000,
        b'{"model":"a","max_tokens":1,"messages":[{"role":"user","content":[{"type":"text","text":"\\ud800"}]}]}',
        b'{"model":"a","max_tokens":1,"messages":[{"role":"assistant","content":[{"type":"tool_use","id":"a","name":"a",'
        b'"input":' + b'{"a":' * 5000 + b"1" + b"}" * 5000 + b"}]}]}",
    ],
)
def test_what_is_no_request(body: bytes) -> None:
    for read in (messages_request.parse, messages_request.parse_count):
        try:
            read(body)
        except InvalidRequest as refused:
            assert refused.status == 400  # noqa: PT017  # a lone surrogate may be read


any_json = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.floats(allow_nan=False) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
RICH: dict[str, Any] = {
    **OK,
    "system": [{"type": "text", "text": "s", "cache_control": {"type": "ephemeral", "ttl": "1h"}}],
    "tools": [{**TOOL, "description": "d", "cache_control": {"type": "ephemeral"}, "input_examples": [{}]}],
    "tool_choice": {"type": "auto"},
    "thinking": {"type": "adaptive"},
    "output_config": {"effort": "low"},
    "stop_sequences": ["a"],
    "metadata": {"user_id": "u"},
    "cache_control": {"type": "ephemeral"},
    "messages": [
        USER,
        {"role": "assistant", "content": [THOUGHT, CALL]},
        *of_user(RESULT),
        {"role": "system", "content": "a"},
    ],
}


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, item in items for place in places(item, (*path, key)))]


@settings(max_examples=examples(400), deadline=None)
@given(st.sampled_from(places(RICH)[1:]), any_json, st.sampled_from(["replace", "delete", "again"]))
def test_any_change_of_a_request_is_read_or_refused(place: tuple[Any, ...], value: Any, how: str) -> None:
    body = json.loads(json.dumps(RICH))
    holder = body
    for key in place[:-1]:
        holder = holder[key]
    if how == "delete":
        del holder[place[-1]]
    elif how == "again" and isinstance(holder, list):
        holder.append(holder[place[-1]])
    else:
        holder[place[-1]] = value
    try:
        generation = messages_request.parse(json.dumps(body).encode()).generation
    except InvalidRequest as refused:
        assert refused.path is None or refused.path.startswith("$")  # noqa: PT017  # most changes are read
    else:
        assert generation.turns
