"""Flows inside a lane, against a naive model: who is next, who is lifted, what locality may cost (G2, G5)."""

from __future__ import annotations

import gc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.scheduling.fairness.deadline_demand import SLOT_S, DeadlineDemand
from engine.scheduling.fairness.fair_share import FORGOTTEN_S, HEARD_S, FairShare
from engine.scheduling.fairness.flow import MAX_OVERTAKEN, Flow
from engine.scheduling.fairness.flows import IDLE, LATE_BORROW_SHARE, MAX_WAKE_UP_DEBT_US, FlowShares
from engine.scheduling.fairness.lanes import LANE_WEIGHTS, ROUNDS
from engine.scheduling.fairness.service_totals import KEPT, LATELY_S, ServiceTotals
from engine.scheduling.step_costs import FixedCosts, MeasuredCosts, Rates
from engine.scheduling.token_sequence import TokenSequence
from protocol.requests import LANES, Lane
from tests.engine.scheduling.replica_without_model import request
from tests.fast import examples


def nothing(_: object) -> int:
    return 0


class Naive:
    """A sorted list: counters in a dictionary, the least of those that wait, by name in order of waking."""

    def __init__(self) -> None:
        self.counter: dict[str, float] = {}
        self.waiting: dict[str, list[str]] = {}
        self.floor = 0.0

    def push(self, flow: str, id: str) -> None:
        if not self.waiting.get(flow):
            backlogged = [self.counter[f] for f, ids in self.waiting.items() if ids]
            level = min(backlogged, default=self.floor)
            self.counter[flow] = min(max(self.counter.get(flow, self.floor), level), level + MAX_WAKE_UP_DEBT_US)
        self.waiting.setdefault(flow, []).append(id)

    def least(self) -> float:
        least = min(self.counter[f] for f, ids in self.waiting.items() if ids)
        self.floor = max(self.floor, least)
        return least


@settings(max_examples=examples(150), deadline=None)
@given(st.data())
def test_the_least_served_flow_is_next_and_who_wakes_is_lifted(data: st.DataObject):
    shares, naive = FlowShares(0.0), Naive()
    requests = {}
    for number in range(data.draw(st.integers(1, 60))):
        flow = data.draw(st.sampled_from("abcd"))
        waits = [f for f, ids in naive.waiting.items() if ids]
        match data.draw(st.integers(0, 3)):
            case 0 | 1:
                requests[str(number)] = request(number, flow=flow)
                shares.push(requests[str(number)])
                naive.push(flow, str(number))
            case 2 if waits:
                least = naive.least()
                chosen = shares.choose(nothing)
                assert chosen is not None
                assert naive.counter[chosen.flow] == least
                assert naive.waiting[chosen.flow][0] == chosen.id, "first come, first served inside a flow"
                shares.remove(chosen, 0.0)
                naive.waiting[chosen.flow].remove(chosen.id)
                cost = data.draw(st.sampled_from([1.0, 10.0, 500.0]))
                shares.charge(shares.flow(chosen.flow), cost)
                naive.counter[chosen.flow] += cost
            case 3 if waits:
                flow = data.draw(st.sampled_from(sorted(waits)))
                id = data.draw(st.sampled_from(naive.waiting[flow]))
                shares.remove(requests[id])
                naive.waiting[flow].remove(id)
        assert len(shares) == sum(map(len, naive.waiting.values()))
        for name, flow_ in shares.flows.items():
            assert flow_.counter == naive.counter[name]
    if not any(naive.waiting.values()):
        assert shares.choose(nothing) is None


def test_who_wakes_is_not_billed_for_what_others_have_in_flight():
    policy = FairShare(quantum=0.0)
    long = [request(number, 64, 500, flow="long") for number in range(3)]
    for each in long:
        policy.push(each)
    for each in long[:2]:
        policy.admitted(each)
        policy.placed(each)
    shares, rates = policy.flows["standard"], long[0].rates
    assert shares.flow("long").counter == sum(each.charged for each in long[:2])
    policy.push(woken := request(9, flow="woken"))
    assert shares.flow("woken").counter == pytest.approx(rates.cost(2 * 64, 0, 0)), "prompts, and no output yet"
    policy.admitted(woken)
    long[0].tokens = TokenSequence([0] * 74)
    policy.push(request(10, flow="later"))
    assert shares.flow("later").counter == pytest.approx(rates.cost(2 * 64, 0, 10))


