"""Each alert fires and clears in promtool, and has a part in the runbooks."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.prometheus import ROOT, RULES, promtool

ALERTS = {rule["alert"]: rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]}
_R = 'replica="r",model="m",instance="g"'

# Values are a sample a minute. It fires at `fires` minutes and has cleared at `clears`.
CASES: dict[str, tuple[dict[str, str], int, int]] = {
    "TurnpikeNothingScraped": ({"turnpike_build_info": "_x9 1x30"}, 8, 20),
    "TurnpikeDatabaseAway": ({"turnpike_database_up": "1 0x9 1x30"}, 8, 20),
    "TurnpikeBusAway": ({"turnpike_bus_up": "1 0x9 1x30"}, 9, 20),
    "TurnpikeErrors": (
        {
            'turnpike_requests_total{status="500"}': "0+10x30 300x120",
            'turnpike_requests_total{status="200"}': "0+100x150",
        },
        25,
        60,
    ),
    "TurnpikeGenerationsFail": (
        {
            'turnpike_generations_total{lane="batch",status="failed"}': "0+10x30 300x90",
            'turnpike_generations_total{lane="batch",status="ok"}': "0+100x120",
        },
        28,
        80,
    ),
    "TurnpikeFirstTokenLate": (
        {
            'turnpike_time_to_first_token_seconds_bucket{lane="interactive",le="2.5"}': "0+50x30 1500+100x120",
            'turnpike_time_to_first_token_seconds_count{lane="interactive"}': "0+100x150",
            'turnpike_time_to_first_token_seconds_bucket{lane="standard",le="10.0"}': "0+100x150",
            'turnpike_time_to_first_token_seconds_count{lane="standard"}': "0+100x150",
        },
        25,
        60,
    ),
    "TurnpikeReplicaDown": ({f"turnpike_replica_healthy{{{_R}}}": "1 0x9 1x30"}, 8, 20),
    "TurnpikeReplicaStopped": (
        {
            f"turnpike_replica_running{{{_R}}}": "1x60",
            f"turnpike_replica_waiting{{{_R}}}": "0x60",
            f"turnpike_replica_steps_total{{{_R}}}": "0+10x5 50x15 60+10x30",
        },
        15,
        40,
    ),
    "TurnpikeSpoolWaits": ({'turnpike_spool_lag_seconds{instance="g"}': "0 90x9 0x30"}, 8, 20),
    "TurnpikeSpoolDamaged": ({'turnpike_spool_corrupt{instance="g"}': "0 1x9 0x30"}, 5, 20),
    "TurnpikeUsageRefused": ({'turnpike_refused_records{instance="g"}': "0 1x9 0x30"}, 5, 20),
    "TurnpikeJournalWaits": ({f"turnpike_engine_journal_unacknowledged{{{_R}}}": "0 3x40 0x30"}, 30, 60),
    "TurnpikeJournalDamaged": ({f"turnpike_engine_journal_damaged_records{{{_R}}}": "0 3x9 0x30"}, 5, 20),
    "TurnpikeHoldOld": ({"turnpike_oldest_hold_seconds": "0 4000x20 0x30"}, 15, 40),
    "TurnpikeDiskFull": ({'turnpike_disk_full{instance="g"}': "0 1x9 0x30"}, 5, 20),
    "TurnpikeEngineDiskFull": ({f"turnpike_engine_disk_full{{{_R}}}": "0 1x9 0x30"}, 5, 20),
    "TurnpikeDiskFilling": (
        {'turnpike_disk_free_bytes{instance="g"}': "5000000000-40000000x100 9000000000x100"},
        90,
        180,
    ),
    "TurnpikeCacheDamaged": ({f"turnpike_engine_dram_blocks_damaged_total{{{_R}}}": "0x5 3x60"}, 8, 40),
    "TurnpikeNumericsDiffer": (
        {'turnpike_continuations_total{numerics="other",model="m",reason="lost"}': "0x5 3x120"},
        10,
        100,
    ),
    "TurnpikeLimitsDegraded": ({"turnpike_limits_degraded": "0 1x9 0x30"}, 9, 20),
    "TurnpikeTracesDropped": (
        {'turnpike_traced_requests_total{outcome="dropped",instance="g"}': "0+5x40 200x60"},
        35,
        80,
    ),
}


def test_every_alert_has_a_case_and_a_runbook() -> None:
    assert CASES.keys() == ALERTS.keys()
    runbooks = (ROOT / "docs" / "runbooks.md").read_text()
    headings = set(re.findall(r"^## (\w+)$", runbooks, re.M))
    assert headings == ALERTS.keys()
    for name, rule in ALERTS.items():
        assert rule["annotations"]["runbook"] == f"docs/runbooks.md#{name.lower()}"
        assert rule["labels"]["severity"] in ("page", "ticket")
        assert len(runbooks.partition(f"## {name}\n")[2].partition("\n## ")[0].strip()) > 60, name


def test_the_rules_are_well_formed() -> None:
    checked = promtool("check", "rules", str(RULES))
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.parametrize("name", sorted(ALERTS))
def test_an_alert_fires_and_clears(tmp_path: Path, name: str) -> None:
    series, fires, clears = CASES[name]
    file = tmp_path / "rules_test.yml"
    for at, expected in ((fires, True), (clears, False)):
        labels = [{"exp_labels": {"severity": ALERTS[name]["labels"]["severity"]}}] if expected else []
        case: dict[str, Any] = {
            "rule_files": [str(RULES)],
            "evaluation_interval": "1m",
            "tests": [
                {
                    "interval": "1m",
                    "input_series": [{"series": one, "values": values} for one, values in series.items()],
                    "alert_rule_test": [{"eval_time": f"{at}m", "alertname": name, "exp_alerts": labels}],
                }
            ],
        }
        file.write_text(yaml.safe_dump(case))
        told = promtool("test", "rules", str(file))
        words = told.stdout + told.stderr
        if expected and told.returncode:  # promtool compares annotations too, whose words are not repeated here
            assert re.search(rf"got:\[\s*0:\s*Labels:.*alertname=\"{name}\"", words, re.S), words
        else:
            assert told.returncode == 0, words
