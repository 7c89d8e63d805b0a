"""What trials at an earlier start found is not tried again, unless something that decides it differs."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine.layers import matmul_kernels
from engine.startup import kept_trials, self_test
from engine.startup.assembly import assemble
from engine.startup.kept_trials import KeptTrials
from engine.startup.options import ReplicaOptions
from tests.machines import become


class Starts:
    """Starts of a replica, each as in a process of its own."""

    def __init__(self, options: ReplicaOptions, monkeypatch: pytest.MonkeyPatch) -> None:
        self.options = options
        self._trials = {"product": 0, "self-test": 0}
        monkeypatch.setattr(matmul_kernels, "_known", {})
        for module, name, kind in (
            (matmul_kernels, "_try", "product"),
            (self_test, "_first_fallback", "self-test"),
        ):
            monkeypatch.setattr(module, name, self._counted(getattr(module, name), kind))

    def _counted(self, own: Callable[..., Any], kind: str) -> Callable[..., Any]:
        def counted(*arguments: object) -> object:
            self._trials[kind] += 1
            return own(*arguments)

        return counted

    def start(self, **changed: Any) -> tuple[bool, bool, tuple[object, ...]]:
        """Whether a start tried products, whether it ran the self-test, and how its runner then computes."""
        matmul_kernels._known.clear()
        kept_trials._machine_id.cache_clear()
        self._trials.update(dict.fromkeys(self._trials, 0))
        runner = assemble(replace(self.options, **changed)).engine.executor.runner
        tiling = runner.tiling
        setup = tiling.row_multiple, tiling.least, tiling.row_tile, runner.fused_attention, runner.prefill_tile
        return self._trials["product"] > 0, self._trials["self-test"] > 0, (*setup, runner.threads.counts)


@pytest.fixture
def starts(tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Starts]:
    file = tmp_path / "kernel-trials.json"
    yield Starts(
        ReplicaOptions(tiny_model, "unix:x", tmp_path, "r", b"", device="cpu", kv_memory=1 << 20, trials=file),
        monkeypatch,
    )
    kept_trials._machine_id.cache_clear()  # of an environment that a test has changed


@pytest.mark.parametrize("machine", ["here", "two rows differ", "fused attention differs", "no product serves"])
def test_a_second_start_computes_as_the_first_and_tries_nothing(
    starts: Starts, machine: str, monkeypatch: pytest.MonkeyPatch
):
    become(machine, monkeypatch)
    first = starts.start()
    assert first[:2] == (True, True)
    assert starts.start() == (False, False, first[2])


def test_what_decides_the_trials_has_them_run_again(starts: Starts, monkeypatch: pytest.MonkeyPatch):
    first = starts.start()
    # Other sizes and another type of KV: the kernels are the same.
    assert starts.start(max_running=32)[:2] == (False, True)
    assert starts.start(context=128)[:2] == (False, True)
    assert starts.start() == (False, False, first[2]), "what was tested before is still known"
    # Another machine, or what makes the libraries choose otherwise.
    with monkeypatch.context() as patch:
        other = "SSE41" if os.environ.get("ONEDNN_MAX_CPU_ISA") == "AVX2" else "AVX2"
        patch.setenv("ONEDNN_MAX_CPU_ISA", other)
        assert starts.start()[:2] == (True, True)
    assert starts.start()[:2] == (True, True), "the file is of one machine, the last"
    with monkeypatch.context() as patch:
        patch.setattr(kept_trials, "_processor", lambda: ["another microcode"])
        assert starts.start()[:2] == (True, True)


def test_without_a_file_nothing_is_kept(starts: Starts):
    for _ in range(2):
        assert starts.start(trials=None)[:2] == (True, True)


def test_what_does_not_hold_is_not_kept(starts: Starts, monkeypatch: pytest.MonkeyPatch):
    with monkeypatch.context() as patch:
        patch.setattr(self_test, "_layers_are_invariant", lambda *_: False)
        starts.start()
    assert starts.start()[1]


DAMAGED: dict[str, Callable[[dict[str, object]], bytes]] = {
    "empty": lambda _: b"",
    "no text": lambda _: b"\xff" * 99,
    "too long": lambda _: b" " * (2 << 20),
    "no such number": lambda kept: json.dumps({**kept, "least_rows": {"onednn 64 64": 9}}).encode(),
    "no such kernel": lambda kept: json.dumps({**kept, "least_rows": {"multiply 64 64": 1}}).encode(),
    "no sizes": lambda kept: json.dumps({**kept, "least_rows": {"onednn": 1}}).encode(),
    "another machine": lambda kept: json.dumps({**kept, "machine": "another"}).encode(),
}


def test_a_damaged_file_is_left_aside(starts: Starts):
    file = starts.options.trials
    assert file is not None
    first = starts.start()
    for what, damage in DAMAGED.items():
        file.write_bytes(damage(json.loads(file.read_text())))
        assert starts.start() == first, what
        assert starts.start()[:2] == (False, False), f"{what}: it was written anew"


def test_a_file_that_cannot_be_written_costs_nothing_else(starts: Starts, tmp_path: Path):
    assert starts.start(trials=tmp_path / "no folder" / "file")[:2] == (True, True)


def test_the_file_stays_small(tmp_path: Path):
    trials = KeptTrials(tmp_path / "file")
    for number in range(20):
        trials.keep(f"sizes {number}", number % 3)
    again = KeptTrials(tmp_path / "file")
    assert [again.fallback(f"sizes {number}") for number in (3, 4, 19)] == [None, 1, 1]