def test_a_prefix_in_memory_goes_first_within_the_quantum_and_not_beyond():
    shares = FlowShares(100.0)
    cold, warm = request(1, flow="cold"), request(2, flow="warm")
    shares.push(cold)
    shares.push(warm)
    matched = {cold: 0, warm: 640}.__getitem__
    shares.charge(shares.flow("warm"), 100.0)
    assert shares.choose(matched) is warm
    shares.charge(shares.flow("warm"), 0.5)
    assert shares.choose(matched) is cold


@pytest.mark.parametrize(("running", "last", "first"), [(0, False, "warm"), (1, True, "warm"), (0, True, "cold")])
def test_the_last_slot_goes_to_the_least_if_that_has_none(running: int, last: bool, first: str):
    shares = FlowShares(100.0)
    shares.push(request(1, flow="cold"))
    shares.push(warm := request(2, flow="warm"))
    shares.charge(shares.flow("warm"), 50.0)
    shares.flow("cold").running = {n: request(n, flow="cold") for n in range(10, 10 + running)}
    chosen = shares.choose(lambda each: 640 * (each is warm), last)
    assert chosen is not None
    assert chosen.flow == first


def test_a_deadline_is_a_reason_to_take_the_last_slot():
    shares = FlowShares(100.0, by_deadline=True)
    shares.push(request(1, flow="least", deadline=50.0))
    shares.push(soon := request(2, flow="other", deadline=20.0))
    shares.charge(shares.flow("other"), 50.0)
    assert shares.choose(nothing, True) is soon


def test_inside_a_flow_a_prefix_in_memory_goes_first_and_nobody_is_passed_for_ever():
    shares = FlowShares(100.0)
    cold = [request(number) for number in range(2)]
    warm = [request(number) for number in range(2, 40)]
    for each in cold + warm:
        shares.push(each)
    order = []
    while (chosen := shares.choose(lambda each: 64 * (each.arrival >= 2))) is not None:
        shares.remove(chosen, 0.0)
        order.append(chosen.arrival)
    assert order[:MAX_OVERTAKEN] == list(range(2, 2 + MAX_OVERTAKEN))
    assert order[MAX_OVERTAKEN : MAX_OVERTAKEN + 2] == [0, 1]
    assert order[MAX_OVERTAKEN + 2 :] == sorted(order[MAX_OVERTAKEN + 2 :])


def test_inside_a_flow_a_short_prompt_goes_before_long_ones_and_nobody_is_passed_for_ever():
    shares = FlowShares(100.0)
    for each in (request(0, 5000), request(1, 5000), *(request(number, 64) for number in range(2, 40))):
        shares.push(each)
    other = request(99, 5000, flow="other")
    shares.push(other)
    shares.charge(shares.flow("other"), 1.0)
    order = []
    while (chosen := shares.choose(nothing)) is not None:
        shares.remove(chosen, 0.0)
        order.append(chosen.arrival)
    assert order[: MAX_OVERTAKEN + 2] == [*range(2, 2 + MAX_OVERTAKEN), 0, 1]
    assert order[-1] == 99, "a short prompt buys its flow nothing against another"


def test_kv_that_was_kept_counts_as_a_prefix_in_memory():
    shares = FlowShares(100.0)
    kept = request(1, 5000, swapped_tokens=4992)
    shares.push(request(0, 640))
    shares.push(kept)
    assert shares.choose(nothing) is kept


