"""How long adapters had slots, by hour: nothing is counted twice, and no hour is longer than an hour."""

from __future__ import annotations

from collections import defaultdict

from hypothesis import given
from hypothesis import strategies as st

from engine.adapters.adapter_residency import HOUR_S, REPORTED_S, AdapterResidency

START = 1_795_000_000 // HOUR_S * HOUR_S


class Bench:
    """A residency by a clock that the test holds. `begun`: seconds into an hour."""

    def __init__(self, begun: float = 0.0) -> None:
        self.now = begun
        self.residency = AdapterResidency(lambda: self.now, lambda: START + self.now)

    def counts(self) -> dict[tuple[str, int], int]:
        return {(one.name, one.hour - START): one.milliseconds for one in self.residency.report()}


def test_time_in_a_slot_is_counted_to_the_hour_in_which_it_lies() -> None:
    bench = Bench(HOUR_S - 10)
    bench.residency.begin("a")
    bench.now += 4
    assert bench.counts() == {("a", 0): 4000}
    bench.now += 10
    assert bench.counts() == {("a", 0): 10_000, ("a", HOUR_S): 4000}
    bench.residency.end("a")
    bench.now += 5
    assert bench.counts() == {("a", 0): 10_000, ("a", HOUR_S): 4000}
    assert [one.ready for one in bench.residency.report()] == [False, False]
    bench.now += REPORTED_S
    assert bench.counts() == {}
    bench.residency.begin("a")
    bench.now += 1
    assert bench.counts() == {("a", HOUR_S): 5000}, "it goes on growing"


def test_a_clock_that_is_set_back_makes_no_hour_longer() -> None:
    now, wall = 0.0, float(START)
    residency = AdapterResidency(lambda: now, lambda: wall)
    residency.begin("a")
    for _ in range(3):
        now, wall = now + HOUR_S - 1, START + HOUR_S - 1
        residency.report()
    assert max(one.milliseconds for one in residency.report()) <= HOUR_S * 1000


@given(st.lists(st.tuples(st.sampled_from("abc"), st.booleans(), st.integers(0, 5000)), max_size=30))
def test_counts_are_the_time_in_slots(events: list[tuple[str, bool, int]]) -> None:
    """What was ever reported of an hour, at its highest, adds up to the time that passed in a slot."""
    bench, ready, passed = Bench(), set[str](), defaultdict[str, int](int)
    highest: dict[tuple[str, int], int] = {}
    for name, begins, seconds in events:
        if begins:
            bench.residency.begin(name)
            ready.add(name)
        else:
            bench.residency.end(name)
            ready.discard(name)
        for step in [REPORTED_S] * int(seconds // REPORTED_S) + [seconds % REPORTED_S]:
            bench.now += step
            for key, count in bench.counts().items():
                assert count >= highest.get(key, 0), "it only grows"
                highest[key] = count
        for one in ready:
            passed[one] += seconds
    found = defaultdict[str, int](int)
    for (name, _), count in highest.items():
        found[name] += count
    for name in "abc":
        assert abs(found[name] - passed[name] * 1000) <= len(highest) + 1
