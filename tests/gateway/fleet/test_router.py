"""Where requests go: by seconds, at once, agreed among gateways, whatever replicas forget to say."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.fleet.hot_prefixes import HotPrefixes
from gateway.fleet.prefix_map import PrefixMap
from gateway.fleet.replica_work import ReplicaFigures
from gateway.fleet.router import Choice, Routed, Router
from protocol.requests import Lane

BLOCK = 512
FIGURES = ReplicaFigures(token_s=100e-6, step_s=5e-3, row_s=100e-6, chunk=2048, fetch_s={"dram": 5e-6})
ROOM = {"hbm": 200 * BLOCK, "dram": 200 * BLOCK}


@dataclass(frozen=True)
class Replica:
    replica: str


REPLICAS = [Replica(f"replica-{number}") for number in range(4)]


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def router(clock: Clock | None = None, replicas: Sequence[Replica] = REPLICAS) -> Router:
    made = Router(clock or Clock())
    for replica in replicas:
        made.hear(replica.replica, 1, FIGURES, ROOM)
    return made


def prompt(*blocks: int, more: int = 10, lane: Lane = "standard", **leased: float) -> Routed:
    """A prompt of these blocks: each stands for itself and those before it."""
    ends = [BLOCK * (index + 1) for index in range(len(blocks))]
    key = b"%d" % (blocks[0] if blocks else 0)
    return Routed(key=key, tokens=len(blocks) * BLOCK + more, names=blocks, ends=ends, lane=lane, **leased)  # type: ignore[arg-type]


def run(made: Router, choice: Choice[Replica], computed: int = 0) -> None:
    """The request runs to its end."""
    name = choice.replica.replica
    made.begin(name, choice.estimate, choice.credit, computed, choice.estimate.held)
    made.end_prefill(name, choice.credit)
    made.end(name, choice.credit)


def test_a_conversation_stays_where_it_began() -> None:
    made = router()
    for number in range(20):
        talk = [number * 100]
        home = made.choose(prompt(*talk), REPLICAS)
        run(made, home)
        for turn in range(1, 5):
            talk.append(number * 100 + turn)
            next_turn = made.choose(prompt(*talk), REPLICAS)
            assert next_turn.replica is home.replica
            assert (next_turn.why, next_turn.estimate.held) == ("cached", turn * BLOCK)
            run(made, next_turn)


def test_a_replica_that_is_gone_for_an_hour_is_forgotten() -> None:
    clock = Clock()
    made = router(clock, REPLICAS[:2])
    gone, stays = REPLICAS[:2]
    slow = ReplicaFigures(token_s=1.0)
    made.hear(gone.replica, 1, slow, ROOM)
    choice = made.choose(prompt(1, 2), [gone])
    made.lose(gone.replica)
    for passed, known in ((3000.0, True), (700.0, False)):
        clock.now += passed
        made.hear(stays.replica, 1, FIGURES, ROOM)
        assert made.holds(gone.replica, [1, 2]) is known
    assert made.token_s == FIGURES.token_s, "its slowness counts no more"
    made.end(gone.replica, choice.credit)
    made.lose(stays.replica)
    clock.now += 1000
    made.hear(stays.replica, 1, FIGURES, ROOM)
    clock.now += 3000
    made.hear(gone.replica, 2, FIGURES, ROOM)
    assert made.estimate(prompt(1, 2), stays.replica).seconds < 1


def test_new_groups_go_to_the_replica_that_was_given_one_longest_ago() -> None:
    made = router()
    chosen = []
    for number in range(12):
        choice = made.choose(prompt(number), REPLICAS)
        assert choice.why == "new_group"
        chosen.append(choice.replica.replica)
        run(made, choice)
    assert set(Counter(chosen).values()) == {3}
    assert all(set(chosen[at : at + 4]) == {replica.replica for replica in REPLICAS} for at in (0, 4, 8))


def test_a_home_is_left_exactly_when_the_wait_there_is_longer_than_its_prefix_takes_elsewhere() -> None:
    for queued, stays in ((9_000, True), (11_500, False)):
        made = router()
        home = made.choose(prompt(*range(20)), REPLICAS)
        run(made, home)
        busy = ReplicaFigures(token_s=100e-6, queued={"standard": queued})
        made.hear(home.replica.replica, 1, busy, ROOM)
        again = made.choose(prompt(*range(20)), REPLICAS)
        assert (again.replica is home.replica) is stays
        assert again.why == ("cached" if stays else "spilled")
        assert again.next_replica != again.replica.replica


def test_work_counts_from_the_choice_on_and_no_longer_than_its_request() -> None:
    made = router()
    before = made.backlog(replica.replica for replica in REPLICAS)
    choices = [made.choose(prompt(number), REPLICAS) for number in range(40)]
    assert Counter(choice.replica.replica for choice in choices).most_common(1)[0][1] == 10, (
        "with no news from replicas"
    )
    assert made.backlog(replica.replica for replica in REPLICAS) > before
    for choice in choices:
        name = choice.replica.replica
        made.end(name, choice.credit)  # cancelled before it began
        made.end(name, choice.credit)
    assert made.backlog(replica.replica for replica in REPLICAS) == before


@given(
    st.lists(st.tuples(st.integers(0, 5), st.sampled_from(("choose", "begin", "first", "end", "lose"))), max_size=60)
)
def test_whatever_happens_all_credit_comes_back(history: list[tuple[int, str]]) -> None:
    made, open_ones = router(), list[Choice[Replica]]()
    for number, what in history:
        if what == "choose":
            open_ones.append(made.choose(prompt(number, number * 10), REPLICAS))
            continue
        if what == "lose":
            made.lose(REPLICAS[number % 4].replica)
            continue
        if not open_ones:
            continue
        choice = open_ones[number % len(open_ones)]
        name = choice.replica.replica
        if what == "begin":
            made.begin(name, choice.estimate, choice.credit, 100, 0)
        elif what == "first":
            made.end_prefill(name, choice.credit)
        else:
            made.end(name, choice.credit)
    for choice in open_ones:
        made.end(choice.replica.replica, choice.credit)
    assert made.backlog(replica.replica for replica in REPLICAS) == pytest.approx(0.0)


def test_a_replica_twice_as_slow_gets_half_as_much() -> None:
    made = router()
    slow = ReplicaFigures(token_s=200e-6, step_s=10e-3, row_s=200e-6)
    made.hear(REPLICAS[0].replica, 1, slow, ROOM)
    chosen = Counter(made.choose(prompt(number), REPLICAS).replica.replica for number in range(70))
    assert chosen[REPLICAS[0].replica] == 10
    assert chosen[REPLICAS[1].replica] == 20


def test_small_prompts_keep_away_from_a_very_long_one() -> None:
    made = router()
    long = made.choose(prompt(*range(250)), REPLICAS)
    assert long.estimate.compute > 12
    chosen = {made.choose(prompt(1000 + number), REPLICAS).replica for number in range(60)}
    assert long.replica not in chosen


def test_a_prompt_in_a_lower_lane_keeps_nobody_waiting() -> None:
    made = router(replicas=REPLICAS[:1])
    made.choose(prompt(*range(100), lane="batch"), REPLICAS[:1])
    assert made.choose(prompt(1000), REPLICAS[:1]).estimate.wait == 0
    assert made.choose(prompt(1001, lane="batch"), REPLICAS[:1]).estimate.wait > 5


def test_what_is_begun_is_worked_off_as_time_passes() -> None:
    clock = Clock()
    made = router(clock, REPLICAS[:1])
    choice = made.choose(prompt(*range(20)), REPLICAS[:1])
    made.begin(REPLICAS[0].replica, choice.estimate, choice.credit, 20 * BLOCK, 0)
    clock.now += 0.5
    assert made.choose(prompt(100), REPLICAS[:1]).estimate.wait == pytest.approx(20 * BLOCK * 100e-6 - 0.5)


def test_requests_of_other_gateways_count_and_an_old_heartbeat_counts_less() -> None:
    clock = Clock()
    made = router(clock)
    busy = ReplicaFigures(token_s=100e-6, queued={"standard": 50_000})
    for replica in REPLICAS[1:]:
        made.hear(replica.replica, 1, busy, ROOM)
    assert made.choose(prompt(1), REPLICAS).replica is REPLICAS[0]
    (first, later) = (made.estimate(prompt(2), REPLICAS[1].replica).wait, 0.0)
    clock.now += 1.0
    later = made.estimate(prompt(2), REPLICAS[1].replica).wait
    assert 0.4 * first < later < first


def test_a_heartbeat_does_not_count_our_own_requests_twice() -> None:
    made = router(replicas=REPLICAS[:1])
    choice = made.choose(prompt(*range(20)), REPLICAS[:1])
    made.hear(
        REPLICAS[0].replica,
        1,
        ReplicaFigures(token_s=100e-6, queued={"standard": choice.credit.seconds / 100e-6}),
        ROOM,
    )
    assert made.estimate(prompt(50), REPLICAS[0].replica).wait == pytest.approx(choice.credit.seconds)


def test_gateways_that_never_spoke_agree() -> None:
    one, other = router(), router()
    alike = [(one.choose(prompt(n), REPLICAS).replica, other.choose(prompt(n), REPLICAS).replica) for n in range(1)]
    assert all(left is right for left, right in alike)
    names = {router().choose(prompt(number), REPLICAS).replica.replica for number in range(40)}
    assert len(names) == 4, "and not on one replica for everything"


def test_a_prefix_that_another_gateway_sent_is_known() -> None:
    made = router()
    asked = prompt(*range(20))
    made.hear_prefix(REPLICAS[2].replica, asked.names, asked.ends, 0.0, 0)
    assert made.choose(asked, REPLICAS).replica is REPLICAS[2]


def test_a_replica_that_was_started_again_holds_nothing() -> None:
    made = router()
    home = made.choose(prompt(*range(20)), REPLICAS)
    run(made, home)
    made.lose(home.replica.replica)
    assert made.holds(home.replica.replica, range(20)), "only its link was lost"
    made.hear(home.replica.replica, 2, FIGURES, ROOM)
    assert not made.holds(home.replica.replica, range(20))


def test_burst_of_equal_prompts_on_four_gateways_is_spread_evenly() -> None:
    for blocks in ([], list(range(1, 25))):
        gateways = [router() for _ in range(4)]
        chosen = Counter(gateways[n % 4].choose(prompt(*blocks, more=40), REPLICAS).replica.replica for n in range(64))
        assert max(chosen.values()) <= 1.5 * 64 / len(chosen), chosen


def test_a_farther_tier_costs_its_fetching_and_never_more_than_computing() -> None:
    clock = Clock()
    made = router(clock, REPLICAS[:1])
    run(made, made.choose(prompt(*range(20)), REPLICAS[:1]))
    near = made.estimate(prompt(*range(20)), REPLICAS[0].replica)
    run(made, made.choose(prompt(*range(1000, 1220)), REPLICAS[:1]))  # the device has room for 200 blocks
    far = made.estimate(prompt(*range(20)), REPLICAS[0].replica)
    assert near.fetch == 0
    assert far.fetch == pytest.approx(20 * BLOCK * 5e-6)
    made.hear(REPLICAS[0].replica, 1, ReplicaFigures(token_s=100e-6, fetch_s={"dram": 1.0}), ROOM)
    slow = made.estimate(prompt(*range(20)), REPLICAS[0].replica)
    assert (slow.fetch, slow.compute) == (0.0, pytest.approx((20 * BLOCK + 10) * 100e-6))


def test_what_is_under_a_lease_is_remembered_longest() -> None:
    prefixes = PrefixMap({"hbm": 10 * BLOCK})
    ends = [BLOCK * (index + 1) for index in range(4)]
    prefixes.store([1, 2, 3, 4], ends, until=100.0, leased=2 * BLOCK)
    for number in range(10, 60, 4):
        prefixes.store(range(number, number + 4), ends)
        prefixes.trim(now=50.0)
    assert prefixes.find_held([1, 2, 3, 4]) == 2
    prefixes.store(range(100, 104), ends)
    prefixes.store(range(104, 108), ends)
    prefixes.store(range(108, 112), ends)
    prefixes.trim(now=200.0)
    assert prefixes.find_held([1, 2, 3, 4]) == 0


@given(st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=6), max_size=40))
def test_a_map_holds_whole_beginnings_and_no_more_than_there_is_room_for(prompts: list[list[int]]) -> None:
    prefixes = PrefixMap({"hbm": 8})
    for path in prompts:
        names = [tuple(path[: end + 1]) for end in range(len(path))]
        prefixes.store(names, range(1, len(names) + 1))
        assert prefixes.find_held(names) == len(names)
        prefixes.trim(0.0)
        held = {names[at] for at in range(len(names)) if prefixes.find_held(names[: at + 1]) == at + 1}
        assert held == set(names[: prefixes.find_held(names)])
        assert len(prefixes) <= 8


def test_a_replica_that_misses_is_believed_to_hold_less() -> None:
    prefixes = PrefixMap({"hbm": 100})
    for number in range(10):
        prefixes.store([number], [10])
    prefixes.trim(0.0)
    assert len(prefixes) == 10
    for _ in range(20):
        prefixes.correct(10, 0)
    prefixes.trim(0.0)
    assert len(prefixes) < 7


def ask(hot: HotPrefixes, now: float, end: int) -> tuple[object, int, int] | None:
    names = [*range(40), *(end * 1000 + number for number in range(8))]
    return hot.note(names, [BLOCK * (at + 1) for at in range(len(names))], 100e-6, now)


def test_a_prefix_that_many_want_becomes_hot_and_cools_down() -> None:
    hot = HotPrefixes()
    found = [ask(hot, number * 0.5, number) for number in range(60)]
    assert found[0] is None
    assert found[-1] is not None
    name, tokens, homes = found[-1]
    assert (name, tokens) == (36, 37 * BLOCK)
    assert homes >= 2
    assert ask(hot, 3600.0, 99) is None


def test_a_conversation_that_grows_is_not_hot() -> None:
    hot, names = HotPrefixes(), list(range(40))
    for turn in range(200):
        names += [1000 + turn * 2, 1001 + turn * 2]
        assert hot.note(names, [BLOCK * (at + 1) for at in range(len(names))], 100e-6, turn * 0.2) is None


def test_a_hot_prefix_gets_one_more_home_at_a_time_and_where_hashes_say() -> None:
    clock = Clock()
    made, warmings = router(clock), []
    for number in range(80):
        clock.now += 0.3
        choice = made.choose(prompt(*range(40), *range(1000 + number * 8, 1008 + number * 8)), REPLICAS)
        run(made, choice)
        if choice.warming is not None and choice.warming.replica:
            warmings.append(choice.warming)
    assert warmings
    assert len(warmings) <= 2, "not again before it had time"
    assert warmings[0].tokens == 37 * BLOCK
    assert not made.holds(warmings[0].replica, range(37)), "before it is computed nobody counts on it"
    made.hear_warmed(warmings[0].replica, range(37), [BLOCK * (at + 1) for at in range(37)])
    assert made.holds(warmings[0].replica, range(37))


def test_two_replicas_hit_as_one_does_and_share_the_work() -> None:
    def hit_share(count: int, seed: int) -> tuple[float, Counter[str]]:
        rng, made = random.Random(seed), router()
        replicas, used, hits, total = REPLICAS[:count], Counter[str](), 0, 0
        for generation in range(3):
            talks = [[*range(4), 1000 + generation * 100 + number] for number in range(24)]
            for _ in range(8):
                for number in rng.sample(range(24), 24):
                    talk = talks[number]
                    choice = made.choose(prompt(*talk), replicas)
                    run(made, choice)
                    hits += choice.estimate.held
                    total += len(talk) * BLOCK
                    used[choice.replica.replica] += len(talk)
                    talk += [rng.randrange(10**9) for _ in range(rng.randint(2, 6))]
        return hits / total, used

    alone, _ = hit_share(1, 3)
    shared, used = hit_share(2, 3)
    assert shared >= 0.97 * alone
    assert max(used.values()) <= 1.2 * min(used.values())
