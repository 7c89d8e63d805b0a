"""Fairness of scheduling policies side by side, in simulation: service, time to the first token, cache hits.

The real policy classes drive the real scheduler and block pool; only the model is missing: a step takes what fixed
rates say. Engine time is the unit of service. max_gap is the largest difference in service, over any interval, between
two flows of one lane that both had requests waiting throughout; jain is Jain's index of what such flows got.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks.fairness_policies import POLICIES
from benchmarks.fairness_scenarios import GENERATED, Scenario, read_trace
from benchmarks.fairness_simulator import Outcome, simulate
from engine.scheduling.fair_share import LOCALITY
from engine.scheduling.lanes import LANES

OURS = "turnpike"


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


def judge(scenario: Scenario, outcomes: dict[str, Outcome], policies: dict[str, Any]) -> dict[str, Any]:
    """Our policy against the bar in one scenario: each figure, what it is held against, and whether it is met."""
    ours, others = policies[OURS], {name: found for name, found in policies.items() if name != OURS}
    quantum = LOCALITY / 1e6
    most = max(outcomes[OURS].most, outcomes["vtc"].most)
    replicas = scenario.replicas
    constant = 2 * (replicas * scenario.running * most + quantum + (replicas - 1) * 1.0)
    first = ours["p99_ttft"].get("interactive", 0.0)
    best_first = min(found["p99_ttft"].get("interactive", 0.0) for found in others.values())
    best_hits = max(found["hit_share"] for found in others.values())
    return {
        "gap_beside_vtc": _bar(ours["max_gap"], others["vtc"]["max_gap"] + 2 * quantum, at_most=True),
        "gap_below_constant": _bar(ours["max_gap"], constant, at_most=True),
        "interactive_p99": _bar(first, best_first, at_most=True),
        "hit_share": _bar(ours["hit_share"], best_hits * 0.97, at_most=False),
    }


def _bar(value: float, bar: float, *, at_most: bool) -> dict[str, Any]:
    return {"value": value, "bar": round(bar, 4), "met": value <= bar if at_most else value >= bar}


def table(name: str, policies: dict[str, Any]) -> str:
    """The figures of a scenario for a reader."""
    lines = [f"\n{name}", f"  {'policy':16} {'jain':>6} {'max gap':>9} {'hits':>7}  p99 TTFT: " + " / ".join(LANES)]
    for policy, found in policies.items():
        ttft = " / ".join(f"{found['p99_ttft'][lane]:.2f}" if lane in found["p99_ttft"] else "-" for lane in LANES)
        lines.append(f"  {policy:16} {found['jain']:6.3f} {found['max_gap']:8.2f}s {found['hit_share']:7.2%}  {ttft} s")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fairness", description=__doc__)
    parser.add_argument("--trace", type=Path, help="a trace in Mooncake's format, beside the generated scenarios")
    parser.add_argument("--requests", type=int, default=1500, help="how many of the trace's first requests to take")
    parser.add_argument("--speed", type=float, default=1.0, help="how much faster the trace's requests come")
    parser.add_argument("--seconds", type=float, default=120, help="how long the generated scenarios are")
    parser.add_argument("--only", help="only the scenarios whose name contains this")
    parser.add_argument("--json", type=Path, help="write the figures here too")
    options = parser.parse_args(arguments)
    scenarios = [make(options.seconds) for make in GENERATED]
    if options.trace:
        scenarios[-1] = read_trace(options.trace, options.requests, options.speed)
    scenarios = [scenario for scenario in scenarios if (options.only or "") in scenario.name]
    every: dict[str, list[Outcome]] = {name: [] for name in POLICIES}
    report: dict[str, Any] = {"benchmark": "fairness", "scenarios": {}}
    for scenario in scenarios:
        outcomes = {}
        for name, make in POLICIES.items():
            began = time.perf_counter()
            outcomes[name] = simulate(scenario, make)
            every[name].append(outcomes[name])
            took = time.perf_counter() - began
            print(f"{scenario.name}: {name}: {len(scenario.arrivals)} requests in {took:.1f} s", file=sys.stderr)
        policies = {name: figures([outcome]) for name, outcome in outcomes.items()}
        bars = judge(scenario, outcomes, policies)
        report["scenarios"][scenario.name] = {"policies": policies, "bars": bars}
        print(table(f"{scenario.name} ({len(scenario.arrivals)} requests)", policies))
        for bar, found in bars.items():
            print(f"  {'met ' if found['met'] else 'MISSED'} {bar}: {found['value']} against {found['bar']}")
    report["policies"] = {name: figures(outcomes_) for name, outcomes_ in every.items()}
    print(table("all", report["policies"]))
    if options.json:
        options.json.write_text(json.dumps(report, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
