"""`turnpike calibrate`, as an operator types it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from engine.speculation.verify_costs import VerifyCosts
from prompt_cache.placement.fetch_or_recompute import ComputeRate
from prompt_cache.tiers.disk_calibration import read_disk_rate
from turnpike import cli, logs
from turnpike.processes import machine_rates


@pytest.fixture(autouse=True)
def quick(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TURNPIKE_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setattr(logs, "configure", lambda *_: None)  # of this process, which is the tests'
    monkeypatch.setattr(machine_rates, "_READ_S", 0.05)
    monkeypatch.setattr(machine_rates, "_FILE_BYTES", 16 << 20)
    monkeypatch.setattr(machine_rates, "_PROMPTS", (64, 192))


def test_the_machine_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    second = tmp_path / "data" / "replica-1"  # as `serve` makes it for a second model
    second.mkdir(parents=True)
    assert cli.main(["calibrate", "--no-model", "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["disk_bytes_per_s"].keys() == {"1", "8", "32"}
    assert min(figures["disk_bytes_per_s"].values()) > 0
    assert figures["memory_bytes_per_s"] > figures["disk_fixed_us"]
    assert figures["models"] == []
    files = [path for path in (tmp_path / "data").rglob("*") if path.is_file()]
    assert {path.name for path in files} == {"calibration.json"}, "what it wrote beside is gone"
    rate = read_disk_rate(tmp_path / "data" / "calibration.json", tmp_path / "data" / "kv")
    assert rate is not None
    assert read_disk_rate(second / "calibration.json", second / "kv") == rate
    assert 0 < rate.bytes_per_s < max(figures["disk_bytes_per_s"].values()), "what is read is also opened"
    assert rate.fixed_s == pytest.approx(figures["disk_fixed_us"] / 1e6, abs=1e-7)
    assert (tmp_path / "data" / "calibration.json").stat().st_mode & 0o77 == 0


def test_of_another_disk_nothing_is_kept(tmp_path: Path) -> None:
    assert cli.main(["calibrate", "--no-model", "--folder", str(tmp_path)]) == 0
    assert not (tmp_path / "data").exists()


def test_a_folder_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["calibrate", "--no-model", "--folder", str(tmp_path / "nope")]) == 2
    assert "there is no folder" in capsys.readouterr().err
    assert not (tmp_path / "nope").exists()


def test_prompts_stop_at_the_context(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def compute(model: Path, device: str, attention: str) -> machine_rates.ModelRates:
        return machine_rates.ModelRates("short", ComputeRate(1e-9), 16, 4096, context_tokens=4000)

    monkeypatch.setattr(machine_rates, "compute", compute)
    assert cli.main(["calibrate", "--json"]) == 0
    (model,) = json.loads(capsys.readouterr().out)["models"]
    assert list(model["prefill_tokens_per_s"]) == list(model["needed_bytes_per_s"]) == ["512", "2048", "4000"]


@pytest.mark.slow
def test_with_the_demo_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["calibrate", "--device", "cpu"]) == 0
    out = capsys.readouterr().out
    assert "stdlib-qa" in out
    assert "Fetching from nvme" in out


def test_a_full_disk_is_said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(machine_rates, "_FREE_PARTS", 1 << 60)
    assert cli.main(["calibrate", "--no-model"]) == 2
    assert "too little room" in capsys.readouterr().err


def test_what_steps_with_drafts_take(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    costs = VerifyCosts({64: {1: 1000.0, 4: 1000.0, 8: 2000.0}, 1024: {1: 2000.0, 4: 2000.0, 8: 4000.0}})
    rates = machine_rates.ModelRates("short", ComputeRate(1e-9), 16, 4096, 4000, costs)
    monkeypatch.setattr(machine_rates, "compute", lambda model, device, attention: rates)
    assert cli.main(["calibrate", "--json"]) == 0
    (model,) = json.loads(capsys.readouterr().out)["models"]
    assert model["speculation"]["step_us"]["64"] == {"1": 1000, "4": 1000, "8": 2000}
    assert model["speculation"]["break_even"]["1"]["3"] == 0.0
    assert 0.4 < model["speculation"]["break_even"]["1"]["7"] < 0.6
    assert cli.main(["calibrate"]) == 0
    assert "ms at 1024 tokens of KV" in capsys.readouterr().out


def test_why_nothing_is_drafted(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    rates = machine_rates.ModelRates("short", ComputeRate(1e-9), 16, 4096, 4000, None, "the device cannot")
    monkeypatch.setattr(machine_rates, "compute", lambda model, device, attention: rates)
    assert cli.main(["calibrate"]) == 0
    assert "Nothing is drafted: the device cannot." in capsys.readouterr().out


def test_what_computes_attention_where_it_is_fast(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = []

    def compute(model: Path, device: str, attention: str) -> machine_rates.ModelRates:
        asked.append(attention)
        libraries = ("cudnn", "torch") if attention == "fast" else ()
        return machine_rates.ModelRates("short", ComputeRate(1e-9), 16, 4096, 4000, None, "no", libraries)

    monkeypatch.setattr(machine_rates, "compute", compute)
    assert cli.main(["calibrate"]) == 0
    assert "Attention is fast" not in capsys.readouterr().out
    monkeypatch.setenv("TURNPIKE_ATTENTION", "fast")
    assert cli.main(["calibrate"]) == 0
    assert "Attention is fast, by cudnn and torch." in capsys.readouterr().out
    assert asked == ["exact", "fast"]
