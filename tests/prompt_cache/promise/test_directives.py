"""Cache plans: rule sets as data, markers counted, dropped and refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prompt_cache.promise.directives import Breakpoint, DirectiveError, Marker, RuleSet, plan, rules_for

MARKED = RuleSet(dialect="anthropic", family="*", version=1, automatic=False, leases=("5m", "1h"), most_breakpoints=4)
NEWER = RuleSet(dialect="openai", family="gpt", version=2, automatic=False, leases=("30m",), most_breakpoints=4)


def test_openai_reuses_the_longest_prefix_and_has_no_breakpoints() -> None:
    made = plan(rules_for("openai", "llama"), prompt_tokens=5000, read_min=1024)
    assert (made.automatic, made.read, made.store, made.read_min, made.breakpoints) == (
        True, "longest", "all", 1024, (),
    )  # fmt: skip
    assert made.rules == "openai/*/1"
    with pytest.raises(DirectiveError) as caught:
        plan(rules_for("openai", "llama"), [Marker(2000)], prompt_tokens=5000, read_min=1024)
    assert caught.value.marker == 0


def test_the_newest_set_of_the_family_wins() -> None:
    sets = (MARKED, RuleSet(dialect="openai", family="*", version=7, automatic=True), NEWER)
    assert rules_for("openai", "gpt", sets) is NEWER
    assert rules_for("openai", "llama", sets).version == 7
    with pytest.raises(LookupError):
        rules_for("gopher", "llama", sets)


@pytest.mark.parametrize(
    ("markers", "kept"),
    [
        ([], ()),
        ([Marker(100)], ()),
        ([Marker(1024)], (Breakpoint(1024, "5m"),)),
        ([Marker(3000, "1h"), Marker(2000)], (Breakpoint(2000, "5m"), Breakpoint(3000, "1h"))),
        ([Marker(2000, "5m"), Marker(2000, "1h")], (Breakpoint(2000, "1h"),)),
        ([Marker(n) for n in range(2000, 2006)], tuple(Breakpoint(n, "5m") for n in range(2002, 2006))),
    ],
)
def test_which_markers_count(markers: list[Marker], kept: tuple[Breakpoint, ...]) -> None:
    assert plan(MARKED, markers, prompt_tokens=5000, read_min=1024).breakpoints == kept


@pytest.mark.parametrize("marker", [Marker(0), Marker(-1), Marker(5001), Marker(2000, "2h")])
def test_what_is_refused(marker: Marker) -> None:
    with pytest.raises(DirectiveError) as caught:
        plan(MARKED, [Marker(1500), marker], prompt_tokens=5000, read_min=1024)
    assert caught.value.marker == 1


def test_reading_and_storing_can_be_forbidden() -> None:
    made = plan(MARKED, prompt_tokens=9, read_min=1, read=False, store="hbm")
    assert (made.read, made.store) == ("none", "hbm")
    assert plan(MARKED, prompt_tokens=9, read_min=1).read == "marked"


@given(st.lists(st.integers(1, 5000), max_size=12))
def test_breakpoints_are_ordered_bounded_and_long_enough(tokens: list[int]) -> None:
    made = plan(MARKED, [Marker(count) for count in tokens], prompt_tokens=5000, read_min=1024)
    found = [breakpoint_.tokens for breakpoint_ in made.breakpoints]
    assert found == sorted(set(found))
    assert len(found) <= 4
    assert set(found) <= {count for count in tokens if count >= 1024}