def test_output_is_charged_block_by_block_and_not_before():
    policy = FairShare()
    for number in range(20):  # a flow whose answers are known to be long
        policy.push(done := request(number, 64, 2000))
        policy.admitted(done)
        policy.placed(done)
        done.computed = 64
        done.tokens = TokenSequence([0] * 2064)
        policy.released(done)
    policy.push(made := request(99, 100, 2000))
    policy.admitted(made)
    policy.placed(made)
    assert made.charged == made.rates.cost(100, 0, 64)
    made.computed = 100
    for output in (1, 28, 64, 92):
        made.tokens = TokenSequence([0] * (100 + output))
        policy.grown([made])
        assert made.charged == pytest.approx(made.rates.cost(100, 0, output + 64))


def test_where_waiting_counts_flows_are_level_up_to_the_finish_of_the_least():
    """100 µs of Q, and 3000 of the least flow's own prompt on top, in the lane that is for waiting people alone."""
    for by_finish_tag in (False, True):
        shares = FlowShares(100.0, by_finish_tag=by_finish_tag)
        long, short = request(1, 100, flow="long"), request(2, 64, flow="short")
        shares.push(long)
        shares.push(short)
        ahead = 100.0 + by_finish_tag * long.rates.cost(100, 0, 0)
        shares.charge(shares.flow("short"), ahead)
        assert shares.choose(nothing) is short
        shares.charge(shares.flow("short"), 0.5)
        assert shares.choose(nothing) is long


def test_a_prompt_within_the_quantum_passes_a_long_one_until_its_flow_is_ahead_by_it():
    policy = FairShare(quantum=3_000.0)
    number, passed = 10, 0
    policy.push(long := request(1, 6400, flow="long", lane="interactive"))
    policy.admitted(long)
    policy.placed(long)
    for flow in ("other", "long"):
        for _ in range(2 * MAX_OVERTAKEN):
            number += 1
            policy.push(short := request(number, 64, flow=flow, lane="interactive"))
            before = list(policy.prefills_before(short, 64, [long]))
            policy.admitted(short)
            policy.placed(short)
            first = policy.next_prefill([long, short])
            assert first is long or not before, "who is overtaken was counted at admission"
            short.tokens.append(0)
            short.computed, short.max_kv = 64, 64
            policy.released(short)
            passed += first is short
            if flow == "other":
                policy.flows["interactive"].charge(policy.flows["interactive"].flow(flow), 150_000.0)
        assert 0 < passed < MAX_OVERTAKEN, f"{flow} holds a long prompt up for ever, or never passes it"
        passed = 0


def test_a_step_in_which_an_interactive_prompt_ends_is_not_made_longer_but_every_other_time():
    policy = FairShare()
    low = request(2, 64_000, flow="low", lane="standard")
    for number, chosen in ((3, None), (4, low), (5, None)):
        policy.begin_step(0.0)
        first = request(number, 640, flow="chat", lane="interactive")
        assert policy.next_prefill([low, first]) is first
        policy.prefilled(first, 640)
        assert policy.next_prefill([low]) is chosen
    policy.begin_step(0.0)
    assert policy.next_prefill([low]) is low, "and is not empty"


def test_replicas_that_hear_of_each_other_share_the_quantum():
    policy = FairShare(quantum=1_000.0)
    policy.begin_step(100.0)
    for replica in ("b", "c", "d"):
        policy.record_remote_service(replica, 1, {})
    assert {flows.quantum for flows in policy.flows.values()} == {250.0}
    policy.begin_step(100.0 + 2 * HEARD_S)
    policy.record_remote_service("b", 2, {})
    assert {flows.quantum for flows in policy.flows.values()} == {500.0}


