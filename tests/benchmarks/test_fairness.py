"""The fairness benchmark: every policy serves everybody, and ours meets its bar on a short run of each scenario."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.fairness import figures, judge, main
from benchmarks.fairness_policies import POLICIES
from benchmarks.fairness_scenarios import GENERATED
from benchmarks.fairness_simulator import simulate
from benchmarks.fairness_traces import LONGEST, TraceError, read_trace


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
    assert main(["--seconds", "40", "--only", "on_off", "--seeds", "1", "--json", str(out)]) == 0
    report = json.loads(out.read_text())
    assert set(report["policies"]) == set(POLICIES)
    for found in report["policies"].values():
        assert set(found) >= {"jain", "max_gap", "p99_ttft", "hit_share"}
    of_scenario = report["scenarios"]["on_off seed 1"]
    assert set(of_scenario["policies"]) == set(POLICIES)
    assert all(bar["met"] for bar in of_scenario["bars"].values()), of_scenario["bars"]
    assert report["verdict"] == {"met": True, "missed": []}
    assert report["seconds"] > 0
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


@pytest.mark.slow
def test_a_missed_bar_says_what_the_better_policy_costs_others():
    scenario = GENERATED[0](2)
    outcomes = {policy: simulate(scenario, POLICIES[policy]) for policy in POLICIES}
    policies = {policy: figures([outcome]) for policy, outcome in outcomes.items()}
    policies["strict_priority"]["p99_ttft"]["interactive"] = 0.0
    bar = judge(scenario, outcomes, policies)["interactive_p99"]
    assert not bar["met"]
    assert bar["note"].startswith("strict_priority is ")
    assert "batch p99" in bar["note"]


GOOD = {"timestamp": 5000, "input_length": 600, "output_length": 5, "hash_ids": [1, 2]}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "is not JSON"),
        ("[1]", "is not a JSON object"),
        (json.dumps({**GOOD, "timestamp": "noon"}), "timestamp: 'noon' is not a number"),
        (json.dumps({name: GOOD[name] for name in GOOD if name != "input_length"}), "input_length: is missing"),
        (json.dumps({**GOOD, "output_length": -1}), "output_length: -1 is not a whole number"),
        (json.dumps({**GOOD, "input_length": LONGEST + 1}), f"from 0 to {LONGEST}"),
        (json.dumps({**GOOD, "hash_ids": "1,2"}), "hash_ids: is not a list"),
        (json.dumps({**GOOD, "hash_ids": [1]}), "hash_ids: 1 of 512 tokens are fewer than input_length 600"),
        (json.dumps({**GOOD, "lane": "express"}), "lane: 'express' is none of interactive"),
    ],
)
def test_a_bad_trace_names_line_and_field(line: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    trace = tmp_path / "trace.jsonl"
    trace.write_text(json.dumps(GOOD) + "\n\n" + line + "\n")
    with pytest.raises(TraceError) as raised:
        read_trace(trace, 10)
    assert str(raised.value).startswith(f"{trace}:3: ")
    assert message in str(raised.value)
    assert main(["--trace", str(trace)]) == 2
    assert message in capsys.readouterr().err


def test_traces_of_other_makers(tmp_path: Path):
    azure, burst, own = tmp_path / "azure.csv", tmp_path / "burst.csv", tmp_path / "own.jsonl"
    azure.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:05.1234567,700,3\n2023-11-16 18:17:03.0,64,9\n"
    )
    burst.write_text(
        "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n7,GPT-4,700,3,703,API log\n"
    )
    own.write_text(json.dumps({**GOOD, "tenant": "acme", "lane": "batch"}))
    first, second = read_trace(azure, 10, speed=2.0).arrivals
    assert (first.at, first.prompt, first.output) == (0.0, 64, 9)
    assert second.at == pytest.approx(2.1234567 / 2, abs=1e-6)
    assert not set(first.hashes) & set(second.hashes)
    assert read_trace(burst, 10).arrivals[0].prompt == 700
    assert [(arrival.flow, arrival.lane) for arrival in read_trace(own, 10).arrivals] == [("acme", "batch")]
    for text, message in (("a,b\n", ":1: has none"), ("Timestamp,Model\n", ":1: Request tokens: there is no")):
        azure.write_text(text)
        with pytest.raises(TraceError, match=message):
            read_trace(azure, 10)
    azure.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n")
    with pytest.raises(TraceError, match="no requests"):
        read_trace(azure, 10)
    with pytest.raises(TraceError, match="cannot be read"):
        read_trace(tmp_path / "none.jsonl", 10)
