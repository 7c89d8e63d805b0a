"""G1 to G6 of the fair-share policy, with their constants, on the real scheduler and block pool without a model."""

from __future__ import annotations

import random
from collections import defaultdict

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from benchmarks.fairness_policies import FirstComeFirstServed
from engine.scheduling.fairness.fair_share import FairShare
from engine.scheduling.fairness.lanes import LANE_WEIGHTS, ROUNDS, LaneShares
from engine.scheduling.fairness.slot_shares import CLAIM_AFTER_S, LOOK_EVERY_S, ROTATION_S
from engine.scheduling.policy import Policy
from engine.scheduling.request import Request
from engine.scheduling.step_costs import FixedCosts, Rates
from engine.scheduling.step_work import Step
from prompt_cache.kv.block_keys import BLOCK_TOKENS
from protocol.requests import LANES, Lane
from tests.engine.scheduling.replica_without_model import RATES, Replica, request
from tests.fast import examples

SLOTS = st.sampled_from([1, 2, 5])


def spare(quantum: float) -> float:
    """L: what all lanes together may keep, or borrow, in µs."""
    return sum(ROUNDS[lane] * LANE_WEIGHTS[lane] * quantum for lane in LANES)


class Meter:
    """What each flow and lane got, and the most that one request cost or was charged (E)."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.most = 0.0

    def look(self) -> None:
        self.most = max(self.most, *(max(r.charged, r.spent) for r in self.requests))

    def service(self, by: str) -> dict[str, float]:
        got: dict[str, float] = defaultdict(float)
        for each in self.requests:
            got[getattr(each, by)] += each.spent
        return got


class Source:
    """Keeps flows backlogged: more requests of each wait than a step can admit."""

    def __init__(self, data: st.DataObject, meter: Meter, flows: dict[str, tuple[Lane, int]]) -> None:
        self.data, self.meter, self.flows = data, meter, flows
        self.kinds = {
            flow: data.draw(st.lists(st.tuples(*map(st.sampled_from, self.SHAPES)), min_size=1, max_size=3), flow)
            for flow in flows
        }
        self.number = 0

    SHAPES = ([1, 64, 500, 1500], [1, 20, 300], [False, True])

    def fill(self, replica: Replica) -> None:
        waiting: dict[str, int] = defaultdict(int)
        for each in replica.policy.waiting():
            waiting[each.flow] += 1
        for flow, (lane, weight) in self.flows.items():
            while waiting[flow] <= replica.running:
                waiting[flow] += 1
                replica.add(self.make(replica, flow, lane, weight))

    def make(self, replica: Replica, flow: str, lane: Lane, weight: int) -> Request:
        self.number += 1
        kinds = self.kinds[flow]
        prompt, output, early = kinds[self.number % len(kinds)]
        # Half of the prompts of a kind are equal: some are cached. Some end at a tenth of what they might put out.
        made = request(
            self.number, prompt, output * 10, flow=flow, lane=lane, weight=weight, prefix=prompt + self.number % 2
        )
        replica.ends[made.id] = output if early else output * 10
        self.meter.requests.append(made)
        return made


@settings(max_examples=examples(40), deadline=None)
@given(data=st.data(), slots=SLOTS, quantum=st.sampled_from([0.0, 5_000.0, 50_000.0]))
def test_g2_backlogged_flows_stay_within_the_constant(data: st.DataObject, slots: int, quantum: float):
    weights = data.draw(st.sampled_from([(1, 1), (1, 10), (3, 2, 1)]))
    flows: dict[str, tuple[Lane, int]] = {f"f{index}": ("standard", weight) for index, weight in enumerate(weights)}
    meter = Meter()
    source = Source(data, meter, flows)
    replica = Replica(FairShare(quantum=quantum), running=slots, blocks=400)
    gaps: dict[tuple[str, str], list[float]] = defaultdict(list)
    for _ in range(400):
        source.fill(replica)
        replica.step()
        meter.look()
        service = meter.service("flow")
        for one, (_, weight) in flows.items():
            for other, (_, other_weight) in flows.items():
                gaps[one, other].append(service[one] / weight - service[other] / other_weight)
    constant = 2 * (slots * meter.most / min(weights) + quantum)
    for pair, gap in gaps.items():
        assert max(gap) - min(gap) <= constant, pair


@settings(max_examples=examples(25), deadline=None)
@given(data=st.data(), slots=SLOTS, quantum=st.sampled_from([0.0, 50_000.0]))
def test_g2_holds_from_the_moment_at_which_a_flow_wakes(data: st.DataObject, slots: int, quantum: float):
    """Flows come and go, some with long answers in flight; only intervals in which two waited throughout count."""
    names = ["a", "b", "c"]
    meter = Meter()
    source = Source(data, meter, dict.fromkeys(names, ("standard", 1)))
    flows = source.flows
    replica = Replica(FairShare(quantum=quantum), running=slots, blocks=400)
    backlogged: set[str] = set()
    extremes: dict[tuple[str, str], tuple[float, float]] = {}
    worst = 0.0
    for _ in range(12):
        backlogged = data.draw(st.sets(st.sampled_from(names), min_size=1))
        source.flows = {name: flows[name] for name in sorted(backlogged)}
        for _ in range(data.draw(st.integers(1, 60))):
            source.fill(replica)
            waited = {each.flow for each in replica.policy.waiting()}
            replica.step()
            waited &= {each.flow for each in replica.policy.waiting()}
            meter.look()
            service = meter.service("flow")
            for one in names:
                for other in names:
                    if {one, other} <= waited:
                        gap = service[one] - service[other]
                        least, most = extremes.get((one, other), (gap, gap))
                        extremes[one, other] = min(least, gap), max(most, gap)
                        worst = max(worst, max(most, gap) - min(least, gap))
                    else:
                        extremes.pop((one, other), None)
    assert worst <= 2 * (slots * meter.most + quantum)


def test_g2_who_writes_much_does_not_wait_until_others_got_what_it_has_yet_to_get():
    """Long prompts against long outputs: as close as what can be in flight once, half of what G2 allows."""
    shapes, slots = {"prompts": (1500, 4), "outputs": (64, 600)}, 5
    meter = Meter()
    replica = Replica(FairShare(quantum=0.0), running=slots)
    number, gaps = 0, []
    for step in range(4_000):
        waiting = [each.flow for each in replica.policy.waiting()]
        for flow, shape in shapes.items():
            for _ in range(slots + 1 - waiting.count(flow)):
                number += 1
                replica.add(made := request(number, *shape, flow=flow))
                meter.requests.append(made)
        replica.step()
        if step % 20 == 0:
            meter.look()
            service = meter.service("flow")
            gaps.append(service["prompts"] - service["outputs"])
    assert max(gaps) - min(gaps) <= (slots + 1) * meter.most


@settings(max_examples=examples(15), deadline=None)
@given(data=st.data(), every=st.sampled_from([1, 7, 30]))
def test_g2_holds_over_replicas_that_hear_of_each_other(data: st.DataObject, every: int):
    """One flow is backlogged on both replicas and one too; what a third gets on one alone counts against it there."""
    flows: dict[str, tuple[Lane, int]] = {"a": ("standard", 1), "b": ("standard", 1)}
    meter, quantum, slots = Meter(), 5_000.0, 2
    policies = [FairShare(quantum=quantum) for _ in range(2)]
    replicas = [Replica(policy, running=slots, blocks=400) for policy in policies]
    sources = [Source(data, meter, flows) for _ in replicas]
    sources[1].number = 1_000_000
    gaps, longest, heard = [], 0.0, [0.0, 0.0]
    for step in range(300):
        for source, replica in zip(sources, replicas, strict=True):
            source.fill(replica)
        # The replica that is behind in time steps next.
        next_ = min(range(2), key=lambda index: replicas[index].now)
        replicas[next_].step()
        meter.look()
        if step % every == 0:
            for index, policy in enumerate(policies):
                other = policies[1 - index]
                policy.record_remote_service(str(1 - index), 1, other.service_given())
                longest = max(longest, replicas[1 - index].now - heard[index])
                heard[index] = replicas[1 - index].now
        service = meter.service("flow")
        gaps.append(service["a"] - service["b"])
    # Costs are shares of a full batch, so a replica may give more cost than time passes: a step of one is cheaper.
    constant = 2 * (2 * slots * meter.most + quantum + longest)
    assert max(gaps) - min(gaps) <= constant


@pytest.mark.slow
def test_g2_a_flow_spread_over_eight_replicas_has_one_share():
    """`wide` sends to eight replicas, eight others to one each: with service exchanged, all nine get about the same."""
    meter = Meter()
    policies = [FairShare(quantum=0.0) for _ in range(8)]
    replicas = [Replica(policy, running=2) for policy in policies]
    number = 0
    for step in range(12_000):
        index = min(range(8), key=lambda index: replicas[index].now)
        replica = replicas[index]
        for flow in ("wide", f"narrow{index}"):
            while sum(each.flow == flow for each in replica.policy.waiting()) < 3:
                number += 1
                replica.add(made := request(number, 128, 4, flow=flow))
                meter.requests.append(made)
        replica.step()
        if step % 40 == 0:
            given_ = [policy.service_given() for policy in policies]
            for here, policy in enumerate(policies):
                for there in range(8):
                    if here != there:
                        policy.record_remote_service(str(there), 1, given_[there])
    service = meter.service("flow")
    fair = sum(service.values()) / 9
    assert service["wide"] == pytest.approx(fair, rel=0.1)


def test_g2_who_waits_on_one_replica_does_not_stand_behind_a_prompt_of_who_is_served_on_all():
    """What `wide` got elsewhere is heard once a second. A narrow flow's prompt is computed before those of `wide`
    though these came first and nothing is known of this second yet: while it waits, less than one each is computed.
    """
    rates = Rates(step=10_000.0, uncached=100.0, cached=1.0, row=200.0, batch=16)
    policies = [FairShare(costs=FixedCosts(rates), quantum=50_000.0) for _ in range(4)]
    replicas = [Replica(policy, running=8, rates=rates) for policy in policies]
    chance = random.Random(1)
    wide: list[Request] = []
    narrow: list[tuple[Request, float]] = []
    waits: list[float] = []
    comes = [chance.expovariate(1e-6) for _ in replicas]
    heard, number = 0.0, 0

    def got() -> float:
        return sum(each.spent for each in wide)

    while (now := min(replica.now for replica in replicas)) < 20e6:
        index = min(range(4), key=lambda index: replicas[index].now)
        replica = replicas[index]
        while sum(each.flow == "wide" for each in replica.policy.waiting()) < 3:
            number += 1
            replica.add(made := request(number, 3000, 20, flow="wide", rates=rates))
            wide.append(made)
        if replica.now >= comes[index]:
            number += 1
            replica.add(made := request(number, 1500, 20, flow=f"narrow{index}", rates=rates))
            narrow.append((made, got()))
            comes[index] = replica.now + chance.expovariate(1e-6)
        replica.step()
        waits += [got() - before for each, before in narrow if each.output]
        narrow = [(each, before) for each, before in narrow if not each.output]
        if now >= heard + 1e6:
            heard, given_ = now, [policy.service_given() for policy in policies]
            for here, policy in enumerate(policies):
                for there in range(4):
                    if here != there:
                        policy.record_remote_service(str(there), 1, given_[there])
    assert len(waits) > 40
    assert sum(waits) / len(waits) < 0.6 * 4 * rates.cost(3000, 0, 0)


@settings(max_examples=examples(25), deadline=None)
@given(data=st.data(), slots=SLOTS)
def test_g2_nobody_is_kept_out_of_all_slots_for_the_sake_of_q(data: st.DataObject, slots: int):
    """Others may go before the least for less to compute, but not into the last slot while the least has none. Of
    equals the least is who was charged longest ago."""
    names = ["a", "b", "c"]
    source = Source(data, Meter(), dict.fromkeys(names, ("standard", 1)))
    replica = Replica(FairShare(quantum=50_000.0), running=slots, blocks=400)
    policy = replica.policy
    flows = policy.flows["standard"].flows  # type: ignore[attr-defined]
    passed = []
    admitted = policy.admitted

    def record_admitted(chosen: Request) -> None:
        waiting = (flow for flow in flows.values() if flow.waiting)
        least = min(waiting, key=lambda flow: (flow.counter, flow.charge_serial))
        ahead = flows[chosen.flow].counter > least.counter
        if ahead and not least.running and len(replica.scheduler.running) == slots - 1:
            passed.append(chosen)
        admitted(chosen)

    policy.admitted = record_admitted  # type: ignore[method-assign]
    for _ in range(150):
        source.fill(replica)
        replica.step()
    assert not passed


@settings(max_examples=examples(25), deadline=None)
@given(data=st.data(), slots=SLOTS)
def test_g1_no_capacity_is_left_while_somebody_waits(data: st.DataObject, slots: int):
    flows: dict[str, tuple[Lane, int]] = {lane: (lane, 1) for lane in LANES}
    replica = Replica(FairShare(), running=slots, blocks=60)
    source = Source(data, Meter(), flows)
    replicas_idle: list[str] = []

    def matched(each: Request) -> int:
        return len(replica.pool.find(each.extend_keys((len(each.tokens) - 1) // BLOCK_TOKENS))) * BLOCK_TOKENS

    def seen(step: Step) -> None:
        scheduler = replica.scheduler
        if not scheduler.waiting:
            return
        if not step.work:
            replicas_idle.append("an empty step while somebody waits")
        used = sum(work.count for work in step.work)
        prefill_left = any(
            len(r.tokens) - r.kv > 1 for r in scheduler.running if r not in [w.request for w in step.work]
        )
        # Who is next where others have less to compute, since more of theirs is in memory, waits for those.
        head = replica.policy.peek(matched, len(scheduler.running) == slots - 1)
        assert head is not None
        room = replica.pool.available >= head.blocks_for(len(head.tokens) + 1)
        if len(scheduler.running) < slots and room and used < 64 and not prefill_left:
            replicas_idle.append("a slot, memory and budget are free while somebody waits")

    replica.max_kv = seen
    for _ in range(150):
        if data.draw(st.booleans()):
            source.fill(replica)
        replica.step()
    assert not replicas_idle


@pytest.mark.parametrize("policy", [FirstComeFirstServed, FairShare])
def test_g1_prompts_that_fill_a_step_to_the_last_token_keep_nobody_waiting(policy: type[Policy]):
    replica = Replica(policy(), running=16, budget=512)
    replica.add(*[request(number, 256, 200) for number in range(24)])
    for _ in range(10):
        replica.step()
    assert len(replica.scheduler.running) == 16


@settings(max_examples=examples(25), deadline=None)
@given(data=st.data(), slots=SLOTS)
def test_g3_every_request_is_admitted_after_a_bounded_amount_of_service(data: st.DataObject, slots: int):
    """One request of each lane among floods in all lanes: it begins after a bounded service to the others."""
    flows: dict[str, tuple[Lane, int]] = {f"{lane}{n}": (lane, 1) for lane in LANES for n in range(2)}
    meter, quantum, pay = Meter(), 5_000.0, 1_000.0
    policy = FairShare(quantum=quantum, lane_quantum=pay)
    replica = Replica(policy, running=slots, blocks=400)
    source = Source(data, meter, flows)
    for _ in range(data.draw(st.integers(0, 60))):
        source.fill(replica)
        replica.step()
    lane = data.draw(st.sampled_from(LANES))
    wanted = request(9_999_999, 100, 5, flow="one", lane=lane)
    before = sum(meter.service("flow").values())
    replica.add(wanted)
    for _ in range(3_000):  # a schedule in which it may wait longer than that says nothing
        if wanted.began:
            break
        source.fill(replica)
        replica.step()
        meter.look()
    most = max(meter.most, wanted.charged)
    in_flight = slots * most
    own_lane = 2 * (2 * in_flight + quantum + 2 * most)
    shared = (own_lane + 2 * spare(pay) + 2 * in_flight) * sum(LANE_WEIGHTS.values()) / LANE_WEIGHTS[lane]
    constant = shared + 2 * len(LANES) * in_flight
    service = sum(meter.service("flow").values()) - before
    assert service <= constant
    event(f"{lane}: {'admitted' if wanted.began else 'still within the bound'}")


@pytest.mark.slow
def test_g4_backlogged_lanes_get_their_weights():
    flows: dict[str, tuple[Lane, int]] = {lane: (lane, 1) for lane in LANES}
    shapes = {"interactive": (500, 20), "standard": (60, 200), "batch": (1500, 40)}
    meter = Meter()
    replica = Replica(FairShare(lane_quantum=20_000.0), running=4)
    number, kept = 0, {}
    for step in range(25_000):
        if step == 8_000:
            kept = meter.service("lane")  # by now what lanes may keep and borrow has been used
        waiting = [each.lane for each in replica.policy.waiting()]
        for flow, (lane, _) in flows.items():
            for _ in range(5 - waiting.count(lane)):
                number += 1
                replica.add(made := request(number, *shapes[lane], flow=flow, lane=lane))
                meter.requests.append(made)
        replica.step()
    meter.look()
    whole = meter.service("lane")
    service = {lane: whole[lane] - kept[lane] for lane in LANES}
    total = sum(service.values())
    for lane, weight in LANE_WEIGHTS.items():
        assert service[lane] / total == pytest.approx(weight / sum(LANE_WEIGHTS.values()), rel=0.02)
    total = sum(whole.values())
    for lane, weight in LANE_WEIGHTS.items():
        assert abs(whole[lane] - total * weight / sum(LANE_WEIGHTS.values())) <= 2 * spare(20_000.0) + 4 * meter.most


@settings(max_examples=examples(100), deadline=None)
@given(data=st.data())
def test_g4_lanes_by_themselves_stay_within_what_they_may_keep_and_borrow(data: st.DataObject):
    lanes = LaneShares(quantum=10.0)
    backlogged = data.draw(st.frozensets(st.sampled_from(LANES), min_size=1))
    service = dict.fromkeys(LANES, 0.0)
    largest = data.draw(st.sampled_from([1.0, 25.0, 300.0]))
    late = data.draw(st.lists(st.sets(st.sampled_from(["interactive", "standard"])), min_size=1, max_size=6))
    for number in range(300):
        lane = lanes.choose(backlogged, late[number // 20 % len(late)].__contains__)
        assert lane in backlogged
        cost = largest * ((number * 7) % 10 + 1) / 10
        lanes.charge(lane, cost, backlogged)
        service[lane] += cost
    total, shared = sum(service.values()), sum(LANE_WEIGHTS[lane] for lane in backlogged)
    for lane in backlogged:
        assert abs(service[lane] - total * LANE_WEIGHTS[lane] / shared) <= 2 * spare(10.0) + largest


@pytest.mark.parametrize("part", [0.5, 1.0])
def test_a_late_lane_borrows_up_to_its_bound_and_pays_back(part: float):
    lanes = LaneShares(quantum=1.0)
    both: frozenset[Lane] = frozenset(("interactive", "batch"))
    # Of a cost batch is owed one part in `parts`; interactive pays that from its reserve and its loan.
    parts = sum(LANE_WEIGHTS[lane] for lane in both) / LANE_WEIGHTS["batch"]
    most = ROUNDS["interactive"] * LANE_WEIGHTS["interactive"]
    turns = round(4 * most * parts)
    order = []
    for _ in range(turns):
        lane = lanes.choose(both, {"interactive": part, "batch": 0.0}.__getitem__)
        assert lane is not None
        lanes.charge(lane, 1.0, both)
        order.append(lane)
    # What it has kept, and as much or a part of it; from then on by weight.
    first = order.index("batch")
    assert first == pytest.approx(most * (1 + part) * parts, abs=1)
    assert order[first:].count("batch") == pytest.approx((turns - first) / parts, abs=1)


def test_g4_what_a_lane_leaves_goes_to_the_others_at_once():
    lanes = LaneShares()
    for _ in range(100):
        assert lanes.choose(["batch"]) == "batch"
        lanes.charge("batch", 1e6, frozenset(["batch"]))
    assert lanes.choose(["interactive", "batch"]) == "interactive"
    assert lanes.choose([]) is None


def test_g4_a_lane_that_was_alone_owes_nothing_to_one_that_comes():
    lanes = LaneShares(quantum=1.0)
    both: frozenset[Lane] = frozenset(("interactive", "standard"))
    for _ in range(1_000):
        lanes.charge("interactive", 1.0, frozenset(["interactive"]))
    assert lanes.reserve["interactive"] == ROUNDS["interactive"] * LANE_WEIGHTS["interactive"]
    order = []
    for _ in range(int(lanes.reserve["interactive"])):
        order.append(lane := lanes.choose(both))
        assert lane is not None
        lanes.charge(lane, 1.0, both)
    assert set(order) == {"interactive"}, "what it kept is there for it"
    assert lanes.reserve["standard"] == ROUNDS["standard"] * LANE_WEIGHTS["standard"], "a lower one keeps no more"


def test_g4_a_higher_lane_that_asks_for_less_than_its_share_never_waits():
    """Below its share it is always in credit, however much the others are behind; above it the others get theirs."""
    backlogged: frozenset[Lane] = frozenset(("standard", "batch"))
    share = LANE_WEIGHTS["interactive"] / sum(LANE_WEIGHTS.values())
    for asked, always in ((share - 0.02, True), ((1 + share) / 2, False)):
        lanes, wanted, waits, got = LaneShares(quantum=1.0), 0.0, 0, 0.0
        for number in range(20_000):
            wanted += asked
            work: frozenset[Lane] = frozenset(["interactive", *backlogged]) if wanted >= 1 else backlogged
            lane = lanes.choose(work)
            assert lane is not None
            lanes.charge(lane, 1.0, work)
            if lane == "interactive":
                wanted, got = wanted - 1, got + 1
            elif wanted >= 2:
                waits += number >= 5_000
        assert (waits == 0) is always
        assert got / 20_000 == pytest.approx(asked if always else share, rel=0.02)


@pytest.mark.parametrize("silent", [0, 2_000])
def test_g5_a_silent_flow_gains_nothing(silent: int):
    """Whoever was silent gets, from its waking on, its share and no more, however long it was silent."""
    meter = Meter()
    replica = Replica(FairShare(quantum=0.0), running=2)
    number = 0
    start: dict[str, float] = {}
    for step in range(silent + 2_000):
        waiting = [each.flow for each in replica.policy.waiting()]
        if step == silent:
            start = dict(meter.service("flow"))
        for flow in ("busy", "other", "sleeper") if step >= silent else ("busy", "other"):
            for _ in range(3 - waiting.count(flow)):
                number += 1
                replica.add(made := request(number, 128, 4, flow=flow))
                meter.requests.append(made)
        replica.step()
    meter.look()
    got = {flow: service - start.get(flow, 0.0) for flow, service in meter.service("flow").items()}
    assert abs(got["sleeper"] - got["busy"]) <= 2 * 2 * meter.most
    assert got["sleeper"] == pytest.approx(got["busy"], rel=0.03)


@settings(max_examples=examples(40), deadline=None)
@given(data=st.data(), slots=st.sampled_from([2, 5, 16]), lane=st.sampled_from(LANES))
def test_g6_who_holds_less_than_its_part_gets_a_slot_in_bounded_time(data: st.DataObject, slots: int, lane: Lane):
    """Answers that never end hold all slots; some clients read nothing. A short request begins within the constant."""
    replica = Replica(FairShare(), running=slots)
    flows = data.draw(st.integers(1, 4))
    weights = data.draw(st.lists(st.sampled_from([1, 3]), min_size=flows, max_size=flows))
    number = 0
    for flow, weight in enumerate(weights):
        for _ in range(data.draw(st.sampled_from([1, slots, 4 * slots]))):
            number += 1
            credit = data.draw(st.sampled_from([5, 1 << 30, 1 << 30]))
            prompt = data.draw(st.sampled_from([1, 200]))
            replica.add(request(number, prompt, 100_000, flow=f"f{flow}", lane=lane, weight=weight, credit=credit))
        for _ in range(data.draw(st.sampled_from([0, 10, 200]))):
            replica.step()
    for wave in range(3):
        wanted = request(900_000 + wave, 64, 4, flow="one", lane=lane)
        began = replica.now
        replica.add(wanted)
        constant = CLAIM_AFTER_S[lane] + LOOK_EVERY_S
        if slots < 2 * (sum(weights) + 1):  # its part may be less than a slot
            constant += ROTATION_S[lane] * (1 + (flows + 1) / slots)
        while not wanted.began:
            replica.step()
            waited = (replica.now - began - 4 * RATES.step_time(replica.budget, slots)) / 1e6
            assert waited <= constant, f"wave {wave}: {waited} s"
        while wanted not in replica.finished:
            replica.step()


def against_a_flood(deadline: float | None, slower: float = 1.0) -> float:
    """Batch waits with 4 s of work, interactive and standard without end: when batch is done, in seconds. `slower`:
    so many times as long."""
    rates = Rates(step=0.0, uncached=10.0 * slower, cached=0.0, row=80.0 * slower, batch=8, copied=1e12)
    policy = FairShare(FixedCosts(rates), lane_quantum=20_000.0)
    replica = Replica(policy, running=8, rates=rates)
    for number in range(600):
        replica.add(request(number, 500, 20, flow="b", lane="batch", deadline=deadline, read=False, store="none"))
    done = 0
    while done < 600:
        for lane in LANES[:2]:
            while len(policy.flows[lane]) < 9:
                number += 1
                replica.add(request(number, 500, 20, flow=lane, lane=lane, read=False, store="none"))
        replica.step()
        done += sum(each.lane == "batch" for each in replica.finished)
        replica.finished.clear()
    return replica.now / 1e6


@pytest.mark.slow
def test_batch_keeps_its_deadline_against_a_flood():
    """With weight 1 it would not: the weight rises with the share that what waits needs."""
    assert against_a_flood(20.0) < 20.0
    assert against_a_flood(None) > 40.0


@pytest.mark.slow
def test_a_deadline_that_is_hours_away_is_kept_too():
    """More than an hour's work, due in four: it does not wait until even all of the replica would be too little."""
    assert against_a_flood(4 * 3600.0, 1000.0) < 4 * 3600.0


@pytest.mark.slow
def test_deadlines_that_its_own_weight_keeps_change_no_lanes_share():
    """Each request has a deadline where it comes from a client who waits: ten minutes here."""
    replica = Replica(FairShare(lane_quantum=2_000.0), running=4)
    number, got = 0, dict.fromkeys(LANES, 0.0)
    while replica.now < 20e6:
        for lane in LANES:
            while len(replica.policy.flows[lane]) < 5:  # type: ignore[attr-defined]
                number += 1
                deadline = replica.now / 1e6 + 600.0
                replica.add(request(number, 128, 4, flow=lane, lane=lane, deadline=deadline, read=False, store="none"))
        replica.step()
    for each in replica.finished:
        got[each.lane] += each.spent
    for lane, weight in LANE_WEIGHTS.items():
        assert got[lane] / sum(got.values()) == pytest.approx(weight / sum(LANE_WEIGHTS.values()), rel=0.05)


def test_costs_add_up_to_the_time_of_a_full_step():
    assert RATES.cost(0, 0, RATES.batch) == RATES.step_time(0, RATES.batch)
