"""Bounded queues: by count and cost, by flow and lane, with an estimate of the wait; and through the engine."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from engine.scheduling.fairness.fair_share import FairShare
from engine.scheduling.fairness.queue_limits import Bound, QueueBounds, expected_wait
from engine.scheduling.step_costs import FixedCosts
from protocol.requests import LANES, Counts, Lane, Refusal
from tests.engine.conftest import Bench, generate
from tests.engine.scheduling.replica_without_model import RATES, Replica, request

WIDE = {lane: Bound(1000, 1e12) for lane in ("interactive", "standard", "batch")}


def bounds(flow: Bound = WIDE["standard"], lane: Bound = WIDE["standard"], requests: int = 10_000) -> QueueBounds:
    """These bounds for the standard lane, none for the others, and `requests` for all."""
    return QueueBounds({**WIDE, "standard": flow}, {**WIDE, "standard": lane}, requests)  # type: ignore[dict-item]


@pytest.mark.parametrize("whose", ["flow", "lane"])
@pytest.mark.parametrize("bound", [Bound(3, 1e12), Bound(1000, 40_000.0)])
def test_a_flow_and_a_lane_are_bounded_by_count_and_cost(whose: str, bound: Bound):
    policy, limits = FairShare(), bounds(**{whose: bound})
    refused = None
    for number in range(5):
        made = request(number, 100, 100, flow="a" if whose == "flow" else str(number))
        refused = limits.refusal(policy, made)
        if refused is not None:
            break
        policy.push(made)
    assert refused is not None
    assert refused.whose == whose
    assert 0 < refused.wait_s < 1
    assert limits.refusal(policy, request(9, flow="b")) is None or whose == "lane"
    assert limits.refusal(policy, request(9, flow="a", lane="batch")) is None


@pytest.mark.parametrize(
    ("most", "expected"),
    [
        (10_000, {"a": 12, "b": 6, "c": 4, "d": 3}),
        (2015, {"a": 12, "b": 3, "c": 0, "d": 0}),
        (9, {"a": 12, "b": 0, "c": 0, "d": 0}),
    ],
)
def test_a_full_lane_takes_who_has_less_than_an_even_part_while_there_is_room(most: int, expected: dict[str, int]):
    """Room is what may wait in all without what the two other lanes may have, a thousand each."""
    policy, limits = FairShare(), bounds(lane=Bound(12, 1e12), requests=most)
    taken = dict.fromkeys("abcd", 0)
    for number, flow in enumerate(flow for flow in "abcd" for _ in range(20)):
        made = request(number, flow=flow)
        refused = limits.refusal(policy, made)
        assert refused is None or refused.whose == "lane"
        if refused is None:
            policy.push(made)
            taken[flow] += 1
    assert taken == expected


def test_one_tenants_many_choices_keep_nobody_else_out(benches: Callable[..., Bench]):
    bench = benches(running=4)
    object.__setattr__(bench.engine.limits, "bounds", bounds(flow=Bound(8, 1e12), lane=Bound(12, 1e12)))
    for number in range(4):
        bench.add(generate(f"many {number}", range(10), 4, choices=16, flow="a"))
    while bench.engine.scheduler.waiting < 20:
        bench.step()
    other = bench.add(generate("other", range(10), 4, flow="b"))
    bench.finish()
    assert other.done is not None
    assert other.done.reason == "length"


def test_one_request_alone_is_never_too_dear():
    assert bounds(Bound(10, 1.0), Bound(10, 1.0), 9).refusal(FairShare(), request(1, 5000, 100)) is None


@pytest.mark.slow
def test_the_estimate_is_near_the_wait_of_a_flow_with_a_share():
    """Two flows, one much longer: the estimate for either is within a third of what a simulation shows."""
    for flow in ("long", "short"):
        replica = Replica(FairShare(FixedCosts(RATES), quantum=0.0))
        for number in range(400):
            replica.add(request(number, 500, 60, flow="long"))
        for number in range(400, 500):
            replica.add(request(number, 500, 60, flow="short"))
        last = request(1000, 500, 60, flow=flow)
        estimate = expected_wait(replica.policy, last)  # type: ignore[arg-type]
        replica.add(last)
        while not last.began:
            replica.step()
        assert replica.now / 1e6 == pytest.approx(estimate, rel=1 / 3)


@pytest.mark.slow
@pytest.mark.parametrize("lane", ["standard", "batch"])
def test_the_estimate_is_near_the_wait_beside_higher_lanes_that_go_on_asking(lane: Lane):
    """What waits of theirs at any one time is little, and over soon if nothing followed it."""
    policy = FairShare(FixedCosts(RATES), lane_quantum=2_000.0)
    replica = Replica(policy, blocks=512)
    for number in range(200):
        replica.add(request(number, 500, 60, lane=lane, read=False, store="none"))

    def step() -> None:
        nonlocal number
        for other in LANES[: LANES.index(lane)]:
            while len(policy.flows[other]) < 20:
                number += 1
                replica.add(request(number, 500, 60, flow=other, lane=other, read=False, store="none"))
        replica.step()

    while replica.now < 1.5e6:
        step()
    began, last = replica.now, request(number + 100_000, 500, 60, lane=lane)
    estimate = expected_wait(policy, last)
    replica.add(last)
    while not last.began:
        step()
    assert estimate / 2 <= (replica.now - began) / 1e6 <= 2 * estimate


def test_a_full_queue_is_refused_with_the_wait_and_nothing_else_is_disturbed(bench: Bench):
    object.__setattr__(bench.engine.limits, "bounds", bounds(flow=Bound(2, 1e12)))
    for number in range(4):
        bench.add(generate(str(number), range(10), flow="a"))
    bench.add(generate("other", range(10), flow="b"))
    bench.finish()
    reasons = {id: run.done.reason for id, run in bench.runs.items() if run.done}
    assert reasons == {"0": "length", "1": "length", "2": "rejected", "3": "rejected", "other": "length"}
    done = bench.runs["2"].done
    assert done is not None
    assert isinstance(done.refusal, Refusal)
    assert done.refusal.whose == "flow"
    assert done.refusal.wait_s > 0
    assert done.error is not None


def test_a_prompt_in_the_cache_takes_little_of_the_queue(benches: Callable[..., Bench]):
    """A flow may queue what some five such prompts cost to compute. In the cache, twenty of them wait."""
    shared = [5 + at % 7 for at in range(640)]
    bench = benches(running=1, bounds=bounds(flow=Bound(1000, 120_000.0)))
    bench.add(generate("first", [*shared, 1], 1, flow="a"))
    bench.finish()
    bench.add(generate("runs", [9] * 10, 40, flow="b"))
    for number in range(20):
        bench.add(generate(f"cached {number}", [*shared, 2 + number], 1, flow="a"))
        bench.add(generate(f"new {number}", [40 + number, *shared], 1, flow="c"))
    bench.finish()
    refused = {id for id, run in bench.runs.items() if run.done is not None and run.done.reason == "rejected"}
    assert not [id for id in refused if id.startswith("cached")]
    assert len(refused) > 10


@pytest.mark.slow
def test_who_has_waited_too_long_in_its_lane_is_refused(benches: Callable[..., Bench]):
    bench = benches(running=1, queue_timeouts={"interactive": 30.0, "standard": 120.0})
    runs = bench.add(generate("runs", [5] * 70, 400, lane="interactive"))
    for lane in LANES:
        bench.add(generate(lane, [5] * 70, 4, lane=lane, flow="another"))
    for now, ended in ((29.0, set()), (31.0, {"interactive"}), (121.0, {"interactive", "standard"})):
        bench.now = now
        bench.step()
        assert {id for id, run in bench.runs.items() if run.done} == ended
    assert runs.done is None, "who was served is bounded by its own deadline alone"
    done = bench.runs["interactive"].done
    assert done is not None
    assert (done.reason, done.sequence, done.counts) == ("rejected", 0, Counts())
    assert done.refusal is not None
    assert done.refusal.whose == "lane"
    assert done.refusal.wait_s == 31.0
    bench.finish()
    assert bench.runs["batch"].done is not None
    assert bench.runs["batch"].done.reason == "length"


@pytest.mark.parametrize("lane", ["interactive", "standard"])
def test_a_tenant_that_fills_its_queue_and_all_slots_keeps_nobody_else_waiting(
    benches: Callable[..., Bench], lane: Lane
):
    """300 endless answers on four slots: another tenant's short one is queued, begins and ends before any of them."""
    bench = benches(running=4)
    many = [bench.add(generate(f"a{number}", [5] * 10, 1000, flow="a", lane=lane)) for number in range(300)]
    for _ in range(20):
        bench.step()
    other = bench.add(generate("b", [7] * 10, 4, flow="b", lane=lane))
    for _ in range(40):
        bench.now += 0.05
        bench.step()
    assert other.done is not None
    assert other.done.reason == "length"
    assert not any(run.tokens for run in many if run.done)
