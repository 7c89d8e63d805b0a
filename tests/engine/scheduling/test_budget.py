"""What goes into a step: all decodes, and as much prefill as the time between two tokens allows them."""

from __future__ import annotations

import ast
import math
from pathlib import Path

import pytest

import engine.scheduling
from engine.scheduling.fairness.fair_share import FairShare
from engine.scheduling.step_costs import MeasuredCosts, Rates
from engine.scheduling.step_work import Step
from engine.startup.calibration import calibrate
from protocol.requests import LANES, Lane
from tests.engine.conftest import Bench, generate
from tests.engine.scheduling.replica_without_model import RATES, Replica, request

TARGETS: dict[Lane, float] = {"interactive": 3_000.0, "standard": 5_000.0, "batch": 1e6}
"""µs; a whole budget beside four decodes takes 6,160."""


@pytest.mark.parametrize("also", [None, *LANES])
@pytest.mark.parametrize("lane", LANES)
def test_prefill_fills_a_step_up_to_the_time_that_the_decoding_lanes_are_promised(lane: Lane, also: Lane | None):
    replica = Replica(FairShare(), running=8, targets=TARGETS)
    decoding = [request(number, 10, 300, lane=each) for number, each in enumerate([lane, also or lane] * 2)]
    replica.add(*decoding)
    for _ in range(3):
        replica.step()
    took: list[float] = []

    def seen(step: Step) -> None:
        rows = {work.request.arrival for work in step.work if work.count == 1}
        assert rows >= {each.arrival for each in decoding}, "decodes go into every step"
        prefill = sum(work.count for work in step.work if work.count > 1)
        took.append(RATES.step_time(prefill, len(rows)))

    replica.max_kv = seen
    # Prompts that no step can finish: each step has as much of them as it may.
    replica.add(*(request(number, 3000, 2, lane="batch") for number in range(10, 13)))
    for _ in range(12):
        replica.step()
    promised = min(TARGETS[lane], TARGETS[also or lane])
    whole = RATES.step_time(replica.budget - 4 - (replica.budget - 4) % 64, 4)
    assert max(took) <= promised
    assert min(took) > min(promised, whole) - RATES.uncached * 64 - 1, "no more is left than part of a block"


def test_a_target_that_decodes_alone_miss_leaves_prefill_a_block_so_that_it_ends():
    replica = Replica(FairShare(), running=8, targets=dict.fromkeys(LANES, 1.0))
    replica.add(request(1, 10, 300))
    for _ in range(3):
        replica.step()
    replica.add(long := request(2, 640, 2))
    for _ in range(10):
        replica.step()
    assert long.output == 1


def test_what_a_token_costs_does_not_depend_on_how_many_happened_to_run_so_far():
    truth = Rates(step=4000, uncached=20, cached=0.2, row=30, batch=64)
    replicas = [MeasuredCosts(64), MeasuredCosts(64)]
    for costs in replicas:
        costs.calibrate({size: 2 * truth.step_time(0, size) for size in (1, 8, 64)}, 2 * truth.uncached)
        assert costs.prefill_within(20_000, 1) == pytest.approx((20_000 - 2 * 4030) / 40)
    # One has served one request at a time, the other crowds; the machine is quieter now than when it was measured.
    for _ in range(60):
        for costs, size in zip(replicas, (1, 64), strict=True):
            costs.observe(0, size, truth.step_time(0, size))
            costs.observe(512, size, truth.step_time(512, size))
    for costs in replicas:
        assert costs.rates.decoded == pytest.approx(truth.decoded, rel=0.05)
        assert costs.rates.uncached == pytest.approx(truth.uncached, rel=0.2)


def test_a_request_is_charged_at_what_things_cost_when_it_is_served():
    costs = MeasuredCosts(16, RATES)
    policy = FairShare(costs)
    policy.push(waits := request(1, 100, 50))
    before = waits.rates
    costs.calibrate({16: 100 * RATES.step_time(0, 16)}, 100 * RATES.uncached)
    policy.admitted(waits)
    policy.placed(waits)
    assert waits.rates.decoded == pytest.approx(100 * before.decoded)
    assert waits.charged == pytest.approx(waits.rates.cost(100, 0, 50))


def test_a_step_that_was_held_up_once_says_little_of_the_next_ones():
    costs = MeasuredCosts(16)
    costs.calibrate({1: 5_000.0, 16: 6_000.0}, 20.0)
    costs.observe(2_000, 1, 45_000.0)
    costs.observe(2_000, 1, 3e6)
    costs.observe(0, 16, 3e6)
    assert costs.rates.uncached == pytest.approx(20 * (1 + 1 / 8))
    assert costs.decode_time(16) == pytest.approx(6_000 * (1 + 1 / 8))
    # A machine that has become four times slower is believed.
    for _ in range(60):
        costs.observe(2_000, 1, 165_000.0)
    assert costs.rates.uncached == pytest.approx(80, rel=0.05)


def test_steps_are_measured_before_the_first_request(bench: Bench):
    costs, runner = MeasuredCosts(6), bench.engine.executor.runner
    calibrate(costs, runner, budget=200, max_running=6)
    assert 0 < costs.rates.decoded <= costs.decode_time(6) / 6 + 1e-6
    assert costs.rates.uncached > 0
    assert 0 <= costs.prefill_within(1e6, 3) < 1e6 / costs.rates.uncached
    assert costs.decode_time(1) <= costs.decode_time(6)


def test_the_engine_measures_the_steps_that_it_runs(bench: Bench):
    bench.engine.executor.costs = costs = MeasuredCosts(8)
    for id in ("first", "second"):
        bench.add(generate(id, [i % 70 for i in range(90)], 6, read=False))
        bench.finish()
    assert costs.prefill_within(1e6, 1) < math.inf
    assert costs.rates != MeasuredCosts(8).rates


NO_CLOCK = {
    "__future__",
    "array",
    "bisect",
    "collections",
    "dataclasses",
    "engine",
    "heapq",
    "itertools",
    "math",
    "operator",
    "prompt_cache",
    "protocol",
    "typing",
}


def test_the_core_has_no_clock_no_chance_and_no_input_or_output():
    """What it decides follows from what it was told, so that a simulator and hypothesis can drive it."""
    folder = Path(engine.scheduling.__path__[0])
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in {"open", "print", "input"}, path.name
            for name in names:
                assert name.split(".")[0] in NO_CLOCK, f"{path.name} imports {name}"
                inside = name.startswith(("engine.scheduling", "engine.sampling")) or name == "engine.grammar.guide"
                assert inside or name.split(".")[0] != "engine", f"{path.name} imports {name}"
