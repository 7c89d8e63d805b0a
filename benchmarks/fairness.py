"""Fairness of scheduling policies in simulation: service, time to the first token, cache hits.

The real policies drive the real scheduler and block pool. Only the model is missing: fixed rates say how long a step
takes. The unit of service is engine time.

- `max_gap`: the largest difference in service, over any interval, between two flows of one lane that both had requests
  waiting throughout.
- `jain`: Jain's fairness index of the service of such flows.
- `p99_ttft`: seconds to the first token, by lane.
- `hit_share`: share of prompt tokens that were read from memory.

In `long_streams`, bars hold for a short request's slowest first token and for how long all of the work takes.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import defaultdict
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.fairness_policies import POLICIES
from benchmarks.fairness_scenarios import GENERATED, Scenario
from benchmarks.fairness_simulator import Outcome, simulate
from benchmarks.fairness_traces import TraceError, read_trace
from engine.scheduling.fairness.fair_share import LOCALITY_QUANTUM_US
from engine.scheduling.fairness.lanes import LANE_WEIGHTS
from protocol.requests import LANES

OURS = "turnpike"
FIRST_TOKEN_S = 2.0
"""How long a short request may wait beside streams that want every slot."""
LOSS = 0.1
"""By which part the work of a scenario with such streams may take longer than first come, first served."""
WINDOW = 30.0
"""Seconds over which the worst of a lane's demand is looked for."""


def percentile(values: list[float], percent: float) -> float:
    """The smallest value that so many percent do not exceed; 0 of none."""
    return sorted(values)[min(len(values) - 1, int(len(values) * percent / 100))] if values else 0.0


def figures(outcomes: Iterable[Outcome]) -> dict[str, Any]:
    """What one policy came to, over one or several scenarios."""
    outcomes = list(outcomes)
    ttft = {lane: [t for outcome in outcomes for t in outcome.ttft.get(lane, [])] for lane in LANES}
    tokens = sum(outcome.read + outcome.computed for outcome in outcomes)
    return {
        "jain": round(sum(outcome.jain for outcome in outcomes) / len(outcomes), 4),
        "max_gap": round(max(outcome.gap for outcome in outcomes), 3),
        "p99_ttft": {lane: round(percentile(values, 99), 3) for lane, values in ttft.items() if values},
        "hit_share": round(sum(outcome.read for outcome in outcomes) / tokens, 4) if tokens else 0.0,
        "preemptions": sum(outcome.preemptions for outcome in outcomes),
    }


