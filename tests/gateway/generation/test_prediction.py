"""What of a prediction became output is told from the tokens: each predicted token counts once at most."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.generation.prediction import PredictionMatch

PREDICTED = list(range(10, 40))


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
def test_predicted_tokens_in_the_output(output: list[int], accepted: int):
    match = PredictionMatch(array("I", PREDICTED))
    match.feed(output)
    assert match.accepted == accepted


@given(
    st.lists(st.integers(0, 3), max_size=40),
    st.lists(st.lists(st.integers(0, 3), max_size=9), max_size=9),
)
def test_no_more_is_accepted_than_was_predicted_or_put_out(predicted: list[int], runs: list[list[int]]):
    in_runs, at_once = PredictionMatch(array("I", predicted)), PredictionMatch(array("I", predicted))
    for run in runs:
        in_runs.feed(run)
    output = [token for run in runs for token in run]
    at_once.feed(output)
    assert in_runs.accepted == at_once.accepted <= min(len(predicted), len(output))
