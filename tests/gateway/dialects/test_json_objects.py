"""What can be read of arguments that were cut off."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw

from gateway.dialects.json_objects import MOST_VALUES, JsonObjects, readable_object
from gateway.errors import InvalidField
from protocol.grammar_limits import MAX_SCHEMA_BYTES
from tests.fast import examples

TEXTS = st.text(st.characters(codec="utf-8"), max_size=6) | st.sampled_from(["\\", '"', "{}", "a,b", "🚀", "\n"])
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-1000, 1000) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)


def begins(part: Any, whole: Any) -> bool:
    """Whether a value is what was whole of another one when it was cut off."""
    if isinstance(part, dict) and isinstance(whole, dict):
        pairs = list(zip(part.items(), whole.items(), strict=False))
        return len(part) <= len(whole) and all(
            key == other and (value == of if at < len(part) - 1 else begins(value, of))
            for at, ((key, value), (other, of)) in enumerate(pairs)
        )
    if isinstance(part, list) and isinstance(whole, list):
        pairs_ = list(zip(part, whole, strict=False))
        return len(part) <= len(whole) and all(
            value == of if at < len(part) - 1 else begins(value, of) for at, (value, of) in enumerate(pairs_)
        )
    if isinstance(part, str) and isinstance(whole, str):
        return whole.startswith(part)
    # The digits of a number may have been cut off.
    return part == whole or (isinstance(part, int) and isinstance(whole, int) and str(whole).startswith(str(part)))


@settings(max_examples=examples(300), deadline=None)
@given(st.dictionaries(TEXTS, VALUES, max_size=3), st.booleans(), st.data())
def test_what_was_whole_is_read(value: dict[str, Any], ascii_: bool, data: st.DataObject) -> None:
    text = json.dumps(value, ensure_ascii=ascii_)
    cut = data.draw(st.integers(0, len(text) - 1))
    read, _ = readable_object(text[:cut])
    assert begins(read, value), (text[:cut], read)
    assert readable_object(text)[0] == readable_object(text + "}")[0] == value


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ('{"city": "Ber', {"city": "Ber"}),
        ('{"city": "Ber\\', {"city": "Ber"}),
        ('{"city": "K\\u00', {"city": "K"}),
        ('{"city": "x\\ud83d', {"city": "x"}),
        ('{"a": {"b": [1, 2, {"c": "d', {"a": {"b": [1, 2, {"c": "d"}]}}),
        ('{"a": 1, "b', {"a": 1}),
        ('{"a": 1, "b":', {"a": 1}),
        ('{"a": [1], "b": tr', {"a": [1]}),
        ('{"a": 1}}', {"a": 1}),
        ('{"a": 1]', {}),
        ("[1, 2", {}),
        ("no JSON", {}),
        ("", {}),
        ("[" * 5000, {}),
    ],
)
def test_examples(text: str, read: dict[str, Any]) -> None:
    assert readable_object(text)[0] == read


def test_cut_arguments_count_for_the_requests_bounds() -> None:
    objects = JsonObjects()
    text = '{"a": [' + "1," * (MOST_VALUES // 2)
    assert objects.read_arguments(text, "$.first")[0] == text
    with pytest.raises(InvalidField, match="more than"):
        objects.read_arguments(text, "$.second")
    with pytest.raises(InvalidField, match="characters"):
        JsonObjects().read_arguments('{"a": "' + "x" * MAX_SCHEMA_BYTES, "$.long")
    assert JsonObjects().read(Raw(b"{}"), "$.schema") == {}