def demand(scenario: Scenario, outcome: Outcome) -> dict[str, Any]:
    """What each lane asked for, as a share of the engine time while requests came, beside what it is promised.

    `offered`: over the whole time, hits of our policy taken off. `busiest`: in the worst `WINDOW` seconds. `largest`:
    which part of it one tenant asked for; `tenants`: how many there were. A lane that asks for more than its promise
    gets less from shares by weight than from strict priority, and so does a tenant that asks for more than its part.
    """
    found: dict[str, Any] = {}
    there = max(1.0, scenario.arrivals[-1].at) * scenario.replicas
    for lane in LANES:
        flows = {flow: asked for (of, flow), asked in outcome.asked.items() if of == lane}
        if not flows:
            continue
        totals = [sum(cost for _, cost in asked) for asked in flows.values()]
        windows: dict[int, float] = defaultdict(float)
        for asked in flows.values():
            for at, cost in asked:
                windows[int(at // WINDOW)] += cost
        found[lane] = {
            "offered": round(sum(totals) / there, 3),
            "busiest": round(max(windows.values()) / (min(WINDOW, there / scenario.replicas) * scenario.replicas), 3),
            "promised": round(LANE_WEIGHTS[lane] / sum(LANE_WEIGHTS.values()), 3),
            "largest": round(max(totals) / sum(totals), 3),
            "tenants": len(flows),
        }
    return found


def judge(scenario: Scenario, outcomes: dict[str, Outcome], policies: dict[str, Any]) -> dict[str, Any]:
    """Our policy against the bar in one scenario: each figure, what it is held against, and whether it is met."""
    ours, others = policies[OURS], {name: found for name, found in policies.items() if name != OURS}
    quantum = LOCALITY_QUANTUM_US / 1e6
    most = max(outcomes[OURS].most, outcomes["vtc"].most)
    replicas = scenario.replicas
    constant = 2 * (replicas * scenario.running * most + quantum + (replicas - 1) * 1.0)
    first = ours["p99_ttft"].get("interactive", 0.0)
    best_first = min(found["p99_ttft"].get("interactive", 0.0) for found in others.values())
    best_hits = max(found["hit_share"] for found in others.values())
    bars = {
        "gap_beside_vtc": _bar(ours["max_gap"], others["vtc"]["max_gap"] + 2 * quantum, at_most=True),
        "gap_below_constant": _bar(ours["max_gap"], constant, at_most=True),
        "interactive_p99": _bar(first, best_first, at_most=True),
        "hit_share": _bar(ours["hit_share"], best_hits * 0.97, at_most=False),
    }
    if scenario.short:
        slowest = max(outcomes[OURS].by_flow["standard", scenario.short])
        bars["slowest_first_token"] = _bar(round(slowest, 3), FIRST_TOKEN_S, at_most=True)
        bars["time_beside_fcfs"] = _bar(
            round(outcomes[OURS].ended, 1), outcomes["fcfs"].ended * (1 + LOSS), at_most=True
        )
    if not bars["interactive_p99"]["met"]:
        bars["interactive_p99"]["note"] = "; ".join(
            _price(name, found, ours)
            for name, found in others.items()
            if found["p99_ttft"].get("interactive", 0.0) < first
        )
    return bars


def _price(name: str, found: dict[str, Any], ours: dict[str, Any]) -> str:
    """By how much a policy is better for interactive requests, and what the others pay for it."""
    theirs, own = found["p99_ttft"], ours["p99_ttft"]
    lanes = [f"{lane} p99 {theirs[lane]} s against {own[lane]} s" for lane in LANES[1:] if lane in theirs]
    return (
        f"{name} is {own['interactive'] - theirs['interactive']:.3f} s better, at a largest gap between tenants of"
        f" {found['max_gap']} s against {ours['max_gap']} s" + "".join(f", {lane}" for lane in lanes)
    )


def _bar(value: float, bar: float, *, at_most: bool) -> dict[str, Any]:
    return {"value": value, "bar": round(bar, 4), "met": value <= bar if at_most else value >= bar}


def demand_lines(found: dict[str, Any]) -> str:
    """What the lanes asked for, for a reader."""
    return "\n".join(
        f"  {lane:11} asked for {each['offered']:.2f} of the engine time, {each['busiest']:.2f} in the worst"
        f" {WINDOW:.0f} s, promised are {each['promised']:.2f};"
        f" the largest of {each['tenants']} tenants asked for {each['largest']:.0%} of it"
        for lane, each in found.items()
    )


def table(name: str, policies: dict[str, Any]) -> str:
    """The figures of a scenario for a reader."""
    lines = [f"\n{name}", f"  {'policy':16} {'jain':>6} {'max gap':>9} {'hits':>7}  p99 TTFT: " + " / ".join(LANES)]
    for policy, found in policies.items():
        ttft = " / ".join(f"{found['p99_ttft'][lane]:.2f}" if lane in found["p99_ttft"] else "-" for lane in LANES)
        lines.append(f"  {policy:16} {found['jain']:6.3f} {found['max_gap']:8.2f}s {found['hit_share']:7.2%}  {ttft} s")
    return "\n".join(lines)


def seeds(text: str) -> list[int]:
    """`3`, `1,5` or `1-10`, or several of these with commas."""
    found: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="python -m benchmarks.fairness", description=__doc__)
    made.add_argument("--trace", type=Path, help="a recorded trace: JSON lines or CSV (benchmarks/fairness_traces.py)")
    made.add_argument("--requests", type=int, default=1500, help="how many of the trace's first requests to take")
    made.add_argument("--speed", type=float, default=1.0, help="how much faster the trace's requests come")
    made.add_argument("--seconds", type=float, default=120, help="how long the generated scenarios are")
    made.add_argument("--seeds", type=seeds, help="make each generated scenario with each of these, such as 1-10")
    made.add_argument("--only", default="", help="only the scenarios whose name contains this")
    made.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="simulations at a time")
    made.add_argument("--json", type=Path, help="write the figures here too")
    return made


