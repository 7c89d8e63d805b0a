"""What comes a block at a time is shared by flows, not by requests."""

from __future__ import annotations

from collections import Counter

from engine.scheduling.fairness.fair_share import FairShare
from engine.scheduling.flow_turns import FlowTurns
from engine.scheduling.request import Request
from engine.scheduling.scheduler import Scheduler
from engine.scheduling.step_costs import FixedCosts, Rates
from prompt_cache.kv.block_keys import BLOCK_TOKENS
from prompt_cache.kv.grouped_pool import GroupedPool
from prompt_cache.tiers.identity import ScopeAccess
from tests.engine.scheduling.replica_without_model import request
from tests.engine.scheduling.test_restoring import ManualDisk


def served(turns: FlowTurns, requests: list[Request], room: int, each: int = 100) -> list[str]:
    """The flows that had the turns; each request uses so many in a call."""
    flows: list[str] = []
    used: Counter[int] = Counter()

    def one(request: Request) -> bool:
        if used[request.arrival] == each:
            return False
        used[request.arrival] += 1
        flows.append(request.flow)
        return True

    turns.take(requests, lambda: len(flows) < room, one)
    return flows


def test_a_flow_has_no_more_turns_for_having_more_requests() -> None:
    requests = [request(number, flow="a") for number in range(3)] + [request(3, flow="b")]
    assert Counter(served(FlowTurns(), requests, 8)) == {"a": 4, "b": 4}
    assert Counter(served(FlowTurns(), requests, 8, each=2)) == {"a": 6, "b": 2}, "what one cannot use others may"


def test_turns_go_on_where_they_ended() -> None:
    requests = [request(0, flow="a"), request(1, flow="b"), request(2, flow="c", lane="batch")]
    turns = FlowTurns()
    assert [*served(turns, requests, 1), *served(turns, requests, 1), *served(turns, requests, 1)] == ["a", "b", "a"]
    assert served(turns, requests, 5, each=2) == ["b", "a", "b", "a", "c"], "the lower lane after the others"


def test_one_flow_s_long_prompts_do_not_keep_the_disk_from_another_s() -> None:
    costs, disk = FixedCosts(Rates(uncached=10_000.0)), ManualDisk()
    scheduler = Scheduler(
        GroupedPool([(200, 0)]), 4_096, 4, FairShare(costs), costs=costs, dram=GroupedPool([(200, 0)]), tiers=(disk,)
    )
    scheduler.tiers.dram.introduce(ScopeAccess("scope", b"k" * 32, 1000.0))
    waiting = [
        request(number, prompt=20 * BLOCK_TOKENS + 1, flow=flow, lane="standard")
        for number, flow in enumerate(("a", "a", "b"))
    ]
    flow_of = {key: each.flow for each in waiting for key in each.extend_keys(20)}
    disk.keys = {("scope", key) for key in flow_of}
    for each in waiting:
        scheduler.add(each)
    came: list[str] = []
    for _ in range(30):
        scheduler.schedule(1.0)
        if len(came) < 12 and disk.fetching:
            came.append(flow_of[disk.fetching[0].key])
            disk.end_fetch(0, ok=True)
    assert Counter(came) == {"a": 6, "b": 6}
