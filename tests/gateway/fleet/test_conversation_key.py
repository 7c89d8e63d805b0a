"""What belongs together has one key, and prefixes have the same names in prompts that begin alike."""

from __future__ import annotations

from itertools import pairwise
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from gateway.fleet.conversation_key import conversation_key, names_of_prompt
from protocol.prefixes import NAME_BYTES, PREFIX_ENDS, split_names

PROJECT = UUID(int=5)


def test_the_key_is_of_the_beginning_the_project_and_the_partition() -> None:
    assert conversation_key(PROJECT, "", [1, 2, 3], 2) == conversation_key(PROJECT, "", [1, 2, 9, 9], 2)
    others = {
        conversation_key(PROJECT, "", [1, 3, 3], 2),
        conversation_key(PROJECT, "a", [1, 2, 3], 2),
        conversation_key(UUID(int=6), "", [1, 2, 3], 2),
    }
    assert len(others | {conversation_key(PROJECT, "", [1, 2, 3], 2)}) == 4


@given(st.integers(0, 3000), st.integers(0, 3000), st.integers(0, 3000))
def test_prompts_share_the_names_of_what_they_share(shared: int, one: int, other: int) -> None:
    first, second = [[7] * shared + [end] * more for end, more in ((1, one), (2, other))]
    names = [split_names(names_of_prompt(PROJECT, "", "m", tokens)) for tokens in (first, second)]
    alike = [left == right for left, right in zip(*names, strict=False)]
    whole = [end <= shared for end, _ in zip(PREFIX_ENDS, alike, strict=False)]
    assert alike == whole


def test_names_are_others_in_another_project_partition_and_model() -> None:
    tokens = list(range(64))
    names = {
        names_of_prompt(project, partition, model, tokens)
        for project, partition, model in (
            (PROJECT, "", "m"),
            (UUID(int=6), "", "m"),
            (PROJECT, "a", "m"),
            (PROJECT, "", "n"),
        )
    }
    assert len(names) == 4
    assert {len(name) for name in names} == {NAME_BYTES}


def test_a_16th_of_a_long_prompt_at_most_is_without_a_name() -> None:
    assert all(later - end <= max(64, end / 16) for end, later in pairwise(PREFIX_ENDS))
    assert PREFIX_ENDS[0] == 64
    assert PREFIX_ENDS[-1] > 10_000_000
    assert len(split_names(bytes(NAME_BYTES) * 1000)) == len(PREFIX_ENDS), "what another version sends more is left out"
