"""The n-gram drafter: it continues the longest, latest earlier match of a request's own tokens."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from engine.scheduling.request import Request
from engine.scheduling.token_sequence import TokenSequence
from engine.speculation.drafter import Query
from engine.speculation.ngram_drafter import LEAST_MATCH, LONGEST_MATCH, NgramDrafter
from protocol.requests import Sampling


def request_of(tokens: Sequence[int], arrival: int = 1) -> Request:
    return Request(
        id=str(arrival),
        attempt=1,
        arrival=arrival,
        tokens=TokenSequence(tokens),
        prompt=len(tokens),
        segments=((len(tokens), b"scope", "project"),),
        root=b"root",
        sampling=Sampling(100),
        max_output=100,
        credit=100,
    )


def longest_match(tokens: Sequence[int]) -> tuple[int, int]:
    """The length of the longest earlier match of the last tokens, at most LONGEST_MATCH, and where the latest ends."""
    best, place = 0, 0
    for end in range(len(tokens) - 1):
        length = 0
        while length < min(LONGEST_MATCH, end + 1) and tokens[end - length] == tokens[len(tokens) - 1 - length]:
            length += 1
        if length and length >= best:
            best, place = length, end + 1
    return best, place


@given(st.lists(st.integers(0, 3), min_size=1, max_size=60), st.integers(1, 8))
def test_it_continues_the_longest_latest_match(tokens: list[int], most: int) -> None:
    request, drafter = request_of(tokens), NgramDrafter()
    drafter.begin(request)
    (proposal,) = drafter.propose([Query(request, most)])
    length, place = longest_match(tokens)
    if length < LEAST_MATCH:
        assert proposal is None
    else:
        assert proposal is not None
        repeated = tokens[place:] * (most + 1)
        assert list(proposal.tokens) == repeated[:most]
        assert 0 < proposal.chance < 1


@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=9), min_size=1, max_size=12))
def test_what_was_expected_goes_on_where_it_was(runs: list[list[int]]) -> None:
    """Whatever is emitted between two proposals, the next one continues an earlier match of the last tokens."""
    request, drafter = request_of([0, 1, 2, 0, 1]), NgramDrafter()
    drafter.begin(request)
    for run in runs:
        (proposal,) = drafter.propose([Query(request, 4)])
        if proposal is not None:
            tokens = list(request.tokens)
            match = round(2 * proposal.chance / (1 - proposal.chance))
            ends = [end for end in range(match, len(tokens)) if tokens[end - match : end] == tokens[-match:]]
            assert any(list(proposal.tokens) == (tokens[end:] * 5)[:4] for end in ends)
        for token in run:
            request.tokens.append(token)
    drafter.end(request)
    drafter.end(request)


def test_requests_do_not_see_each_other() -> None:
    one, other, drafter = request_of([5, 6, 7, 5, 6], 1), request_of([8, 5, 6], 2), NgramDrafter()
    for request in (one, other):
        drafter.begin(request)
    assert [proposal and list(proposal.tokens) for proposal in drafter.propose([Query(one, 2), Query(other, 2)])] == [
        [7, 5],
        None,
    ]


def test_a_step_searches_a_bounded_number_of_tokens_and_all_have_their_turn() -> None:
    requests, drafter = [request_of([1, 2] * 150_000 + [arrival], arrival) for arrival in range(8)], NgramDrafter()
    for request in requests:
        request.tokens.append(1)
        request.tokens.append(2)
        drafter.begin(request)
    drafted: list[int] = []
    for _ in range(3):
        for request, proposal in zip(requests, drafter.propose([Query(r, 1) for r in requests]), strict=True):
            if proposal is not None:
                drafted.append(request.arrival)
    assert len(drafted) < 3 * len(requests)
    assert set(drafted) == set(range(8))


def test_of_a_token_that_stands_everywhere_only_the_latest_places_are_looked_at() -> None:
    far, near = [7, 8, 9, 5], [8, 9, 6]
    for between, expected in ((1000, [5]), (3000, [6])):
        request, drafter = request_of([*far, *[9] * between, *near, 7, 8, 9]), NgramDrafter()
        drafter.begin(request)
        (proposal,) = drafter.propose([Query(request, 1)])
        assert proposal is not None
        assert list(proposal.tokens) == expected


def test_a_step_takes_in_a_bounded_number_of_predicted_tokens_and_all_have_their_turn() -> None:
    """The output may have begun by then: while it is as predicted, that is where it goes on."""
    prediction = list(range(300_000))
    requests, drafter = [request_of([5], arrival) for arrival in range(8)], NgramDrafter()
    for request in requests:
        request.prediction = array("I", prediction)
        drafter.begin(request)
    drafted: list[int] = []
    for step in range(3):
        proposals = drafter.propose([Query(request, 2) for request in requests])
        for request, proposal in zip(requests, proposals, strict=True):
            if proposal is not None:
                drafted.append(request.arrival)
                assert list(proposal.tokens) == [step, step + 1]
            request.tokens.append(step)
    assert len(drafted) < 3 * len(requests)
    assert set(drafted) == set(range(8))
