"""A property that fails says by which example, in time, however slow it is."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.internal.conjecture import engine

from tests.conftest import SHRINKING_S


@pytest.mark.slow
def test_a_slow_property_that_fails_shows_its_example(
    pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = float(pytestconfig.getini("timeout"))
    assert limit / 4 > SHRINKING_S == engine.MAX_SHRINKING_SECONDS, "the rest is for what comes before and after"
    monkeypatch.setattr(engine, "MAX_SHRINKING_SECONDS", 0.5)

    calls = 0

    @settings(max_examples=10, deadline=None, database=None)
    @given(st.lists(st.integers(), min_size=30))
    def slow(numbers: list[int]) -> None:
        nonlocal calls
        calls += 1
        time.sleep(0.02)
        raise ValueError("never right")

    with pytest.raises(ValueError, match="never right") as failed:
        slow()
    # Each sleeps, so that in the time that shrinking has there are at most 25, and fewer on a slower machine.
    assert calls < 60, "to its smallest example it takes twice as many"
    assert "slow(" in "".join(failed.value.__notes__), "the arguments"
