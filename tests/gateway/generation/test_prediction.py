"""What of a prediction became output is told from the tokens: each predicted token counts once at most."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.generation.prediction import PredictionMatch

PREDICTED = list(range(10, 40))


def followed(predicted: list[int]) -> PredictionMatch:
    return PredictionMatch(array("I", predicted).tobytes())


@pytest.mark.parametrize(
    ("output", "accepted"),
    [
        (PREDICTED, 30),
        (PREDICTED[:7], 7),
        ([1, 2, 3], 0),
        ([*PREDICTED[:10], 1, *PREDICTED[11:]], 29),  # one word changed: found again by the three tokens behind it
        ([*PREDICTED[:10], 1, 2, 3, *PREDICTED[10:]], 30),  # something put in
        ([*PREDICTED[:10], *PREDICTED[20:]], 20),  # something left out
        ([5, 6, *PREDICTED], 30),
        (PREDICTED + PREDICTED, 30),
        ([*PREDICTED[:10], 1, *PREDICTED[11:13]], 10),  # too little to be found again
    ],
)
def test_predicted_tokens_in_the_output(output: list[int], accepted: int) -> None:
    match = followed(PREDICTED)
    match.feed(output)
    assert match.accepted == accepted


@given(
    st.lists(st.integers(0, 3), max_size=40),
    st.lists(st.lists(st.integers(0, 3), max_size=9), max_size=9),
)
def test_no_more_is_accepted_than_was_predicted_or_put_out(predicted: list[int], runs: list[list[int]]) -> None:
    in_runs, at_once = followed(predicted), followed(predicted)
    for run in runs:
        in_runs.feed(run)
    output = [token for run in runs for token in run]
    at_once.feed(output)
    assert in_runs.accepted == at_once.accepted <= min(len(predicted), len(output))


def test_what_is_left_out_may_be_long_but_not_endless() -> None:
    predicted = list(range(10, 3000))
    for left_out, accepted in ((900, 110), (2000, 10)):
        match = followed(predicted)
        match.feed([*predicted[:10], *predicted[10 + left_out :][:100]])
        assert match.accepted == accepted


def test_after_many_other_tokens_all_that_follows_as_predicted_still_counts() -> None:
    for others in (5, 40, 1000, 5000):
        match = followed(PREDICTED)
        match.feed([*range(1000, 1000 + others), *PREDICTED])
        assert match.accepted == len(PREDICTED)


class Searched(bytes):
    """Counts the bytes that are looked at."""

    searched = 0

    def find(self, sought, start=0, end=None):  # type: ignore[no-untyped-def]
        type(self).searched += min(len(self), end) - start
        return super().find(sought, start, end)


def test_an_output_of_its_own_is_hardly_looked_for() -> None:
    predicted = Searched(array("I", range(32_768)).tobytes())
    match = PredictionMatch(predicted)
    match.feed(range(40_000, 50_000))
    assert match.accepted == 0
    assert Searched.searched < 10_000 * 4 * 100
