"""The usage object of each dialect shows exactly what is billed: usage → object → JSON → object → usage."""

from __future__ import annotations

import msgspec
import openai.types
from hypothesis import given
from hypothesis import strategies as st

from billing.reports.usage_report import Result, UsageBucket, UsagePage
from billing.usage import AUTOMATIC, LEASE_CLASSES, Usage
from gateway.dialects.anthropic import message_usage as anthropic_usage
from gateway.dialects.openai import completion_usage as openai_usage
from gateway.dialects.openai.usage import usage_page

TOKENS = st.integers(1, 2**31 - 1)


def by_class(*names: str) -> st.SearchStrategy[dict[str, int]]:
    return st.dictionaries(st.sampled_from(names), TOKENS)


USAGES = st.builds(
    Usage,
    uncached=st.just(0) | TOKENS,
    read=by_class(AUTOMATIC, *LEASE_CLASSES),
    write=by_class(*LEASE_CLASSES),
    output=st.just(0) | TOKENS,
)


@given(USAGES)
def test_openai_shows_parts_of_the_prompt(usage: Usage) -> None:
    shown = openai_usage.completion_usage(usage, 0, "USD")
    data = msgspec.json.encode(shown)
    assert openai_usage.usage_in(msgspec.json.decode(data, type=openai_usage.CompletionUsage)) == usage
    read = openai.types.CompletionUsage.model_validate_json(data)
    details = read.prompt_tokens_details
    assert details is not None
    assert (read.prompt_tokens, read.completion_tokens) == (usage.prompt, usage.output)
    assert details.cached_tokens == sum(usage.read.values())
    assert details.cache_write_tokens == sum(usage.write.values())
    assert read.total_tokens == usage.prompt + usage.output
    by_lifetime = (details.model_extra or {}).get("cache_write_tokens_details", {})
    assert sum(by_lifetime.values()) == details.cache_write_tokens


@given(USAGES)
def test_the_writes_of_openais_report_add_up(usage: Usage) -> None:
    page = UsagePage([UsageBucket(0, 1, [Result({}, 1, usage, {})])], None)
    (shown,) = msgspec.json.decode(usage_page(page))["data"][0]["results"]
    parts = {name: shown.get(f"input_cache_write_{name}_tokens", 0) for name in LEASE_CLASSES}
    assert {name: tokens for name, tokens in parts.items() if tokens} == usage.write
    assert shown["input_cache_write_tokens"] == sum(parts.values())


@given(USAGES)
def test_anthropic_shows_disjoint_parts(usage: Usage) -> None:
    import anthropic.types  # takes seconds, for which no other test needs to wait

    shown = anthropic_usage.message_usage(usage, lane="standard")
    data = msgspec.json.encode(shown)
    assert anthropic_usage.usage_in(msgspec.json.decode(data, type=anthropic_usage.MessageUsage)) == usage
    read = anthropic.types.Usage.model_validate_json(data)
    assert read.cache_creation is not None
    written, cached = read.cache_creation_input_tokens or 0, read.cache_read_input_tokens or 0
    assert read.input_tokens + written + cached == usage.prompt
    assert read.cache_creation.ephemeral_5m_input_tokens == usage.write.get("5m", 0)
    assert read.cache_creation.ephemeral_1h_input_tokens == usage.write.get("1h", 0)
    assert sum(msgspec.json.decode(data)["cache_creation"].values()) == written


@given(USAGES, USAGES)
def test_two_usages_that_are_billed_differently_look_different(one: Usage, other: Usage) -> None:
    for first, second in (
        (anthropic_usage.message_usage(one, lane="batch"), anthropic_usage.message_usage(other, lane="batch")),
        (openai_usage.completion_usage(one, 0, "USD"), openai_usage.completion_usage(other, 0, "USD")),
    ):
        assert (first == second) == (one == other)


def test_a_request_without_leases_shows_what_it_showed_before_there_were_any() -> None:
    shown = openai_usage.completion_usage(Usage(uncached=5, read={AUTOMATIC: 3}, output=2), 0, "USD")
    assert msgspec.to_builtins(shown)["prompt_tokens_details"] == {
        "cached_tokens": 3,
        "cache_write_tokens": 0,
        "audio_tokens": 0,
    }
