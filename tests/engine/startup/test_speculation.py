"""Whether a replica speculates, and what it measures for that at start."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from engine.execution.model_runner import ModelRunner, Sizes
from engine.layers import self_attention
from engine.speculation.speculator import MOST_DRAFTS
from engine.startup.self_test import verifies_exactly
from engine.startup.speculation import make_speculation, measure_verification
from tests.engine.conftest import Bench, generate, make_bench

SIZES = Sizes(running=8, budget=128, context=512, blocks=(64,))
NAMES = ("grammar", "ngram", "suffix")


def runner_of(bench: Bench) -> ModelRunner:
    """The bench's runner, which tells the bench of no logits."""
    runner = bench.engine.executor.runner
    runner.on_logits = None
    return runner


def test_why_a_replica_does_not_speculate(tiny_model: Path) -> None:
    runner = runner_of(make_bench(tiny_model))
    assert make_speculation((), runner, SIZES, is_invariant=True).off == "setting"
    assert make_speculation(NAMES, runner, SIZES, is_invariant=False).off == "self_test"
    assert make_speculation(NAMES, runner, SIZES, is_invariant=True, exact=False).off == "attention"
    runner.most_drafts = 0  # as on a GPU
    speculation = make_speculation(NAMES, runner, SIZES, is_invariant=True)
    assert (speculation.off, list(speculation.drafters)) == ("device", [])


def test_a_replica_speculates_with_costs_that_were_measured(tiny_model: Path) -> None:
    bench = make_bench(tiny_model)
    speculation = make_speculation(NAMES, runner_of(bench), SIZES, is_invariant=True)
    assert speculation.off is None
    assert [drafter.name for drafter in speculation.drafters] == list(NAMES)
    assert speculation.costs is not None
    assert all(took > 0 for times in speculation.costs.shown().values() for _, took in times)
    expected = make_bench(tiny_model).one(generate("x", range(20), 12))
    assert bench.one(generate("x", range(20), 12)).tokens == expected.tokens, "what was measured left nothing behind"


def test_a_slow_machine_measures_a_few_shapes(tiny_model: Path) -> None:
    now = [0.0]

    def clock() -> float:
        now[0] += 1.0
        return now[0]

    costs = measure_verification(runner_of(make_bench(tiny_model)), SIZES, clock)
    assert costs.rows == [1, 8]
    assert len(costs.kv) == 2


def test_rows_that_depend_on_each_other_are_found(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runner = runner_of(make_bench(tiny_model))
    assert verifies_exactly(runner, 512, 1 + MOST_DRAFTS)
    forward = self_attention.SelfAttention.__call__

    def leaking(self, hidden, *rest, **named):  # type: ignore[no-untyped-def]
        out: torch.Tensor = forward(self, hidden, *rest, **named)
        return out + out[-1:] * 1e-3

    monkeypatch.setattr(self_attention.SelfAttention, "__call__", leaking)
    assert not verifies_exactly(runner, 512, 1 + MOST_DRAFTS)