class Elsewhere:
    """Two long prompts on a replica, `wide` before `narrow`, and another replica that serves `wide` too."""

    def __init__(self, lane: Lane = "standard") -> None:
        self.policy = FairShare(quantum=0.0)
        self.wide, self.narrow = (
            request(number, 640, flow=flow, lane=lane) for number, flow in enumerate(("wide", "narrow"))
        )
        for each in (self.wide, self.narrow):
            self.policy.push(each)
        for each in (self.wide, self.narrow):
            self.policy.admitted(each)
            self.policy.placed(each)
        self.lane = lane
        self.total = 0

    def heard(self, now: float, cost: int) -> None:
        """The other replica gave `wide` so much; `narrow` got as much here, so that all that is known is level."""
        self.policy.begin_step(now)
        self.total += cost
        self.policy.record_remote_service("r2", 1, {f"{self.lane}/wide": self.total})
        flows = self.policy.flows[self.lane]
        flows.charge(flows.flow("narrow"), float(cost))

    def first(self, now: float) -> str:
        """Whose prompt is computed; and a new one of `narrow` stands behind those that are before its own."""
        self.policy.begin_step(now)
        pending = [self.wide, self.narrow]
        chosen = self.policy.next_prefill(pending)
        assert chosen is not None
        new = request(9, 640, flow="narrow", lane=self.lane)
        assert (self.wide in self.policy.prefills_before(new, 640, pending)) == (chosen is self.wide)
        return chosen.flow


def test_what_flows_are_thought_to_have_got_elsewhere_counts_in_the_order_of_prompts():
    there = Elsewhere()
    there.heard(100.0, 1_000_000)
    assert there.first(100.5) == "wide", "nothing is known of how fast it goes on"
    there.heard(101.0, 500_000)
    assert there.first(101.5) == "narrow"
    there.heard(101.6, 0)
    assert there.first(101.7) == "narrow", "another gateway told the same"
    assert there.policy.peek(nothing) is None
    counters = {flow.counter for flow in there.policy.flows["standard"].flows.values()}
    assert len(counters) == 1, "nobody is charged for what is only thought"


def test_what_is_thought_to_happen_elsewhere_ends_with_the_news():
    there = Elsewhere()
    for second in range(3):
        there.heard(100.0 + second, 500_000)
    assert there.first(102.0 + LATELY_S) == "narrow"
    assert there.first(102.1 + LATELY_S) == "wide", "it has been silent for too long"
    there.heard(103.0 + LATELY_S, 500_000)
    assert there.first(103.0 + LATELY_S) == "wide", "how fast it goes on has to be learnt again"
    there.heard(104.0 + LATELY_S, 500_000)
    assert there.first(104.0 + LATELY_S) == "narrow"
    there.policy.record_remote_service("r2", 1, {"standard/third": 7})
    assert there.first(104.5 + LATELY_S) == "wide", "others are served there now"


def test_interactive_prompts_keep_their_order_whatever_happens_elsewhere():
    there = Elsewhere("interactive")
    for second in range(3):
        there.heard(100.0 + second, 500_000)
    assert there.first(102.5) == "wide"


def test_a_replica_that_was_silent_for_long_is_forgotten():
    policy = FairShare()
    policy.begin_step(100.0)
    policy.record_remote_service("gone", 1, {"standard/f": 7})
    policy.begin_step(100.0 + FORGOTTEN_S)
    policy.record_remote_service("gone", 1, {"standard/f": 7})
    assert policy.service.all_heard == 7, "no news"
    policy.begin_step(200.0 + 2 * FORGOTTEN_S)
    policy.record_remote_service("other", 1, {})
    policy.record_remote_service("gone", 1, {"standard/f": 7})
    assert policy.service.all_heard == 14


