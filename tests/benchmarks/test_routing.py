"""The router in the simulator: better than the policies of others, and as good as with exact knowledge."""

from __future__ import annotations

import pytest

from benchmarks.cache_traces import BLOCK, Trace
from benchmarks.cache_traffic import documents
from benchmarks.routing import burst, compare, figures, jobs_of, simulate
from benchmarks.routing_policies import POLICIES
from benchmarks.routing_simulator import Job, Machine, World

MACHINES = [Machine(block=BLOCK)] * 8


def short() -> Trace:
    """Questions about documents for ten minutes."""
    trace = documents(7)
    return Trace(trace.block, trace.prompts[:1500])


def test_a_replica_computes_in_order_reads_what_it_holds_and_decodes_beside() -> None:
    machine = Machine(token_s=1e-3, step_s=0.0, row_s=0.0, fetch_s=0.0, budget=100, block=10)
    world = World.of([machine])
    jobs = [
        Job(0.0, 100, tuple(range(10)), 3),
        Job(0.0, 105, tuple(range(10)), 1),
        Job(1.0, 50, (90, 91, 92, 93, 94), 1),
    ]
    for job in jobs:
        world.wake(job.at, lambda job=job: world.replicas[0].submit(job, world.now))  # type: ignore[misc]
    world.run()
    assert [job.computed for job in jobs] == [100, 5, 50]
    assert [job.first for job in jobs] == pytest.approx([0.1, 0.105, 1.05])


def test_better_than_the_policies_of_others_and_near_exact_knowledge() -> None:
    bars = compare(short(), tuple(POLICIES), MACHINES, gateways=4, speed=1.5)["bars"]
    assert {name: bar for name, bar in bars.items() if not bar["met"]} == {}


@pytest.mark.parametrize(("prefix", "tail"), [(24 * BLOCK, 20), (24 * BLOCK, 63), (0, 40), (0, 400)])
def test_a_burst_of_equal_prompts_on_four_gateways(prefix: int, tail: int) -> None:
    found = burst(prefix, MACHINES, gateways=4, tail=tail)
    assert found["most_by_mean"]["met"], found
    if prefix:
        assert found["computed_most_per_replica"] == 1
        assert found["by_optimum"]["met"], found


def test_a_slow_replica_is_spared() -> None:
    machines = [*MACHINES[:7], MACHINES[0].slower(3.0)]
    jobs = jobs_of(short(), 2.0)
    world, policies = simulate(jobs, "turnpike", machines, gateways=4)
    tokens = [sum(job.computed for job in jobs if job.replica == replica.number) for replica in world.replicas]
    assert tokens[7] < 0.6 * sum(tokens) / 8
    assert figures(jobs, world, policies)["hit_share"] > 0.3
