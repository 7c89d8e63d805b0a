"""Slots and memory are shared inside a lane: who holds more than its part gives way, seldom, and at a bounded cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.scheduling.fairness.fair_share import FairShare
from engine.scheduling.fairness.slot_shares import BURST, CLAIM_AFTER_S, LOOK_EVERY_S, LOSS, ROTATION_S, SlotShares
from engine.scheduling.policy import Capacity, Claim
from engine.scheduling.request import Request
from protocol.requests import LANES, Lane
from tests.engine.conftest import Bench, generate
from tests.engine.scheduling.replica_without_model import RATES, Replica, request
from tests.fast import examples

SLOTS = 16


def given_by(replica: Replica) -> float:
    """µs of engine time that the replica charged so far."""
    assert isinstance(replica.policy, FairShare)
    return sum(replica.policy.lanes.given.values())


def streams(count: int, first: int = 0, **fields: object) -> list[Request]:
    """Long answers."""
    given = {"prompt": 64, "output": 1500, "flow": "a", **fields}
    return [request(first + number, **given) for number in range(count)]  # type: ignore[arg-type]


def flooded(*requests: Request, steps: int = 40, **options: int) -> Replica:
    replica = Replica(FairShare(), running=SLOTS, **options)
    replica.add(*requests)
    for _ in range(steps):
        replica.step()
    return replica


def assert_first_token_within(replica: Replica, wanted: Request, most: float) -> None:
    """Step until the request has its first token, which takes a few steps beyond `most` seconds of simulated time."""
    before = replica.now / 1e6
    replica.add(wanted)
    while not wanted.output:
        replica.step()
        assert not replica.finished, "it waited until a stream ended"
    assert replica.now / 1e6 - before <= most + 3 * RATES.step_time(replica.budget, SLOTS) / 1e6


@pytest.mark.parametrize("lane", LANES)
@pytest.mark.parametrize("count", [SLOTS, SLOTS + 6, 4 * SLOTS])
def test_a_short_request_does_not_wait_until_another_tenants_streams_end(lane: Lane, count: int):
    replica = flooded(*streams(count, lane=lane))
    assert_first_token_within(replica, request(9_000, 64, 4, flow="b", lane=lane), CLAIM_AFTER_S[lane] + LOOK_EVERY_S)
    assert replica.scheduler.preemptions == 1


def test_nor_for_streams_whose_clients_do_not_read():
    """They are out of credit, or get a little now and then."""
    replica = flooded(*streams(4 * SLOTS, credit=8))
    for each in list(replica.scheduler.running):
        each.credit = 1 << 30
        replica.scheduler.credited(each)
    assert_first_token_within(replica, request(9_000, 64, 4, flow="b"), CLAIM_AFTER_S["standard"] + LOOK_EVERY_S)


def test_who_holds_the_memory_gives_way_though_slots_are_free():
    replica = Replica(FairShare(), running=SLOTS, blocks=40)
    replica.add(*streams(3, prompt=700, output=200))
    for _ in range(10):
        replica.step()
    assert len(replica.scheduler.running) == 3
    assert_first_token_within(replica, request(9_000, 640, 4, flow="b"), CLAIM_AFTER_S["standard"] + LOOK_EVERY_S)


def test_a_sub_flow_does_not_wait_until_another_ones_streams_end():
    replica = flooded(*streams(4 * SLOTS, sub_flow="script"))
    product = request(9_000, 64, 4, flow="a", sub_flow="product")
    assert_first_token_within(replica, product, CLAIM_AFTER_S["standard"] + LOOK_EVERY_S)


def test_more_tenants_than_slots_take_turns():
    """Each has one endless answer: all have begun before any has had its slot for twice its turn."""
    tenants = [request(number, 64, 100_000, flow=str(number)) for number in range(2 * SLOTS)]
    replica = Replica(FairShare(), running=SLOTS)
    replica.add(*tenants)
    while not all(each.output for each in tenants):
        replica.step()
        assert replica.now / 1e6 <= 3 * ROTATION_S["standard"]
    turns = replica.scheduler.preemptions
    began = replica.now
    while replica.now < began + 4e6 * ROTATION_S["standard"]:
        replica.step()
    assert replica.scheduler.preemptions - turns <= 5 * SLOTS, "nobody gives way before its turn is over"


@pytest.mark.parametrize(("weight", "slots"), [(1, 7), (3, 11)])
def test_slots_come_to_the_weights_and_stay_there(weight: int, slots: int):
    """A request and an eighth are no reason to preempt."""
    replica = flooded(*streams(4 * SLOTS, output=100_000))
    replica.add(*streams(4 * SLOTS, 1_000, output=100_000, flow="b", weight=weight))
    for _ in range(3_000):
        replica.step()
    held = Counter(each.flow for each in replica.scheduler.running)
    assert held["b"] == slots
    preempted = replica.scheduler.preemptions
    assert preempted == slots, "as many as changed hands"
    for _ in range(1_000):
        replica.step()
    assert replica.scheduler.preemptions == preempted


def test_a_tenant_that_ran_alone_does_not_lose_all_slots_to_one_that_wakes():
    """What it got while nobody else wanted it is not held against it: the other has half, with short answers too."""
    replica = flooded(*streams(SLOTS, output=20_000), steps=2_000)
    number, held = 1_000, []
    for step in range(3_000):
        while sum(each.flow == "b" for each in replica.policy.waiting()) < SLOTS:
            number += 1
            replica.add(request(number, 64, 100, flow="b"))
        replica.step()
        if step >= 1_000:
            held.append(sum(each.flow == "a" for each in replica.scheduler.running))
    assert min(held) >= SLOTS // 2 - 2
    assert max(held) <= SLOTS // 2 + 2
    assert replica.scheduler.preemptions < SLOTS


def test_who_is_preempted_is_the_cheapest_to_resume():
    """Not who came last: what it computed is not in the index, and would be computed again from the beginning."""
    short, last = streams(1)[0], streams(1, 100, read=False, store="none")[0]
    replica = flooded(*streams(SLOTS - 2, 1, prompt=200, read=False, store="none"), short, last)
    replica.add(wanted := request(9_000, 64, 4, flow="b"))
    while not wanted.began:
        replica.step()
    assert short not in replica.scheduler.running
    assert last in replica.scheduler.running


def test_nobody_looks_for_claims_while_everybody_has_its_part(monkeypatch: pytest.MonkeyPatch):
    """Flows that hold as much as each other, with more waiting: that answers grow is no reason to look."""
    looks: Counter[str] = Counter()
    claims = FairShare.claims

    def counted(self: FairShare, capacity: Capacity) -> Iterable[Claim]:
        looks["claims"] += 1
        return claims(self, capacity)

    monkeypatch.setattr(FairShare, "claims", counted)
    replica = flooded(*(each for flow in "abcd" for each in streams(6, 10 * ord(flow), flow=flow)), steps=200)
    assert Counter(each.flow for each in replica.scheduler.running) == dict.fromkeys("abcd", SLOTS // 4)
    looks.clear()
    began = replica.now
    for _ in range(1_000):
        replica.step()
    assert not replica.finished
    assert replica.now - began > 20e6 * LOOK_EVERY_S
    assert not looks["claims"]


def test_who_grows_beyond_its_part_of_memory_gives_way():
    """Nothing comes and nothing ends: answers alone grow, until two of the tenant's hold more than the other's two."""
    replica = Replica(FairShare(), running=4, blocks=200)
    replica.add(*streams(3, prompt=1920, output=3_000), *streams(1, 10, flow="b", output=3_000))
    for _ in range(40):
        replica.step()
    replica.add(waiting := request(20, 64, 4, flow="b"))
    for _ in range(200):
        replica.step()
    assert not waiting.began, "by slots each has its part"
    while not waiting.began:
        replica.step()
        assert not replica.finished
    assert replica.scheduler.preemptions == 1, "one gave way, and for no want of memory before"


@settings(max_examples=examples(60), deadline=None)
@given(data=st.data())
def test_who_is_called_settled_has_no_claim(data: st.DataObject):
    """Whatever comes, goes and grows, memory short or not: whenever claims are not looked for, there are none."""
    slots = data.draw(st.sampled_from([2, 5, 8]))
    replica = Replica(FairShare(), running=slots, blocks=data.draw(st.sampled_from([40, 100, 4096])))
    policy = replica.policy
    assert isinstance(policy, FairShare)

    def look() -> None:
        for lane, flows in policy.flows.items():
            settled = flows.blocks_until_claim
            if settled <= 0:
                continue
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr("engine.scheduling.fairness.slot_shares._blocks_until_claim", lambda *_: 0)
                # By a clock at which all have waited and held their slots for long.
                found = SlotShares().claims(lane, flows, replica.scheduler.capacity, 1e9, 0.0)
                assert not [victim for _, victims in found for victim in victims]
            flows.blocks_until_claim = settled

    for number in range(data.draw(st.integers(2, 20))):
        made = request(
            number,
            data.draw(st.sampled_from([1, 64, 300, 900])),
            data.draw(st.sampled_from([4, 200, 900])),
            flow=data.draw(st.sampled_from("abc")),
            sub_flow=data.draw(st.sampled_from(["x", "x", "x", "y"])),
            weight=1,
        )
        replica.add(made)
        for _ in range(data.draw(st.sampled_from([0, 3, 100]))):
            replica.step()
            look()
    while replica.scheduler.busy:
        replica.step()
        look()


@settings(max_examples=examples(30), deadline=None)
@given(data=st.data())
def test_what_claims_cost_is_bounded_and_everything_ends(data: st.DataObject):
    """Random streams of random tenants, cached or not; some leave. What preemption cost is a part of what was given."""
    slots = data.draw(st.sampled_from([1, 3, 8]))
    replica = Replica(FairShare(), running=slots, blocks=data.draw(st.sampled_from([64, 4096])))
    live: list[Request] = []
    lost: dict[tuple[str, int], float] = {}
    """What the preemption before each placing cost."""

    def look() -> None:
        lost.update({(each.id, each.placement): each.preemption_cost for each in replica.scheduler.running})

    dearest = 0.0
    for number in range(data.draw(st.integers(2, 25))):
        cached = data.draw(st.booleans())
        made = request(
            number,
            data.draw(st.sampled_from([1, 64, 300, 900])),
            data.draw(st.sampled_from([4, 200, 900])),
            flow=data.draw(st.sampled_from("abc")),
            sub_flow=data.draw(st.sampled_from("xy")),
            weight=1,
            read=cached,
            store="all" if cached else "none",
        )
        dearest = max(dearest, RATES.cost(made.prompt + made.max_output, 0, 0))
        live.append(made)
        replica.add(made)
        for _ in range(data.draw(st.sampled_from([0, 3, 200]))):
            replica.step()
            look()
        if data.draw(st.integers(0, 5)) == 0:
            gone = data.draw(st.sampled_from(live))
            if gone not in replica.finished:
                replica.scheduler.remove(gone)
                live.remove(gone)
    while replica.scheduler.busy:
        replica.step()
        look()
    assert set(replica.finished) == set(live)
    assert replica.pool.referenced_blocks == 0
    if replica.blocks == 4096:  # else memory is taken for other reasons as well
        assert sum(lost.values()) <= LOSS * given_by(replica) + BURST + (1 + slots) * dearest
    for made in live:
        made.counts().check()


@pytest.mark.slow
def test_answers_are_the_same_however_often_their_slots_were_taken(benches: Callable[..., Bench]):
    """E1 and E2: with the model, against the same requests alone."""
    alone = benches(blocks=256, running=2)
    bench = benches(blocks=256, running=2)
    long = [generate(f"a{number}", [number + 2] * 70, 300, flow="a") for number in range(4)]
    want = {each.id: list(alone.one(each).tokens) for each in long}
    for each in long:
        bench.add(each)
    number = 0
    while not all(bench.runs[each.id].done for each in long):
        bench.step()
        bench.now += 0.01
        if bench.engine.steps % 40 == 0:
            number += 1
            bench.add(generate(f"b{number}", [100] * 5, 4, flow="b"))
    bench.finish()
    assert bench.engine.scheduler.preemptions > 4
    for each in long:
        assert bench.runs[each.id].tokens == want[each.id]
        assert bench.counts(each.id).prompt == 70
    assert sum(bench.counts(each.id).recomputed for each in long) > 0