def test_a_lane_borrows_for_who_is_late_and_most_for_a_flow_that_waits_while_another_got_more():
    policy = FairShare(quantum=100.0, lane_quantum=1_000.0, borrow_after=dict.fromkeys(LANES, 1.0))
    policy.push(request(1, flow="greedy", lane="standard", arrived_at=10.0))
    policy.push(request(2, flow="g", lane="batch", arrived_at=0.0))
    standard = policy.flows["standard"]
    standard.charge(standard.flow("greedy"), 5_000.0)
    borrowed = ROUNDS["standard"] * LANE_WEIGHTS["standard"] * 1_000.0
    policy.lanes.reserve["standard"] = 0.0
    policy.lanes.balance["standard"] = -borrowed * LATE_BORROW_SHARE + 1.0

    def turn(now: float) -> str:
        policy.begin_step(now)
        head = policy.peek(nothing)
        assert head is not None
        return head.flow

    assert turn(10.5) == "g", "its first token is not late"
    assert turn(20.0) == "greedy", "a part is for whoever is late"
    policy.lanes.balance["standard"] -= 1.0
    assert turn(20.0) == "g", "who got the most gets no more than that"
    policy.flows["standard"].flow("modest").counter = 0.0
    policy.push(request(3, flow="modest", lane="standard", arrived_at=20.0))
    policy.flows["standard"].charge(standard.flow("modest"), -4_000.0)
    assert turn(20.5) == "g"
    assert turn(21.5) == "modest"


def test_batch_takes_the_earliest_deadline_within_the_quantum():
    shares = FlowShares(100.0, by_deadline=True)
    late, soon, never = (request(n, flow=str(n), deadline=d) for n, d in ((1, 50.0), (2, 20.0), (3, None)))
    for each in (late, soon, never):
        shares.push(each)
    assert shares.choose(nothing) is soon
    shares.remove(soon)
    shares.push(sooner := request(4, flow="1", deadline=10.0))
    assert shares.choose(nothing) is sooner, "earliest deadline first inside a flow too"


