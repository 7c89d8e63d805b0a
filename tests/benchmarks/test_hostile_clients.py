"""The benchmark of hostile clients: a real gateway, real sockets, and a report of every kind that was asked for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.hostile_clients import main


@pytest.mark.slow
def test_the_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out.json"
    status = main(["--seconds", "1", "--only", "after 401", "--json", str(out)])
    report = json.loads(out.read_text())
    assert set(report["clients"]) == {"body after 401", "one-byte chunks after 401"}
    for found in report["clients"].values():
        assert found["requests"] > 0
        assert 0 < found["p50_s"] <= found["p99_s"] <= found["max_s"]
        assert found["opened"] >= 8
    assert status == int(bool(report["missed"])), "how fast it was is not this test's affair"
    assert "one-byte chunks after 401" in capsys.readouterr().out
