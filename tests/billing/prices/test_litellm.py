"""LiteLLM's price file: read exactly, with its traps seen."""

from __future__ import annotations

import json

import pytest

from billing.prices import PriceVersion
from billing.prices.errors import PriceRefused
from billing.prices.litellm import read_entry, read_file
from billing.usage import Usage

FILE = """
{
  "sample_spec": {"max_tokens": "the most", "input_cost_per_token": 0.0, "output_cost_per_token": 0.0, "mode": "chat"},
  "plain": {"input_cost_per_token": 1e-06, "output_cost_per_token": 5e-06, "max_tokens": 8192,
    "litellm_provider": "somebody", "mode": "chat", "supports_vision": true},
  "claude": {"input_cost_per_token": 3e-06, "output_cost_per_token": 1.5e-05,
    "cache_read_input_token_cost": 3e-07, "cache_creation_input_token_cost": 3.75e-06,
    "cache_creation_input_token_cost_above_1hr": 6e-06,
    "input_cost_per_token_above_200k_tokens": 6e-06, "output_cost_per_token_above_200k_tokens": 2.25e-05,
    "cache_read_input_token_cost_above_200k_tokens": 6e-07,
    "cache_creation_input_token_cost_above_200k_tokens": 7.5e-06,
    "cache_creation_input_token_cost_above_1hr_above_200k_tokens": 1.2e-05},
  "gpt": {"input_cost_per_token": 0.000005, "output_cost_per_token": 3.0E-5, "cache_read_input_token_cost": 5e-7,
    "input_cost_per_token_flex": 2.5e-06, "output_cost_per_token_flex": 1.5e-05,
    "cache_read_input_token_cost_flex": 2.5e-07,
    "input_cost_per_token_batches": 2.5e-06, "output_cost_per_token_batches": 1.5e-05,
    "input_cost_per_token_priority": 1.25e-05, "output_cost_per_token_priority": 7.5e-05,
    "cache_read_input_token_cost_priority": 1.25e-06,
    "input_cost_per_token_above_272k_tokens": 1e-05, "output_cost_per_token_above_272k_tokens": 4.5e-05,
    "cache_read_input_token_cost_above_272k_tokens": 1e-06,
    "input_cost_per_token_above_272k_tokens_priority": 2e-05,
    "output_cost_per_reasoning_token": 3e-05, "search_context_cost_per_query": {"search_context_size_low": 0.03}}
}
"""
ENTRIES = read_file(FILE)


def test_floats_are_read_by_their_text() -> None:
    found = read_entry(ENTRIES["plain"])
    assert found.refused == found.unknown == []
    assert found.assumed == ["cached input costs as much as input"]
    assert found.rows["uncached", "*", 0] == found.rows["read_automatic", "*", 0] == 1_000_000
    assert found.rows["output", "*", 0] == 5_000_000


def test_tiers_begin_after_the_tokens_that_they_are_above() -> None:
    found = read_entry(ENTRIES["claude"])
    assert found.refused == found.unknown == found.assumed == []
    assert found.rows["write_5m", "*", 0] == 3_750_000
    assert found.rows["write_1h", "*", 0] == 6_000_000
    assert found.rows["write_1h", "*", 200_001] == 12_000_000
    assert found.rows["read_24h", "*", 200_001] == 600_000
    version = PriceVersion(1, "m", "USD", found.rows)
    assert version.cost(Usage(uncached=200_000), "standard") == 200_000 * 3_000_000
    assert version.cost(Usage(uncached=200_001), "standard") == 200_001 * 6_000_000


def test_lanes_by_their_names_there() -> None:
    found = read_entry(ENTRIES["gpt"])
    assert found.refused == []
    assert found.unknown == ["output_cost_per_reasoning_token", "search_context_cost_per_query"]
    assert found.rows["output", "batch", 0] == 15_000_000
    assert found.rows["uncached", "interactive", 0] == 12_500_000
    assert found.rows["uncached", "interactive", 272_001] == 20_000_000
    assert found.rows["output", "interactive", 272_001] == 45_000_000
    assert "output, interactive lane, prompts from 272001 tokens as output, prompts from 272001 tokens" in found.assumed
    assert found.rows["uncached", "batch", 272_001] == 10_000_000


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"input_cost_per_token_batches": "2e-06"}, "not a number"),
        ({"input_cost_per_token_batches": 2.000001e-06}, "input_cost_per_token_flex and input_cost_per_token_batches"),
        ({"input_cost_per_token": 4.9999999999999996e-06}, "more than 6 decimal places"),
        ({"input_cost_per_token": -5e-06}, "negative"),
        ({"input_cost_per_token": 5.0}, "outside 0.0001 to 10000"),
        ({"output_cost_per_token": 3e-03}, "beside input"),
        ({"cache_read_input_token_cost": 5e-04}, "dearer"),
        ({"input_cost_per_token_priority": 1.25e-03}, "in general"),
        ({"input_cost_per_token_flex": 5e-06, "input_cost_per_token_batches": 6e-06}, "differ"),
        ({"input_cost_per_token": None}, "price of uncached: it is missing"),
        ({"output_cost_per_token": True}, "not a number"),
    ],
)
def test_entries_that_cannot_be_believed_are_refused(change: dict[str, object], reason: str) -> None:
    entry = json.loads(FILE)["gpt"] | change
    found = read_entry(read_file(json.dumps({"gpt": entry}))["gpt"])
    assert any(reason in each for each in found.refused), found.refused


def test_keys_can_be_ignored() -> None:
    entry = json.loads(FILE)["gpt"] | {"input_cost_per_token_batches": 1e-06}
    entry = read_file(json.dumps({"gpt": entry}))["gpt"]
    assert read_entry(entry).refused
    assert read_entry(entry, ["input_cost_per_token_batches"]).refused == []


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{", '{"a": 1}', '{"a": {"input_cost_per_token": NaN}}', '{"a": {"x": 1, "x": 2}}', "[" * 100_000,
     '{"a": {"input_cost_per_token": Infinity}}'],
)  # fmt: skip
def test_what_is_no_price_file_is_refused(text: str) -> None:
    with pytest.raises(PriceRefused, match="LiteLLM"):
        read_file(text)