@settings(max_examples=examples(60), deadline=None)
@given(data=st.data())
def test_dues_are_the_largest_part_of_the_time_to_any_deadline(data: st.DataObject):
    """Against a look at all that waits, with deadlines in slots; what was taken out leaves nothing."""
    deadline_demand, waiting = DeadlineDemand(), []
    for now in range(100, 120):
        for _ in range(data.draw(st.integers(0, 3))):
            each = (
                data.draw(st.sampled_from([None, 105.0, 130.0, 139.0, 500.0])),
                data.draw(st.sampled_from([1e6, 2e7])),
            )
            deadline_demand.add(*each)
            waiting.append(each)
        if waiting and data.draw(st.booleans()):
            deadline_demand.remove(*waiting.pop(data.draw(st.integers(0, len(waiting) - 1))))
        slots = [(deadline // SLOT_S * SLOT_S, cost) for deadline, cost in waiting if deadline]
        wanted = 0.0
        for slot, _ in slots:
            work = sum(cost for other, cost in slots if other <= slot) / 1e6
            wanted = max(wanted, 1.0 if slot - now <= work else work / (slot - now))
        assert deadline_demand.share(float(now)) == pytest.approx(wanted)
    for each in waiting:
        deadline_demand.remove(*each)
    assert deadline_demand.share(1000.0) == 0.0


def test_sub_flows_take_turns():
    policy = FairShare()
    for number in range(6):
        policy.push(request(number, flow="f", sub_flow="script"))
    policy.push(request(6, flow="f", sub_flow="product"))
    order = []
    while (head := policy.peek(nothing)) is not None:
        policy.admitted(head)
        order.append(head.sub_flow)
    assert order[:3] == ["script", "product", "script"]


def test_weights_divide_the_charge():
    shares = FlowShares(0.0)
    served = {"light": 0, "heavy": 0}
    for number in range(1100):
        shares.push(request(number, flow="light", weight=1))
        shares.push(request(2000 + number, flow="heavy", weight=10))
    for _ in range(1100):
        chosen = shares.choose(nothing)
        assert chosen is not None
        shares.remove(chosen)
        shares.charge(shares.flow(chosen.flow), 7.0)
        served[chosen.flow] += 1
    assert served == {"light": 100, "heavy": 1000}


def test_flows_that_would_come_back_as_new_are_forgotten():
    shares = FlowShares(0.0)
    for number in range(100):
        shares.push(one := request(number, flow=str(number)))
        shares.remove(one)
    shares.charge(shares.flow("99"), 5.0)
    shares.forget_idle()
    assert set(shares.flows) == {"99"}


def test_of_flows_that_come_once_so_many_are_kept_as_got_the_most():
    """Where nobody waits the floor stays, and all who came once are above it."""
    shares = FlowShares(0.0)
    for number in range(IDLE + 10):
        shares.push(one := request(number, flow=str(number)))
        shares.remove(one, 0.0)
        shares.charge(shares.flow(one.flow), 1.0 + number)
    shares.forget_idle()
    assert set(shares.flows) == {str(number) for number in range(10, IDLE + 10)}


def test_a_flow_that_is_forgotten_is_freed_at_once():
    """Not by the collector of garbage: it looks at old objects seldom, and until then they pile up."""
    shares = FlowShares(0.0)
    for number in range(100):
        shares.push(one := request(number, flow=str(number)))
        shares.choose(nothing)
        shares.remove(one, 0.0)
    gc.collect()
    gc.disable()
    try:
        before = sum(type(each) is Flow for each in gc.get_objects())
        shares.forget_idle()
        after = sum(type(each) is Flow for each in gc.get_objects())
    finally:
        gc.enable()
    assert before - after >= 99, "the last one may still have its place in the order"


def test_a_debt_made_elsewhere_is_bounded():
    policy = FairShare(quantum=0.0)
    policy.record_remote_service("r2", 1, {"standard/busy": int(MAX_WAKE_UP_DEBT_US * 50)})
    policy.push(request(1, flow="quiet"))
    policy.push(request(2, flow="busy"))
    assert policy.peek(nothing).flow == "quiet"  # type: ignore[union-attr]
    assert policy.flows["standard"].flow("busy").counter == MAX_WAKE_UP_DEBT_US


def test_service_totals_are_heard_once_and_may_begin_again():
    totals = ServiceTotals()
    assert list(totals.news("r", 1, {"standard/a": 10, "batch/b/c": 5, "unknown/x": 7})) == [
        ("standard", "a", 10),
        ("batch", "b/c", 5),
    ]
    assert list(totals.news("r", 1, {"standard/a": 10, "batch/b/c": 5})) == []
    assert list(totals.news("r", 1, {"standard/a": 3})) == [], "told late by another gateway"
    assert list(totals.news("r", 1, {"standard/a": 12})) == [("standard", "a", 2)]
    assert list(totals.news("r", 2, {"standard/a": 3})) == [("standard", "a", 3)]
    assert list(totals.news("r", 1, {"standard/a": 20})) == [], "an older incarnation"
    assert list(totals.news("other", 1, {"standard/a": 3})) == [("standard", "a", 3)]
    for number in range(KEPT + 10):
        totals.add("standard", str(number), 1.5)
    assert len(totals.given()) == KEPT
    assert "standard/0" not in totals.given()


def test_fixed_costs_say_what_fits_into_a_target():
    costs = FixedCosts(Rates(step=1000, uncached=10, cached=1, row=100, batch=10))
    assert costs.prefill_within(3000, 10) == 100
    assert costs.prefill_within(500, 10) == 0
    assert costs.rates.cost(10, 20, 3) == 100 + 20 + 3 * 200


def test_measured_costs_come_near_the_machine():
    truth = Rates(step=4000, uncached=20, cached=0.2, row=30, batch=64)
    costs = MeasuredCosts(64)
    assert costs.prefill_within(1.0, 5) == float("inf"), "nothing is limited before it was measured"
    for number in range(200):
        decodes = (1, 7, 16, 60)[number % 4]
        prefill = (0, 512)[number // 4 % 2]
        costs.observe(prefill, decodes, truth.step_time(prefill, decodes) if prefill or decodes else 0)
    assert costs.decode_time(16) == pytest.approx(truth.step_time(0, 16), rel=0.1)
    assert costs.rates.uncached == pytest.approx(truth.uncached, rel=0.2)
    assert costs.rates.decoded == pytest.approx(truth.decoded, rel=0.2)
    fits = costs.prefill_within(20_000, 16)
    assert truth.step_time(int(fits), 16) == pytest.approx(20_000, rel=0.15)
