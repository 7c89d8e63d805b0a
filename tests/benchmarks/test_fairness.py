"""The fairness benchmark: every policy serves everybody, and ours meets its bar on a short run of each scenario."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.fairness import main
from benchmarks.fairness_policies import POLICIES
from benchmarks.fairness_scenarios import GENERATED, read_trace
from benchmarks.fairness_simulator import simulate


@pytest.mark.parametrize("policy", POLICIES)
def test_everybody_is_served_and_counted(policy: str):
    scenario = GENERATED[3](5)
    outcome = simulate(scenario, POLICIES[policy])
    kept = [arrival for arrival in scenario.arrivals if arrival.cancelled is None]
    assert len(kept) <= sum(map(len, outcome.ttft.values())) <= len(scenario.arrivals)
    assert outcome.computed >= sum(arrival.prompt for arrival in kept)


@pytest.mark.slow
def test_the_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    out = tmp_path / "out.json"
    assert main(["--seconds", "40", "--only", "on_off", "--json", str(out)]) == 0
    report = json.loads(out.read_text())
    assert set(report["policies"]) == set(POLICIES)
    for found in report["policies"].values():
        assert set(found) >= {"jain", "max_gap", "p99_ttft", "hit_share"}
    bars = report["scenarios"]["on_off"]["bars"]
    assert all(bar["met"] for bar in bars.values()), bars
    assert "turnpike" in capsys.readouterr().out


def test_a_recorded_trace(tmp_path: Path):
    trace = tmp_path / "trace.jsonl"
    lines = [
        {"timestamp": 100 * n, "input_length": 1200, "output_length": 5, "hash_ids": [0, 1 + n % 2, 9 + n]}
        for n in range(6)
    ]
    trace.write_text("\n".join(map(json.dumps, lines)))
    scenario = read_trace(trace, 5)
    assert len(scenario.arrivals) == 5
    outcome = simulate(scenario, POLICIES["turnpike"])
    assert outcome.read == 2 * 1024 + (5 - 2) * 1024 - 1024 - 1024 + 512
