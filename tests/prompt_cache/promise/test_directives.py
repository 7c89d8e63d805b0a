"""Cache plans: where leases are written and found, and what the rules of each vendor refuse."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prompt_cache.promise.directives import (
    MOST_LOOKUPS,
    Block,
    BlockKind,
    Breakpoint,
    CachePlan,
    DirectiveError,
    Marker,
    lifetime,
    plan,
)
from prompt_cache.promise.rule_sets import RULE_SETS, RuleSet, rules_for

OPENAI, ANTHROPIC = rules_for("openai", "llama"), rules_for("anthropic", "llama")


def blocks(*ends: int, kind: BlockKind = "text", role: str = "user") -> list[Block]:
    """A block in a message of its own for each end."""
    return [Block(end, index, role, kind) for index, end in enumerate(ends)]


def made(rules: RuleSet, markers: list[Marker], prompt_tokens: int = 50_000, **options: Any) -> CachePlan:
    return plan(rules, markers, prompt_tokens=prompt_tokens, read_min=1024, **options)


def points(found: CachePlan) -> list[tuple[int, str]]:
    return [(point.tokens, point.lease) for point in found.breakpoints]


# ---------------------------------------------------------------- rule sets


def test_the_newest_set_of_the_family_wins() -> None:
    newer = RuleSet(dialect="openai", family="gpt", version=2, automatic=False, leases=("30m",), most_breakpoints=4)
    sets = (RuleSet(dialect="openai", version=7, automatic=True), newer)
    assert rules_for("openai", "gpt", sets) is newer
    assert rules_for("openai", "llama", sets).version == 7
    assert (OPENAI.name, ANTHROPIC.name) == ("openai/*/2", "anthropic/*/1")
    with pytest.raises(LookupError):
        rules_for("gopher", "llama", sets)


def test_names_of_rule_sets_are_unique_and_their_classes_live_as_long_as_they_say() -> None:
    assert len({rules.name for rules in RULE_SETS}) == len(RULE_SETS)
    assert [lifetime(lease) for lease in OPENAI.leases] == [1800, 43_200, 86_400, 300, 3600]


def test_a_rule_set_without_classes_knows_no_markers() -> None:
    first = RULE_SETS[0]
    assert made(first, []).read == "longest"
    with pytest.raises(DirectiveError) as caught:
        made(first, [Marker(2000)])
    assert caught.value.marker == 0


# ---------------------------------------------------------------- without markers


@pytest.mark.parametrize(("rules", "read"), [(OPENAI, "longest"), (ANTHROPIC, "marked")])
def test_what_is_not_marked_needs_no_lease(rules: RuleSet, read: str) -> None:
    plain = made(rules, [])
    assert (plain.read, plain.store, plain.breakpoints, plain.lookups) == (read, "all", (), ())
    assert plain.automatic is (rules is OPENAI)


@pytest.mark.parametrize("rules", [OPENAI, ANTHROPIC])
def test_reading_and_storing_can_be_forbidden(rules: RuleSet) -> None:
    unread = made(rules, [Marker(2000)], blocks=blocks(2000), read=False)
    assert (unread.read, unread.lookups, points(unread)) == ("none", (), [(2000, rules.leases[0])])
    unstored = made(rules, [Marker(2000)], blocks=blocks(2000), store="hbm")
    assert (unstored.store, unstored.lookups, unstored.breakpoints) == ("hbm", (2000,), ())


@pytest.mark.parametrize("rules", [OPENAI, ANTHROPIC])
def test_who_asks_only_for_what_is_cached_writes_nothing_and_looks_where_a_lease_may_be(rules: RuleSet) -> None:
    asked = made(rules, [], blocks=blocks(2000, 3000), only_if_cached=True)
    assert (asked.only_if_cached, asked.breakpoints, asked.lookups) == (True, (), (3000, 2000))


# ---------------------------------------------------------------- Anthropic


@pytest.mark.parametrize(
    ("markers", "kept"),
    [
        ([Marker(100)], []),
        ([Marker(0)], []),
        ([Marker(1023), Marker(1024)], [(1024, "5m")]),
        ([Marker(2000, "1h"), Marker(3000)], [(2000, "1h"), (3000, "5m")]),
        ([Marker(3000), Marker(2000, "1h")], [(2000, "1h"), (3000, "5m")]),
        # tools, which the template renders after the system message
        ([Marker(3000, "1h"), Marker(2000)], [(2000, "1h"), (3000, "1h")]),
        ([Marker(n) for n in (2000, 3000, 4000, 5000)], [(n, "5m") for n in (2000, 3000, 4000, 5000)]),
    ],
)
def test_which_markers_count(markers: list[Marker], kept: list[tuple[int, str]]) -> None:
    assert points(made(ANTHROPIC, markers)) == kept


@pytest.mark.parametrize(
    ("markers", "at"),
    [
        ([Marker(-1)], 0),
        ([Marker(2000), Marker(50_001)], 1),
        ([Marker(2000), Marker(3000, "2h")], 1),
        ([Marker(2000), Marker(3000, "30m")], 1),
        ([Marker(2000), Marker(3000, "1h")], 1),
        ([Marker(10), Marker(20, "1h")], 1),
        ([Marker(0), Marker(20, "1h")], 1),
        ([Marker(n) for n in (10, 20, 30, 40, 50)], 4),
        ([Marker(n) for n in (2000, 2000, 3000, 3000, 4000)], 4),
    ],
)
def test_what_anthropic_refuses(markers: list[Marker], at: int) -> None:
    with pytest.raises(DirectiveError) as caught:
        made(ANTHROPIC, markers)
    assert caught.value.marker == at


def test_an_automatic_breakpoint_lies_at_the_last_block_that_can_be_cached() -> None:
    said = [*blocks(2000, 3000), Block(4000, 2, "assistant", "thinking")]
    assert points(made(ANTHROPIC, [], blocks=said, automatic=True, automatic_lease="1h")) == [(3000, "1h")]
    only_thought = [Block(4000, 0, "assistant", "thinking")]
    assert points(made(ANTHROPIC, [], blocks=only_thought, automatic=True)) == []


def test_an_automatic_breakpoint_on_a_marked_block_is_that_marker() -> None:
    four = [Marker(n) for n in (2000, 3000, 4000, 5000)]
    said = blocks(2000, 3000, 4000, 5000)
    assert len(made(ANTHROPIC, four, blocks=said, automatic=True).breakpoints) == 4
    with pytest.raises(DirectiveError, match="1h falls on a block that is marked with class 5m") as caught:
        made(ANTHROPIC, four[-1:], blocks=said, automatic=True, automatic_lease="1h")
    assert caught.value.marker is None


def test_an_automatic_breakpoint_counts_as_one_of_four() -> None:
    four = [Marker(n) for n in (2000, 3000, 4000, 5000)]
    said = blocks(2000, 3000, 4000, 5000, 6000)
    assert points(made(ANTHROPIC, four[1:], blocks=said, automatic=True))[-1] == (6000, "5m")
    with pytest.raises(DirectiveError, match="and automatic caching") as caught:
        made(ANTHROPIC, four, blocks=said, automatic=True)
    assert caught.value.marker is None


def test_an_automatic_breakpoint_of_a_longer_class_after_a_shorter_is_refused() -> None:
    with pytest.raises(DirectiveError, match="longer classes come first") as caught:
        made(ANTHROPIC, [Marker(2000)], blocks=blocks(2000, 3000), automatic=True, automatic_lease="1h")
    assert caught.value.marker is None


def test_a_lease_is_found_up_to_20_positions_back() -> None:
    said = blocks(*range(1100, 1100 + 40 * 100, 100))
    lookups = made(ANTHROPIC, [Marker(said[30].end)], blocks=said).lookups
    assert lookups == tuple(block.end for block in reversed(said[11:31]))
    both = made(ANTHROPIC, [Marker(said[2].end), Marker(said[30].end)], blocks=said).lookups
    assert both == lookups + tuple(block.end for block in reversed(said[:3]))


def test_a_run_of_tool_calls_or_results_is_one_position() -> None:
    run = [Block(3000 + n, 2, "assistant", "tool_use") for n in range(30)]
    results = [Block(4000 + n, 3, "user", "tool_result") for n in range(30)]
    texts = blocks(*range(1100, 3000, 100))
    said = [*texts, *run, *results, Block(5000, 4, "user")]
    lookups = made(ANTHROPIC, [Marker(5000)], blocks=said).lookups
    assert set(lookups) == {5000, *range(4000, 4030), *range(3000, 3030), *(block.end for block in texts[-17:])}
    inside = made(ANTHROPIC, [Marker(4010)], blocks=said).lookups
    assert max(inside) == 4010
    assert min(inside) == texts[-18].end


# ---------------------------------------------------------------- OpenAI


def test_the_latest_four_breakpoints_count_the_implicit_one_among_them() -> None:
    markers = [Marker(n) for n in (2000, 3000, 4000, 5000, 6000)]
    said = blocks(2000, 3000, 4000, 5000, 6000, 7000)
    assert points(made(OPENAI, markers, blocks=said)) == [(n, "30m") for n in (3000, 4000, 5000, 6000)]
    implicit = made(OPENAI, markers, blocks=said, automatic=True, automatic_lease="30m")
    assert points(implicit) == [(n, "30m") for n in (4000, 5000, 6000, 7000)]


def test_an_earlier_breakpoint_lives_as_long_as_a_later_one() -> None:
    markers = [Marker(2000), Marker(3000, "12h"), Marker(4000)]
    assert points(made(OPENAI, markers)) == [(2000, "12h"), (3000, "12h"), (4000, "30m")]
    assert points(made(OPENAI, [Marker(2000), Marker(2000, "12h")])) == [(2000, "12h")]


def test_a_marker_of_the_last_message_stands_where_the_implicit_one_would() -> None:
    said = blocks(2000, 3000)
    assert points(made(OPENAI, [Marker(3000, "12h")], blocks=said, automatic=True)) == [(3000, "12h")]


def test_where_openai_finds_a_lease() -> None:
    said = [
        Block(1100, 0, "system"), Block(1150, 0, "system"), Block(1200, 1, "developer"),
        *(Block(2000 + 10 * n, 2 + n, "user") for n in range(100)),
    ]  # fmt: skip
    markers = [Marker(2000 + 10 * n) for n in range(80)]
    lookups = set(made(OPENAI, markers, blocks=said, automatic=True).lookups)
    explicit = {marker.tokens for marker in markers}
    assert explicit & lookups == {2000, 2010, 2790} | {2000 + 10 * n for n in range(30, 80)}
    assert {block.end for block in said[-21:]} <= lookups, "the last message and 20 before it"
    assert 1200 in lookups, "the end of the opening"
    assert lookups - explicit == {1200, *(block.end for block in said[-20:])}


# ---------------------------------------------------------------- always


KINDS: list[BlockKind] = ["text", "tool", "tool_use", "tool_result", "thinking"]


@given(
    st.sampled_from([rules for rules in RULE_SETS if rules.leases]),
    st.lists(st.tuples(st.integers(1, 300), st.sampled_from(KINDS), st.booleans()), max_size=60),
    st.lists(st.tuples(st.integers(0, 59), st.sampled_from(["5m", "30m", "1h", "12h", "2h", None])), max_size=8),
    st.booleans(),
)
def test_a_plan_is_ordered_bounded_and_long_enough(
    rules: RuleSet, pieces: list[tuple[int, BlockKind, bool]], marks: list[tuple[int, str | None]], automatic: bool
) -> None:
    said, end, message = [], 0, -1
    for length, kind, begins in pieces:
        end += length
        message += begins
        said.append(Block(end, message, "user", kind))
    markers = [Marker(said[at].end, lease) for at, lease in marks if at < len(said)]
    try:
        found = plan(rules, markers, prompt_tokens=end, read_min=300, blocks=said, automatic=automatic)
    except DirectiveError:
        return
    ends = [block.end for block in said]
    tokens = [point.tokens for point in found.breakpoints]
    lives = [lifetime(point.lease) for point in found.breakpoints]
    assert tokens == sorted(set(tokens))
    assert lives == sorted(lives, reverse=True)
    assert len(tokens) <= 4
    assert list(found.lookups) == sorted(set(found.lookups), reverse=True)
    assert len(found.lookups) <= MOST_LOOKUPS
    assert set(tokens) | set(found.lookups) <= {count for count in ends if count >= 300}
    assert set(tokens) <= set(found.lookups), "what is written now can be read the next time"
    assert isinstance(found.breakpoints, tuple)
    assert all(isinstance(point, Breakpoint) for point in found.breakpoints)
