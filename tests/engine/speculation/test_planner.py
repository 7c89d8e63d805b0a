"""How many rows: by costs, chances and lanes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.speculation.acceptance import PAUSE, Acceptance
from engine.speculation.asking_time import AskingTime
from engine.speculation.planner import Candidate, DraftPlanner, StepLoad
from engine.speculation.verify_costs import VerifyCosts, break_even, expected_tokens

FREE = VerifyCosts({64: {1: 1000.0, 8: 1000.0, 16: 1000.0, 64: 1000.0}})
LINEAR = VerifyCosts({64: {rows: 1000.0 * rows for rows in (1, 2, 4, 8, 64)}})
STAIRS = VerifyCosts({64: {1: 1000.0, 4: 1000.0, 5: 2000.0, 8: 2000.0, 9: 3000.0, 64: 17_000.0}})
CERTAIN = (1.0,) * 7


def planned(
    costs: VerifyCosts | None, *candidates: Candidate, rows: int = 1, room: int = 99, **load: float
) -> list[int]:
    planner = DraftPlanner(costs, 7)
    counts = planner.plan(StepLoad(rows, rows, 64.0, **load), candidates, room, 0.0)
    return [counts.get(candidate.arrival, 0) for candidate in candidates]


def test_rows_that_are_free_are_all_taken_and_rows_that_cost_as_much_as_steps_are_not() -> None:
    likely = Candidate(1, "standard", (0.9,) * 7)
    assert planned(None, likely) == [7]
    assert planned(FREE, likely) == [7]
    assert planned(LINEAR, likely) == [0]


def test_rows_are_taken_up_to_a_stair_and_beyond_it_where_that_pays() -> None:
    assert planned(STAIRS, Candidate(1, "standard", (0.5,) * 7)) == [3]
    assert planned(STAIRS, Candidate(1, "standard", CERTAIN)) == [3]  # 4 tokens in 1 ms, or 8 in 2
    assert planned(STAIRS, Candidate(1, "standard", (0.02,) * 7)) == [0]  # less than the least gain


def test_the_likeliest_rows_first_and_the_lane_before_all() -> None:
    unlikely, likely = Candidate(1, "standard", (0.3,) * 7), Candidate(2, "standard", (0.9,) * 7)
    assert planned(FREE, unlikely, likely, rows=2, room=3) == [0, 3]
    urgent = Candidate(3, "interactive", (0.3,) * 7)
    assert planned(FREE, likely, urgent, rows=2, room=7) == [0, 7]


def test_the_batch_lane_gets_rows_that_cost_nothing() -> None:
    batch = Candidate(1, "batch", CERTAIN)
    assert planned(STAIRS, batch) == [3]
    sloped = VerifyCosts({64: {1: 1000.0, 8: 1100.0, 64: 2000.0}})
    assert planned(sloped, batch) == [0]
    assert planned(sloped, Candidate(1, "standard", CERTAIN)) == [7]


def test_beside_prompts_a_step_keeps_its_target() -> None:
    sloped = VerifyCosts({64: {1: 1000.0, 8: 1700.0, 64: 7300.0}})
    likely = Candidate(1, "standard", CERTAIN)
    assert planned(sloped, likely) == [7]
    assert planned(sloped, likely, beside=5000.0, target=6350.0) == [3]


def test_drafting_goes_on_and_off_after_two_steps_that_agree() -> None:
    planner = DraftPlanner(STAIRS, 7)
    load = StepLoad(1, 1, 64.0)
    good, bad = Candidate(1, "standard", (0.9,) * 3), Candidate(1, "standard", (0.01,) * 3)
    decided = [bool(planner.plan(load, [each], 9, 0.0)) for each in (good, bad, bad, good, good, bad, good)]
    assert decided == [True, False, False, False, True, False, True]


def test_where_nothing_could_pay_nobody_is_asked() -> None:
    assert DraftPlanner(FREE, 7).could_pay(StepLoad(1, 1, 64.0))
    assert not DraftPlanner(LINEAR, 7).could_pay(StepLoad(1, 1, 64.0))


@given(
    st.dictionaries(st.integers(1, 64), st.floats(1, 1e6), min_size=1).map(lambda rows: {64: rows, 640: rows}),
    st.lists(st.tuples(st.integers(1, 64), st.floats(1, 1e7)), max_size=30),
)
def test_a_table_is_monotone_as_measured_and_stays_finite(
    measured: dict[int, dict[int, float]], seen: list[tuple[int, float]]
) -> None:
    costs = VerifyCosts(measured)
    times = [costs.step_us(rows, 64.0) for rows in range(1, 65)]
    assert all(time > 0 for time in times)
    assert times == sorted(times)
    for rows, took in seen:
        costs.observe(rows, 64.0, took)
    assert all(0 < costs.step_us(rows, 300.0) < float("inf") for rows in range(1, 200))


def test_a_table_follows_the_machine() -> None:
    costs = VerifyCosts({64: {1: 1000.0, 8: 1000.0}})
    for _ in range(300):
        costs.observe(8, 64.0, 1800.0)
        costs.observe(1, 64.0, 1000.0)
    assert costs.step_us(8, 64.0) == pytest.approx(1800, rel=0.1)
    assert costs.step_us(1, 64.0) == pytest.approx(1000, rel=0.1)


GRAPHS = {64: {1: 1000.0, 8: 1000.0, 16: 1500.0, 64: 4000.0}}


def test_steps_in_graphs_take_as_long_as_the_rows_that_they_are_padded_to() -> None:
    costs = VerifyCosts(GRAPHS, in_graphs=True)
    assert [costs.step_us(rows, 64.0) for rows in (1, 2, 8, 9, 16, 17)] == [1000, 1000, 1000, 1500, 1500, 4000]


def test_what_drafts_hold_up_is_learnt_apart_from_what_steps_take() -> None:
    costs = VerifyCosts(GRAPHS, in_graphs=True)
    assert costs.verify_us(2, 64.0) > costs.step_us(2, 64.0)
    for _ in range(50):
        costs.observe_verified(5, 64.0, 1300.0)
    assert costs.step_us(5, 64.0) == 1000.0
    assert costs.verify_us(8, 64.0) == pytest.approx(1300.0, rel=0.05)
    assert costs.verify_us(60, 64.0) == pytest.approx(4300.0, rel=0.05), "the next one that is known"
    assert costs.shown_unqueued() == {8: pytest.approx(300.0, rel=0.2)}
    stalled = costs.verify_us(8, 64.0)
    costs.observe_verified(8, 64.0, 1e9)
    assert costs.verify_us(8, 64.0) < 1.2 * stalled


def test_drafts_that_hold_up_the_device_for_longer_than_they_bring_are_not_verified() -> None:
    costs = VerifyCosts(GRAPHS, in_graphs=True)
    for _ in range(50):
        costs.observe_verified(5, 64.0, 2500.0)
    assert planned(costs, Candidate(1, "standard", (0.5,) * 7)) == [0]
    assert planned(costs, Candidate(1, "standard", (0.9,) * 7)) == [7]


def test_a_probe_of_a_step_that_is_queued_is_made_in_the_one_behind_it() -> None:
    planner, load = DraftPlanner(LINEAR, 7), StepLoad(1, 1, 64.0)
    candidate = [Candidate(1, "standard", (0.9,) * 7)]
    for _ in range(100):
        if counts := planner.plan(load, candidate, 9, 0.0, queued=True):
            break
        planner.could_pay(load)
    assert counts
    assert planner.plan(load, candidate, 9, 0.0)
    assert not planner.plan(load, candidate, 9, 0.0)


def test_break_even() -> None:
    assert break_even(FREE, 1, 7, 64) == 0.0
    assert break_even(LINEAR, 1, 3, 64) == 1.0
    assert break_even(STAIRS, 1, 7, 64) == pytest.approx(0.5, abs=0.02)
    assert expected_tokens(1.0, 4) == 5.0


def test_acceptance_is_learnt_by_position_and_pauses() -> None:
    acceptance = Acceptance(3)
    assert list(acceptance.chances(0.5, 3)) == [0.5, 0.5, 0.5]
    for _ in range(20):
        acceptance.verified(3, 1, 0)
    first, second, third = acceptance.chances(0.5, 3)
    assert first > 0.85
    assert second < 0.15
    assert third == 0.5  # it was never reached
    assert not acceptance.paused(10)
    for _ in range(20):
        acceptance.verified(3, 0, 100)
    assert acceptance.paused(100 + PAUSE - 1)
    assert not acceptance.paused(100 + PAUSE)


def test_a_chain_is_as_long_as_its_drafts_are_worth_their_time() -> None:
    planner, load = DraftPlanner(FREE, 7), StepLoad(1, 1, 64.0)

    def length(chance: float, pass_us: float) -> int:
        return planner.chain_length(load, 1, chance, lambda requests, drafts: pass_us * drafts)

    assert length(0.95, 100.0) == 7
    assert 1 <= length(0.6, 200.0) < 7
    assert length(0.2, 500.0) == 0
    assert DraftPlanner(None, 7).chain_length(load, 1, 0.1, lambda requests, drafts: 1e9) == 7


def test_a_chain_ends_where_a_step_would_miss_its_target() -> None:
    load = StepLoad(1, 1, 64.0, target=1350.0)
    assert DraftPlanner(FREE, 7).chain_length(load, 1, 1.0, lambda requests, drafts: 100.0 * drafts) == 3


def test_a_table_that_a_busy_start_made_too_dear_is_found_out() -> None:
    """Plain steps show that the machine is quicker, and a probe now and then what rows really take."""
    costs = VerifyCosts({64: {1: 50_000.0, 8: 400_000.0}})
    planner, load = DraftPlanner(costs, 7), StepLoad(1, 1, 64.0)
    candidate = Candidate(1, "standard", (0.9,) * 7)
    verified = steps = 0
    while verified < 50:
        counts = planner.plan(load, [candidate], 7, 0.0) if planner.could_pay(load) else {}
        rows = 1 + counts.get(1, 0)
        costs.observe(rows, 64.0, 1000.0 + 20.0 * rows)
        verified += rows > 1
        steps += 1
        assert steps < 2000
    # Once drafts pay there are hardly any plain steps any more to say what these take.
    assert costs.step_us(1, 64.0) == pytest.approx(1020, rel=0.3)
    assert steps < 1000


def test_where_rows_are_dear_probes_cost_little() -> None:
    costs, took = VerifyCosts({64: {rows: 1000.0 * rows for rows in (1, 2, 4, 8)}}), 0.0
    planner, load = DraftPlanner(costs, 7), StepLoad(1, 1, 64.0)
    for _ in range(5000):
        counts = planner.plan(load, [Candidate(1, "standard", (0.9,) * 7)], 7, 0.0) if planner.could_pay(load) else {}
        rows = 1 + counts.get(1, 0)
        costs.observe(rows, 64.0, 1000.0 * rows)
        took += 1000.0 * rows
    assert took < 5000 * 1000.0 * 1.015


def test_asking_may_take_as_long_as_drafts_could_save() -> None:
    planner = DraftPlanner(FREE, 7)
    load = StepLoad(1, 1, 64.0)
    assert planner.could_pay(load, 3000.0)  # a step of 1 ms brings up to 6.6 tokens
    assert not planner.could_pay(load, 7000.0)
    assert DraftPlanner(None, 7).could_pay(load, 1e9)


def test_a_drafter_that_was_held_up_once_is_asked_on_and_one_that_is_slow_is_asked_now_and_then() -> None:
    asking = AskingTime()
    asking.observe(100_000.0)
    assert asking.expected() <= 500.0
    for _ in range(20):
        asking.observe(20_000.0)
    assert 15_000.0 < asking.expected() <= 20_000.0
    for _ in range(512):
        asking.skip()
    assert asking.expected() == 0.0
