"""The heap whose entries lapse, against a sorted list; and that what has lapsed does not pile up in it."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from engine.scheduling.lazy_heap import SPARED, LazyHeap


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["push", "push", "push", "lapse", "pop", "replace"]), st.integers(0, 50))))
def test_the_least_that_stands_is_first(changes: list[tuple[str, int]]):
    standing: set[tuple[int, int]] = set()
    heap: LazyHeap[tuple[int, int]] = LazyHeap(standing.__contains__)
    for number, (change, value) in enumerate(changes):
        least = min(standing, default=None)
        assert heap.first() == least
        assert sorted(heap.standing()) == sorted(standing)
        match change:
            case "push":
                standing.add((value, number))
                heap.push((value, number))
            case "lapse" if standing:
                standing.remove(sorted(standing)[value % len(standing)])
            case "pop" if least is not None:
                assert heap.pop() == least
                standing.remove(least)
            case "replace" if least is not None:
                standing.remove(least)
                standing.add((value, number))
                heap.replace((value, number))
    while (entry := heap.first()) is not None:
        assert heap.pop() == entry == min(standing)
        standing.remove(entry)
    assert not standing


def test_what_lapsed_does_not_pile_up_below_an_entry_that_stands():
    standing = {(0, 0)}
    heap: LazyHeap[tuple[int, int]] = LazyHeap(standing.__contains__)
    heap.push((0, 0))
    for number in range(1, 10_000):
        standing.add((1, number))
        heap.push((1, number))
        standing.discard((1, number - 10))
        assert len(heap) <= 2 * 12 + SPARED
    assert heap.first() == (0, 0)
