"""Who gives way: the lowest lane first, then the least sunk work, never twice without progress; and slots."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.fairness_policies import FirstComeFirstServed
from engine.scheduling.fairness.fair_share import FairShare
from engine.scheduling.request import Request
from protocol.requests import LANES, Lane
from tests.engine.scheduling.replica_without_model import Replica, request
from tests.fast import examples


def private(number: int, prompt: int, output: int, lane: Lane = "standard", **fields: object) -> object:
    return request(number, prompt, output, lane=lane, read=False, store="none", **fields)


def test_memory_is_taken_from_the_lowest_lane_then_from_the_least_work():
    replica = Replica(FairShare(), blocks=12, running=4)
    wanted = {
        "long": private(1, 190, 100, "batch"),
        "short": private(2, 126, 100, "batch"),
        "standard": private(3, 62, 100),
        "high": private(4, 62, 200, "interactive"),
    }
    replica.add(*wanted.values())  # type: ignore[arg-type]
    given_up = []
    release = replica.policy.released
    replica.policy.released = lambda r: (given_up.append(r) if r not in replica.finished else None, release(r))  # type: ignore[method-assign,assignment]
    while not given_up:
        replica.step()
    assert given_up == [wanted["short"]]
    replica.policy.released = release  # type: ignore[method-assign]
    replica.finish()
    assert len(replica.finished) == 4
    assert wanted["high"].recomputed == 0  # type: ignore[attr-defined]
    assert replica.pool.referenced_blocks == 0


def test_a_higher_lane_takes_a_slot_at_once():
    replica = Replica(FairShare(), running=2)
    batch = [private(n, 64, 500, "batch") for n in range(4)]
    replica.add(*batch)  # type: ignore[arg-type]
    for _ in range(20):
        replica.step()
    high = private(9, 64, 5, "interactive")
    replica.add(high)  # type: ignore[arg-type]
    replica.step()
    assert high.began  # type: ignore[attr-defined]
    assert replica.scheduler.preemptions == 1
    replica.finish()
    assert len(replica.finished) == 5


@pytest.mark.slow
def test_no_slot_is_taken_again_before_its_loss_was_earned_again():
    replica = Replica(FairShare(lane_quantum=25_000.0), running=1)
    batch = private(0, 640, 400, "batch")
    replica.add(batch)  # type: ignore[arg-type]
    number = 0
    while replica.finished[-1:] != [batch]:
        replica.step()
        if not any(each.lane == "interactive" for each in replica.policy.waiting()):
            number += 1
            replica.add(private(number, 10, 1, "interactive"))  # type: ignore[arg-type]
        assert replica.now < 60e6, "batch does not come to its end"
    # Each time it was put out, it had to compute about 10 blocks again, and had earned as much before.
    work = batch.spent  # type: ignore[attr-defined]
    redone = batch.recomputed * replica.rates.uncached  # type: ignore[attr-defined]
    assert redone <= work + 1100 * replica.rates.uncached


def test_memory_is_never_taken_twice_without_progress():
    """Long prompts are computed in many steps, in which those who decode keep wanting memory."""
    replica = Replica(FairShare(), blocks=12, budget=72, running=8)
    taken: list[int] = []
    released = replica.policy.released

    def noting(each: Request) -> None:
        if each not in replica.finished:
            taken.append(each.fresh_output)
        released(each)

    replica.policy.released = noting  # type: ignore[method-assign]
    for number in range(20):
        replica.add(private(number, 400 if number % 2 else 60, 150))  # type: ignore[arg-type]
        for _ in range(7):
            replica.step()
    replica.finish()
    assert len(replica.finished) == 20
    assert len(taken) > 20
    assert min(taken) > 0, "a request gave way before it had got anything since the last time"


def test_nothing_is_taken_where_it_would_not_be_enough():
    replica = Replica(FairShare(), blocks=10, running=4)
    replica.add(private(1, 300, 50, "interactive"), private(2, 100, 50, "batch"))  # type: ignore[arg-type]
    for _ in range(3):
        replica.step()
    replica.add(private(3, 600, 5, "interactive"))  # type: ignore[arg-type]
    replica.step()
    assert replica.scheduler.preemptions == 0
    replica.finish()
    assert len(replica.finished) == 3


@pytest.mark.parametrize("shares", [False, True])
def test_no_paused_request_gives_way_to_one_that_does_not_fit_then(shares: bool):
    """`shares`: the running one holds most of their blocks as well, which they do not free."""
    replica = Replica(FairShare(), blocks=12, running=8)
    prefix = {"prefix": "common"} if shares else {}
    running = request(1, 300, 400, **prefix)
    replica.add(running)
    for _ in range(3):
        replica.step()
    paused = [request(number, 257 if shares else 100, 50, credit=1, **prefix) for number in (2, 3)]
    replica.add(*paused)
    for _ in range(3):
        replica.step()
    assert all(each.table for each in paused)
    large = private(4, 500, 5)
    replica.add(large)  # type: ignore[arg-type]
    for _ in range(3):
        replica.step()
    assert replica.scheduler.preemptions == 0
    assert all(each.table for each in paused)
    # To one that fits then, they do.
    small = private(5, 400 if shares else 200, 5, lane="interactive")
    replica.add(small)  # type: ignore[arg-type]
    replica.step()
    assert small.began  # type: ignore[attr-defined]
    assert 0 < replica.scheduler.preemptions <= 2
    assert running.table


@pytest.mark.parametrize("policy", [FairShare, FirstComeFirstServed])
def test_a_prefix_that_somebody_waits_for_outlives_the_flood_before_it(policy: type[FairShare | FirstComeFirstServed]):
    """Memory holds two of these prompts: by the order of use alone, the first is gone when its next turn is served."""
    replica = Replica(policy(), blocks=24, running=1)
    replica.add(request(1, 640, 2, prefix="conversation"))
    replica.finish()
    turn = request(9, 640, 2, prefix="conversation", lane="batch")
    replica.add(*(request(number, 640, 2, lane="interactive") for number in range(2, 8)), turn)
    replica.finish()
    assert replica.finished[-1] is turn
    assert turn.read_hbm == (576 if policy is FairShare else 0)


def test_interactive_prefill_overtakes_a_long_batch_prompt_which_still_goes_on():
    replica = Replica(FairShare(lane_quantum=2_000.0), budget=128, running=8)
    long = private(1, 6400, 2, "batch")
    replica.add(long)  # type: ignore[arg-type]
    replica.step()
    chat = private(2, 100, 2, "interactive")
    replica.add(chat)  # type: ignore[arg-type]
    for _ in range(3):
        replica.step()
    assert chat in replica.finished
    number = 2
    while long not in replica.finished:
        waiting = [each for each in replica.policy.waiting() if each.lane == "interactive"]
        for _ in range(9 - len(waiting)):
            number += 1
            replica.add(private(number, 100, 2, "interactive"))  # type: ignore[arg-type]
        replica.step()
        assert replica.now < 20e6, "a flood of interactive prompts starves an admitted batch prompt"


@pytest.mark.parametrize("quantum", [0.0, 1e9])
def test_the_prefill_of_a_flow_that_got_less_overtakes_a_long_prompt_of_its_lane_beyond_the_quantum(quantum: float):
    policy = FairShare(quantum=quantum)
    replica = Replica(policy, budget=128, running=8)
    long = private(1, 6400, 2, flow="wide")
    replica.add(long)  # type: ignore[arg-type]
    replica.step()
    small = private(3, 100, 2, flow="narrow")
    replica.add(small)  # type: ignore[arg-type]
    for _ in range(3):
        replica.step()
    assert not small.began, "what a flow is charged for the prompt itself does not count"  # type: ignore[attr-defined]
    policy.record_remote_service("another", 1, {"standard/wide": 1_000_000})
    for _ in range(3):
        replica.step()
    assert (small in replica.finished) == (quantum == 0.0)
    number = 3
    while long not in replica.finished:
        number += 1
        if not any(each.flow == "narrow" for each in replica.policy.waiting()):
            replica.add(private(number, 100, 2, flow="narrow"))  # type: ignore[arg-type]
        replica.step()
        assert replica.now < 3e6, "small prompts starve a long one that was admitted"


@pytest.mark.slow
@settings(max_examples=examples(60), deadline=None)
@given(st.data())
def test_everything_ends_and_no_block_leaks_under_any_pressure(data: st.DataObject):
    blocks = data.draw(st.sampled_from([6, 9, 20]))
    replica = Replica(FairShare(lane_quantum=5_000.0), blocks=blocks, budget=128, running=data.draw(st.integers(1, 6)))
    live = []
    for number in range(data.draw(st.integers(1, 25))):
        made = request(
            number,
            data.draw(st.sampled_from([1, 64, 65, 200])),
            data.draw(st.sampled_from([1, 70, 150])),
            lane=data.draw(st.sampled_from(LANES)),
            flow=data.draw(st.sampled_from("ab")),
            prefix=data.draw(st.integers(0, 2)),
            credit=data.draw(st.sampled_from([1, 1 << 30])),
            store=data.draw(st.sampled_from(["all", "none"])),
        )
        live.append(made)
        replica.add(made)
        for _ in range(data.draw(st.integers(0, 6))):
            replica.step()
            replica.pool.check()
        if data.draw(st.integers(0, 4)) == 0:
            gone = data.draw(st.sampled_from(live))
            if gone not in replica.finished:
                replica.scheduler.remove(gone)
                live.remove(gone)
    for made in live:
        made.credit = 1 << 30
        replica.scheduler.credited(made)
    replica.finish(5_000)
    assert set(replica.finished) == set(live)
    assert replica.pool.referenced_blocks == 0
    policy = replica.policy
    assert isinstance(policy, FairShare)
    for lane in LANES:
        assert policy.flows[lane].queued == 0
        for flow in policy.flows[lane].flows.values():
            assert not flow.running
    for made in live:
        made.counts().check()
        assert abs(made.charged - made.spent) < 1e-6, "what was charged ahead was given back"