def wanted(options: argparse.Namespace) -> list[Scenario]:
    """The scenarios that were asked for. Raises TraceError."""
    made = [read_trace(options.trace, options.requests, options.speed)] if options.trace else []
    # A trace takes the place of the conversations that stand in for it.
    for make in GENERATED[:-1] if options.trace else GENERATED:
        if options.seeds is None:
            made.append(make(options.seconds))
        else:
            of_seeds = [(seed, make(options.seconds, seed)) for seed in options.seeds]
            made += [replace(scenario, name=f"{scenario.name} seed {seed}") for seed, scenario in of_seeds]
    return [scenario for scenario in made if options.only in scenario.name]


def run(scenario: Scenario, policy: str) -> tuple[Outcome, float]:
    """One simulation, and how many seconds it took."""
    began = time.perf_counter()
    return simulate(scenario, POLICIES[policy]), time.perf_counter() - began


def main(arguments: list[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    began = time.perf_counter()
    try:
        scenarios = wanted(options)
    except TraceError as error:
        print(f"fairness: {error}", file=sys.stderr)
        return 2
    if not scenarios:
        print(f"fairness: only: no scenario's name contains {options.only!r}", file=sys.stderr)
        return 2
    every: dict[str, list[Outcome]] = {name: [] for name in POLICIES}
    report: dict[str, Any] = {"benchmark": "fairness", "scenarios": {}}
    missed, done, count, bar_count = [], 0, len(scenarios) * len(POLICIES), 0
    with ProcessPoolExecutor(options.jobs) as pool:
        running = [{name: pool.submit(run, scenario, name) for name in POLICIES} for scenario in scenarios]
        for scenario, futures in zip(scenarios, running, strict=True):
            outcomes = {}
            for name, future in futures.items():
                outcomes[name], took = future.result()
                every[name].append(outcomes[name])
                done += 1
                what = f"{scenario.name}: {name}: {len(scenario.arrivals)} requests in {took:.1f} s"
                print(f"[{done}/{count}, {time.perf_counter() - began:.0f} s] {what}", file=sys.stderr, flush=True)
            policies = {name: figures([outcome]) for name, outcome in outcomes.items()}
            bars = judge(scenario, outcomes, policies)
            asked = demand(scenario, outcomes[OURS])
            report["scenarios"][scenario.name] = {"policies": policies, "bars": bars, "demand": asked}
            print(table(f"{scenario.name} ({len(scenario.arrivals)} requests)", policies))
            print(demand_lines(asked))
            bar_count += len(bars)
            for bar, found in bars.items():
                print(f"  {'met ' if found['met'] else 'MISSED'} {bar}: {found['value']} against {found['bar']}")
                if "note" in found:
                    print(f"         ({found['note']})")
                if not found["met"]:
                    missed.append(f"{scenario.name}: {bar}")
    report["policies"] = {name: figures(outcomes_) for name, outcomes_ in every.items()}
    report["verdict"] = {"met": not missed, "missed": missed}
    report["seconds"] = round(time.perf_counter() - began, 1)
    print(table("all", report["policies"]))
    print(f"\n{bar_count - len(missed)} of {bar_count} bars met, in {report['seconds']:.0f} s")
    if options.json:
        options.json.write_text(json.dumps(report, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
